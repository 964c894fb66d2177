"""What another fleet would make of a task graph: devices taken away, copied, or added by their name.

In: a graph, words for the changes, what earlier runs measured. Out: graphs over the other fleet, with what in them is
extrapolated. It must not plan anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from hetero.catalog.load import find
from hetero.catalog.values import DeviceSpec
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.model.graph import UNLIMITED_BYTES, GraphDevice, GraphTask, TaskGraph
from hetero.model.topology import Link, MemoryNode
from hetero.plan.performance.cost_model import Sample
from hetero.plan.performance.robust_statistics import median

__all__ = ["Changed", "Known", "Measured", "RelativeSpeed", "changed", "named_devices", "speed_of", "without"]

_ADD = re.compile(r"\s*(?:(\d+)\s*[x×*]\s+)?(.+?)\s*")
_MOST_ADDED = 1024
_FEW_BYTES_PER_S = 1e9

_NUMBERING = re.compile(r"[\d\W_]*$")


class Measured:
    """Seconds of functions on kinds of devices, as far as they were measured.

    Parameters
    ----------
    samples
        Of earlier runs.

    Attributes
    ----------
    kinds
        The kinds of devices that were measured, as in 'cuda/NVIDIA H100 80GB HBM3'.

    Notes
    -----
    The ratio of a function between two kinds is the geometric mean, over the signatures and sizes that were measured
    on both, of the ratios of the medians. A task of a graph is of the function whose name it has, but for numbers at
    its end: `gemm`, `gemm3`, `gemm_3.2` and `gemm#7` are of `gemm`.

    Examples
    --------
    >>> rows = [("m.gemm@1|", "cpu/x", 2.0), ("m.gemm@1|", "cpu/x", 2.2), ("m.gemm@1|", "cuda/y", 0.5)]
    >>> measured = Measured(Sample(signature, kind, 8.0, seconds) for signature, kind, seconds in rows)
    >>> measured.ratio("gemm_3.2", "cuda/y", "cpu/x"), measured.ratio("potrf", "cuda/y", "cpu/x")
    (0.25, None)
    """

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._seconds: dict[tuple[str, str], dict[tuple[str, float], list[float]]] = {}
        for row in samples:
            function = row.signature.partition("|")[0].partition("@")[0].rpartition(".")[2]
            by_call = self._seconds.setdefault((function, row.device_key), {})
            by_call.setdefault((row.signature, row.size), []).append(row.seconds)
        self.kinds = tuple(sorted({kind for _, kind in self._seconds}))

    def kind(self, name: str) -> str:
        """Return the measured kind of a name: itself, or the device of that name in the catalog; else ''."""
        if name in self.kinds:
            return name
        spec = _catalogued(name)
        return next((kind for kind in self.kinds if spec and _catalogued(kind.partition("/")[2]) == spec), "")

    def ratio(self, task: str, new: str, old: str) -> float | None:
        """Return how many times as long the function of a task takes on one kind as on another; None if unknown."""
        function = _NUMBERING.sub("", task)
        here, there = (self._seconds.get((function, kind), {}) for kind in (new, old))
        shared = sorted(here.keys() & there.keys())
        if not shared:
            return None
        return math.exp(sum(math.log(median(here[call]) / median(there[call])) for call in shared) / len(shared))


@lru_cache(maxsize=256)
def _catalogued(name: str) -> str:
    """Return the name that the catalog has for a device, '' for none."""
    try:
        return find(name).name
    except BadValueError:
        return ""


_NOTHING = Measured()


class RelativeSpeed(NamedTuple):
    """How many times as long a task takes on a new device as on the one that it is compared with.

    Attributes
    ----------
    low, high
        Between arithmetic and memory bandwidth, whichever bounds a task.
    """

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean of the two.

        Examples
        --------
        >>> RelativeSpeed(0.25, 1.0).middle
        0.5
        """
        return math.sqrt(self.low * self.high)


_SAME = RelativeSpeed(1.0, 1.0)


class Known(NamedTuple):
    """What a device is.

    Attributes
    ----------
    name
        As it was given.
    spec
        Its entry in the catalog, None for none.
    kind
        What earlier runs call it, '' where it was not measured.
    """

    name: str
    spec: DeviceSpec | None
    kind: str


