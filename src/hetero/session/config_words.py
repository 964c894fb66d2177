"""The words that a configuration may use: engines, protocols, isolations, and what the registries know.

In: the registries of policies and back ends. Out: tuples of words, the usual first.
It must not open a device.
"""

from __future__ import annotations

from hetero.model.device import KINDS

__all__ = ["ENGINES", "ISOLATIONS", "PROTOCOLS", "backend_words", "device_words", "policy_words"]

ENGINES = ("local", "inline", "ray")
ISOLATIONS = ("process", "thread")
PROTOCOLS = ("auto", "shared_memory", "tcp", "rdma", "nccl")


def policy_words() -> tuple[str, ...]:
    """Give the names of the policies that are installed."""
    return ("auto", "eft", "least_loaded", "round_robin", "consistent_hashing", "work_stealing", "migration")


def backend_words() -> tuple[str, ...]:
    """Give the names of the back ends that are installed."""
    return ("cpu", "torch", "jax", "opencl", "vulkan", "null")


def device_words() -> tuple[str, ...]:
    """Give the words that name a kind of device: broad types, kinds and back ends."""
    return tuple(dict.fromkeys(("cpu", "gpu", "tpu", "npu", "fpga", *KINDS, *backend_words())))
