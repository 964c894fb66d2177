"""Seeded programs with seeded faults: no wrong value, no hang, no error that a fault does not explain."""
