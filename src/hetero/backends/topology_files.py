"""Topologies in files: of this host, of a document, or of what `nvidia-smi topo -m` printed; read and written.

In: paths, or nothing for this host. Out: a `Fabric`, and documents. It must not measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hetero.backends import nvidia
from hetero.backends.topology import Rates, from_matrix, is_matrix
from hetero.backends.topology_system import from_system
from hetero.catalog.load import find
from hetero.floor import documents
from hetero.floor.documents import JsonObject
from hetero.floor.errors import BadValueError, GraphError, did_you_mean
from hetero.floor.text import has_control
from hetero.floor.units import exact, parse_bandwidth, parse_seconds, shown
from hetero.model.fabric import PART_KINDS, WIRE_KINDS, Fabric, FabricPart, Origin, Wire

__all__ = ["FORMAT", "as_document", "from_document", "here", "joined", "read_text", "read_topology", "topology"]

FORMAT = "hetero-topology/1"
_PART_KEYS = ("id", "kind", "name", "host", "rack", "numa", "pci")
_LINK_KEYS = ("from", "to", "kind", "bandwidth", "latency", "origin")
_ORIGINS: tuple[Origin, ...] = ("read", "catalog", "declared")

Word = TypeVar("Word", bound=str)
_NVLINKS = {"V100": 6, "A100": 12, "H100": 18, "H200": 18, "H20": 18, "B200": 18, "B300": 18, "GH200": 18}
"""NVLinks of one GPU (NVIDIA architecture papers), for the rate of one link from the rate of all."""


def topology(*files: str | Path, gpu: str = "", network: str = "") -> Fabric:
    """Return the topology of this host, or of the hosts that files tell of.

    Parameters
    ----------
    files
        Each a hetero-topology/1 file, or what `nvidia-smi topo -m` printed on one host; none for this host.
    gpu
        Name of the GPUs in the catalog, where a matrix does not tell their rates.
    network
        Rate of each network card to a network that joins all hosts, as in '400Gb/s'; '' where none does.

    Returns
    -------
    Fabric
        Its `path(one, other)` has hops, bandwidth and latency; `nvlinked(one, other)` and `place(device, scope)` tell
        of NVLink, NUMA node, PCIe bus, host and rack.

    Raises
    ------
    GraphError
        A file cannot be read, or something in it is wrong; the message begins with the file and the place.

    Examples
    --------
    >>> import hetero
    >>> fabric = hetero.cluster.topology()
    >>> type(fabric).__name__
    'Fabric'
    """
    rate = parse_bandwidth(network) if network else None
    if files:
        return read_topology([Path(file) for file in files], gpu, rate)
    return joined([here()], rate)


def here() -> Fabric:
    """Return the fabric of this host: /sys, and NVML where there is one."""
    return from_system(gpus=nvidia.read())


def rates_of(gpu: str) -> Rates:
    """Return the rates of a GPU of the catalog: of one NVLink, and of its slot.

    Examples
    --------
    >>> rates_of("A100-SXM-80GB").nvlink / 1e9
    25.0
    """
    spec = find(gpu)
    usual = Rates()
    links = next((count for word, count in _NVLINKS.items() if spec.name.startswith(word)), None)
    one = usual.nvlink
    if links and spec.link_bytes_per_s and spec.link.startswith("nvlink"):
        one = spec.link_bytes_per_s / links
    return Rates(one, spec.host_bytes_per_s or usual.pcie, usual.smp, "catalog")


def read_topology(files: Sequence[Path], gpu: str = "", network_bytes_per_s: float | None = None) -> Fabric:
    """Read the topology of one or several hosts.

    Parameters
    ----------
    files
        Each a hetero-topology/1 file, or what `nvidia-smi topo -m` printed on one host.
    gpu
        Name of the GPUs in the catalog, where a matrix does not tell their rates.
    network_bytes_per_s
        Of each network card to a network that joins all hosts, None where they are not joined.

    Raises
    ------
    GraphError
        A file cannot be read, or something in it is wrong; the message begins with the file and the place.
    """
    rates = rates_of(gpu) if gpu else None
    hosts = [
        read_text(documents.read_text(file, GraphError), str(file), f"h{at}", gpu, rates)
        for at, file in enumerate(files)
    ]
    return joined(hosts, network_bytes_per_s)


def read_text(text: str, where: str, host: str = "h0", gpu: str = "", rates: Rates | None = None) -> Fabric:
    """Read a matrix or a document; `where` names it in messages."""
    if is_matrix(text):
        try:
            return from_matrix(text, host, rates, find(gpu).name if gpu else "")
        except BadValueError as error:
            raise GraphError(f"{where}: {error.problem}", remedy=error.remedy) from error
    from hetero.floor.yaml_tree import read_yaml

    as_json = text.lstrip()[:1] == "{" and where.endswith(".json")
    return from_document(
        documents.parse_json(text, where, GraphError) if as_json else read_yaml(text, where, GraphError).value, where
    )


def joined(hosts: Sequence[Fabric], network_bytes_per_s: float | None = None) -> Fabric:
    """Put hosts into one fabric, their network cards on one network where its rate is given."""
    parts = [part for host in hosts for part in host.parts]
    wires = [wire for host in hosts for wire in host.wires]
    cards = [part for part in parts if part.kind == "nic"]
    if network_bytes_per_s is not None and not cards:
        raise BadValueError("no host has a network card", remedy="leave --network out, or name the links in a file")
    if network_bytes_per_s is not None:
        parts.append(FabricPart("network", "network"))
        wires += [Wire(card.id, "network", "network", network_bytes_per_s, 5e-6, "declared") for card in cards]
    return Fabric(tuple(parts), tuple(wires))


def from_document(document: object, where: str) -> Fabric:
    """Read a hetero-topology/1 document.

    Raises
    ------
    GraphError
        Something is wrong; the message names the place.

    Examples
    --------
    >>> part = {"id": "a", "kind": "device"}
    >>> link = {"from": "a", "to": "b", "bandwidth": "1GB/s"}
    >>> from_document({"format": FORMAT, "parts": [part], "links": [link]}, "t.yaml")
    Traceback (most recent call last):
    hetero.floor.errors.GraphError: t.yaml: links[0].to: no part is called 'b'; known: a
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        given = document.get("format") if isinstance(document, dict) else document
        raise GraphError(
            f"{where}: format is {shown(given)}",
            remedy=f"write 'format: {FORMAT}', or give the output of 'nvidia-smi topo -m'",
        )
    _known(document, ("format", "parts", "links"), where, "")
    parts = [_part(row, f"parts[{at}]", where) for at, row in enumerate(_rows(document, "parts", where))]
    ids = {part.id for part in parts}
    rows = enumerate(_rows(document, "links", where))
    wires = [_wire(row, f"links[{at}]", where, ids) for at, row in rows]
    try:
        return Fabric(tuple(parts), tuple(wires))
    except BadValueError as error:
        raise GraphError(f"{where}: {error.problem}", remedy=error.remedy) from error


