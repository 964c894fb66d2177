"""Drive: the loops that feed events to the core, live or simulated; the worker's entry point; the trace."""
