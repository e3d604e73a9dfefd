"""Options for the groups attack, defense, data and model."""
