"""The image from row spaces of shared gradients, without the position embedding's."""
