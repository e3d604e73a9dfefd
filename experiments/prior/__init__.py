"""Training of what attacks bring along: generators and inversion networks, from pictures that no client holds."""
