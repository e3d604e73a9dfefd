"""What the commands share: one call of a command, its errors, settings checked before any work, sweeps."""
