"""What the engines share: event loop, wire format, shared memory, data items, in-flight requests."""
