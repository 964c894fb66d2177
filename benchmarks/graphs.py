"""Makespan over the best known on other people's task graphs, what is proven optimal, and the planners' speed.

Fleets are ours, because most of the graphs name none: they are in `instances`, and so part of the best known's hash.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hetero.floor import settings
from hetero.graphs.document import document_of
from hetero.graphs.files import parse_json, read_text
from hetero.graphs.fleets import Fleet, fleet_from
from hetero.graphs.hswf import read_hswf
from hetero.graphs.stg import read_stg
from hetero.graphs.wfformat import read_wfformat
from hetero.model.graph import TaskGraph

_PCIE_BYTES_PER_S, _PCIE_S = 6e9, 1e-5
_LAN_BYTES_PER_S, _LAN_S = 125e6, 1e-4


class Instance(NamedTuple):
    """A graph with its name."""

    name: str
    graph: TaskGraph

    @property
    def sha256(self) -> str:
        """The hash of the graph as hetero-graph/1."""
        return hashlib.sha256(json.dumps(document_of(self.graph), sort_keys=True).encode()).hexdigest()


def _data() -> Path:
    return (settings.test_data() or Path(__file__).resolve().parents[2] / "shared" / "data") / "graphs"


def _fleet(devices: list[dict[str, Any]], bytes_per_s: float, latency_s: float) -> Fleet:
    """Give a fleet in which every memory node has a link to and from every other."""
    nodes = sorted({device["memory_node"] for device in devices})
    links = [
        {"src": src, "dst": dst, "bandwidth_bytes_per_s": bytes_per_s, "latency_s": latency_s}
        for src in nodes
        for dst in nodes
        if src != dst
    ]
    document = {"format": "hetero-fleet/1", "devices": devices, "memory_nodes": [{"id": name} for name in nodes]}
    return fleet_from({**document, "links": links}, "fleet")


def _accelerated(cpus: int, gpus: list[str]) -> Fleet:
    rows = [{"id": f"cpu{number}", "memory_node": "ram", "kind": "cpu"} for number in range(cpus)]
    rows += [{"id": f"dev{number}", "memory_node": f"dev{number}", "kind": kind} for number, kind in enumerate(gpus)]
    return _fleet(rows, _PCIE_BYTES_PER_S, _PCIE_S)


def _hosts(programs: set[str]) -> Fleet:
    """Give three hosts of unlike speeds and a device that likes some programs, drawn from their names' hashes."""
    liking = (None, 0.5, 2.0, 4.0, 12.0)
    speeds = {name: liking[hashlib.sha256(name.encode()).digest()[0] % len(liking)] for name in sorted(programs)}
    rows: list[dict[str, Any]] = [
        {"id": f"host{number}", "memory_node": f"host{number}", "speed": speed}
        for number, speed in enumerate((1.0, 1.5, 2.5))
    ]
    rows.append({"id": "gpu0", "memory_node": "host2", "speed": 2.0, "speeds": speeds})
    return _fleet(rows, _LAN_BYTES_PER_S, _LAN_S)


def instances() -> Iterator[Instance]:
    """Give every graph of the shared data with its fleet."""
    folder = _data()
    for path in sorted((folder / "hswf3").glob("*.txt")):
        tile = int(path.stem.split("-")[1])
        fleet = _accelerated(4, ["gpu1", "gpu2"])
        yield Instance(
            f"hswf3/{path.stem}", read_hswf(read_text(path), path.name, fleet, ("cpu", "gpu1", "gpu2"), tile**2 * 4)
        )
    for path in sorted((folder / "hswf2").glob("*.txt")):
        tile = 0 if path.stem.startswith("forkJoin") else int(path.stem.split("-")[1])
        for cpus, gpus in ((4, 1), (8, 2)):
            fleet = _accelerated(cpus, ["gpu"] * gpus)
            graph = read_hswf(read_text(path), path.name, fleet, ("cpu", "gpu"), tile**2 * 4)
            yield Instance(f"hswf2/{path.stem}/{cpus}+{gpus}", graph)
    for path in sorted((folder / "stg").glob("*.stg")):
        rows = [{"id": f"d{number}", "memory_node": "ram", "speed": speed} for number, speed in enumerate((1, 1, 2, 4))]
        yield Instance(f"stg/{path.stem}", read_stg(read_text(path), path.name, _fleet(rows, 1e9, 0.0)))
    for path in sorted((folder / "wfinstances").glob("*.json.gz")):
        document = parse_json(read_text(path), path.name)
        ran = document["workflow"]["execution"]["tasks"]
        programs = {task.get("command", {}).get("program", "") for task in ran}
        name = path.name.removesuffix(".json.gz")
        yield Instance(f"wf/{name}", read_wfformat(document, path.name, _hosts(programs)))
