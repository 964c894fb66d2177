"""Performance models: how long a task takes on a device, learned from what it took.

In: measured seconds by signature, size and device. Out: estimates with their spread and origin.
It must not read a clock or a file, and its answers depend on nothing but the order of what it was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Literal, NamedTuple

from hetero.model.device import Device
from hetero.plan.performance.device_ratios import (
    SIGNATURES,
    Bound,
    Model,
    by_growth,
    by_rate,
    by_ratio,
    forget_oldest,
    ratio,
)
from hetero.plan.performance.robust_statistics import NOISE_S
from hetero.plan.performance.window import Window

__all__ = ["KEPT", "UNKNOWN_S", "Bound", "CostModel", "Origin", "Sample", "TimeEstimate"]

Origin = Literal["history", "regression", "roofline", "relative", "unknown"]

KEPT = 16
"""Samples of one signature on one kind of device that are handed out to be kept."""

UNKNOWN_S = 1e-3
"""The guess where nothing is known (s)."""

_LEAST_S = 1e-9
_SEEDS = 8
_SOURCES = 8
_STEADY = 3
_STEADY_CEIL = 1.8
_VAGUE = 50.0
_STEERS_S = 100e-6
"""A change smaller than this (s) says nothing of the device's other signatures."""


class TimeEstimate(NamedTuple):
    """An estimated run time.

    Attributes
    ----------
    seconds
        Seconds, the median; inf never occurs here.
    low_s, high_s
        Seconds, the 10th and 90th percentile, or a wide guess.
    origin
        'history' same signature on this device or its model; 'regression' other sizes of the function; 'relative' the
        signature's time on another device, scaled by the devices' speeds; 'roofline' size over the device's speed;
        'unknown' nothing is known.
    samples
        Number of measurements behind it.
    """

    seconds: float
    low_s: float
    high_s: float
    origin: Origin
    samples: int


class Sample(NamedTuple):
    """One measured run, as it is kept between runs."""

    signature: str
    device_key: str
    size: float
    seconds: float


class _State:
    """What is known of one device.

    `factor` is how many times slower it is than when it was first seen.
    """

    __slots__ = ("device", "factor", "model", "windows")

    def __init__(self, device: Device, model: Model) -> None:
        self.device = device
        self.model = model
        self.factor = 1.0
        self.windows: dict[str, Window] = {}


