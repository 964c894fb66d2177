"""Core: the decision. One pure state machine: events go in, commands come out, nothing else writes its state."""
