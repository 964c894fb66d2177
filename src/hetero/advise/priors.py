"""What is known of a device and an engine before anybody measures here: learned from published measurements.

In: a device and an engine's name. Out: an `Efficiency` that says where it comes from. It must not read a user's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hetero.advise.measurements import Measurement, published
from hetero.catalog.values import DeviceSpec
from hetero.plan.sizing.efficiency import SPEC, Efficiency, MeasuredRun, learn

__all__ = ["borrowed", "prior_of"]

_BETWEEN_DEVICES = 0.5
"""The part of a data sheet's doubt that stays when others of the kind were measured: declared."""

_BETWEEN_KINDS = 0.7
"""The same when only other kinds were measured, as CUDA and not Metal: declared."""

_BETWEEN_SETTINGS = 0.15
"""By how much whole runs differ between versions of an engine, its settings and machines (standard deviation of the
logarithm): declared."""


@cache
def _of_kind(engine: str, kind: str) -> Efficiency:
    rows = [row for row in published() if row.engine == engine]
    near = [row for row in rows if row.device.kind == kind]
    if not rows:
        return SPEC
    pages = "published measurements of " + engine
    if near:
        return learn(SPEC, [row.sample for row in near], "borrowed", f"{pages} on {_names(near)}")
    far = learn(SPEC, [row.sample for row in rows], "borrowed", "")
    return far.widened(_BETWEEN_KINDS, 0.0, "borrowed", f"{pages} on other kinds of devices: {_names(rows)}")


@cache
def _of_device(engine: str, kind: str, name: str) -> Efficiency:
    common = _of_kind(engine, kind)
    if common.origin == "spec":
        return common.widened(0.0, 2 * _BETWEEN_SETTINGS, "spec", common.said)
    own = [row for row in published() if row.engine == engine and row.device.name == name]
    near = common.widened(_BETWEEN_DEVICES, 0.0, "borrowed", common.said)
    known = learn(near, [row.sample for row in own], "prior", f"published measurements of {engine} on {name}")
    return known.widened(0.0, _BETWEEN_SETTINGS, known.origin, known.said)


def _names(rows: list[Measurement]) -> str:
    return ", ".join(sorted({row.device.name for row in rows}))


def prior_of(device: DeviceSpec, engine: str) -> Efficiency:
    """Return what published measurements say of an engine on a device.

    Notes
    -----
    Three levels: what the data sheet says is narrowed by the rows of this engine on devices of this kind, widened by
    what devices differ, and narrowed again by the rows of this very device. Without any row of the engine the data
    sheet stays. Rows of the device count in both levels (empirical Bayes).

    Examples
    --------
    >>> from hetero.catalog.load import find
    >>> prior_of(find("RTX-4090"), "llama.cpp").origin, prior_of(find("RTX-4080"), "llama.cpp").origin
    ('prior', 'borrowed')
    """
    return _of_device(engine, device.kind, device.name)


def borrowed(prior: Efficiency, samples: Sequence[MeasuredRun], said: str) -> Efficiency:
    """Return the prior for this device, updated by own measurements of the engine on other devices.

    Parameters
    ----------
    samples : runs on other devices; none leave the prior as it is
    said : whose they are
    """
    if not samples:
        return prior
    return learn(prior, samples, "borrowed", said).widened(_BETWEEN_DEVICES, _BETWEEN_SETTINGS, "borrowed", said)
