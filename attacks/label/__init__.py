"""Which classes were in the batch."""
