"""What another fleet would make of a task graph: devices taken away, copied, or added from the catalog.

In: a graph, words for the changes. Out: graphs over the other fleet, with what in them is extrapolated.
It must not plan anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hetero.catalog.load import find
from hetero.catalog.values import DeviceSpec
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.model.graph import UNLIMITED_BYTES, GraphDevice, GraphTask, TaskGraph
from hetero.model.topology import Link, MemoryNode

__all__ = ["Changed", "Speed", "changed", "named_devices", "speed_of", "without"]

_ADD = re.compile(r"\s*(?:(\d+)\s*[x×*]\s+)?(.+?)\s*")
_MOST_ADDED = 1024
_FEW_BYTES_PER_S = 1e9


class Speed(NamedTuple):
    """How many times as long a task takes on a new device as on the one that it is compared with.

    Attributes
    ----------
    low, high : between arithmetic and memory bandwidth, whichever bounds a task
    """

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean of the two.

        Examples
        --------
        >>> Speed(0.25, 1.0).middle
        0.5
        """
        return math.sqrt(self.low * self.high)


class Changed(NamedTuple):
    """A graph over another fleet.

    Attributes
    ----------
    middle, low, high : with extrapolated seconds in the middle, at the least, at the most; the same graph thrice
        where nothing is extrapolated
    said : one line for each change, which says how its seconds are known
    extrapolated : whether any are
    """

    middle: TaskGraph
    low: TaskGraph
    high: TaskGraph
    said: tuple[str, ...]
    extrapolated: bool


def named_devices(graph: TaskGraph, words: Sequence[str]) -> dict[str, DeviceSpec]:
    """Read 'gpu0=A100-SXM-80GB': which catalogued device a device of the graph is.

    Raises
    ------
    BadValueError
        A word has no '=', or names no device of the graph or of the catalog.
    """
    found = {}
    for word in words:
        name, equals, spec = word.partition("=")
        if not equals:
            raise BadValueError(f"{word!r} does not say what a device is", remedy="write DEVICE=NAME")
        found[graph.devices[_index(graph, name.strip())].id] = find(spec.strip())
    return found


def changed(graph: TaskGraph, add: Sequence[str], remove: Sequence[str], known: Mapping[str, DeviceSpec]) -> Changed:
    """Change the fleet of a graph.

    Parameters
    ----------
    add : as in '2 x H100-SXM', a catalogued device, or '2 x gpu0', more of a device that the graph has
    remove : ids of devices
    known : the catalogued devices of the graph, see `named_devices`

    Raises
    ------
    BadValueError
        A word names nothing, no device is left, or there is nothing that a catalogued device can be compared with.
    """
    graphs = [graph] * 3
    said: list[str] = []
    extrapolated = False
    for word in add:
        count, name = _counted(word)
        model, speed, why = _source(graph, name, known)
        extrapolated |= speed is not None
        said.append(f"+ {count} x {name}: {why}")
        spec = None if speed is None else find(name)
        for place in range(3):
            times = 1.0 if speed is None else (speed.middle, speed.low, speed.high)[place]
            graphs[place] = _with(graphs[place], name, count, model, times, spec)
    for name in remove:
        said.append(f"- {graph.devices[_index(graph, name)].id}")
    middle, low, high = (without(each, remove) for each in graphs)
    return Changed(middle, low, high, tuple(said), extrapolated)


def speed_of(new: DeviceSpec, old: DeviceSpec) -> Speed:
    """Compare two catalogued devices by their data sheets: arithmetic at the precisions that both state, bandwidth.

    Raises
    ------
    BadValueError
        They have no figure in common.
    """
    before, after = ({name: spec.flop_per_s.get(name) for name in ("fp32", "fp64")} for spec in (old, new))
    ratios = [mine / theirs for name, mine in before.items() if mine and (theirs := after[name])]
    if old.bandwidth_bytes_per_s and new.bandwidth_bytes_per_s:
        ratios.append(old.bandwidth_bytes_per_s / new.bandwidth_bytes_per_s)
    if not ratios:
        raise BadValueError(
            f"the catalog has no figure that {new.name} and {old.name} share", remedy="compare with another device"
        )
    return Speed(min(ratios), max(ratios))


def without(graph: TaskGraph, remove: Sequence[str]) -> TaskGraph:
    """Give a graph without some devices.

    Raises
    ------
    BadValueError
        There is no such device, or a task could run nowhere.
    """
    gone = {_index(graph, name) for name in remove}
    if not gone:
        return graph
    keep = [index for index in range(len(graph.devices)) if index not in gone]
    if not keep:
        raise BadValueError("no device is left", remedy="remove fewer")
    tasks = tuple(GraphTask(task.id, tuple(task.seconds[index] for index in keep)) for task in graph.tasks)
    stranded = next((task.id for task in tasks if not any(map(math.isfinite, task.seconds))), None)
    if stranded is not None:
        raise BadValueError(f"without {', '.join(remove)} task {stranded!r} can run on no device", remedy="keep one")
    return replace(graph, devices=tuple(graph.devices[index] for index in keep), tasks=tasks)


