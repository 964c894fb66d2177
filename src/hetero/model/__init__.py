"""Model: frozen values and their words. Devices, links, tasks, events, commands; nothing but their own arithmetic."""
