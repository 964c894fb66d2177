"""A plan for what is left of a running program, made anew as it goes."""
