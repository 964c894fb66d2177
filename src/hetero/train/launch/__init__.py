"""`hetero launch` and the user's own training loop: one process a device, each with its part of every batch.

What one process does is in `fleet.py` (for users) and `launched.py`; who starts and watches them is in `launcher.py`.
"""
