"""What an image would have been shared as, less what was: its numbers, their weights and their errors."""
