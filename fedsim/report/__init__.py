"""One self-contained page per run, sweep or comparison, rebuilt from the folders' files and nothing else."""
