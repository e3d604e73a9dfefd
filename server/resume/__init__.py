"""What a run needs to go on after a round as if nothing had happened."""
