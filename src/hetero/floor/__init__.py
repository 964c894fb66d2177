"""Floor: what every other room stands on. Settings, units, errors, clock, platform; it imports nothing of hetero."""
