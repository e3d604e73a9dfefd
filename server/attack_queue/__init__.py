"""Attacks beside the training: queued on workers, resumed, and their results written."""
