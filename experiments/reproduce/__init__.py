"""Tables of papers, reproduced by one command each."""
