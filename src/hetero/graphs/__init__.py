"""Task graphs in files: formats, converters, planning within a budget, and an independent checker of plans."""
