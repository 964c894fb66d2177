"""Opening a fleet: from a configuration to a running driver, and everything back at the end.

In: a checked configuration. Out: `Opened`, which owns what a Context needs below it.
It must not wait for workers: they start while the program goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetero.drive.live import Driver
    from hetero.model.device import Device
    from hetero.session.config import Config

__all__ = ["Opened"]

_log = logging.getLogger("hetero")


class Opened:
    """A running driver with what belongs to it."""

    devices: tuple[Device, ...]
    driver: Driver
    engine_name: str

    def __init__(self, config: Config, split: Callable[[int], bool], *, history: bool, progress: bool) -> None:
        raise NotImplementedError

    def close(self, wait: bool) -> None:
        """End it."""
