"""`fedsim-audit`: shared updates attacked without a federation."""
