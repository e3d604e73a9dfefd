"""What an iteration of gradient matching costs."""
