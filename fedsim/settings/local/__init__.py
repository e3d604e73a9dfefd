"""Settings of local training that are built: optimisers, schedulers, augmentations."""
