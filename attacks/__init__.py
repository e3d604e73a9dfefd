"""From an Observation to a Reconstruction."""
