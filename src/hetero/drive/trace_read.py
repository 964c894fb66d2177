"""Reading a trace: its head, its events and commands in order, and a summary.

In: a file, plain or gzipped, whole or cut off by a kill. Out: typed records, or one line that says what is wrong.
It must not depend on who wrote the file: what a record holds stands in the file's own head.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, get_type_hints

from hetero.drive.trace_format import END, FORMAT, LAYOUTS, REQUEST, STRING, VERSION, Layout
from hetero.floor.documents import JsonObject
from hetero.floor.errors import TraceError
from hetero.floor.files import open_input
from hetero.floor.text import single_line
from hetero.floor.units import shown
from hetero.model.commands import Commit, Fail, Launch
from hetero.model.device import Device, DeviceType
from hetero.model.events import TaskFailed, TaskFinished, TaskSubmitted, TransferFinished
from hetero.model.leases import LeaseRequest
from hetero.model.tasks import Failure, Near, Request, Task

__all__ = ["Trace", "TraceSummary", "Unknown", "read_trace", "summary"]

# A trace may have more events than fit into memory and may still be written, so it is not read by `floor.documents` but
# line by line, with bounds of its own: on a line's bytes, what is unpacked at once, and the types of the fields.
_READ_BYTES = 1 << 18
_PIECE_BYTES = 1 << 20
_LINE_MAX_BYTES = 1 << 26
_parse = json.JSONDecoder().raw_decode
Row = list[Any]
"""The values of a line as JSON has them."""

_LAYOUTS = {each.record.__name__: each for each in LAYOUTS}


class Unknown(NamedTuple):
    """A record that this version does not know: its name and its columns as they stand in the file."""

    name: str
    values: dict[str, object]


class Trace:
    """A trace that was opened; iterate over it, as often as wanted, for `(at_s, event or command)` in order.

    Attributes
    ----------
    path
        The file.
    head
        The first line: who ran what on which fleet, and which records there are.
    """

    def __init__(self, path: Path, head: JsonObject, for_people: bool = False) -> None:
        self.path = path
        self.head = head
        self._for_people = for_people
        self._torn: bool | None = None

    def printable(self) -> Trace:
        """Return the same trace with texts of one line each that steer no terminal, for whoever shows them."""
        try:
            return Trace(self.path, _clean(self.head), for_people=True)
        except RecursionError as error:
            raise TraceError(f"{self.path}:1: the head is nested too deep", remedy=_REMEDY) from error

    @property
    def torn(self) -> bool:
        """True when the program ended without closing the trace: its last moments may be missing."""
        if self._torn is None:
            for _ in self._records():
                pass
        return bool(self._torn)

    def __iter__(self) -> Iterator[tuple[float, object]]:
        """Return the events and commands; what this version does not know is left out."""
        return (each for each in self._records() if not isinstance(each[1], Unknown))

    def unknown(self) -> Iterator[tuple[float, Unknown]]:
        """Return the records that this version does not know."""
        return ((at_s, record) for at_s, record in self._records() if isinstance(record, Unknown))

    def devices(self) -> tuple[Device, ...]:
        """Return the fleet of the run; raises TraceError when the head does not tell it."""
        try:
            return tuple(_device(each) for each in self.head.get("fleet", ()))
        except _BROKEN as error:
            raise TraceError(f"{self.path}:1: the fleet cannot be read: {error}", remedy=_REMEDY) from error

    def _records(self) -> Iterator[tuple[float, object]]:
        decoder = _Decoder(self.head)
        self._torn = None
        ended = False
        for first, lines in _blocks(self.path):
            together = _parsed_together(lines)
            for number, line in enumerate(lines, start=first):
                if number == 1:
                    continue
                try:
                    values = _parsed(line) if together is None else together[number - first]
                    if self._for_people and (b"\\" in line or not line.isascii()):
                        values = _clean(values)
                    if values[0] == END:
                        ended = True
                        _check_count(values[1], decoder.count)
                        continue
                    found = decoder.record(values)
                except _BROKEN as error:
                    problem = f"{self.path}:{number}: not a record of a trace"
                    remedy = f"what stands before it can be kept: head -n {number - 1}"
                    raise TraceError(problem, remedy=remedy) from error
                if found is not None:
                    yield found
        self._torn = not ended


_BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError)
_REMEDY = "give a file that hetero wrote with --trace or HETERO_TRACE"


def read_trace(path: Path | str) -> Trace:
    """Open a trace.

    Parameters
    ----------
    path
        The file, plain or gzipped, whatever its name; it may still be written.

    Returns
    -------
    Trace
        its head, and its records when iterated over

    Raises
    ------
    TraceError
        The file cannot be read, is no trace, or was written by a newer version. Iterating raises it
        with the number of the line where the file is corrupt.

    Examples
    --------
    >>> import hetero, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.trace.jsonl"
    >>> with hetero.Context(devices="1xcpu", engine="inline", trace=path) as ctx:
    ...     _ = ctx.run(abs, -1)
    >>> trace = hetero.inspect.read_trace(path)
    >>> trace.torn, len(list(trace)) > 0
    (False, True)
    """
    path = Path(path)
    first = next(_blocks(path), None)
    if first is None:
        problem = f"{path} is empty or was cut off before its first line ended"
        raise TraceError(problem, remedy=_REMEDY)
    try:
        head = json.loads(first[1][0])
        is_trace = head["format"] == FORMAT and isinstance(head["records"], dict)
        version = int(head["version"])
    except _BROKEN as error:
        raise TraceError(f"{path}:1: not the head of a trace", remedy=_REMEDY) from error
    if not is_trace:
        raise TraceError(f"{path}:1: not the head of a trace", remedy=_REMEDY)
    if version > VERSION:
        problem = f"{path} was written by a newer hetero: trace version {version}, this one reads up to {VERSION}"
        raise TraceError(problem, remedy="upgrade hetero-core")
    return Trace(path, head)


def _blocks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the complete lines, some at a time, with the number of the first of them.

    What follows the last line end was torn off and is left out. A line without end is no line of a trace.
    """
    number, rest = 1, b""
    try:
        with open_input(path) as file:
            for chunk in _chunks(file):
                *whole, rest = (rest + chunk).split(b"\n")
                if whole:
                    yield number, whole
                number += len(whole)
                if len(rest) > _LINE_MAX_BYTES:
                    raise TraceError(f"{path}:{number}: a line without an end: this is no trace", remedy=_REMEDY)
    except zlib.error as error:
        raise TraceError(f"{path}: the compressed bytes after line {number - 1} are damaged") from error
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}", remedy="check the path") from error


