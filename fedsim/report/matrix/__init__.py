"""The leakage matrix: every attack against every defense."""
