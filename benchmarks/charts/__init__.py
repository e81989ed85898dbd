"""Draws charts of the figures, as plain SVG."""
