"""Tasks and requests, as the core sees them: ids, sizes and wishes, never functions or arrays.

In: what the session derived from a call. Out: frozen values. It must not hold anything of the user's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["JUDGED_BY_CALLER", "SCOPES", "Failure", "FailureKind", "Near", "Request", "Task"]

SCOPES = ("device", "host", "rack", "link")
"""How near 'near' is: the same device, host, rack, or a device reached by a link of a named kind."""

FailureKind = Literal[
    "exception", "crash", "timeout", "out_of_memory", "unserialisable", "missing_package", "cancelled", "nothing_fits"
]


class Near(NamedTuple):
    """One affinity or anti-affinity.

    Attributes
    ----------
    scope
        'device', 'host', 'rack', or 'link:KIND' as in 'link:nvlink'.
    task
        Id of the other task, 0 where a workload is named.
    workload
        Name of the other workload, '' where a task is named.
    """

    scope: str
    task: int = 0
    workload: str = ""


PLAIN_PYTHON = "plain Python"
"""In `Request.implemented`: any device that runs Python. It is no word that users can write, for its capital."""

JUDGED_BY_CALLER = -1
"""`Request.crashes` of a task whose caller hands it in again as it sees fit: no quarantine counts its deaths."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a task asks of the device that runs it.

    Attributes
    ----------
    on
        Words that a device must answer to, any one of them: a kind, a type, a label, an id; empty for any.
    implemented
        Words of the kinds that the function has code for, and `PLAIN_PYTHON`; empty means plain Python alone, which
        runs on every device that runs Python.
    not_on
        Words of devices that must not run it.
    devices
        Number of devices that the task takes together; rank and world_size are known inside.
    memory_bytes
        Bytes that it needs on the device's memory node beyond its inputs.
    min_cores
        Cores that the device must have.
    near, apart
        Affinities and anti-affinities.
    workload
        The named workload that the task belongs to, '' for none.
    exclusive
        True when nothing else may run on the same host meanwhile.
    timeout_s
        Seconds of run time after which it is stopped, 0 for no limit.
    retries
        Times that an exception of its own is retried.
    crashes
        Times that a death of its worker is retried; `JUDGED_BY_CALLER` for none, and no blame for its class.
    priority
        Higher goes first.
    splittable
        True when the function says how to cut the task into smaller ones.
    lease
        Number of the lease whose devices alone may run it, 0 for devices that nobody leased.
    """

    on: tuple[str, ...] = ()
    implemented: tuple[str, ...] = ()
    not_on: tuple[str, ...] = ()
    devices: int = 1
    memory_bytes: int = 0
    min_cores: int = 0
    near: tuple[Near, ...] = ()
    apart: tuple[Near, ...] = ()
    workload: str = ""
    exclusive: bool = False
    timeout_s: float = 0.0
    retries: int = 0
    crashes: int = 3
    priority: int = 0
    splittable: bool = False
    lease: int = 0

    @property
    def is_plain(self) -> bool:
        """True when nothing but the device has to be chosen: no group, affinity, workload, lease or limit of time."""
        special = self.near or self.apart or self.workload or self.exclusive or self.timeout_s or self.lease
        return not (special or self.devices > 1)


class Task(NamedTuple):
    """One call of a function: the atom of scheduling.

    Attributes
    ----------
    id
        > 0, unique in a run, ascending in the order of submission; its result is the data item of the same id.
    name
        The function's name, for people.
    signature
        The key of its measured times: function, shapes and types of the arguments.
    size
        >= 0, what its time is expected to grow with: bytes of arrays plus the numbers given.
    inputs
        Ids of the data items that it reads.
    after
        Ids of the tasks whose results it needs.
    request
        What it asks of its device.
    parent
        Id and attempt of the task that submitted it, () where the program did.
    depth
        How many tasks it is nested in.
    """

    id: int
    name: str
    signature: str
    size: float
    inputs: tuple[int, ...]
    after: tuple[int, ...]
    request: Request
    parent: tuple[int, ...] = ()
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt, or a task, failed.

    Attributes
    ----------
    kind
        One of `FailureKind`.
    message
        One line for people.
    payload
        The exception itself in whatever form the engine carries it; never looked at by the core.
    """

    kind: FailureKind
    message: str
    payload: object = None
