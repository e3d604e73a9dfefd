"""At which step from a demonstration to training as people do it leakage ends."""