class CostModel:
    """Learns how long each signature takes on each device.

    Parameters
    ----------
    devices
        The devices in the order in which ties between them are broken; others join when first named.

    Attributes
    ----------
    epoch
        Grows whenever estimates of other signatures than the observed one moved as well, because a device changed its
        speed; who keeps estimates should then ask for all of them again.
    result_bytes
        Bytes of the largest result known of each signature.

    Notes
    -----
    An estimate is, in this order: the signature's history on this device, or on one with the same `model_key`;
    a curve over the sizes of the same function there; the signature's time on another device times the ratio
    of their speeds; bytes over the device's bytes/s; a guess. All are medians and quantiles, no mean.

    The first run of a signature on a device (compilation, caches) is set aside once a second was faster.
    Two or three samples in a row off the median in one direction mean a new speed: the window starts anew
    with them. If the window was steady, the device's other signatures are scaled too, until each is measured
    again; when the first of them denies the change, it was the signature's own and the others are put back.

    References
    ----------
    C. Augonnet, S. Thibault, R. Namyst, "Automatic Calibration of Performance Models on Heterogeneous
    Multicore Architectures", HPPC 2009: history by signature, regression over sizes. It keeps means.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> cpu = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu")
    >>> model = CostModel([cpu])
    >>> for seconds in (2.5, 0.1, 0.1, 0.1):
    ...     _ = model.observe("f|float64[8]", 64.0, cpu, seconds)
    >>> model.estimate("f|float64[8]", 64.0, cpu).seconds
    0.1
    """

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        self.epoch = 0
        self.result_bytes: dict[str, int] = {}
        self._states: dict[str, _State] = {}
        self._models: dict[str, Model] = {}
        self._ran_by: dict[str, list[Model]] = {}
        self._guesses: dict[tuple[str, str], tuple[int, float, TimeEstimate]] = {}
        self._version = 0
        self._fastest_flop_per_s = 0.0
        for device in devices:
            self._state(device)

    def observe(self, signature: str, size: float, device: Device, seconds: float) -> bool:
        """Learn one run.

        Parameters
        ----------
        signature
            Function key, '|', shapes and types.
        size
            >= 0, what the time is expected to grow with.
        device
            The device that ran it.
        seconds
            Seconds.

        Returns
        -------
        bool
            True when the estimates of this signature moved by more than a tenth.
        """
        state = self._states.get(device.id)
        if state is not None and state.device is device:
            window = state.windows.get(signature)
            if window is not None and window.factor == state.factor and window.own:
                x = seconds if window.b == 0.0 else seconds / max(size, 1.0) ** window.b
                if window.floor < x < window.ceil and window.count + 1 < window.due:
                    if window.streak:
                        window.calm()
                    window.put(size, seconds)
                    return False
        else:
            state = self._state(device)
        return self._learn(state, signature, size, max(seconds, _LEAST_S))

    def observe_result(self, signature: str, nbytes: int) -> None:
        """Record the bytes of a result."""
        self.result_bytes[signature] = max(self.result_bytes.pop(signature, nbytes), nbytes)
        forget_oldest(self.result_bytes, SIGNATURES)

    def estimate(self, signature: str, size: float, device: Device) -> TimeEstimate:
        """Estimate one run.

        Parameters
        ----------
        signature, size
            As in `observe`.
        device
            Any device, also one never seen.
        """
        state = self._states.get(device.id)
        if state is None or state.device is not device:
            state = self._state(device)
        window = state.windows.get(signature)
        if window is not None:
            if window.first:
                return self._after_first(state, window, signature, size)
            return _of_window(window, size, state.factor / window.factor)
        return self._of_like(state, signature, size)

    def bound(self, signature: str) -> Bound | None:
        """Return whether a signature's time is bound by arithmetic or by moving bytes, None where unclear.

        Notes
        -----
        In this order: whether the ratio of its times on two kinds of devices is near the ratio of their FLOP/s
        or that of their bytes/s; whether the bytes of its arguments over its time reach a third of the
        device's bytes/s, or not even a thirtieth; whether its function's time grows clearly faster than the
        bytes of its arguments (an exponent above 1.2).
        """
        models = [model for model in self._ran_by.get(signature, ()) if model.settled(signature) is not None]
        return by_ratio(models, signature) or by_rate(models, signature) or by_growth(models, signature, self._version)

    def load(self, samples: Iterable[Sample]) -> None:
        """Take what earlier runs measured, oldest first."""
        touched: dict[tuple[str, str], Window] = {}
        for signature, device_key, size, seconds in samples:
            model = self._models.get(device_key)
            if model is None:
                model = self._models[device_key] = Model(device_key, None)
            window = touched[signature, device_key] = model.make(signature)
            window.put(size, max(seconds, _LEAST_S))
            self._ran(signature, model)
        for window in touched.values():
            window.calm()
        self._version += 1

    def new_samples(self) -> tuple[Sample, ...]:
        """Return what was learned since the last call, to be kept: the newest of each signature on each device."""
        kept: list[Sample] = []
        for state in self._states.values():
            for signature, window in state.windows.items():
                take = 0 if window.first else min(window.fresh, KEPT)
                kept += (Sample(signature, state.model.key, *run) for run in window.latest(take))
                window.fresh = 1 if window.first else 0
        return tuple(kept)

    # devices

    def _state(self, device: Device) -> _State:
        state = self._states.get(device.id)
        key = device.model_key
        if state is None or state.model.key != key:
            self._fastest_flop_per_s = max(self._fastest_flop_per_s, device.flop_per_s or 0.0)
            model = self._models.get(key)
            if model is None:
                model = self._models[key] = Model(key, device)
            state = self._states[device.id] = _State(device, model)
        state.device = device
        if state.model.device is None or state.model.device.id == device.id:
            state.model.device = device
        return state

    def _ran(self, signature: str, model: Model) -> None:
        models = self._ran_by.get(signature)
        if models is None:
            models = self._ran_by[signature] = []
            forget_oldest(self._ran_by, 2 * SIGNATURES)
        if len(models) < _SOURCES and model not in models:
            models.append(model)

    # learning

    def _learn(self, state: _State, signature: str, size: float, seconds: float) -> bool:
        window = state.windows.get(signature) or self._begin(state, signature)
        if window.factor != state.factor:
            self._settle(state, window, size, seconds)
        if not window.own:
            window.own = True
            if window.count and window.scaled(size, seconds) > window.ceil:
                return self._moved(window)
            window.first = window.count == 0
        elif window.first:
            window.first = False
            if window.scaled(size, seconds) < window.middle:
                window.seconds, window.sizes, window.count, window.fresh = [], [], 0, 0
        if window.is_off(window.scaled(size, seconds)):
            if window.off(size, seconds):
                self._change(state, window)
            return self._moved(window)
        due = window.count + 1 >= window.due
        window.put(size, seconds)
        window.calm()
        if due:
            self._share(state, signature, window)
        return self._moved(window)

    def _begin(self, state: _State, signature: str) -> Window:
        window = state.windows[signature] = Window(state.factor)
        shared = state.model.settled(signature)
        if shared is not None:
            window.b = shared.b
            for size, seconds in shared.latest(_SEEDS):
                window.put(size, seconds * state.factor)
            window.calm()
            window.fresh = 0
            window.acknowledge_move()
        forget_oldest(state.windows, SIGNATURES)
        return window

    def _share(self, state: _State, signature: str, window: Window) -> None:
        """Share samples with the devices of the same kind; a first run only where nothing better is known."""
        shared = state.model.make(signature)
        self._ran(signature, state.model)
        if window.first and shared.count:
            return
        if shared.first:
            shared.seconds, shared.sizes, shared.count = [], [], 0
        shared.first = window.first
        for size, seconds in window.latest(1 if shared.count else _SEEDS):
            shared.put(size, seconds / state.factor)
        shared.weigh()

    def _moved(self, window: Window) -> bool:
        moved = window.acknowledge_move()
        self._version += moved
        return moved

    def _change(self, state: _State, window: Window) -> None:
        """Believe a new speed of one signature, and suspect it of the whole device where the old one was steady."""
        before = window.at(window.size)
        steady = window.count >= _STEADY and window.ceil <= _STEADY_CEIL * window.middle
        window.restart()
        now = window.at(window.size)
        if steady and abs(now - before) > _STEERS_S:
            state.factor *= now / before
            window.factor = state.factor
            self.epoch += 1
            self._version += 1

    def _settle(self, state: _State, window: Window, size: float, seconds: float) -> None:
        """Confirm or deny a suspected change of the device's speed by the first sample after it."""
        ratio = state.factor / window.factor
        old = window.at(size)
        new = old * ratio
        if abs(new - old) < 2.0 * NOISE_S or (seconds > (old * new) ** 0.5) is (ratio > 1.0):
            window.scale(ratio)
            window.factor = state.factor
            return
        denied, state.factor = state.factor, window.factor
        for other in state.windows.values():
            if other.factor == denied:
                other.factor = state.factor
        self.epoch += 1
        self._version += 1

    # estimating

    def _of_like(self, state: _State, signature: str, size: float) -> TimeEstimate:
        """Estimate from all but the device's own runs of the signature."""
        key = (signature, state.model.key)
        version, at_size, known = self._guesses.get(key, (-1, size, _UNKNOWN))
        if version != self._version or at_size != size:
            known = self._guess(state.model, signature, size)
            self._guesses[key] = (self._version, size, known)
            forget_oldest(self._guesses, 4 * SIGNATURES)
        return known if state.factor == 1.0 else _scaled(known, state.factor, 1.0, known.origin)

    def _after_first(self, state: _State, window: Window, signature: str, size: float) -> TimeEstimate:
        """Estimate while all that is known of the device itself is a first run, which may have been poisoned."""
        first = window.at(size) * state.factor / window.factor
        like = self._of_like(state, signature, size)
        if like.high_s < _VAGUE * like.low_s and like.seconds < first:
            return like._replace(high_s=max(first, like.high_s))
        return TimeEstimate(first, 0.1 * first, 1.5 * first, "history", 1)

    def _guess(self, model: Model, signature: str, size: float) -> TimeEstimate:
        shared = model.settled(signature)
        if shared is not None:
            return _of_window(shared, size, 1.0)
        found = model.curve(signature.partition("|")[0], self._version)
        if found is not None:
            seconds, spread = max(found.seconds(size), _LEAST_S), max(found.spread_at(size), 1.1)
            samples = len(model.functions[signature.partition("|")[0]])
            return TimeEstimate(seconds, seconds / spread, seconds * spread, "regression", samples)
        return (
            self._relative(model, signature, size)
            or _first_of_twin(model, signature, size)
            or _roofline(model.device, size, self._slowness(model.device))
        )

    def _slowness(self, device: Device | None) -> float:
        """Return how many times slower a device is than the fastest, as far as their speeds are known."""
        if device is None:
            return 1.0
        if self._fastest_flop_per_s and device.flop_per_s:
            return max(1.0, self._fastest_flop_per_s / device.flop_per_s)
        return 1.0 / device.throttle_frac

    def _relative(self, model: Model, signature: str, size: float) -> TimeEstimate | None:
        best: TimeEstimate | None = None
        least = inf
        bound = self.bound(signature)
        for source in self._ran_by.get(signature, ()):
            window = source.window(signature)
            if window is None or source is model:
                continue
            times, spread = ratio(source, model, signature, bound)
            spread *= 10.0 if window.first else 1.0
            if spread < least:
                least, best = spread, _scaled(_of_window(window, size, 1.0), times, spread, "relative")
        return best


