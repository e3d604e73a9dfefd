"""Sums over clients: those of secure aggregation, and those that workers add up."""
