"""Plans that keep every memory node within its capacity: replicas, evictions, values that are made again."""
