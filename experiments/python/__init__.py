"""What the commands do, as functions of Python."""
