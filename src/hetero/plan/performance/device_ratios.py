"""Speeds: what is known of each kind of device, and how two kinds compare.

In: windows of measured seconds by signature, and the devices' FLOP/s and bytes/s. Out: ratios of times, bounds.
It must not learn: `hetero.plan.performance.cost_model` fills the windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, log
from typing import Literal, NamedTuple, TypeVar

from hetero.model.device import Device
from hetero.plan.performance.robust_statistics import SizeCurve, curve, median
from hetero.plan.performance.window import Window

__all__ = ["SIGNATURES", "Bound", "Model", "Ratio", "by_growth", "by_rate", "by_ratio", "forget_oldest", "ratio"]

Bound = Literal["compute", "data"]

SIGNATURES = 4096
"""Signatures remembered for each device, and functions for each kind of device."""

_POINTS = 64
_TELLS_S = 2e-4
"""Runs shorter than this measure the way to the device and not its speed."""

_GROWS = 1.2
_NEAR_FRAC, _FAR_FRAC = 1.0 / 3.0, 1.0 / 30.0

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Model:
    """What is known of all devices with one `model_key`; seconds as of a device that has not slowed down.

    Attributes
    ----------
    key
        The `model_key`.
    device
        One of the devices, None while none was seen in this run.
    functions
        Windows by signature, by function key.
    """

    __slots__ = ("_curves", "device", "functions", "key")

    def __init__(self, key: str, device: Device | None) -> None:
        self.key = key
        self.device = device
        self.functions: dict[str, dict[str, Window]] = {}
        self._curves: dict[str, tuple[int, int, SizeCurve | None]] = {}

    def window(self, signature: str) -> Window | None:
        """Return the window of a signature, None where it never ran."""
        windows = self.functions.get(signature.partition("|")[0])
        return None if windows is None else windows.get(signature)

    def settled(self, signature: str) -> Window | None:
        """Return the window of a signature unless all it holds is a first run."""
        window = self.window(signature)
        return None if window is None or window.first else window

    def make(self, signature: str) -> Window:
        """Return the window of a signature, a new one where it never ran."""
        function = signature.partition("|")[0]
        windows = self.functions.get(function)
        if windows is None:
            windows = self.functions[function] = {}
            forget_oldest(self.functions, SIGNATURES)
        window = windows.get(signature)
        if window is None:
            window = windows[signature] = Window()
            forget_oldest(windows, SIGNATURES)
        return window

    def curve(self, function: str, version: int) -> SizeCurve | None:
        """Return the curve over the sizes of a function, None where fewer than three sizes ran.

        Parameters
        ----------
        version
            Grows with whatever was learned; a curve over many points is fitted anew only after as much was learned as
            it has points, so that learning costs the same however much is known.
        """
        windows = self.functions.get(function)
        if windows is None or len(windows) < 3:
            return None
        count, fitted, found = self._curves.get(function, (0, -1, None))
        if version != fitted and (len(windows) <= 8 or len(windows) > 1.1 * count or version - fitted > count):
            points = [(window.size, window.at(window.size)) for window in _newest(windows) if not window.first]
            found = curve([size for size, _ in points], [seconds for _, seconds in points])
            self._curves[function] = (len(windows), version, found)
            forget_oldest(self._curves, SIGNATURES)
        return found


class Ratio(NamedTuple):
    """How many times longer one kind of device takes than another.

    Attributes
    ----------
    times
        > 0.
    spread
        >= 1; the truth is expected between times / spread and times * spread.
    """

    times: float
    spread: float


def ratio(source: Model, target: Model, signature: str, bound: Bound | None) -> Ratio:
    """Compare two kinds of devices for one signature.

    Notes
    -----
    The median ratio over the signatures of the same function that ran on both; else over all signatures that
    ran on both; else the ratio of bytes/s where the signature is bound by data, else that of FLOP/s (a device's
    speeds are those that its tasks get, throttled as it is); else that of the throttles.
    """
    function = signature.partition("|")[0]
    own = _ratios(source, target, function)
    if own:
        return Ratio(median(own), 1.5)
    learned = [times for name in target.functions for times in _ratios(source, target, name)][-_POINTS:]
    if learned:
        return Ratio(median(learned), max(2.0, max(learned) / min(learned)) if len(learned) < 8 else 2.0)
    return _catalogued(source.device, target.device, bound)


def by_ratio(models: Sequence[Model], signature: str) -> Bound | None:
    """Decide by whether the times on different kinds of devices follow their FLOP/s or their bytes/s."""
    off_flop = off_bytes = 0.0
    for slow in models:
        for fast in models:
            found = _off(slow, fast, signature)
            off_flop, off_bytes = off_flop + found[0], off_bytes + found[1]
    if off_flop < 0.5 * off_bytes:
        return "compute"
    return "data" if off_bytes < 0.5 * off_flop else None


def by_rate(models: Sequence[Model], signature: str) -> Bound | None:
    """Decide by how near the bytes of the arguments over the time come to the device's bytes/s."""
    for model in models:
        window, device = model.settled(signature), model.device
        if window is None or device is None or not device.bytes_per_s or window.size <= 0.0:
            continue
        reached = window.size / window.at(window.size) / device.bytes_per_s
        if reached >= _NEAR_FRAC:
            return "data"
        if reached < _FAR_FRAC:
            return "compute"
    return None


