"""Model: frozen values and their words. Devices, links, tasks, events, commands; no behaviour beyond their own arithmetic."""
