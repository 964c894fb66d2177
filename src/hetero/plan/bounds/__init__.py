"""Lower bounds of the makespan: what no schedule can beat."""
