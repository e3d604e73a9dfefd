"""What a search compares: the update of a candidate, its distance to the shared one, and the derivative of that."""
