"""Figures and pictures, as SVG inside a page and as PNG files."""
