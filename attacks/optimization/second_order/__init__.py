"""Gauss-Newton on the whole residual of what was shared."""
