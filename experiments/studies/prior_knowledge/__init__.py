"""What an attack gains by knowing the data: losses, starts and features."""
