"""Generative and learned priors (GGL, LTI) behind the defenses of their papers."""
