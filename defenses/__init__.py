"""Hooks on a client's model, batch, loss and update."""
