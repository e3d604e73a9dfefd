"""What Masked Jigsaw Puzzle leaves of an image, for an attacker who knows of it."""
