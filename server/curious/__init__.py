"""What the server keeps of what clients send: replies as observations."""
