"""Which layers of a model go to which unequal device, from speed and memory, and which device is better left out.

In: seconds and bytes of a layer on each device. Out: layers a device. It must not know an engine or a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.floor.extras import need

__all__ = ["Aim", "LayerHost", "LayerSplit", "Layers", "best_split", "memory_split", "split_seconds"]

Aim = Literal["latency", "throughput"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Layers:
    """What is to be placed.

    Attributes
    ----------
    count
        Layers.
    layer_bytes
        Of the largest layer, its KV cache included.
    first_bytes
        What goes with the first layer, as the input table.
    last_bytes
        What goes with the last layer, as the output head.
    last_frac
        Of a layer's seconds, what the output head takes.
    """

    count: int
    layer_bytes: float
    first_bytes: float = 0.0
    last_bytes: float = 0.0
    last_frac: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerHost:
    """A device that may take layers.

    Attributes
    ----------
    name
        Unique.
    room_bytes
        What programs may allocate.
    layer_s
        Seconds of one layer, > 0.
    fixed_bytes
        What is taken as soon as it is used: driver, buffers.
    """

    name: str
    room_bytes: float
    layer_s: float
    fixed_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """Layers a device.

    Attributes
    ----------
    counts
        Layers of each device, in their order.
    first, last
        Places of the devices with the input table and with the output head.
    seconds
        Of one pass through all layers, or of the slowest device.
    """

    counts: tuple[int, ...]
    first: int
    last: int
    seconds: float


def split_seconds(
    layers: Layers, hosts: Sequence[LayerHost], counts: Sequence[int], last: int, hop_s: float, aim: Aim
) -> float:
    """Return the seconds of a pass: of all devices in turn with the hops between them, or of the slowest of them.

    Examples
    --------
    >>> hosts = (LayerHost("a", 9.0, 0.1), LayerHost("b", 9.0, 0.3))
    >>> round(split_seconds(Layers(4, 1.0), hosts, (3, 1), 1, 0.01, "latency"), 3)
    0.61
    """
    each = [
        (count + (layers.last_frac if at == last else 0.0)) * host.layer_s
        for at, (count, host) in enumerate(zip(counts, hosts, strict=True))
    ]
    used = sum(count > 0 for count in counts)
    return sum(each) + hop_s * (used - 1) if aim == "latency" else max(each)


def best_split(
    layers: Layers, hosts: Sequence[LayerHost], hop_s: float = 0.0, aim: Aim = "latency", must: str = ""
) -> LayerSplit:
    """Return the split of least seconds.

    Parameters
    ----------
    hop_s
        Seconds of a pass that each further device costs.
    aim
        'latency': one request, devices take turns; 'throughput': many requests, the slowest device decides.
    must
        Name of a device that must take a layer, '' for none.

    Raises
    ------
    NothingFitsError
        All devices together have not the room.

    Notes
    -----
    With n_d whole, and y, f, o in {0, 1} for used, first and last:
    latency: min Σ_d (n_d + c·o_d)·s_d + h·(Σ y_d − 1); throughput: min max_d (n_d + c·o_d)·s_d;
    Σ n_d = L; Σ f_d = Σ o_d = 1; f_d, o_d ≤ n_d ≤ L·y_d; n_d·b + f_d·F + o_d·O + y_d·R_d ≤ room_d.

    Examples
    --------
    >>> hosts = (LayerHost("fast", 6.0, 0.1), LayerHost("slow", 9.0, 0.3))
    >>> best_split(Layers(8, 1.0), hosts).counts, best_split(Layers(8, 1.0), hosts, aim="throughput").counts
    ((6, 2), (6, 2))
    """
    need("scipy", "a split of layers over devices")
    from scipy.optimize import Bounds, LinearConstraint, milp

    _check(layers, hosts)
    d = len(hosts)
    costs, rows, most = _program(layers, hosts, hop_s, aim)
    sums = np.zeros((3, 4 * d + 1))
    sums[0, :d], sums[1, 2 * d : 3 * d], sums[2, 3 * d : 4 * d] = 1.0, 1.0, 1.0
    least = np.array([host.name == must for host in hosts], dtype=float)
    result = milp(
        costs,
        constraints=[
            LinearConstraint(rows, -np.inf, most),
            LinearConstraint(sums, [layers.count, 1, 1], [layers.count, 1, 1]),
        ],
        integrality=np.concatenate([np.ones(4 * d), [0]]),
        bounds=Bounds(
            np.concatenate([least, np.zeros(3 * d + 1)]),
            np.concatenate([np.full(d, layers.count), np.ones(3 * d), [np.inf]]),
        ),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise NothingFitsError(_short(layers, hosts), remedy="smaller weights, a shorter context, or another device")
    counts = tuple(round(count) for count in result.x[:d])
    first, last = int(result.x[2 * d : 3 * d].argmax()), int(result.x[3 * d : 4 * d].argmax())
    return LayerSplit(counts, first, last, split_seconds(layers, hosts, counts, last, hop_s, aim))


def _program(layers: Layers, hosts: Sequence[LayerHost], hop_s: float, aim: Aim) -> tuple[Floats, Floats, Floats]:
    """Return the costs, the rows and their upper bounds; columns are n, y, f, o of each device, and slowest time."""
    d = len(hosts)
    speed = np.array([host.layer_s for host in hosts])
    speed, hop = speed / speed.mean(), hop_s / float(speed.mean())
    unit = max(host.room_bytes for host in hosts)
    eye, none, column = np.eye(d), np.zeros((d, d)), np.zeros((d, 1))
    fixed = np.diag([host.fixed_bytes / unit for host in hosts])
    sizes = (layers.layer_bytes / unit * eye, fixed, layers.first_bytes / unit * eye, layers.last_bytes / unit * eye)
    rows = [
        np.hstack([eye, -layers.count * eye, none, none, column]),
        np.hstack([-eye, none, eye, none, column]),
        np.hstack([-eye, none, none, eye, column]),
        np.hstack([*sizes, column]),
    ]
    most = [np.zeros(3 * d), np.array([host.room_bytes / unit for host in hosts])]
    if aim == "latency":
        costs = [speed, np.full(d, hop), np.zeros(d), layers.last_frac * speed, np.zeros(1)]
        return np.concatenate(costs), np.vstack(rows), np.concatenate(most)
    rows.append(np.hstack([np.diag(speed), none, none, layers.last_frac * np.diag(speed), column - 1.0]))
    costs = [np.zeros(4 * d), np.ones(1)]
    return np.concatenate(costs), np.vstack(rows), np.concatenate([*most, np.zeros(d)])


def _check(layers: Layers, hosts: Sequence[LayerHost]) -> None:
    if not hosts or layers.count < 1:
        raise BadValueError(f"{layers.count} layers over {len(hosts)} devices", remedy="give at least one of each")
    for host in hosts:
        if not host.layer_s > 0.0:
            raise BadValueError(f"a layer takes {host.layer_s:g} s on {host.name}", remedy="it must be above 0")


def _short(layers: Layers, hosts: Sequence[LayerHost]) -> str:
    held = sum(max(0.0, host.room_bytes - host.fixed_bytes) // layers.layer_bytes for host in hosts)
    return f"the devices hold at most {held:.0f} of {layers.count} layers, and the tables at the ends beside them"


def memory_split(layers: Layers, hosts: Sequence[LayerHost]) -> tuple[int, ...]:
    """Return layers in proportion to memory alone, as engines do by themselves; the largest remainders get the rest.

    Examples
    --------
    >>> memory_split(Layers(8, 1.0), (LayerHost("a", 30.0, 0.1), LayerHost("b", 10.0, 0.1)))
    (6, 2)
    """
    total = sum(host.room_bytes for host in hosts)
    exact = [layers.count * host.room_bytes / total for host in hosts]
    counts = [int(count) for count in exact]
    order = sorted(range(len(hosts)), key=lambda at: (counts[at] - exact[at], at))
    for at in order[: layers.count - sum(counts)]:
        counts[at] += 1
    return tuple(counts)
