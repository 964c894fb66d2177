"""Planners of whole task graphs: heuristics, ranks, list scheduling with and without contention for links."""
