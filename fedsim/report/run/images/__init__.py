"""Different images, and what the attacks took of each."""
