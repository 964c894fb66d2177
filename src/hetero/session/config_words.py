"""The words that a configuration may use: engines, protocols, isolations, and what the registries know.

In: the registries of policies and back ends. Out: tuples of words, the usual first.
It must not open a device.
"""

from __future__ import annotations

from functools import cache

from hetero.backends import registry as backends
from hetero.model.device import TYPE_WORDS
from hetero.plan.policies import registry as policies

__all__ = [
    "ENGINES",
    "ISOLATIONS",
    "MOST_PORT",
    "PROFILERS",
    "PROTOCOLS",
    "backend_words",
    "device_words",
    "policy_words",
]

ENGINES = ("local", "inline", "ray")
ISOLATIONS = ("process", "thread")
PROFILERS = ("torch",)
MOST_PORT = 65_535
PROTOCOLS = ("auto", "shared_memory", "tcp", "rdma", "nccl")


@cache
def policy_words() -> tuple[str, ...]:
    """Return the names of the policies that are installed."""
    return policies.names()


def backend_words() -> tuple[str, ...]:
    """Return the names of the back ends that are installed."""
    return backends.names()


@cache
def device_words() -> tuple[str, ...]:
    """Return the words that name devices: broad types, kinds, then the labels of back ends."""
    broad = TYPE_WORDS[: TYPE_WORDS.index("null")]
    others = sorted(set(backends.device_words()) - set(broad), key=lambda word: ("-" in word, word))
    return (*broad, *others)
