"""GradInversion (Yin et al. 2021): label rules, and the arms of its search."""