class _Source(NamedTuple):
    """What the seconds of a new device come from.

    Attributes
    ----------
    model
        Index of the device that it is like.
    speeds
        For each task; the ends are equal where it was measured.
    spec
        Its entry in the catalog, None for none.
    said
        How its seconds are known.
    """

    model: int
    speeds: tuple[RelativeSpeed, ...]
    spec: DeviceSpec | None
    said: str


class Changed(NamedTuple):
    """A graph over another fleet.

    Attributes
    ----------
    middle, low, high
        With extrapolated seconds in the middle, at the least, at the most; the same graph thrice where nothing is
        extrapolated.
    said
        One line for each change, which says how its seconds are known.
    extrapolated
        Whether any are.
    """

    middle: TaskGraph
    low: TaskGraph
    high: TaskGraph
    said: tuple[str, ...]
    extrapolated: bool


def named_devices(graph: TaskGraph, words: Sequence[str], measured: Measured = _NOTHING) -> dict[str, Known]:
    """Read 'gpu0=A100-SXM-80GB': which device of the catalog or of earlier runs a device of the graph is.

    Raises
    ------
    BadValueError
        A word has no '=', or names no device of the graph, or neither one of the catalog nor one that was measured.
    """
    found = {}
    for word in words:
        name, equals, what = word.partition("=")
        if not equals:
            raise BadValueError(f"{word!r} does not say what a device is", remedy="write DEVICE=NAME")
        found[graph.devices[_index(graph, name.strip())].id] = _known(what.strip(), measured)
    return found


def _known(name: str, measured: Measured) -> Known:
    kind = measured.kind(name)
    if not kind and "/" in name:
        raise BadValueError(
            f"no earlier run knows a kind of device {name!r}{did_you_mean(name, measured.kinds)}",
            remedy=f"known: {_some(measured.kinds) or 'none yet'}",
        )
    return Known(name, None if kind == name else find(name), kind)


def changed(
    graph: TaskGraph,
    add: Sequence[str],
    remove: Sequence[str],
    known: Mapping[str, Known],
    measured: Measured = _NOTHING,
) -> Changed:
    """Change the fleet of a graph.

    Parameters
    ----------
    add
        As in '2 x H100-SXM', a catalogued device, '2 x gpu0', more of a device that the graph has, or a kind of device
        that was measured.
    remove
        Ids of devices.
    known
        What devices of the graph are, see `named_devices`.
    measured
        Of earlier runs; it goes before data sheets.

    Raises
    ------
    BadValueError
        A word names nothing, no device is left, or there is nothing that a new device can be compared with.
    """
    graphs = [graph] * 3
    said: list[str] = []
    extrapolated = False
    for word in add:
        count, name = _counted(word)
        source = _source(graph, name, known, measured)
        extrapolated |= any(speed.low != speed.high for speed in source.speeds)
        said.append(f"+ {count} x {name}: {source.said}")
        for place, times in enumerate(
            zip(*((each.middle, each.low, each.high) for each in source.speeds), strict=True)
        ):
            graphs[place] = _with(graphs[place], name, count, source, times)
    for name in remove:
        said.append(f"- {graph.devices[_index(graph, name)].id}")
    middle, low, high = (without(each, remove) for each in graphs)
    return Changed(middle, low, high, tuple(said), extrapolated)


def speed_of(new: DeviceSpec, old: DeviceSpec) -> RelativeSpeed:
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
    return RelativeSpeed(min(ratios), max(ratios))


