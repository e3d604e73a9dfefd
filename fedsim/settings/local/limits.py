"""The most that numbers may be which a client trains with or shares: a server refuses a reply that says more."""

LARGEST = 1e12
"""Magnitude of a number: training that sends more has diverged. Squares of it, summed over any model, are finite in
float32, so that no strategy's arithmetic overflows."""
LARGEST_BATCH = 2**16
"""Pictures in a batch of a client whose partition and settings the server does not know: beyond any that trains, and
few enough to name the labels of."""
MOST_STEPS = 2**16
"""Local steps that a client may claim: attacks that undo them take time by the square of their number."""
