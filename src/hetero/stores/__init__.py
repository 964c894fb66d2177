"""Stores: bytes at rest. The history of measured times, checkpoints."""
