"""Endurance: `python -m tests.operations.soak`."""
