"""Floor: what every other package stands on. Settings, units, errors, clock, platform; it imports nothing of hetero."""