def _parsed_together(lines: list[bytes]) -> Row | None:
    """Read the values of some lines at once, None where one of them is no JSON value."""
    try:
        values: Row = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        return None
    return values if len(values) == len(lines) else None


def _parsed(line: bytes) -> Any:
    """Read the JSON value of a line; half as long as `json.loads`, which looks for other encodings and for spaces."""
    text = line.decode()
    value, end = _parse(text)
    if text[end:].strip():
        raise ValueError("more than one value on a line")
    return value


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    chunk = file.read(_READ_BYTES)
    unzip = zlib.decompressobj(31) if chunk.startswith(b"\x1f\x8b") else None
    while chunk:
        if unzip is None:
            yield chunk
        else:
            yield unzip.decompress(chunk, _PIECE_BYTES)
            while unzip.unconsumed_tail:
                yield unzip.decompress(unzip.unconsumed_tail, _PIECE_BYTES)
        chunk = file.read(_READ_BYTES)


def _check_count(told: object, found: int) -> None:
    if told != found:
        raise ValueError(f"the trace tells of {told} records, {found} are there")


class _Decoder:
    """Turns lines back into records, by the layouts in the file's head."""

    def __init__(self, head: JsonObject) -> None:
        self.count = 0
        self._texts: dict[int, str] = {}
        self._requests: dict[int, Request] = {}
        self._head = head
        self._makers: dict[str, Callable[..., object]] = {}

    def record(self, values: Row) -> tuple[float, object] | None:
        """Return the time and the record of a line; None for a line of the tables."""
        code = values[0]
        if code == STRING:
            self._texts[values[1]] = str(values[2])
            return None
        if code == REQUEST:
            self._requests[values[1]] = _request(values[2])
            return None
        maker = self._makers.get(code)
        if maker is None:
            maker = self._makers[code] = self._maker(code)
        self.count += 1
        return float(values[1]), maker(values)

    def _maker(self, code: str) -> Callable[[Row], object]:
        name, columns = self._head["records"][code]
        places = {column: place for place, (column, _) in enumerate(columns, start=2)}
        layout = _LAYOUTS.get(name)
        kinds = dict(columns)
        since = getattr(Task if layout.nested else layout.record, "_field_defaults", {}) if layout is not None else {}
        columns = [each for each in layout.columns if each.name in kinds or each.name not in since] if layout else []
        if layout is None or any(kinds.get(column) != kind for column, kind in columns):
            return lambda values: Unknown(name, {column: values[place] for column, place in places.items()})
        return self._typed(layout, [(places[column], self._read(kind)) for column, kind in columns])

    def _typed(self, layout: Layout, reads: list[tuple[int, Callable[..., object]]]) -> Callable[[Row], object]:
        record: Callable[..., object] = layout.record

        def make(values: Row) -> object:
            found: Row = [read(values[place]) for place, read in reads]
            if layout.nested:  # a trace may lack the last columns, which came later
                return record(float(values[1]), Task(*found))
            return record(float(values[1]), *found) if layout.timed else record(*found)

        return make

    def _read(self, kind: str) -> Callable[..., object]:
        reads: dict[str, Callable[..., object]] = {
            "int": int,
            "bool": bool,
            "float": float,
            "str": self._text,
            "ints": lambda numbers: tuple(int(each) for each in numbers),
            "floats": lambda numbers: tuple(float(each) for each in numbers),
            "strs": lambda texts: tuple(self._text(each) for each in texts),
            "request": lambda given: _request(given) if isinstance(given, dict) else self._requests[given],
            "launch": _launch,
            "launches": lambda launches: tuple(_launch(each) for each in launches),
            "failure": lambda given: Failure(self._text(given[0]), self._text(given[1])),  # type: ignore[arg-type]
            "device": _device,
            "wish": _wish,
        }
        return reads[kind]

    def _text(self, given: int | str) -> str:
        return given if isinstance(given, str) else self._texts[given]


