"""Testing: the public conformance kits of the four interfaces. A kit raises AssertionError with one clear sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero.testing.backend import check_backend
    from hetero.testing.engine import check_engine
    from hetero.testing.group import check_group
    from hetero.testing.policy import check_policy
    from hetero.testing.store import check_power_cuts, check_store

_HOMES = {
    "check_backend": "backend",
    "check_engine": "engine",
    "check_group": "group",
    "check_policy": "policy",
    "check_power_cuts": "store",
    "check_store": "store",
}
__all__ = ["check_backend", "check_engine", "check_group", "check_policy", "check_power_cuts", "check_store"]


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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hetero.testing' has no attribute {name!r}")
    return getattr(import_module(f"hetero.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
