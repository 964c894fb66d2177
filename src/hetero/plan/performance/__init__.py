"""Performance models: how long a task takes on a device, learned from what it took."""
