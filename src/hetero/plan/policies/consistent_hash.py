"""Consistent hashing: tasks of one key to one device, as long as that device is there and not overfull.

In: the fleet and the first ready tasks. Out: proposals for all of them.
It must not use Python's own hash, which differs from process to process.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import ceil

import numpy as np
from numpy.typing import NDArray

from hetero.model.device import Device
from hetero.plan.policies.base import Memory, Proposal, ReadyTask, View

__all__ = ["LOAD", "ConsistentHash", "scores"]

LOAD = 1.25
"""A device takes at most this many times the average number of tasks; then the next in a key's order takes over."""

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class ConsistentHash:
    """Put tasks of one key on the same device, so that what it holds for them is used again.

    Notes
    -----
    Each key orders the devices by a score of (key, device id), and a task goes to the first of them that can
    run it and has fewer than ceil(LOAD * (tasks in all + 1) / devices) tasks. When a device leaves, only its
    own keys move, each to the next in its order; when one joins, it takes about 1/n of the keys.

    It departs from the paper's ring: scores (rendezvous hashing) spread the keys evenly without virtual
    nodes and are worked out for all devices at once. The bound on the load is from the third paper: without
    it the tasks of one function would all go to one device.

    References
    ----------
    D. Karger et al., "Consistent hashing and random trees", STOC 1997, 654-663.
    D. Thaler, C. Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM ToN 6 (1998), 1-14.
    V. Mirrokni, M. Thorup, M. Zadimoghaddam, "Consistent hashing with bounded loads", SODA 2018, 587-604.
    The mixing function is the finaliser of SplitMix64: G. Steele, D. Lea, C. Flood, OOPSLA 2014, 453-472.
    """

    name = "consistent_hash"

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose a device for each task that can run somewhere; remember the devices' hashes."""
        known = memory if isinstance(memory, tuple) and memory[0] == view.devices else _hashed(view.devices)
        codes = np.frombuffer(known[1], dtype=np.uint64)
        load = np.where(view.ready, view.queued, 0)
        devices, total = max(int(view.ready.sum()), 1), int(load.sum())
        proposals: list[Proposal] = []
        for task in ready:
            able = view.ready & np.isfinite(task.seconds)
            if not able.any():
                continue
            light = able & (load < ceil(LOAD * (total + 1) / devices))
            order = _mixed(codes, _digest(task.key))
            device = int(np.where(light if light.any() else able, order, np.uint64(0)).argmax())
            proposals.append(Proposal(task.id, device))
            load[device] += 1
            total += 1
        return proposals, known


def scores(key: str, ids: Sequence[str]) -> NDArray[np.uint64]:
    """Return the score of each device for a key; the highest is the key's home.

    Examples
    --------
    >>> bool(scores("f|", ["h0/cpu:0", "h0/cpu:1"])[1] == scores("f|", ["h0/cpu:1"])[0])
    True
    """
    return _mixed(np.array([_digest(name) for name in ids], dtype=np.uint64), _digest(key))


def _hashed(devices: tuple[Device, ...]) -> tuple[tuple[Device, ...], bytes]:
    return devices, np.array([_digest(device.id) for device in devices], dtype=np.uint64).tobytes()


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _mixed(codes: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    z = codes ^ np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)
