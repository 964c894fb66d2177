"""Back ends: our code for the hardware, one file a device kind."""
