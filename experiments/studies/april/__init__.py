"""APRIL (Lu et al. 2022): closed form by size of the grid, curves, position embeddings."""
