"""Local engine: one worker a device on this host, in a process or a thread; arrays through one shared pool."""
