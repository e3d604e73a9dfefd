"""Every fault, injected into a small run, and what came of it: `python -m tests.operations.faults`."""
