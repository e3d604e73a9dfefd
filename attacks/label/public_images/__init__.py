"""Labels by what public images tell of each class."""
