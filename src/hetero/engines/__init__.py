"""Engines: who executes commands. An engine never chooses."""
