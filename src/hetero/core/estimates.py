"""Rows of estimated seconds: one array over the devices for each class of tasks.

In: the cost model and the devices. Out: rows, refreshed as the model learns. It must not place anything.
"""

from __future__ import annotations

from math import frexp, inf, isfinite

import numpy as np
from numpy.typing import NDArray

from hetero.core.obstacles import obstacle
from hetero.core.quarantine import size_class
from hetero.core.state import DeviceState, Row, TaskState
from hetero.floor.units import format_seconds
from hetero.model.device import Device
from hetero.model.tasks import Request, Task
from hetero.model.topology import Topology
from hetero.plan.performance.cost_model import CostModel

__all__ = ["EstimateRows"]

KNOWN = frozenset({"history", "regression", "relative"})
"""Origins of estimates that are good enough to send several tasks at once."""


class EstimateRows:
    """All rows, by signature, request and size.

    Notes
    -----
    A row is computed anew when an estimate moved; on a large fleet only after as many moves as a sixteenth
    of the devices, so that the cost of learning stays constant per finished task, and until then only the
    entry of the device that moved.
    """

    def __init__(self, cost: CostModel, devices: list[DeviceState], topology: Topology) -> None:
        self._cost = cost
        self._devices = devices
        self._capacity = {node.id: node.capacity_bytes for node in topology.nodes}
        self._rows: dict[tuple[str, int, tuple[float, int]], Row] = {}
        self._by_signature: dict[str, list[Row]] = {}
        self._deadly: dict[str, set[int]] = {}
        self.absent: dict[str, dict[tuple[str, str, str], str]] = {}
        self._last: dict[str, Row] = {}
        self._moves = 0

    def sized(self, row: Row, nbytes: int) -> bool:
        """Record the bytes of a result; True when no larger one was known of its signature."""
        if nbytes <= row.out_bytes:
            return False
        self._cost.observe_result(row.key, nbytes)
        for other in (row, *self._by_signature.get(row.key, ())):
            other.out_bytes = max(other.out_bytes, nbytes)
        return True

    @property
    def moves(self) -> int:
        """How often an estimate moved."""
        return self._moves

    def result_bytes(self) -> int:
        """Return the bytes of the results of all tasks handed in so far, as far as their size is known."""
        return sum(row.count * max(row.out_bytes, 0) for row in self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def alone_s(self) -> NDArray[np.float64]:
        """Return how long each device would take for all tasks handed in so far, alone: shape (n_devices,), s.

        A task that a device cannot run counts as if it took a thousand times as long as where it is fastest.
        """
        total = np.zeros(len(self._devices))
        for row in self._rows.values():
            if row.count and len(row.seconds) != len(total):
                self._fill(row)
            if row.count and row.best >= 0:
                total += row.count * np.minimum(row.seconds, 1e3 * row.seconds[row.best])
        return total

    def of(self, state: TaskState) -> Row:
        """Return the row of a task's class."""
        row = state.row
        if row is None:
            row = state.row = self._find(state)
        if row.stale:
            self._fill(row)
        return row

    def latest(self, task: Task) -> Row | None:
        """Return the row of a task when the last one of its signature was like it; None where it must be looked for."""
        row = self._last.get(task.signature)
        if row is None or row.size != task.size or row.request is not task.request:
            return None
        if row.stale:
            self._fill(row)
        return row

    def fresh(self, row: Row) -> None:
        """Update a row."""
        if row.stale:
            self._fill(row)

    def _find(self, state: TaskState) -> Row:
        task = state.task
        last = self.latest(task)
        if last is not None:
            return last
        mantissa, exponent = frexp(task.size)
        key = (task.signature, id(task.request), (round(mantissa, 1), exponent))
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Row(task.signature, task.size, task.request)
            row.deadly = bool(self._deadly) and size_class(task.size) in self._deadly.get(task.signature, ())
            row.out_bytes = self._cost.result_bytes.get(task.signature, -1)
            self._by_signature.setdefault(task.signature, []).append(row)
            if len(self._rows) > 4096:
                self._forget_oldest()
        if row.size == task.size:
            self._last[task.signature] = row
        return row

    def _like(self, task: Task) -> list[Row]:
        """Return the rows of tasks of the same signature and of about the same size, whatever they ask for."""
        own = size_class(task.size)
        return [row for row in self._by_signature.get(task.signature, ()) if size_class(row.size) == own]

    def ended_well(self, task: Task) -> bool:
        """Return whether a task of the same signature and of about the same size was finished in this run."""
        return any(row.ended_well for row in self._like(task))

    def died(self, state: TaskState) -> None:
        """Record that a worker died of a task: others like it may be deadly too."""
        for row in (self.of(state), *self._like(state.task)):
            row.deadly = True
        self._deadly.setdefault(state.task.signature, set()).add(size_class(state.task.size))

    def _forget_oldest(self) -> None:
        for key in list(self._rows)[:1024]:
            row = self._rows.pop(key)
            left = self._by_signature[row.key]
            left.remove(row)
            self._last.pop(row.key, None)
            if not left:
                del self._by_signature[row.key]
                self._deadly.pop(row.key, None)

    def capacity(self, device: Device) -> int | None:
        """Return the bytes of a device's memory node, or its memory_limit where that is less; None where unknown."""
        node_bytes = self._capacity.get(device.memory_node, device.memory_bytes)
        return min((size for size in (node_bytes, device.memory_limit_bytes) if size is not None), default=None)

    def obstacle(self, device: Device, signature: str, request: Request) -> str:
        """Return why a device cannot run this class, '' when it can."""
        lacking = self.absent.get(signature.partition("|")[0])
        if lacking and _environment(device) in lacking:
            return "a package that the task imports is not installed there"
        return obstacle(device, request, self.capacity(device))

    def _fill(self, row: Row) -> None:
        values = np.full(len(self._devices), inf)
        row.high_s, row.known, row.measured, best = 0.0, False, False, inf
        for state in self._devices:
            device = state.device
            if self.obstacle(device, row.key, row.request):
                continue
            estimate = self._cost.estimate(row.key, row.size, device)
            values[state.index] = estimate.seconds
            row.high_s = max(row.high_s, estimate.high_s if estimate.origin in KNOWN else inf)
            row.measured |= estimate.origin in KNOWN
            if estimate.seconds < best:
                best, row.known = estimate.seconds, estimate.origin in KNOWN
        row.seconds = values
        row.best, row.best_s = (int(values.argmin()), best) if best < inf else (-1, inf)
        row.stale, row.dirty = False, 0

    def learned(self, signature: str, state: DeviceState) -> None:
        """Record that the model's estimate of a signature moved on a device."""
        self._moves += 1
        threshold = len(self._devices) // 16
        for row in self._by_signature.get(signature, ()):
            row.dirty += 1
            if row.dirty > threshold:
                row.stale = True
            elif not row.stale and isfinite(row.seconds[state.index]):
                row.seconds[state.index] = self._cost.estimate(row.key, row.size, state.device).seconds
                row.best = int(row.seconds.argmin())
                row.best_s = float(row.seconds[row.best])

    def refresh(self) -> None:
        """Record that everything may have moved: the fleet changed, or a device's speed did."""
        self._moves += 1
        for row in self._rows.values():
            row.stale = True

    def why_idle(self, index: int) -> str:
        """Return why a device got nothing to do, from the tasks seen last."""
        for row in reversed(self._rows.values()):
            name = row.key.partition("|")[0].partition("@")[0].rpartition(".")[2]
            if row.stale or row.best < 0 or row.best == index:
                continue
            if isfinite(row.seconds[index]):
                best = self._devices[row.best].name
                there, here = format_seconds(row.seconds[index]), format_seconds(row.seconds[row.best])
                return f"a task of {name} would take {there} there against {here} on {best}"
            reason = self.obstacle(self._devices[index].device, row.key, row.request)
            if reason:
                return f"{name}: {reason}"
        return "the other devices were enough"

    def leave_out(self, signature: str, device: Device, message: str) -> None:
        """Record that devices of this one's kind and environment lack a package that the function needs."""
        function = signature.partition("|")[0]
        self.absent.setdefault(function, {})[_environment(device)] = message
        self.refresh()


def _environment(device: Device) -> tuple[str, str, str]:
    """Return what devices that import the same packages have in common: host, interpreter and label."""
    return device.id.partition("/")[0], device.python, device.label