def _counted(word: str) -> tuple[int, str]:
    match = _ADD.fullmatch(word)
    if match is None:
        raise BadValueError(f"{word!r} names no device", remedy="write '2 x H100-SXM'")
    count = int(match[1] or 1)
    if not 1 <= count <= _MOST_ADDED:
        raise BadValueError(f"{count} is not a number of devices to add", remedy=f"allowed: 1 to {_MOST_ADDED:,}")
    return count, match[2]


def _index(graph: TaskGraph, name: str) -> int:
    """Give the place of a device by its id, or by its id without the host."""
    ids = [device.id for device in graph.devices]
    short = [device.partition("/")[2] or device for device in ids]
    if name in ids:
        return ids.index(name)
    if name in short:
        return short.index(name)
    raise BadValueError(f"the graph has no device {name!r}{did_you_mean(name, ids)}", remedy=f"it has {_some(ids)}")


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:8]) + (", …" if len(ids) > 8 else "")


def _source(graph: TaskGraph, name: str, known: Mapping[str, DeviceSpec]) -> tuple[int, Speed | None, str]:
    """Give the device that a new one is like, how much slower it is, and how that is known."""
    ids = [device.id for device in graph.devices]
    if name in ids:
        return ids.index(name), None, f"measured: the seconds of {name}"
    new = find(name)
    if not known:
        raise BadValueError(
            f"nothing says how the devices of this graph compare with {new.name}",
            remedy=f"say what one of them is: --is {ids[-1]}=NAME, as in 'hetero catalog list'",
        )
    same = {device: spec for device, spec in known.items() if spec.name == new.name}
    if same:
        device = next(iter(same))
        return ids.index(device), None, f"measured: {device} is one"
    speeds = {device: speed_of(new, spec) for device, spec in known.items()}
    device = min(speeds, key=lambda each: (speeds[each].high / speeds[each].low, ids.index(each)))
    speed = speeds[device]
    faster = f"{1 / speed.high:.2g} to {1 / speed.low:.2g} times as fast"
    return ids.index(device), speed, f"extrapolated: {faster} as {device} ({known[device].name}) by their data sheets"


def _with(graph: TaskGraph, name: str, count: int, model: int, times: float, spec: DeviceSpec | None) -> TaskGraph:
    """Give a graph with further devices like one that it has, `times` as slow, each with a memory of its own."""
    like = graph.devices[model]
    own = any(device.memory_node != like.memory_node for device in graph.devices) or spec is not None
    devices, nodes, links = list(graph.devices), list(graph.topology.nodes), list(graph.topology.links)
    for _ in range(count):
        number = sum(device.id.startswith(f"{name}#") for device in devices) + 1
        device = f"{name}#{number}"
        node = device if own else like.memory_node
        devices.append(GraphDevice(device, node, like.kind if spec is None else spec.kind))
        if own:
            nodes.append(MemoryNode(node, _capacity(graph, like, spec)))
            links += _links(graph, like.memory_node, node, spec)
    tasks = tuple(GraphTask(task.id, (*task.seconds, *[task.seconds[model] * times] * count)) for task in graph.tasks)
    topology = replace(graph.topology, nodes=tuple(nodes), links=tuple(links), _by_pair={})
    return replace(graph, devices=tuple(devices), tasks=tasks, topology=topology)


def _capacity(graph: TaskGraph, like: GraphDevice, spec: DeviceSpec | None) -> int:
    if spec is not None and spec.memory_bytes:
        return spec.memory_bytes
    return next((node.capacity_bytes for node in graph.topology.nodes if node.id == like.memory_node), UNLIMITED_BYTES)


def _links(graph: TaskGraph, like: str, node: str, spec: DeviceSpec | None) -> list[Link]:
    """Give the links of a new memory node: those of the one that it is like, as fast as its data sheet says."""
    found = []
    for link in graph.topology.links:
        bytes_per_s = (spec.host_bytes_per_s if spec is not None else None) or link.bandwidth_bytes_per_s
        if link.src == like:
            found.append(replace(link, src=node, bandwidth_bytes_per_s=bytes_per_s, bus=""))
        if link.dst == like:
            found.append(replace(link, dst=node, bandwidth_bytes_per_s=bytes_per_s, bus=""))
    if found:
        return found
    bytes_per_s = (spec.host_bytes_per_s if spec is not None else None) or _FEW_BYTES_PER_S
    return [Link(node, like, 1e-5, bytes_per_s), Link(like, node, 1e-5, bytes_per_s)]
