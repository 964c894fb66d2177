"""Task graphs in the DOT language of Graphviz: the part of it that a task graph needs.

In: text and a fleet. Out: a `TaskGraph`. Attributes that say nothing of seconds or bytes are passed over.
It must not run Graphviz.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

from hetero.floor.errors import GraphError, did_you_mean
from hetero.floor.units import shown
from hetero.graphs.fleet_files import GraphFleet
from hetero.model.graph import GraphEdge, GraphTask, TaskGraph

__all__ = ["read_dot"]

_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/|^\#[^\n]*)
    |(?P<arrow>->|--)|(?P<mark>[{}\[\];,=:])|(?P<html><(?:[^<>]|<[^<>]*>)*>)
    |"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>(?:[\w.+]|-(?![->]))+)""",
    re.X | re.S | re.M,
)
_SECONDS = ("seconds", "weight", "size")
_BYTES = ("bytes", "size", "weight")


class _Token(NamedTuple):
    text: str
    kind: str
    line: int


def read_dot(text: str, file: str, fleet: GraphFleet) -> TaskGraph:
    """Read a digraph.

    Parameters
    ----------
    text : as in ``digraph { a [seconds=2]; b [seconds="gpu0=0.5, cpu0=4"]; a -> b [bytes=1000]; }``
    fleet : the devices; plain seconds are divided by their speed, and a task's kind is its attribute `kind`

    Notes
    -----
    A node's seconds are its attribute `seconds`, else `weight`, else `size`; an edge's bytes are `bytes`, else
    `size`, else `weight`, else 0. `node [...]` and `edge [...]` give defaults. Subgraphs are read as their content,
    and ports are passed over.

    Examples
    --------
    >>> from hetero.graphs.fleet_files import equal_devices
    >>> read_dot("digraph { a [seconds=2]; b [seconds=1]; a -> b [bytes=8] }", "a.dot", equal_devices(1)).edges
    (GraphEdge(src='a', dst='b', nbytes=8),)
    """
    return _DotReader(text, file, fleet).graph()


class _DotReader:
    def __init__(self, text: str, file: str, fleet: GraphFleet) -> None:
        self._file, self._fleet = file, fleet
        self._tokens = [*self._cut(text)]
        self._at = 0
        self._nodes: dict[str, tuple[dict[str, str], int]] = {}
        self._edges: dict[tuple[str, str], tuple[dict[str, str], int]] = {}
        self._defaults: dict[str, dict[str, str]] = {"node": {}, "edge": {}, "graph": {}}

    def graph(self) -> TaskGraph:
        self._head()
        self._statements()
        tasks = tuple(GraphTask(name, self._seconds(name, *self._nodes[name])) for name in self._nodes)
        edges = tuple(GraphEdge(*pair, self._nbytes(*found)) for pair, found in self._edges.items())
        return TaskGraph(self._fleet.devices, self._fleet.topology, tasks, edges)

    def _cut(self, text: str) -> Iterator[_Token]:
        at, line = 0, 1
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise GraphError(f"{self._file}:{line}: {shown(text[at : at + 20])} is not DOT")
            kind = str(found.lastgroup)
            if kind != "blank":
                yield _Token(found[kind].replace('\\"', '"'), kind, line)
            line += text.count("\n", at, found.end())
            at = found.end()
        yield _Token("", "end", line)

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _sees(self, *texts: str) -> bool:
        token = self._tokens[self._at]
        return token.text in texts and token.kind in ("mark", "arrow")

    def _take(self, text: str) -> None:
        token = self._next()
        if token.text != text or token.kind == "quoted":
            given = "the end of the file" if token.kind == "end" else shown(token.text)
            raise GraphError(f"{self._file}:{token.line}: {text!r} is due, not {given}")

    def _head(self) -> None:
        token = self._next()
        if token.text.lower() == "strict":
            token = self._next()
        if token.text.lower() != "digraph":
            raise GraphError(
                f"{self._file}:{token.line}: {shown(token.text)} is not 'digraph'", remedy="a task graph has directions"
            )
        if not self._sees("{"):
            self._next()
        self._take("{")

    def _statements(self) -> None:
        depth = 1
        while depth:
            if self._sees("}"):
                depth -= 1
                self._next()
            elif self._sees("{"):
                depth += 1
                self._next()
            elif self._sees(";", ","):
                self._next()
            else:
                self._statement()

    def _statement(self) -> None:
        token = self._name()
        if token.kind == "word" and token.text.lower() == "subgraph":
            if not self._sees("{"):
                self._name()
        elif token.kind == "word" and token.text.lower() in self._defaults:
            self._defaults[token.text.lower()] |= self._attributes()
        elif self._sees("="):
            self._next()
            self._name()
        else:
            self._chain(token)

    def _name(self) -> _Token:
        token = self._next()
        if token.kind not in ("word", "quoted", "html"):
            given = "the end of the file; is it cut short?" if token.kind == "end" else shown(token.text)
            raise GraphError(f"{self._file}:{token.line}: a name is due, not {given}")
        return token

    def _chain(self, first: _Token) -> None:
        self._port()
        chain = [[first]]
        while self._sees("->", "--"):
            if self._next().text == "--":
                raise GraphError(f"{self._file}:{first.line}: '--' has no direction", remedy="write '->'")
            chain.append(self._end())
        given = self._attributes()
        for token in (token for end in chain for token in end):
            own = given if len(chain) == 1 else {}
            known = self._nodes.get(token.text, (dict(self._defaults["node"]), token.line))
            self._nodes[token.text] = (known[0] | own, known[1])
        for sources, sinks in pairwise(chain):
            for src, dst in product(sources, sinks):
                self._edges[src.text, dst.text] = (self._defaults["edge"] | given, src.line)

    def _end(self) -> list[_Token]:
        """Read what an arrow leads to: a name, or names between braces."""
        if not self._sees("{"):
            found = [self._name()]
            self._port()
            return found
        self._next()
        found = []
        while not self._sees("}"):
            if self._sees(";", ","):
                self._next()
            else:
                found.append(self._name())
        self._next()
        return found

    def _port(self) -> None:
        while self._sees(":"):
            self._next()
            self._name()

    def _attributes(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while self._sees("["):
            self._next()
            while not self._sees("]"):
                key = self._name()
                self._take("=")
                found[key.text] = self._name().text
                if self._sees(",", ";"):
                    self._next()
            self._next()
        return found

    def _seconds(self, name: str, given: dict[str, str], line: int) -> tuple[float, ...]:
        text = next((given[key] for key in _SECONDS if key in given), None)
        if text is None:
            raise GraphError(f"{self._file}:{line}: task {shown(name)} has no seconds", remedy="write [seconds=1.5]")
        if "=" not in text:
            return self._fleet.seconds(self._number(text, "seconds", line), given.get("kind", ""))
        column = {device.id: index for index, device in enumerate(self._fleet.devices)}
        row = [math.inf] * len(column)
        for pair in text.split(","):
            device, _, value = (word.strip() for word in pair.rpartition("="))
            if device not in column:
                hint = did_you_mean(device, column)
                raise GraphError(f"{self._file}:{line}: no device has the id {shown(device)}{hint}")
            row[column[device]] = self._number(value, "seconds", line)
        return tuple(row)

    def _nbytes(self, given: dict[str, str], line: int) -> int:
        text = next((given[key] for key in _BYTES if key in given), "0")
        return int(self._number(text, "bytes", line))

    def _number(self, text: str, what: str, line: int) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0.0 <= number < math.inf:
            raise GraphError(f"{self._file}:{line}: {shown(text)} are not {what}", remedy="write a number >= 0")
        return number
