"""The page of `fedsim-measure`: what a trained model itself shows."""