def by_growth(models: Sequence[Model], signature: str, version: int) -> Bound | None:
    """Decide by whether the time of the function grows faster than the bytes of its arguments."""
    for model in models:
        found = model.curve(signature.partition("|")[0], version)
        if found is not None and found.kind == "power" and found.b > _GROWS:
            return "compute"
    return None


def forget_oldest(held: dict[_Key, _Value], most: int) -> None:
    """Drop the quarter that was added first when there are more entries than allowed."""
    if len(held) > most:
        for key in list(held)[: most // 4]:
            del held[key]


def _newest(windows: dict[str, Window]) -> Iterator[Window]:
    return iter(list(windows.values())[-_POINTS:])


def _ratios(source: Model, target: Model, function: str) -> list[float]:
    """Return target / source seconds of the signatures of a function that ran on both."""
    there, here = source.functions.get(function), target.functions.get(function)
    if not there or not here:
        return []
    both = [(there[name], window) for name, window in list(here.items())[-_POINTS:] if name in there]
    times = [(old.at(new.size), new.at(new.size)) for old, new in both if not (old.first or new.first)]
    return [new / old for old, new in times if max(old, new) > _TELLS_S]


def _speed(device: Device | None, bound: Bound | None) -> float:
    if device is None:
        return 0.0
    return (device.bytes_per_s if bound == "data" else device.flop_per_s) or 0.0


def _catalogued(source: Device | None, target: Device | None, bound: Bound | None) -> Ratio:
    kinds: tuple[Bound | None, ...] = ("data", None) if bound == "data" else (None,)
    for kind in kinds:
        old, new = _speed(source, kind), _speed(target, kind)
        if old and new:
            return Ratio(old / new, 3.0)
    if source is None or target is None:
        return Ratio(1.0, 10.0)
    alike = (source.label, source.name, source.cores) == (target.label, target.name, target.cores)
    return Ratio(source.throttle_frac / target.throttle_frac, 1.5 if alike else 10.0)


def _off(slow: Model, fast: Model, signature: str) -> tuple[float, float]:
    """Return how far a ratio of times is from the ratio of FLOP/s and from that of bytes/s; 0, 0 where unknown."""
    one, other = slow.settled(signature), fast.settled(signature)
    flop = _speed(slow.device, "compute"), _speed(fast.device, "compute")
    data = _speed(slow.device, "data"), _speed(fast.device, "data")
    if slow is fast or one is None or other is None or not (all(flop) and all(data)):
        return 0.0, 0.0
    times = log(one.at(one.size) / other.at(one.size))
    off = abs(times - log(flop[1] / flop[0])), abs(times - log(data[1] / data[0]))
    return off if max(off) > 0.2 and max(off) < inf else (0.0, 0.0)
