"""Reports: where the time of a run went, and how far from the best it was; read from its trace."""
