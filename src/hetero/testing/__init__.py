"""Testing: the public conformance kits of the four interfaces, and programs in virtual time.

A kit raises AssertionError with one clear sentence. `simulate` runs a program of tasks and leases on the core that runs
live programs, with an engine that only adds up seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetero.drive.sim import Program, SimLease, SimTask, simulate
    from hetero.drive.sim_faults import Faults, Loss
    from hetero.model.device import Device, DeviceType
    from hetero.model.leases import LeaseRequest
    from hetero.model.tasks import Request, Task
    from hetero.testing.backend import check_backend
    from hetero.testing.engine import check_engine
    from hetero.testing.group import check_group
    from hetero.testing.policy import check_policy
    from hetero.testing.store import check_power_cuts, check_store

_PLACES = {
    "Device": "hetero.model.device",
    "DeviceType": "hetero.model.device",
    "Faults": "hetero.drive.sim_faults",
    "LeaseRequest": "hetero.model.leases",
    "Loss": "hetero.drive.sim_faults",
    "Program": "hetero.drive.sim",
    "Request": "hetero.model.tasks",
    "SimLease": "hetero.drive.sim",
    "SimTask": "hetero.drive.sim",
    "Task": "hetero.model.tasks",
    "check_backend": "hetero.testing.backend",
    "check_engine": "hetero.testing.engine",
    "check_group": "hetero.testing.group",
    "check_policy": "hetero.testing.policy",
    "check_power_cuts": "hetero.testing.store",
    "check_store": "hetero.testing.store",
    "simulate": "hetero.drive.sim",
}
__all__ = [
    "Device",
    "DeviceType",
    "Faults",
    "LeaseRequest",
    "Loss",
    "Program",
    "Request",
    "SimLease",
    "SimTask",
    "Task",
    "check_backend",
    "check_engine",
    "check_group",
    "check_policy",
    "check_power_cuts",
    "check_store",
    "simulate",
]


@contextmanager
def guide_step(step: str) -> Iterator[None]:
    """Name the step of CONTRIBUTING.md in whatever is wrong inside; an exception that no promise allows is wrong, too.

    Examples
    --------
    >>> with guide_step("2 (_probe)"):
    ...     raise KeyError("ROCM_HOME")
    Traceback (most recent call last):
    AssertionError: step 2 (_probe): KeyError: 'ROCM_HOME'
    """
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"step {step}: {error}") from error.__cause__
    except Exception as error:
        raise AssertionError(f"step {step}: {type(error).__name__}: {error}") from error


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'hetero.testing' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
