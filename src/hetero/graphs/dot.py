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
_MOST_DEPTH = 100


class _Token(NamedTuple):
    text: str
    kind: str
    line: int


def read_dot(text: str, file: str, fleet: GraphFleet) -> TaskGraph:
    """Read a digraph.

    Parameters
    ----------
    text
        As in ``digraph { a [seconds=2]; b [seconds="gpu0=0.5, cpu0=4"]; a -> b [bytes=1000]; }``.
    fleet
        The devices; plain seconds are divided by their speed, and a task's kind is its attribute `kind`.

    Notes
    -----
    A node's seconds are its attribute `seconds`, else `weight`, else `size`; an edge's bytes are `bytes`, else
    `size`, else `weight`, else 0. `node [...]` and `edge [...]` give defaults, in a subgraph up to its end. A subgraph
    at an end of an edge stands for all nodes in it. Two edges between a pair are one with the bytes of both, or in a
    strict graph the last of them. Strings joined by `+` are one; ports are passed over.

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
        self._edges: dict[tuple[str, str], list[tuple[dict[str, str], int]]] = {}
        self._is_strict, self._depth = False, 0
        self._defaults: dict[str, dict[str, str]] = {"node": {}, "edge": {}, "graph": {}}

    def graph(self) -> TaskGraph:
        self._head()
        self._statements()
        tasks = tuple(GraphTask(name, self._seconds(name, *self._nodes[name])) for name in self._nodes)
        edges = tuple(
            GraphEdge(*pair, sum(self._nbytes(*edge) for edge in found)) for pair, found in self._edges.items()
        )
        return TaskGraph(self._fleet.devices, self._fleet.topology, tasks, edges)

    def _cut(self, text: str) -> Iterator[_Token]:
        at, line = 0, 1
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise GraphError(f"{self._file}:{line}: {shown(text[at : at + 20])} is not DOT")
            kind = str(found.lastgroup)
            if kind != "blank":
                yield _Token(found[kind].replace("\\\n", "").replace('\\"', '"'), kind, line)
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
            self._is_strict = True
            token = self._next()
        if token.text.lower() != "digraph":
            raise GraphError(
                f"{self._file}:{token.line}: {shown(token.text)} is not 'digraph'", remedy="a task graph has directions"
            )
        if not self._sees("{"):
            self._next()
        self._take("{")

    def _statements(self) -> list[_Token]:
        """Read up to the closing brace; returns the nodes that are named there. Its defaults end with it."""
        outside = self._defaults
        self._defaults = {what: dict(given) for what, given in outside.items()}
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            line = self._tokens[self._at].line
            raise GraphError(f"{self._file}:{line}: subgraphs stand in more than {_MOST_DEPTH} others")
        named: list[_Token] = []
        while not self._sees("}"):
            if self._sees(";", ","):
                self._next()
            else:
                named += self._statement()
        self._next()
        self._depth -= 1
        self._defaults = outside
        return named

    def _statement(self) -> list[_Token]:
        """Read a node, edges, a subgraph or an attribute; returns the nodes that are named there."""
        if self._begins_subgraph():
            return self._chain(self._end(), is_node=False)
        token = self._name()
        if token.kind == "word" and token.text.lower() in self._defaults:
            self._defaults[token.text.lower()] |= self._attributes()
        elif self._sees("="):
            self._next()
            self._name()
        else:
            self._port()
            return self._chain([token], is_node=True)
        return []

    def _begins_subgraph(self) -> bool:
        token = self._tokens[self._at]
        return self._sees("{") or (token.kind == "word" and token.text.lower() == "subgraph")

    def _name(self) -> _Token:
        token = self._next()
        if token.kind not in ("word", "quoted", "html"):
            given = "the end of the file; is it cut short?" if token.kind == "end" else shown(token.text)
            raise GraphError(f"{self._file}:{token.line}: a name is due, not {given}")
        while token.kind == "quoted" and self._tokens[self._at][:2] == ("+", "word"):
            self._next()
            more = self._next()
            if more.kind != "quoted":
                raise GraphError(f"{self._file}:{more.line}: only a string in quotes can follow '+'")
            token = token._replace(text=token.text + more.text)
        return token

    def _chain(self, first: list[_Token], *, is_node: bool) -> list[_Token]:
        """Read the rest of a node or of edges, from the nodes at its beginning on; returns all nodes of it."""
        chain = [first]
        while self._sees("->", "--"):
            arrow = self._next()
            if arrow.text == "--":
                raise GraphError(f"{self._file}:{arrow.line}: '--' has no direction", remedy="write '->'")
            chain.append(self._end())
        given = self._attributes()
        named = [token for end in chain for token in end]
        for token in named:
            own = given if is_node and len(chain) == 1 else {}
            known = self._nodes.get(token.text, (dict(self._defaults["node"]), token.line))
            self._nodes[token.text] = (known[0] | own, known[1])
        for sources, sinks in pairwise(chain):
            for src, dst in product(sources, sinks):
                found = self._edges.setdefault((src.text, dst.text), [])
                if self._is_strict:
                    found.clear()
                found.append((self._defaults["edge"] | given, src.line))
        return named

    def _end(self) -> list[_Token]:
        """Read one end of an edge: a name, or a subgraph, which stands for all nodes in it, each once."""
        if not self._begins_subgraph():
            found = [self._name()]
            self._port()
            return found
        if not self._sees("{"):
            self._next()
            if not self._sees("{"):
                self._name()
        self._take("{")
        return list({token.text: token for token in self._statements()}.values())

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
