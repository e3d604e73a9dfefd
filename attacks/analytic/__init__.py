"""Attacks that solve equations."""
