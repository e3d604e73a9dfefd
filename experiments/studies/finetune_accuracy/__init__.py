"""What a federation learns by each recipe of fine-tuning, and what it costs."""
