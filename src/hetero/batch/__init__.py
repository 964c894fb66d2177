"""Bulk work: one function or model over a mountain of records, every device at its own batch size."""
