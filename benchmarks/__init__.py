"""Benchmarks: one file a claim, its rivals in the same run."""
