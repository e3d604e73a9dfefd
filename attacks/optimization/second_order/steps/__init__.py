"""Levenberg-Marquardt steps, with J whole or by its products."""
