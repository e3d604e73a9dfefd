"""Masked Jigsaw Puzzle (Ren et al. 2023), Tables 3, 4, 6 and 8: trained models."""
