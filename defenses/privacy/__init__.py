"""Defenses with a differential-privacy guarantee."""
