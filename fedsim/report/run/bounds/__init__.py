"""What stands beside the attacks: read, over the rounds of a run, and as a section of the page."""
