"""Defenses that change what is shared: tensors left out, coarser, noisier, or summed."""
