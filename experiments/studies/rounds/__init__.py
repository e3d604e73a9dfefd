"""How leakage grows when the server sees one client again and again."""
