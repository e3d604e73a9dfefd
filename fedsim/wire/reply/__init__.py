"""What a client answered, before anything is made of it."""
