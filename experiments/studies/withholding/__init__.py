"""Which tensors must be withheld so that closed forms fail, and what that costs."""
