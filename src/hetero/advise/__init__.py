"""Answers for people: what fits where, and how devices compare."""
