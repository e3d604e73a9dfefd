"""The run folder and the files in it: whole or absent, also after a loss of power."""
