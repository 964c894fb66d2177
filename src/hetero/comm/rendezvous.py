"""How members find each other: a store of keys that the first of them keeps, reached over TCP.

In: an address. Out: a meeting, where everybody tells a value and learns everybody's. It must not carry tensors.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol

from hetero.floor.errors import BadValueError
from hetero.floor.listening import is_public, is_wildcard

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["FORM_S", "LOOPBACK", "Library", "Meeting", "Rendezvous", "StoreMeeting", "check_address", "open_rendezvous"]

_log = logging.getLogger("hetero")

LOOPBACK = "127.0.0.1"
FORM_S = 30.0
"""Longest wait for all members to come, s."""

Rendezvous = tuple[str, int, str]
"""Host and port of the store of keys, and the prefix of this group's keys."""


Library = Literal["auto", "asked", "none"]


class Meeting(Protocol):
    """Where the members of a group tell each other small things.

    Attributes
    ----------
    library
        Whether torch's collectives are taken for 'auto', only when asked for, or cannot be used; the same on every
        member.
    """

    library: Library

    def exchange(self, word: str, mine: bytes, deadline_s: float) -> list[bytes]:
        """Publish a value under a key; return what each member published under it, by rank."""
        ...

    def store(self) -> dist.Store:
        """Return torch's store of keys that all members share."""
        ...


def check_address(address: str, beyond_loopback: bool) -> str:
    """Return an address on which members may listen.

    Raises
    ------
    BadValueError
        It is no IP address, or others than this host can reach it and that was not asked for.

    Examples
    --------
    >>> check_address("127.0.0.1", False)
    '127.0.0.1'
    >>> check_address("10.0.0.7", False)
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: address: other hosts can reach 10.0.0.7, and what travels is not encrypted; \
give beyond_loopback=True on a network that you trust
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        raise BadValueError(
            f"address: {address!r} is no IP address",
            remedy="give that of one of this host's interfaces, as in '10.0.0.7'",
        ) from None
    if is_wildcard(address) or found.is_multicast:
        raise BadValueError(
            f"address: {address} is no interface of this host, and members would listen on all of them",
            remedy="give the address of the one on which the others reach it, as in '10.0.0.7'",
        )
    if not found.is_loopback and not beyond_loopback:
        raise BadValueError(
            f"address: other hosts can reach {address}, and what travels is not encrypted",
            remedy="give beyond_loopback=True on a network that you trust",
        )
    if is_public(address):
        _warn_public(address)
    return address


@cache
def _warn_public(address: str) -> None:
    _log.warning(
        "%s is a public address, and members of a group listen there without a password: "
        "join hosts by a private network, or let a firewall keep all others out",
        address,
    )


def open_rendezvous(
    prefix: str, world_size: int, address: str = LOOPBACK, *, beyond_loopback: bool = False
) -> tuple[object, Rendezvous]:
    """Start the store of keys through which members find each other; the first member does.

    Parameters
    ----------
    address
        On which the others reach it.
    beyond_loopback
        Whether the address may be one that other hosts reach.

    Returns
    -------
    tuple
        The store, to be kept until the group is there; and how the others reach it.

    Raises
    ------
    BadValueError
        The address is not allowed.

    Examples
    --------
    >>> import hetero
    >>> store, meeting = hetero.collectives.open_rendezvous("sums", 2)
    >>> address, port, prefix = meeting  # what every member needs
    >>> address, prefix
    ('127.0.0.1', 'sums')
    """
    check_address(address, beyond_loopback)
    dist = import_module("torch.distributed")
    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        address,
        port,
        world_size,
        True,
        timedelta(seconds=FORM_S),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, (address, port, prefix)


class StoreMeeting:
    """A meeting in torch's store of keys; see `Meeting`.

    Parameters
    ----------
    store
        What `open_rendezvous` gave, on the first member.
    """

    library: Library = "auto"

    def __init__(self, rank: int, world_size: int, rendezvous: Rendezvous, store: object = None) -> None:
        dist = import_module("torch.distributed")
        host, port, prefix = rendezvous
        wait = timedelta(seconds=FORM_S)
        self._rank = rank
        self._world_size = world_size
        self._kept = store or dist.TCPStore(host, port, world_size, False, wait, wait_for_workers=False)
        self._store = dist.PrefixStore(prefix, self._kept)

    def exchange(self, word: str, mine: bytes, deadline_s: float) -> list[bytes]:
        """Publish a value under a key; return what each member published under it, by rank."""
        keys = [f"{word}/{rank}" for rank in range(self._world_size)]
        self._store.set(keys[self._rank], mine)
        self._store.wait(keys, timedelta(seconds=deadline_s))
        return [self._store.get(key) for key in keys]

    def store(self) -> dist.Store:
        """Return the store with this group's prefix."""
        return self._store
