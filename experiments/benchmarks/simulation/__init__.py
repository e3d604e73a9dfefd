"""Flower's engine, fedsim's Grids and a bare loop."""
