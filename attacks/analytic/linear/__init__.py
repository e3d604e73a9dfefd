"""Linear systems of the closed forms: their solution, its certificate, patches and pixels."""
