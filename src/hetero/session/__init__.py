"""Session: what the user holds. Context, tasks, futures, the fleet and the configuration."""
