"""What this host offers of the ways in which the members of a group task can talk.

In: a protocol by name. Out: the protocol to use, or ConfigError with what is here instead.
It must not open a connection.
"""

from __future__ import annotations

from pathlib import Path

from hetero.floor.errors import ConfigError

__all__ = ["available_protocols", "choose_protocol", "why_absent"]

_INFINIBAND = Path("/sys/class/infiniband")


def why_absent(protocol: str) -> str:
    """Say why a protocol cannot be used on this host, '' when it can."""
    if protocol == "rdma":
        return _why_no_rdma(_INFINIBAND)
    if protocol == "nccl":
        return _why_no_nccl()
    return ""


def _why_no_rdma(folder: Path) -> str:
    adapters = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return "" if adapters else f"this host has no RDMA adapter ({folder} is empty or missing)"


def _why_no_nccl() -> str:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return "" if torch.distributed.is_nccl_available() else f"torch {torch.__version__} is built without NCCL"


def available_protocols() -> tuple[str, ...]:
    """Give the protocols that work on this host, the usual first."""
    return tuple(name for name in ("shared_memory", "tcp", "rdma", "nccl") if not why_absent(name))


def choose_protocol(protocol: str, source: str = "") -> str:
    """Give the protocol to use; 'auto' is shared memory, since all devices are on one host.

    Parameters
    ----------
    protocol : 'auto', 'shared_memory', 'tcp', 'rdma' or 'nccl'
    source : the configuration's name, for the message

    Raises
    ------
    ConfigError
        The protocol needs hardware that is not here.

    Examples
    --------
    >>> choose_protocol("auto"), choose_protocol("tcp")
    ('shared_memory', 'tcp')
    """
    if protocol == "auto":
        return "shared_memory"
    reason = why_absent(protocol)
    if reason:
        place = f"{source}: " if source else ""
        here = ", ".join(("auto", *available_protocols()))
        raise ConfigError(
            f"{place}communication.protocol: {protocol!r} is not available: {reason}", remedy=f"available here: {here}"
        )
    return protocol
