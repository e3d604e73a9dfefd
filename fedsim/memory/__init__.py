"""What a process keeps in memory, and how much it needed at most."""
