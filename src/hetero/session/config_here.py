"""What this host has of what a configuration names: its devices, and its way to talk between them.

In: a configuration. Out: devices and a protocol, or one ConfigError that lists everything that is absent.
It must not open a device or a connection.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.floor.errors import ConfigError

if TYPE_CHECKING:
    from hetero.model.device import Device
    from hetero.session.config import Config

__all__ = ["available_protocols", "choose_protocol", "find_devices", "why_absent"]

_INFINIBAND = Path("/sys/class/infiniband")
_NVIDIA = Path("/proc/driver/nvidia")


def why_absent(protocol: str) -> str:
    """Return why a protocol cannot be used on this host, '' when it can."""
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

    if not _NVIDIA.exists():
        return f"this host has no NVIDIA driver ({_NVIDIA} is missing)"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return "" if torch.distributed.is_nccl_available() else f"torch {torch.__version__} is built without NCCL"


def available_protocols() -> tuple[str, ...]:
    """Return the protocols that work on this host, the usual first."""
    return tuple(name for name in ("shared_memory", "tcp", "rdma", "nccl") if not why_absent(name))


def choose_protocol(protocol: str, source: str = "") -> str:
    """Return the protocol to use; 'auto' is shared memory, since all devices are on one host.

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


def find_devices(config: Config, notes: list[str] | None = None) -> tuple[Device, ...]:
    """Return the devices of this host that a configuration names.

    Parameters
    ----------
    config : whose devices, spec, isolation and protocol count
    notes : lines for people are added to it: what was left out, and why

    Raises
    ------
    ConfigError
        Something that is not optional is absent: every such device, and the protocol, with what would work here.
    BadValueError
        A device of a fleet in one line is absent.
    """
    trouble = None
    try:
        choose_protocol(config.communication.protocol, config.source)
    except ConfigError as error:
        trouble = error
    try:
        devices = _devices(config, notes)
    except ConfigError as error:
        raise (error if trouble is None else _both(error, trouble)) from None
    if trouble is not None:
        raise trouble
    return devices


def _devices(config: Config, notes: list[str] | None) -> tuple[Device, ...]:
    from hetero.session import fleet

    if config.devices is not None:
        return fleet.build(config.devices, notes)
    devices = fleet.from_spec(config.spec) if config.spec else fleet.build((), notes)
    isolation = config.isolation
    return devices if isolation is None else tuple(replace(device, isolation=isolation) for device in devices)


def _both(absent: ConfigError, protocol: ConfigError) -> ConfigError:
    problem = f"{absent.problem}; {protocol.problem}"
    return ConfigError(problem, remedy=f"{absent.remedy}\ncommunication:\n  protocol: auto")
