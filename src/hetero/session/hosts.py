"""The devices of every host of a Ray cluster, and the links between hosts.

In: a configuration and a cluster. Out: devices, each with the name of its host in its id; measured links.
It must not open a device in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from hetero.floor import settings
from hetero.floor.errors import BadValueError, ConfigError, HeteroError
from hetero.model.device import HOST_NODE, Device
from hetero.model.topology import Link, Topology
from hetero.session.disk_cache import DiskCache
from hetero.session.fleet import find_devices
from hetero.session.fleet_build import names_with_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hetero.engines.ray.cluster import Cluster, Host
    from hetero.session.config import Config

__all__ = [
    "POOL_BYTES",
    "devices_of",
    "devices_on",
    "named_devices",
    "network_links",
    "open_to_more",
    "over_network",
    "reached",
    "refuse_lone_address",
]

POOL_BYTES = 1_000_000_000
_SURVEY_S = 120.0
_UNMEASURED = Link(HOST_NODE, "", 5e-4, 1.25e8, kind="network")
"""1 Gbit/s."""


@contextmanager
def reached(config: Config) -> Iterator[Cluster | None]:
    """Be part of the Ray cluster that a configuration names, for a `with` block; None where it names another engine.

    Raises
    ------
    EngineError
        It cannot be reached, or used.
    ConfigError
        There is an address and no engine that has use for it.
    """
    if config.engine != "ray":
        refuse_lone_address(config)
        yield None
        return
    from hetero.engines.ray.cluster import Cluster

    cluster = Cluster.open(config.address or "local", config.memory_pool_size_bytes or POOL_BYTES)
    try:
        yield cluster
    finally:
        cluster.close()


def refuse_lone_address(config: Config) -> None:
    """Refuse an address without `engine: ray`.

    Raises
    ------
    ConfigError
        There is one.
    """
    if config.address is not None:
        place = f"{config.source}: " if config.source else ""
        raise ConfigError(
            f"{place}address: {config.address!r} is for engine ray, and the engine is {config.engine or 'local'}",
            remedy="write 'engine: ray' too, or leave the address out",
        )


def devices_of(cluster: Cluster | None, config: Config, notes: list[str]) -> tuple[Device, ...]:
    """Return the devices that a configuration names, on every host that has them.

    Parameters
    ----------
    cluster
        None for this host alone.
    notes
        Lines for people are added to it: what was left out, and why.

    Raises
    ------
    ConfigError, BadValueError
        What is named is on no host.
    EngineError
        A host cannot say what it has.
    """
    hosts = () if cluster is None else cluster.hosts()
    if cluster is None or (len(hosts) == 1 and cluster.address == "local"):
        return find_devices(config, notes)
    found: list[Device] = []
    troubles: list[HeteroError] = []
    names = names_with_host(config.spec)
    asked = replace(config, devices=None, spec="") if names else config
    for host, answer in cluster.ask(hosts, _devices_here, (asked,), _SURVEY_S):
        if isinstance(answer, (ConfigError, BadValueError)):
            troubles.append(answer)
            notes.append(f"{host.name} ({host.address}) is left out: {answer.problem}")
        elif isinstance(answer, HeteroError):
            raise answer
        else:
            found += [_named(device, host.name) for device in answer]
    if not found:
        raise troubles[0]
    return named_devices(found, names) if names else tuple(found)


def named_devices(found: Sequence[Device], names: Sequence[str]) -> tuple[Device, ...]:
    """Return the devices of these names; without a host it is one of the program's own host.

    Raises
    ------
    BadValueError
        There is no such device.
    """
    known = {name: device for device in found for name in (device.id, device.short)}
    if absent := [name for name in names if name not in known]:
        raise BadValueError(
            f"devices: no host has {', '.join(absent)}",
            remedy=f"name them as 'hetero devices' lists them: {', '.join(device.short for device in found)}",
        )
    return tuple(dict.fromkeys(known[name] for name in names))


def network_links(cluster: Cluster | None) -> tuple[Link, ...]:
    """Return the links between this host and the others; each pair of hosts is measured once, and remembered.

    Raises
    ------
    EngineError
        A host does not answer.
    """
    if cluster is None:
        return ()
    own, *others = cluster.hosts()
    kept = DiskCache("links.json")
    known = kept.read()
    links: list[Link] = []
    for host in others:
        key = f"{own.address} {host.address}"
        if not _are_links(known.get(key)):
            from hetero.engines.ray.cluster import measure_links

            known[key] = [(link.latency_s, link.bandwidth_bytes_per_s) for link in measure_links(host)]
            kept.update({key: known[key]})
        pairs = ((HOST_NODE, f"{host.name}/ram"), (f"{host.name}/ram", HOST_NODE))
        links += [
            Link(src, dst, latency_s, rate, kind="network")
            for (src, dst), (latency_s, rate) in zip(pairs, known[key], strict=True)
        ]
    return tuple(links)


def _are_links(kept: object) -> bool:
    """Return whether what is remembered of two hosts is latency and bandwidth of both ways."""
    ways = kept if isinstance(kept, list) and len(kept) == 2 else [None]
    return all(
        isinstance(way, list)
        and len(way) == 2
        and all(isinstance(each, float) for each in way)
        and way[0] >= 0.0 < way[1]
        for way in ways
    )


def over_network(topology: Topology, links: Sequence[Link]) -> Topology:
    """Return a topology whose links to other hosts are those of the network, to whichever of their memory nodes."""
    network = {(link.src.partition("/")[0], link.dst.partition("/")[0]): link for link in links}
    if not network:
        return topology

    def measured(link: Link) -> Link:
        way = network.get((link.src.partition("/")[0], link.dst.partition("/")[0]))
        return link if way is None else replace(way, src=link.src, dst=link.dst)

    return replace(topology, links=tuple([measured(link) for link in topology.links]), _by_pair={})


def open_to_more(topology: Topology) -> Topology:
    """Return a topology in which a host that joins later is as far away as the slowest known one."""
    network = [link for link in topology.links if link.kind == "network"]
    slowest = min(network, key=lambda link: link.bandwidth_bytes_per_s, default=_UNMEASURED)
    return replace(topology, elsewhere=slowest, _by_pair={})


def devices_on(cluster: Cluster, host: Host, config: Config) -> tuple[Device, ...]:
    """Return the devices of one host; none where it has none of those that the configuration names.

    Raises
    ------
    EngineError
        It cannot say what it has.
    """
    names = names_with_host(config.spec)
    asked = replace(config, devices=None, spec="") if names else config
    ((_, answer),) = cluster.ask([host], _devices_here, (asked,), _SURVEY_S)
    if isinstance(answer, (ConfigError, BadValueError)):
        return ()
    if isinstance(answer, HeteroError):
        raise answer
    found = [_named(device, host.name) for device in answer]
    return tuple([device for device in found if not names or device.short in names])


def _devices_here(config: Config) -> Sequence[Device]:
    """Return this host's devices: those that it was started with, else those of the configuration."""
    spec = settings.default_devices()
    wanted = replace(config, devices=None, spec=spec) if spec else config
    return find_devices(wanted, [])


def _named(device: Device, host: str) -> Device:
    """Return a device of another host its host's name: in its id, its memory node and its silicon."""
    node = f"{host}/ram" if device.memory_node == HOST_NODE else _moved(device.memory_node, host)
    silicon = tuple([_moved(chip, host) for chip in device.silicon])
    return replace(device, id=_moved(device.id, host), memory_node=node, silicon=silicon)


def _moved(name: str, host: str) -> str:
    before, slash, rest = name.partition("/")
    return f"{host}/{rest}" if slash else before
