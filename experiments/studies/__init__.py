"""Tables of papers, reproduced by one command each: `python -m experiments.studies.april`."""
