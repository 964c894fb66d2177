"""Fleet files, hetero-fleet/1: the devices that a graph without devices is read for.

In: a document, or a number of equal devices. Out: a fleet that turns one time into a row of seconds per device.
It must not guess a speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hetero.floor.errors import GraphError
from hetero.graphs.document import DocumentPlace, fleet_of, known_id
from hetero.graphs.files import parse_json, read_text
from hetero.model.graph import GraphDevice
from hetero.model.topology import MemoryNode, Topology

__all__ = ["FORMAT", "GraphFleet", "equal_devices", "fleet_from", "read_fleet"]

FORMAT = "hetero-fleet/1"
_MOST_EQUAL = 4096


@dataclass(frozen=True, slots=True)
class GraphFleet:
    """Devices with speeds.

    Attributes
    ----------
    devices
        At least one.
    topology
        Memory nodes and links.
    speed
        One a device, > 0; a task of t seconds takes t / speed there.
    speeds
        One a device; the speed for single kinds of tasks, None where such a task cannot run.
    cores
        One a device, 0 where unknown; empty where no device says.
    files_at
        The memory node where files lie before and come home to, '' where they take no way.
    """

    devices: tuple[GraphDevice, ...]
    topology: Topology
    speed: tuple[float, ...]
    speeds: tuple[dict[str, float | None], ...]
    cores: tuple[int, ...] = ()
    files_at: str = ""

    def seconds(self, seconds: float, kind: str = "") -> tuple[float, ...]:
        """Return the seconds on each device of a task that takes `seconds` at speed 1, inf where it cannot run.

        Examples
        --------
        >>> equal_devices(2).seconds(3.0)
        (3.0, 3.0)
        """
        at = [own.get(kind, speed) for own, speed in zip(self.speeds, self.speed, strict=True)]
        return tuple(float("inf") if speed is None else seconds / speed for speed in at)


def equal_devices(count: int) -> GraphFleet:
    """Return that many equal devices of speed 1 on one memory node."""
    devices = tuple(GraphDevice(f"d{number}", "ram") for number in range(count))
    return GraphFleet(devices, Topology((MemoryNode("ram", 2**63 - 1),), ()), (1.0,) * count, ({},) * count)


def read_fleet(word: str) -> GraphFleet:
    """Read a fleet file, or take a whole number as that many equal devices.

    Raises
    ------
    GraphError
        The file is wrong, or the number is not from 1 to 4,096.
    """
    if word.isdigit():
        if not 1 <= int(word) <= _MOST_EQUAL:
            raise GraphError(f"--devices {word} is not a number of devices", remedy=f"allowed: 1 to {_MOST_EQUAL:,}")
        return equal_devices(int(word))
    return fleet_from(parse_json(read_text(Path(word)), word), word)


def fleet_from(document: object, file: str) -> GraphFleet:
    """Check a hetero-fleet/1 document: hetero-graph/1's devices, memory nodes and links, with speeds."""
    place = DocumentPlace(file)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        given = document.get("format") if isinstance(document, dict) else document
        raise (place / "format").wrong(given, f"{FORMAT!r}", "see docs/graphs.md")
    rows = document.get("devices")
    speed, speeds, cores, plain = [], [], [], []
    for number, row in enumerate(rows if isinstance(rows, list) else ()):
        here = place / "devices" / number
        if not isinstance(row, dict):
            raise here.wrong(row, "an object")
        speed.append((here / "speed").number(row.get("speed", 1.0), "a speed", above=0.0))
        speeds.append(_speeds(row.get("speeds", {}), here / "speeds"))
        cores.append((here / "cores").whole(row.get("cores", 0), "a number of cores"))
        plain.append({key: value for key, value in row.items() if key not in ("speed", "speeds", "cores")})
    unknown = sorted(set(document) - {"format", "name", "devices", "memory_nodes", "links", "files_at"})
    if unknown:
        raise GraphError(
            f"{place}: the key {unknown[0]!r} is not known", remedy="allowed: devices, memory_nodes, links, files_at"
        )
    document = {"memory_nodes": [], "links": [], **document, "devices": plain if isinstance(rows, list) else rows}
    devices, topology = fleet_of(document, place)
    files_at = document.get("files_at", "")
    if files_at != "":
        files_at = known_id(files_at, [node.id for node in topology.nodes], "memory node", place / "files_at")
    return GraphFleet(devices, topology, tuple(speed), tuple(speeds), tuple(cores) if any(cores) else (), files_at)


def _speeds(given: object, place: DocumentPlace) -> dict[str, float | None]:
    if not isinstance(given, dict):
        raise place.wrong(given, "an object", "write {kind of task: speed, or null where it cannot run}")
    return {
        kind: None if value is None else (place / kind).number(value, "a speed", above=0.0)
        for kind, value in given.items()
    }
