"""Masked Jigsaw Puzzle (Ren et al. 2023), Table 5: the published closed form and ours."""
