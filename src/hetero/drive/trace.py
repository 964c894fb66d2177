"""The trace of a run: every event and command, written to a file as they happen.

In: records from under the driver's lock. Out: lines of JSON, gzipped where the file's name ends in '.gz'.
It must never drop a record, never stop the run, and never write what is the user's (payloads, arguments).
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import re
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero.drive.trace_format import END, FORMAT, LAYOUTS, REQUEST, STRING, VERSION, Column, Layout
from hetero.drive.trace_read import Row, Trace, TraceSummary, read_trace, summary
from hetero.floor import settings
from hetero.floor.clock import JOIN_S, wall_time_s
from hetero.floor.errors import BadValueError
from hetero.floor.extras import own_version
from hetero.floor.files import output_stream
from hetero.model.commands import Launch
from hetero.model.device import Device
from hetero.model.tasks import Failure, Request
from hetero.model.topology import Topology

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Trace", "TraceSummary", "TraceWriter", "read_trace", "summary"]

_WAITING_MAX = 65_536
"""Records that may wait; whoever brings one more writes some of them out himself."""
_CHUNK = 4096
_GZIP = b"\x1f\x8b"
_PERIOD_S = 0.25
_TABLE_MAX = 65_536
_TEXT_MAX = 200


def _refuse_other_files(path: Path) -> None:
    """Raise where a file would be replaced that is no trace, as a script whose name was given by mistake."""
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            begin = file.read(_CHUNK)
    except OSError:
        return  # whoever opens it says why
    if begin.startswith(_GZIP):
        with suppress(zlib.error):
            begin = zlib.decompressobj(31).decompress(begin, _CHUNK)
    if begin and FORMAT.encode() not in begin:
        raise BadValueError(f"trace: {path} is there and is no trace", remedy="name another file, or remove it")


class TraceWriter:
    """Takes events and commands, and writes them from a thread of its own.

    Parameters
    ----------
    path
        File to write, in place of what was there; a name that ends in '.gz' is compressed as it is written.
    devices, topology, policy, run
        What the head of the trace tells about the run.
    clock_origin_s
        What the host's monotonic clock showed at second 0 of the run.

    Attributes
    ----------
    path
        The file.
    problem
        '' or one line: why writing stopped (a full disk).

    Raises
    ------
    BadValueError
        The file cannot be written.

    Notes
    -----
    `write` only appends to a queue. The thread wakes four times a second while records come, and sleeps
    when none do. While more than 65,536 records wait, each caller writes some of them out himself, so memory
    stays constant and nothing is dropped. A killed program loses what it did in its last quarter of a second.

    Examples
    --------
    >>> import tempfile
    >>> from hetero.model.commands import Commit
    >>> from hetero.model.events import DeviceReady
    >>> path = Path(tempfile.mkdtemp()) / "run.trace.jsonl"
    >>> writer = TraceWriter(path, policy="eft")
    >>> writer.write(DeviceReady(0.5, "h0/cpu:0"))
    >>> writer.write(Commit(1, 1, "h0/cpu:0"))
    >>> writer.close()
    >>> for at_s, record in read_trace(path):
    ...     print(at_s, record)
    0.5 DeviceReady(at_s=0.5, device='h0/cpu:0')
    0.5 Commit(task=1, attempt=1, device='h0/cpu:0')
    """

    def __init__(
        self,
        path: Path | str,
        *,
        devices: Iterable[Device] = (),
        topology: Topology | None = None,
        policy: str = "",
        run: str = "",
        clock_origin_s: float = 0.0,
    ) -> None:
        self.path = output_stream(path, "trace")
        _refuse_other_files(self.path)
        self.problem = ""
        self._waiting: deque[tuple[object, ...]] = deque()
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._asleep = False
        self._closing = threading.Event()
        self._encoder = _Encoder(settings.trace_errors())
        self._zip = zlib.compressobj(1, zlib.DEFLATED, 31) if self.path.suffix == ".gz" else None
        try:
            self._file = self.path.open("wb", buffering=0)
        except OSError as error:
            problem = f"the trace {self.path} cannot be written: {error.strerror}"
            raise BadValueError(problem, remedy="name a file in a folder that exists") from error
        self._append([json.dumps(_head(devices, topology or Topology(), policy, run, clock_origin_s))])
        self._thread = threading.Thread(target=self._loop, name="hetero-trace", daemon=True)
        self._thread.start()
        self._pid = os.getpid()
        atexit.register(self.close)

    def write(self, record: tuple[object, ...]) -> None:
        """Take one event or command, bare or as `(at_s, record)`; a bare command has the time of the last event."""
        self._waiting.append(record)
        if self._asleep:
            self._asleep = False
            self._wake.set()
        elif len(self._waiting) > _WAITING_MAX:
            self._write_chunk()

    def flush(self) -> None:
        """Write what waits to the file."""
        for _ in range(0, len(self._waiting), _CHUNK):
            self._write_chunk()

    def close(self) -> None:
        """Write what waits, mark the end, and close the file; safe to call twice."""
        if self._closing.is_set() or self._pid != os.getpid():
            return
        self._closing.set()
        self._wake.set()
        self._thread.join(JOIN_S)
        atexit.unregister(self.close)
        self.flush()
        with self._writing:
            self._waiting = deque(maxlen=0)
            self._append([f'["{END}",{self._encoder.count}]'], last=True)
            self._file.close()

    def _loop(self) -> None:
        while not self._closing.is_set():
            self._asleep = True
            if self._waiting:
                self._asleep = False
            else:
                self._wake.wait()
            self._wake.clear()
            self._closing.wait(_PERIOD_S)
            self.flush()

    def _write_chunk(self) -> None:
        with self._writing:
            count = min(_CHUNK, len(self._waiting))
            self._append(self._encoder.lines(self._waiting.popleft() for _ in range(count)))

    def _append(self, lines: list[str], last: bool = False) -> None:
        if self.problem or not lines:
            return
        data = "\n".join([*lines, ""]).encode()
        if self._zip is not None:
            data = self._zip.compress(data) + self._zip.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self.problem = f"the trace {self.path} ends early: {error.strerror}"


def _head(devices: Iterable[Device], topology: Topology, policy: str, run: str, origin_s: float) -> dict[str, object]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "hetero": own_version(),
        "python": platform.python_version(),
        "host": platform.node(),
        "started": datetime.fromtimestamp(wall_time_s(), UTC).isoformat(timespec="milliseconds"),
        "clock_origin_s": origin_s,
        "run": run,
        "policy": policy,
        "fleet": [_changed(device) for device in devices],
        "topology": {
            "nodes": [_changed(node) for node in topology.nodes],
            "links": [_changed(link) for link in topology.links],
        },
        "records": {each.code: [each.record.__name__, [list(column) for column in each.columns]] for each in LAYOUTS},
    }


def _changed(value: DataclassInstance) -> dict[str, object]:
    """Return the fields of a dataclass that differ from their defaults."""
    found = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
    return {name: each for name, (each, default) in found.items() if default is MISSING or each != default}


class _Encoder:
    """Turns records into lines, each text and each request written once, before its first use.

    Attributes
    ----------
    count
        Records so far.
    """

    def __init__(self, with_errors: bool = False) -> None:
        self._with_errors = with_errors
        self.count = 0
        self._at_s = 0.0
        self._lines: list[str] = []
        self._texts: dict[str, int] = {}
        self._requests: dict[Request, int] = {}
        self._request_ids: dict[int, int] = {}
        self._by_type = {each.record: self._line_of(each) for each in LAYOUTS}
        self._timed = {each.record for each in LAYOUTS if each.timed}

    def lines(self, records: Iterable[Any]) -> list[str]:
        """Return the lines of some records, and of the texts and requests that they are the first to use."""
        lines = self._lines = []
        for record in records:
            kind = type(record)
            if kind is tuple:
                self._at_s, record = record
                kind = type(record)
            elif kind in self._timed:
                self._at_s = record[0]
            lines.append(self._by_type[kind](self._at_s, record))
            self.count += 1
        return lines

    def _line_of(self, layout: Layout) -> Callable[[float, object], str]:
        columns = (Column("at_s", "float"), *layout.columns)
        template = f'["{layout.code}",' + ",".join(_piece(column) for column in columns) + "]"
        shaped = [(place, self._shape(column.kind)) for place, column in enumerate(columns) if _is_shaped(column)]
        floats = [place for place, column in enumerate(columns) if column.kind == "float"]

        def line(at_s: float, record: Any) -> str:
            values = [record[0], *(record[1] if layout.nested else record[1:])] if layout.timed else [at_s, *record]
            for place, shape in shaped:
                values[place] = shape(values[place])
            text = template % tuple(values)
            return text if "inf" not in text and "nan" not in text else _not_finite(template, values, floats)

        return line

    def _shape(self, kind: str) -> Callable[[object], object]:
        shapes: dict[str, Callable[..., object]] = {
            "str": self._text,
            "ints": lambda numbers: "[" + ",".join(map(str, numbers)) + "]" if numbers else "[]",
            "floats": lambda numbers: "[" + ",".join(map(_float, numbers)) + "]",
            "strs": lambda texts: "[" + ",".join(str(self._text(text)) for text in texts) + "]",
            "request": self._request,
            "launch": _launch,
            "launches": lambda launches: "[" + ",".join(map(_launch, launches)) + "]",
            "failure": self._failure,
            "device": lambda device: json.dumps(_changed(device)),
            "wish": lambda wish: json.dumps(_changed(wish)),
        }
        return shapes[kind]

    def _text(self, text: str) -> object:
        number = self._texts.get(text)
        if number is not None:
            return number
        if len(text) > _TEXT_MAX or len(self._texts) >= _TABLE_MAX:
            return json.dumps(text)
        number = self._texts[text] = len(self._texts)
        self._lines.append(f'["{STRING}",{number},{json.dumps(text)}]')
        return number

    def _request(self, request: Request) -> object:
        number = self._request_ids.get(id(request))
        if number is None:
            number = self._requests.get(request)
        if number is not None:
            return number
        if len(self._requests) >= _TABLE_MAX:
            return json.dumps(_changed(request))
        number = self._requests[request] = self._request_ids[id(request)] = len(self._requests)
        self._lines.append(f'["{REQUEST}",{number},{json.dumps(_changed(request))}]')
        return number

    def _failure(self, failure: Failure) -> str:
        message = failure.message
        if not self._with_errors and (failure.kind in _RAISED or failure.payload is not None):
            message = _kind_of_error(message)
        return f"[{self._text(failure.kind)},{self._text(message)}]"


_RAISED = ("exception", "out_of_memory", "unserialisable", "missing_package")
_NAME = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")


def _kind_of_error(message: str) -> str:
    """Return the class of an exception from its line, and nothing of its text.

    Examples
    --------
    >>> _kind_of_error("ValueError: cannot read secret.csv"), _kind_of_error("no such file")
    ('ValueError', '')
    """
    found = _NAME.match(message)
    return found[1] if found and found[1].endswith(_ERRORS) else ""


_ERRORS = ("Error", "Exception", "Interrupt", "Exit", "Warning", "Iteration", "Timeout")


def _piece(column: Column) -> str:
    if column.kind == "float":
        return "%.7f" if column.name in ("at_s", "started_s") else "%.7g"
    return "%s" if _is_shaped(column) else "%d"


def _is_shaped(column: Column) -> bool:
    return column.kind not in ("int", "bool", "float")


def _launch(launch: Launch) -> str:
    task, attempt, predicted_s, _ = launch
    return f"[{task},{attempt},{_float(predicted_s)}]"


def _float(number: float) -> str:
    return f"{number:.7g}" if isfinite(number) else f'"{number}"'


def _not_finite(template: str, values: Row, floats: list[int]) -> str:
    """Write a line whose numbers may not be finite, which JSON has no words for."""
    for place in floats:
        values[place] = f"{values[place]:.9g}" if isfinite(values[place]) else f'"{values[place]}"'
    return template.replace("%.7f", "%s").replace("%.7g", "%s") % tuple(values)
