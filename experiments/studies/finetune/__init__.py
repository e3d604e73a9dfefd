"""What is left of an image in updates of fine-tuning."""