def without(graph: TaskGraph, remove: Sequence[str]) -> TaskGraph:
    """Return a graph without some devices.

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
    """Return the place of a device by its id, or by its id without the host."""
    ids = [device.id for device in graph.devices]
    short = [device.partition("/")[2] or device for device in ids]
    if name in ids:
        return ids.index(name)
    if name in short:
        return short.index(name)
    raise BadValueError(f"the graph has no device {name!r}{did_you_mean(name, ids)}", remedy=f"it has {_some(ids)}")


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:8]) + (", …" if len(ids) > 8 else "")


def _source(graph: TaskGraph, name: str, known: Mapping[str, Known], measured: Measured) -> _Source:
    """Return what the seconds of a new device come from: the graph, earlier runs, else data sheets."""
    ids = [device.id for device in graph.devices]
    same = (_SAME,) * len(graph.tasks)
    if name in ids:
        return _Source(ids.index(name), same, None, f"measured: the seconds of {name}")
    new = _known(name, measured)
    if not known:
        raise BadValueError(
            f"nothing says how the devices of this graph compare with {name}",
            remedy=f"say what one of them is: --is {ids[-1]}=NAME, as in 'hetero catalog list'",
        )
    for device, old in known.items():
        if old.kind == new.kind != "" or (old.spec is not None and old.spec == new.spec):
            return _Source(ids.index(device), same, new.spec, f"measured: {device} is one")
    found = [_compared(graph, device, old, new, measured) for device, old in known.items()]
    return min(found, key=lambda source: (_spread(source.speeds), source.model))


def _spread(speeds: Sequence[RelativeSpeed]) -> float:
    return sum(math.log(speed.high / speed.low) for speed in speeds)


def _compared(graph: TaskGraph, device: str, old: Known, new: Known, measured: Measured) -> _Source:
    """Compare a new device with one of the graph, task by task."""
    ratios = [measured.ratio(task.id, new.kind, old.kind) for task in graph.tasks]
    lacking = [task.id for task, ratio in zip(graph.tasks, ratios, strict=True) if ratio is None]
    sheet: RelativeSpeed | None = None
    if lacking:
        if new.spec is None or old.spec is None:
            raise BadValueError(
                f"task {lacking[0]!r} was not measured on both {new.name} and {old.name}, and the catalog has not both",
                remedy="run it on both with hetero, or name devices of 'hetero catalog list'",
            )
        sheet = speed_of(new.spec, old.spec)
    speeds = tuple(RelativeSpeed(ratio, ratio) if ratio is not None else sheet or _SAME for ratio in ratios)
    said = _said([ratio for ratio in ratios if ratio is not None], sheet, len(lacking), f"{device} ({old.name})")
    index = next(at for at, each in enumerate(graph.devices) if each.id == device)
    return _Source(index, speeds, new.spec, said)


def _said(ratios: Sequence[float], sheet: RelativeSpeed | None, lacking: int, than: str) -> str:
    """Return how the seconds of a new device are known."""
    parts = []
    if ratios:
        parts.append(
            f"measured in earlier runs for {len(ratios):,} tasks: {_times(min(ratios), max(ratios))} as {than}"
        )
    if sheet is not None:
        which = f" for {lacking:,} tasks" if ratios else ""
        parts.append(f"extrapolated{which}: {_times(sheet.low, sheet.high)} as {than} by their data sheets")
    return "; ".join(parts)


def _times(low: float, high: float) -> str:
    slow, fast = f"{1 / high:.2g}", f"{1 / low:.2g}"
    return f"{slow} times as fast" if slow == fast else f"{slow} to {fast} times as fast"


def _with(graph: TaskGraph, name: str, count: int, source: _Source, times: Sequence[float]) -> TaskGraph:
    """Return a graph with further devices like one that it has, each with a memory of its own; `times` is by task."""
    like, spec = graph.devices[source.model], source.spec
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
    tasks = tuple(
        GraphTask(task.id, (*task.seconds, *[task.seconds[source.model] * by] * count))
        for task, by in zip(graph.tasks, times, strict=True)
    )
    topology = replace(graph.topology, nodes=tuple(nodes), links=tuple(links), _by_pair={})
    return replace(graph, devices=tuple(devices), tasks=tasks, topology=topology)


def _capacity(graph: TaskGraph, like: GraphDevice, spec: DeviceSpec | None) -> int:
    if spec is not None and spec.memory_bytes:
        return spec.memory_bytes
    return next((node.capacity_bytes for node in graph.topology.nodes if node.id == like.memory_node), UNLIMITED_BYTES)


def _links(graph: TaskGraph, like: str, node: str, spec: DeviceSpec | None) -> list[Link]:
    """Return the links of a new memory node: those of the one that it is like, as fast as its data sheet says."""
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
