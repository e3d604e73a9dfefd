"""Defenses that change the model itself."""
