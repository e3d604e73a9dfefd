"""Updates, models and metrics as Flower messages, and what an honest reply looks like."""