def _rows(document: Mapping[str, object], key: str, where: str) -> list[object]:
    rows = document.get(key, [])
    if not isinstance(rows, list):
        raise GraphError(f"{where}: {key} is {shown(rows)}", remedy="write a list")
    return rows


def _known(row: object, keys: Sequence[str], where: str, place: str) -> JsonObject:
    at = f"{where}: {place}: " if place else f"{where}: "
    if not isinstance(row, dict):
        raise GraphError(f"{at}{shown(row)} is no mapping", remedy=f"keys: {', '.join(keys)}")
    for key in row:
        if key not in keys:
            hint = did_you_mean(key, keys).removeprefix("; ")
            raise GraphError(f"{at}the key {shown(key)} is not known", remedy=hint or f"allowed: {', '.join(keys)}")
    return row


def _word(row: Mapping[str, object], key: str, allowed: Sequence[Word], at: str, usual: Word) -> Word:
    word = row.get(key, usual)
    known = next((each for each in allowed if each == word), None)
    if known is None:
        hint = did_you_mean(word, allowed).removeprefix("; ")
        raise GraphError(f"{at}.{key}: {shown(word)} is not known", remedy=hint or f"allowed: {', '.join(allowed)}")
    return known


def _text(row: Mapping[str, object], key: str, at: str, usual: str = "") -> str:
    given = row.get(key, usual)
    given = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
    if not isinstance(given, str) or has_control(given):
        raise GraphError(f"{at}.{key} is {shown(given)}", remedy="write text on one line")
    return given


def _part(given: object, place: str, where: str) -> FabricPart:
    row = _known(given, _PART_KEYS, where, place)
    at = f"{where}: {place}"
    if not isinstance(row.get("id"), str) or not row["id"] or has_control(row["id"]):
        raise GraphError(f"{at}.id is {shown(row.get('id'))}", remedy="give each part a name")
    numa = row.get("numa")
    if numa is not None and (isinstance(numa, bool) or not isinstance(numa, int) or numa < 0):
        raise GraphError(f"{at}.numa is {shown(numa)}", remedy="it must be a whole number ≥ 0")
    kind = _word(row, "kind", PART_KINDS, at, "device")
    words = {key: _text(row, key, at) for key in ("name", "rack", "pci")}
    host = _text(row, "host", at, row["id"].rpartition("/")[0])
    return FabricPart(row["id"], kind, host=host, numa=numa, **words)


def _wire(given: object, place: str, where: str, ids: set[str]) -> Wire:
    row = _known(given, _LINK_KEYS, where, place)
    at = f"{where}: {place}"
    for key in ("from", "to"):
        if not isinstance(row.get(key), str) or row[key] not in ids:
            hint = did_you_mean(row.get(key), ids).removeprefix("; ")
            known = f"known: {', '.join(sorted(ids)[:8])}"
            raise GraphError(f"{at}.{key}: no part is called {shown(row.get(key))}", remedy=hint or known)
    if row["from"] == row["to"]:
        raise GraphError(f"{at}: {row['from']!r} is linked with itself", remedy="name two parts")
    try:
        rate = parse_bandwidth(row.get("bandwidth"))
        latency_s = parse_seconds(row.get("latency", 0))
    except BadValueError as error:
        raise GraphError(f"{at}: {error.problem}", remedy=error.remedy) from error
    if rate <= 0.0:
        raise GraphError(f"{at}.bandwidth is {shown(row['bandwidth'])}", remedy="it must be above 0")
    kind = _word(row, "kind", WIRE_KINDS, at, "other")
    return Wire(row["from"], row["to"], kind, rate, latency_s, _word(row, "origin", _ORIGINS, at, "read"))


def as_document(fabric: Fabric) -> dict[str, object]:
    """Return a fabric as a hetero-topology/1 document, which reads back as the same."""
    parts = []
    for part in fabric.parts:
        row = {key: getattr(part, key) for key in _PART_KEYS}
        parts.append({key: value for key, value in row.items() if value not in ("", None) or key == "host"})
    links = [
        {
            "from": wire.one,
            "to": wire.other,
            "kind": wire.kind,
            "bandwidth": exact(wire.bytes_per_s, "B/s"),
            "latency": exact(wire.latency_s, "s") if wire.latency_s else 0,
            "origin": wire.origin,
        }
        for wire in fabric.wires
    ]
    return {"format": FORMAT, "parts": parts, "links": links}
