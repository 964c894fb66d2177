"""Measuring a model's layers on all devices of a fleet, and the links between these.

In: a fleet, layers, the input of each. Out: costs, as the choice of stages needs them. It must not choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import cloudpickle
import numpy as np

from hetero.floor import clock
from hetero.model.device import Device
from hetero.session.signature import register
from hetero.session.tasks import task
from hetero.splitting.choice import Costs
from hetero.splitting.fleet import Fleet
from hetero.splitting.layers import Layer
from hetero.splitting.measure import LayerCost, LinkCost, Measuring, measure_layers, measure_links, only_meet
from hetero.splitting.transport import packed

__all__ = ["as_bytes", "survey"]

_MOST_DEVICES = 8
_CALLS = 5
_LIMIT_S = 600.0
register(Measuring, lambda work: (f"measuring for split {work.number}", 0.0))


def as_bytes(value: Any) -> Any:
    """Pickle a value into an array, which travels without a copy."""
    return np.frombuffer(cloudpickle.dumps(value), dtype=np.uint8)


def survey(fleet: Fleet, layers: Sequence[Layer], values: Sequence[Any], optimizer: Any, number: int) -> Costs:
    """Measure links and layers; links first, since torch is up in every worker then.

    Parameters
    ----------
    values : the input of each layer, and the output
    optimizer : makes an optimizer of parameters, None where nothing is trained
    number : of the split in this program
    """
    ctx = fleet.ctx
    links, call_s = _links(fleet, max(value.nbytes for value in values))
    work = Measuring(number, optimizer, fleet.slow)
    blobs = ctx.put([as_bytes(layer.module) for layer in layers])
    inputs = ctx.put([packed(value) for value in values[:-1]])
    asked = [task(measure_layers, on=(device.id,), timeout=_LIMIT_S, crashes=1) for device in fleet.devices]
    found = ctx.gather([ctx.submit(one, work, blobs, inputs) for one in asked])
    devices, found = _fastest(fleet, found)
    return Costs(layers, devices, found, links, [value.nbytes for value in values[1:]], call_s)


def _links(fleet: Fleet, nbytes: int) -> tuple[dict[tuple[str, str], LinkCost], tuple[float, float]]:
    ids = tuple(device.id for device in fleet.devices)
    asked = task(measure_links, on=ids, devices=len(ids), timeout=_LIMIT_S, crashes=1)
    found = {pair: cost for links in fleet.ctx.run(asked, ids, nbytes) for pair, cost in links.items()}
    return found, (_call_s(fleet, ids[:1]), _call_s(fleet, ids))


def _call_s(fleet: Fleet, ids: tuple[str, ...]) -> float:
    taken = []
    for _ in range(_CALLS):
        begun_s = clock.monotonic_s()
        fleet.ctx.run(task(only_meet, on=ids, devices=len(ids)), ids)
        taken.append(clock.monotonic_s() - begun_s)
    return median(taken)


def _fastest(fleet: Fleet, found: list[list[LayerCost]]) -> tuple[list[Device], list[list[LayerCost]]]:
    """Leave out all but the eight devices that run the whole soonest."""
    order = sorted(range(len(found)), key=lambda one: (sum(cost.seconds for cost in found[one]), one))
    for one in order[_MOST_DEVICES:]:
        fleet.notes.append(f"{fleet.devices[one].short} is left out: stages are planned for eight devices")
    taken = sorted(order[:_MOST_DEVICES])
    return [fleet.devices[one] for one in taken], [found[one] for one in taken]
