"""Collectives between processes, and the lines by which a program leads them."""
