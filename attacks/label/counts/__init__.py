"""Class counts that a classifier's gradient leaves possible, and that it confirms."""
