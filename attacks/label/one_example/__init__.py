"""The label of one example."""
