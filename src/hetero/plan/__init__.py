"""Plan: pure proposals. Values in, values out; no clock, no chance, no input or output."""
