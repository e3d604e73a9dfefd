"""The classifier's gradient as it was shared, and what it says of errors and features."""
