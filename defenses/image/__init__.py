"""Defenses that change the images before the model sees them."""
