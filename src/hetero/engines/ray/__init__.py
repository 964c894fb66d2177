"""The engine that lets Ray execute: one actor a device, on this host or on many."""