def _launch(given: Row) -> Launch:
    task, attempt, predicted_s = given
    return Launch(int(task), int(attempt), float(predicted_s))


def _request(given: Mapping[str, object]) -> Request:
    return Request(**_fields(Request, given))


def _device(given: Mapping[str, object]) -> Device:
    return Device(**_fields(Device, given))


def _wish(given: Mapping[str, object]) -> LeaseRequest:
    return LeaseRequest(**_fields(LeaseRequest, given))


def _fields(kind: type, given: Mapping[str, object]) -> JsonObject:
    """Return the fields of a value that a trace tells of, each of its type."""
    readers = _readers(kind)
    return {name: readers[name](each) for name, each in given.items() if name in readers}


@cache
def _readers(kind: type) -> dict[str, Callable[[object], object]]:
    return {name: _READERS[hint] for name, hint in get_type_hints(kind).items() if hint in _READERS}


def _is(*kinds: type) -> Callable[[object], Any]:
    def read(given: object) -> object:
        if type(given) not in kinds:
            raise TypeError(f"{shown(given)} is not of the type {kinds[0].__name__}")
        return given

    return read


def _plain_text(given: object) -> str:
    return str(_is(str)(given))


def _texts(given: object) -> tuple[str, ...]:
    return tuple(_plain_text(each) for each in _is(list)(given))


