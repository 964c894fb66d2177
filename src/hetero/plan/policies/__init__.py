"""Policies: rules that propose placements, one file each."""
