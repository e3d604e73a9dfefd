"""`fedsim`: a federated run."""
