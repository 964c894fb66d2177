"""How the parts of a host hang together, from the matrix that `nvidia-smi topo -m` prints.

In: its text, and the rates that words do not tell. Out: a `Fabric`. It must not start a program or read a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from hetero.backends.nvidia import NVLINK_BYTES_PER_S, NVLINK_LATENCY_S, PCIE_LATENCY_S
from hetero.floor.errors import BadValueError
from hetero.model.fabric import Fabric, FabricPart, Origin, Wire

__all__ = ["Rates", "from_matrix", "is_matrix"]

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_END = re.compile(r"(GPU|NIC|mlx|ibp|hns|roce|bnxt|efa|rdmap)[\w.-]*\d\w*", re.I)
_LEGEND = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$", re.M)
_LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_MOST_NVLINKS = 18
"""Links of one GPU; more to its peers together means that they meet in a switch."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The figures that a matrix of words does not tell, bytes/s in one direction.

    Attributes
    ----------
    nvlink
        Of one NVLink.
    pcie
        Of one slot.
    smp
        Between the sockets of a host.
    origin
        'catalog' where NVLink and PCIe are those of a named device, else 'declared'.
    """

    nvlink: float = NVLINK_BYTES_PER_S[4]
    pcie: float = 31.5e9
    smp: float = 20e9
    origin: Origin = "declared"


def is_matrix(text: str) -> bool:
    """Return whether a text looks like the matrix of `nvidia-smi topo -m`."""
    return any(line.split()[:1] == ["GPU0"] and "X" in line.split() for line in _lines(text))


def _lines(text: str) -> list[str]:
    return [line for line in _ESCAPE.sub("", text).splitlines() if line.strip()]


@dataclass(slots=True)
class _Matrix:
    ends: list[str]
    cells: dict[tuple[str, str], str]
    numa: dict[str, int]
    names: dict[str, str]


def _read(text: str) -> _Matrix:
    """Read the rows of the matrix; a row that ends early, or a word that is none, is told with its line."""
    lines = _lines(text)
    at = next((n for n, line in enumerate(lines) if line.split()[:1] == ["GPU0"] and "X" not in line.split()), None)
    if at is None:
        raise BadValueError("the text has no line of column names", remedy="give the output of 'nvidia-smi topo -m'")
    ends = [word for word in lines[at].split() if _END.fullmatch(word)]
    matrix = _Matrix(ends, {}, {}, dict(_LEGEND.findall("\n".join(lines))))
    for line in lines[at + 1 :]:
        words = line.split()
        if words[0] in ends:
            _read_row(matrix, words, len(ends))
    for end in ends:
        if (end, end) not in matrix.cells:
            raise BadValueError(f"the matrix has no row for {end}", remedy="give the whole output, unwrapped")
    _check_symmetry(matrix)
    return matrix


def _check_symmetry(matrix: _Matrix) -> None:
    """Refuse a matrix that was edited or cut together: connections work in both directions, X is a part itself."""
    for end in matrix.ends:
        if matrix.cells[end, end] != "X":
            problem = f"the matrix joins {end} with itself by {matrix.cells[end, end]!r}, where X belongs"
            raise BadValueError(problem, remedy="give the output of 'nvidia-smi topo -m' as it is")
    for one, other in combinations(matrix.ends, 2):
        there, back = matrix.cells[one, other], matrix.cells[other, one]
        if there != back or there == "X":
            problem = f"the matrix says {there} from {one} to {other}, and {back} from {other} to {one}"
            raise BadValueError(problem, remedy="give the output of 'nvidia-smi topo -m' as it is")


def _read_row(matrix: _Matrix, words: Sequence[str], count: int) -> None:
    row = words[1 : count + 1]
    if len(row) < count:
        raise BadValueError(
            f"the row of {words[0]} has {len(row)} cells of {count}", remedy="give the whole output, unwrapped"
        )
    for end, word in zip(matrix.ends, row, strict=True):
        if word not in (*_LEVELS, "X") and not re.fullmatch(r"NV\d+", word):
            raise BadValueError(
                f"{word!r} in the row of {words[0]} is no connection", remedy=f"known: X, NV#, {', '.join(_LEVELS)}"
            )
        matrix.cells[words[0], end] = word
    affinity = words[count + 1 :]
    if words[0].startswith("GPU") and len(affinity) > 1 and affinity[1].isdecimal() and len(affinity[1]) <= 6:
        matrix.numa[words[0]] = int(affinity[1])


def from_matrix(text: str, host: str = "h0", rates: Rates | None = None, name: str = "", rack: str = "") -> Fabric:
    r"""Build the fabric of a host from the output of `nvidia-smi topo -m`.

    Parameters
    ----------
    host, rack
        Where it is; ids begin with the host.
    rates
        The figures that the words do not tell.
    name
        What the GPUs are called.

    Raises
    ------
    BadValueError
        A row or a word of the matrix cannot be read.

    Notes
    -----
    PIX, PXB and PHB mean a switch, a tree of switches and a host bridge that two parts share; NODE and SYS the same
    NUMA node and another one. NV# says nothing of PCIe: such GPUs share a switch where a network card says so.

    Examples
    --------
    >>> text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-7\t0\nGPU1\tNV4\t X \t0-7\t0"
    >>> from_matrix(text).path("cuda:0", "cuda:1").bytes_per_s / 1e9
    100.0
    """
    rates = rates or Rates()
    matrix = _read(text)
    tree = _Tree(matrix, host, rates)
    parts = [tree.part(end, name, rack) for end in matrix.ends]
    wires = [*tree.wires(), *_nvlinks(matrix, tree.ids, host, rates)]
    ends = {part.id for part in parts}
    inner = dict.fromkeys(end for wire in wires for end in (wire.one, wire.other) if end not in ends)
    return Fabric((*parts, *(_inner(identity, host, rack) for identity in inner)), tuple(wires))


def _inner(identity: str, host: str, rack: str) -> FabricPart:
    word = identity.partition("/")[2]
    kind = "numa" if word.startswith("numa:") else "host" if word == "sockets" else "switch"
    return FabricPart(identity, kind, host=host, rack=rack, numa=int(word[5:]) if kind == "numa" else None)


class _Tree:
    """The PCIe tree that the words of a matrix imply."""

    def __init__(self, matrix: _Matrix, host: str, rates: Rates) -> None:
        self._matrix, self._host, self._rates = matrix, host, rates
        self.ids = {end: self._identity(end) for end in matrix.ends}
        self._groups = [self._joined(_LEVELS[: level + 1]) for level in range(4)]
        self._numa = self._numbers()

    def _identity(self, end: str) -> str:
        if end.startswith("GPU"):
            return f"{self._host}/cuda:{end[3:]}"
        return f"{self._host}/{self._matrix.names.get(end, end)}"

    def _joined(self, words: Sequence[str]) -> dict[str, str]:
        """Join each end with the first of those that these words name for it."""
        leader = {end: end for end in self._matrix.ends}
        for one, other in combinations(self._matrix.ends, 2):
            if self._matrix.cells[one, other] in words and leader[one] != leader[other]:
                new, old = sorted((leader[one], leader[other]), key=self._matrix.ends.index)
                leader = {end: new if first == old else first for end, first in leader.items()}
        return leader

    def _numbers(self) -> dict[str, int]:
        """Assign each end a NUMA node: its own, that of a neighbour, or a new number."""
        leaders, told = self._groups[3], self._matrix.numa
        known: dict[str, int] = {}
        for end, node in told.items():
            known.setdefault(leaders[end], node)
        for leader in dict.fromkeys(leaders.values()):
            known.setdefault(leader, max(known.values(), default=-1) + 1)
        return {end: told.get(end, known[leaders[end]]) for end in self._matrix.ends}

    def part(self, end: str, name: str, rack: str) -> FabricPart:
        gpu = end.startswith("GPU")
        kind = "device" if gpu else "nic"
        return FabricPart(self.ids[end], kind, name if gpu else "", self._host, rack, self._numa[end])

    def wires(self) -> Iterator[Wire]:
        """Yield the wires of the tree, a level only where it joins more than the one below."""
        made: dict[tuple[str, str], Wire] = {}
        for end in self._matrix.ends:
            chain = [self.ids[end], *self._above(end), f"{self._host}/numa:{self._numa[end]}"]
            for low, high in pairwise(chain):
                made[low, high] = Wire(low, high, "pcie", self._rates.pcie, PCIE_LATENCY_S / 2, self._rates.origin)
        yield from made.values()
        nodes = sorted(set(self._numa.values()))
        for node in nodes if len(nodes) > 1 else ():
            yield Wire(f"{self._host}/numa:{node}", f"{self._host}/sockets", "smp", self._rates.smp, 0.0, "declared")

    def _above(self, end: str) -> Iterator[str]:
        below = 1
        for word, group in zip(("switch", "switches", "bridge"), self._groups[:3], strict=True):
            size = sum(leader == group[end] for leader in group.values())
            if size > below:
                yield f"{self._host}/{word}:{self._matrix.ends.index(group[end])}"
                below = size


def _nvlinks(matrix: _Matrix, ids: dict[str, str], host: str, rates: Rates) -> Iterator[Wire]:
    """Yield NVLink wires: pair by pair, or each GPU to a switch where it has not enough links for all its peers."""
    counts = {
        pair: int(word[2:]) for pair, word in matrix.cells.items() if word.startswith("NV") and pair[0] != pair[1]
    }
    through = {one for one in ids if sum(count for (own, _), count in counts.items() if own == one) > _MOST_NVLINKS}
    for end in sorted(through, key=matrix.ends.index):
        widest = max(count for (own, _), count in counts.items() if own == end)
        rate = widest * rates.nvlink
        yield Wire(ids[end], f"{host}/nvswitch", "nvlink", rate, NVLINK_LATENCY_S / 2, rates.origin)
    for (one, other), count in counts.items():
        if matrix.ends.index(one) < matrix.ends.index(other) and not {one, other} <= through:
            rate = count * rates.nvlink
            yield Wire(ids[one], ids[other], "nvlink", rate, NVLINK_LATENCY_S, rates.origin)
