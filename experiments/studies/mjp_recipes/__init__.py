"""MJP's Tables 3, 4, 6 and 8 (Ren et al. 2023) in FedAvg, with and without augmentation and a cosine schedule."""
