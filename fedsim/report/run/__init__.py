"""One run: its records, counts, verdict and gallery."""
