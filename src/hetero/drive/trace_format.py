"""The format of a trace: which record has which columns, and the kinds of values in them.

In: the classes of events and commands. Out: their columns, for the writer, the reader and the documentation.
It must not read or write a file.
"""

from __future__ import annotations

from typing import NamedTuple, get_type_hints

from hetero.model.annotations import NOTES
from hetero.model.commands import COMMANDS, Launch
from hetero.model.device import Device
from hetero.model.events import EVENTS
from hetero.model.leases import LeaseRequest
from hetero.model.tasks import Failure, Request, Task

__all__ = ["CODES", "END", "FORMAT", "KINDS", "LAYOUTS", "REQUEST", "STRING", "VERSION", "Column", "Layout", "layout"]

FORMAT = "hetero-trace"
VERSION = 1

STRING = "str"
REQUEST = "req"
END = "end"

KINDS = {
    "int": "whole number",
    "bool": "0 or 1",
    "float": "number; not finite ones are the texts 'inf', '-inf' and 'nan'",
    "str": "number of a text in the table, or the text itself",
    "ints": "list of whole numbers",
    "floats": "list of float",
    "strs": "list of str",
    "request": "number of a request in the table, or the request itself",
    "launch": "[task, attempt, predicted_s]",
    "launches": "list of launch",
    "failure": "[kind, message], each a str",
    "device": "object: the fields of a device that differ from their defaults",
    "wish": "object: the fields of a request for a lease that differ from their defaults",
}
"""The kinds of columns."""

_KIND_OF: dict[object, str] = {
    int: "int",
    bool: "bool",
    float: "float",
    str: "str",
    tuple[int, ...]: "ints",
    tuple[float, ...]: "floats",
    tuple[str, ...]: "strs",
    Request: "request",
    Launch: "launch",
    tuple[Launch, ...]: "launches",
    Failure: "failure",
    Device: "device",
    LeaseRequest: "wish",
}

CODES = {
    "TaskSubmitted": "sub",
    "CancelRequested": "stop",
    "TaskFinished": "fin",
    "TaskFailed": "err",
    "TaskWithdrawn": "back",
    "TaskSuspended": "wait",
    "TaskResumed": "go",
    "DeviceAdded": "add",
    "DeviceReady": "up",
    "DeviceLost": "lost",
    "UtilisationReported": "use",
    "ItemPut": "put",
    "ItemReleased": "rel",
    "TransferFinished": "moved",
    "TransferFailed": "stuck",
    "LeaseAsked": "ask",
    "LeaseRenewed": "renew",
    "LeaseRefused": "refuse",
    "LeaseReleased": "return",
    "TimerFired": "tick",
    "Run": "run",
    "RunGroup": "group",
    "Withdraw": "take",
    "Cancel": "cancel",
    "Transfer": "move",
    "Free": "free",
    "StartWorker": "start",
    "Discard": "drop",
    "Commit": "done",
    "Recommit": "redo",
    "Fail": "fail",
    "Split": "split",
    "LeaseChanged": "lease",
    "SetTimer": "timer",
    "Warn": "warn",
    "TrainingStep": "step",
    "TrainingEpoch": "epoch",
    "TrainingNews": "news",
    "CheckpointWritten": "kept",
    "DeviceSampled": "sample",
    "CollectiveDone": "sum",
    "PlanMade": "plan",
    "OperatorsRun": "ops",
    "CheckpointKept": "keep",
    "TaskParts": "parts",
    "NestedRun": "nest",
    "PhasesRun": "phases",
}
"""The short name of each record; a class that is not listed here is written under its own name."""


class Column(NamedTuple):
    """One column of a record: its name and its kind, one of `KINDS`."""

    name: str
    kind: str


class Layout(NamedTuple):
    """How a class of events, commands or notes stands in a trace.

    Attributes
    ----------
    code
        First value of the line; the second is the time in s.
    record
        The class.
    columns
        What follows.
    timed
        True where the class has its own `at_s`, which is the line's time.
    nested
        True where the columns are those of the task in the event's only field.
    """

    code: str
    record: type
    columns: tuple[Column, ...]
    timed: bool
    nested: bool


def layout(record: type) -> Layout:
    """Derive the columns of a class of events, commands or notes from its annotations.

    Examples
    --------
    >>> from hetero.model.commands import Commit
    >>> [column.name for column in layout(Commit).columns]
    ['task', 'attempt', 'device']
    """
    timed = record in EVENTS or record in NOTES
    fields = get_type_hints(record)
    if timed:
        del fields["at_s"]
    nested = list(fields.values()) == [Task]
    if nested:
        fields = get_type_hints(Task)
    columns = tuple(Column(name, _KIND_OF[kind]) for name, kind in fields.items())
    return Layout(CODES.get(record.__name__, record.__name__), record, columns, timed, nested)


LAYOUTS: tuple[Layout, ...] = tuple(layout(record) for record in (*EVENTS, *COMMANDS, *NOTES))
"""The layout of every event, command and note, in the order of the documentation."""
