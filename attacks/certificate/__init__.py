"""One certificate for all attacks: the client's computation once more, and conditioning bounded from below."""
