"""`hetero demo`: the main job on this host's devices.

In: options. Out: what the demonstration prints, or its result as JSON. The work is in `hetero.demo`.
"""

from __future__ import annotations

__all__ = ["demo"]


def demo() -> None:
    """Run real computations on this host's devices and check them."""
