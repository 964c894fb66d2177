"""What a device's time is worth: the prices of the area relaxation, and which devices suit a task by them.

In: a `Problem`. Out: prices, and tables of devices to leave out. It must not place anything.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.problem import Floats, Problem

__all__ = ["device_classes", "left_out", "priced_seconds"]

_ROUNDS = 150


def device_classes(p: Problem) -> list[list[int]]:
    """Return the devices in groups that are alike: the same memory node, the same seconds for every task."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for device in range(len(p.node)):
        groups.setdefault((int(p.node[device]), p.seconds[:, device].tobytes()), []).append(device)
    return list(groups.values())


def priced_seconds(p: Problem) -> Floats:
    """Return l_d * w(i, d), shape (n_tasks, n_devices): the seconds of each task, at the price of each device.

    Notes
    -----
    The prices l >= 0, the sum of which is 1, are near the maximum of the sum over tasks of min over d of
    l_d * w(i, d): the dual of the relaxation in which tasks may be split over devices. A fast device that all want
    is dear. They are found by multiplicative weights: each round makes a class of devices dearer that gets more
    than the mean of the work.

    References
    ----------
    S. Arora, E. Hazan, S. Kale, "The multiplicative weights update method", Theory of Computing 8 (2012), 121-164.
    """
    from hetero.plan.bounds.area_kernels import class_prices

    classes = device_classes(p)
    counts = np.array([len(group) for group in classes], dtype=np.float64)
    prices = class_prices(np.ascontiguousarray(p.seconds[:, [group[0] for group in classes]]), counts, _ROUNDS)
    each = np.empty(len(p.node))
    for group, price in zip(classes, prices, strict=True):
        each[group] = price
    return p.seconds * each


def left_out(priced: Floats, within: float) -> Floats:
    """Return inf where a device is dearer for a task than `within` times its cheapest, 0 elsewhere.

    Examples
    --------
    >>> left_out(np.array([[1.0, 1.4, 3.0]]), 1.5)
    array([[ 0.,  0., inf]])
    """
    return np.where(priced <= within * priced.min(axis=1, keepdims=True), 0.0, np.inf)
