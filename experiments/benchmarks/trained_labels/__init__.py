"""Label counts from updates of trained models."""