_UNKNOWN = TimeEstimate(UNKNOWN_S, 0.001 * UNKNOWN_S, 1000.0 * UNKNOWN_S, "unknown", 0)


def _of_window(window: Window, size: float, times: float) -> TimeEstimate:
    if window.b:
        times *= max(size, 1.0) ** window.b
    return TimeEstimate(window.middle * times, window.low * times, window.high * times, "history", len(window.seconds))


def _first_of_twin(model: Model, signature: str, size: float) -> TimeEstimate | None:
    """Estimate by the first run on a device of the same kind, which may have been poisoned."""
    window = model.window(signature)
    return None if window is None or not window.count else _scaled(_of_window(window, size, 1.0), 1.0, 10.0, "history")


def _scaled(estimate: TimeEstimate, times: float, spread: float, origin: Origin) -> TimeEstimate:
    seconds, low_s, high_s, _, samples = estimate
    return TimeEstimate(seconds * times, low_s * times / spread, high_s * times * spread, origin, samples)


def _roofline(device: Device | None, size: float, slowness: float) -> TimeEstimate:
    """Bytes over bytes/s where that alone takes longer than the guess for what is unknown, else the guess.

    The guess is that for the fastest device, times how much slower this one is: a slow device must not look like
    a fast one before anything has run.
    """
    if device is None or not device.bytes_per_s or size <= 0.0:
        return _scaled(_UNKNOWN, slowness, 1.0, "unknown")
    least, guess = size / device.bytes_per_s, UNKNOWN_S * slowness
    return TimeEstimate(max(least, guess), min(least, guess), 1000.0 * max(least, guess), "roofline", 0)
