"""Planners of whole task graphs, one file each, with their papers."""
