"""Local training and whole rounds: a bare torch loop, fedsim, pfl-research and Flower's engine on the same work."""
