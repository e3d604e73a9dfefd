"""fedsim: what an honest-but-curious server learns from federated vision training."""

__version__ = "0.1.0"
