"""Shares of a global batch, pipeline stages, and the time of a training over unequal devices."""
