"""What `fedsim-measure` does with trained models: jigsawed pictures, position embeddings, robustness, figures."""