_READERS: dict[object, Callable[..., object]] = {
    str: _plain_text,
    DeviceType: lambda given: DeviceType(_plain_text(given)),
    int: _is(int),
    bool: _is(bool, int),
    float: _is(float, int),
    int | None: _is(int, type(None)),
    float | None: _is(float, int, type(None)),
    tuple[str, ...]: _texts,
    tuple[int, ...]: lambda given: tuple(_is(int)(each) for each in _is(list)(given)),
    tuple[Near, ...]: lambda given: tuple(Near(*(_near(part) for part in each)) for each in _is(list)(given)),
}
"""How a field of each type is read."""


def _near(given: object) -> Any:
    return _plain_text(given) if isinstance(given, str) else _is(int, float, type(None))(given)


def _clean(value: object) -> Any:
    """Return a JSON value whose texts steer no terminal."""
    if isinstance(value, str):
        return single_line(value)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return {single_line(key): _clean(each) for key, each in value.items()} if isinstance(value, dict) else value


class TraceSummary(NamedTuple):
    """What a trace amounts to.

    Attributes
    ----------
    tasks, failed
        Number of tasks committed, and failed for good.
    makespan_s
        Seconds, last finish minus first start; 0 where nothing ran.
    busy_s
        Per device id, s spent in attempts, whether they were committed or not.
    attempts
        Per device id, number of attempts that ended there.
    functions
        Per function name, number of tasks committed.
    bytes_moved
        Bytes that travelled between memory nodes.
    torn
        True when the program ended without closing the trace.
    """

    tasks: int
    failed: int
    makespan_s: float
    busy_s: dict[str, float]
    attempts: dict[str, int]
    functions: dict[str, int]
    bytes_moved: int
    torn: bool


def summary(path: Path | str, names: Iterable[str] = ()) -> TraceSummary:
    """Sum up a trace.

    Parameters
    ----------
    path
        The file.
    names
        Functions that count, with the transfers from the first submission of one to the last finish; empty for all.

    Returns
    -------
    TraceSummary
        counts, seconds and bytes

    Raises
    ------
    TraceError
        The trace cannot be read.

    Examples
    --------
    >>> import hetero, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.trace.jsonl"
    >>> with hetero.Context(devices="1xcpu", engine="inline", trace=path) as ctx:
    ...     _ = ctx.run(abs, -1)
    >>> hetero.inspect.summary(path).tasks
    1
    """
    trace, wanted = read_trace(path), frozenset(names)
    tasks: dict[int, str] = {}
    ended: list[TaskFinished | TaskFailed] = []
    moved: list[tuple[float, int]] = []
    functions, failed, from_s = Counter[str](), 0, math.inf
    for at_s, record in trace:
        if isinstance(record, TaskSubmitted) and (not wanted or record.task.name in wanted):
            tasks[record.task.id] = record.task.name
            from_s = min(from_s, at_s)
        elif isinstance(record, TaskFinished | TaskFailed) and record.task in tasks:
            ended.append(record)
        elif isinstance(record, Commit) and record.task in tasks:
            functions[tasks[record.task]] += 1
        elif isinstance(record, Fail) and record.task in tasks:
            failed += 1
        elif isinstance(record, TransferFinished):
            moved.append((at_s, record.nbytes))
    until_s = max((each.started_s + each.seconds for each in ended), default=-math.inf)
    busy_s, attempts = _by_device(ended)
    return TraceSummary(
        tasks=functions.total(),
        failed=failed,
        makespan_s=max(0.0, until_s - min((each.started_s for each in ended), default=math.inf)),
        busy_s=busy_s,
        attempts=attempts,
        functions=dict(sorted(functions.items())),
        bytes_moved=sum(nbytes for at_s, nbytes in moved if not wanted or from_s <= at_s <= until_s),
        torn=trace.torn,
    )


def _by_device(ended: Iterable[TaskFinished | TaskFailed]) -> tuple[dict[str, float], dict[str, int]]:
    busy_s: dict[str, float] = {}
    attempts: dict[str, int] = {}
    for each in ended:
        busy_s[each.device] = busy_s.get(each.device, 0.0) + each.seconds
        attempts[each.device] = attempts.get(each.device, 0) + 1
    return dict(sorted(busy_s.items())), dict(sorted(attempts.items()))
