"""What stands beside an attack: guarantees that hold for every attack."""
