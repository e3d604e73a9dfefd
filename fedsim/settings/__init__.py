"""From settings to objects: what they name, whether it is there, and whether it fits."""
