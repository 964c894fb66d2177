"""What is remembered of batch sizes between runs: points of the curve of each function on each kind of device.

In: sizes that a run learned. Out: sizes to begin with. It must not fail a run: a file that is gone is as good as new.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hetero.model.device import Device
from hetero.plan.batch.size_tuning import Sizes
from hetero.session.disk_cache import DiskCache, digest

if TYPE_CHECKING:
    from hetero.floor.documents import JsonObject

__all__ = ["FILE", "keep", "known_sizes"]

FILE = "batches.json"
"""The name of the file below HETERO_HOME."""


def known_sizes(function: str, device: Device, fixed: int | None) -> Sizes:
    """Return the sizes of a device, as far as earlier runs of this function learned them."""
    entry = _entry(DiskCache(FILE).read().get(_key(function, device)))
    limit = entry.get("limit")
    return Sizes(fixed, math.inf if limit is None else limit, [(size, seconds) for size, seconds in entry["points"]])


def keep(function: str, sizes: Mapping[Device, Sizes]) -> None:
    """Remember what a run learned."""
    found = {}
    for device, each in sizes.items():
        points = each.points()
        if points or not math.isinf(each.limit):
            limit = None if math.isinf(each.limit) else each.limit
            found[_key(function, device)] = {"points": points, "limit": limit}
    if found:
        DiskCache(FILE).update(found)


def _key(function: str, device: Device) -> str:
    return digest(function, device.model_key)


def _entry(found: object) -> JsonObject:
    """Return an entry whose form is right; one that was damaged counts as none."""
    points = found.get("points") if isinstance(found, dict) else None
    sound = isinstance(points, list) and all(
        isinstance(point, list)
        and len(point) == 2
        and all(isinstance(x, int | float) and 0 < x < math.inf for x in point)
        for point in points
    )
    limit = found.get("limit") if isinstance(found, dict) else None
    return {"points": points if sound else [], "limit": limit if isinstance(limit, int | float) else None}
