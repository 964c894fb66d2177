"""Collectives as plans: which member sends what to whom, in which order, and what that costs on unequal links."""
