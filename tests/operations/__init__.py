"""Drills of operations: faults, endurance and rounds of whole runs, each a command."""
