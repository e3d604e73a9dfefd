"""Several runs beside each other, and what each defense is worth."""
