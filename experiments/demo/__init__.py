"""`make demo`: a training under a curious server's eyes, and photographs rebuilt from a gradient each."""
