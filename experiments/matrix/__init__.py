"""`fedsim-matrix`: every attack against every defense."""
