"""What `experiments.benchmarks.certified` varies: models, batches, protocols, defenses; and how it judges and tells."""
