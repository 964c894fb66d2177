"""The log of samples: which device computed which samples of which step, written by the devices themselves.

In: the ids of a step on each member, and the word that it was applied. Out: files, what they say, and a check of it.
It must not know models, and nobody trains by it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hetero.floor import clock
from hetero.floor.documents import read_bytes
from hetero.floor.errors import FileError
from hetero.floor.files import output_folder
from hetero.train.values import TrainingError

__all__ = ["LoggedStep", "SampleCheck", "SampleLog", "append_line", "check_sample_log", "next_run", "read_sample_log"]

_SUFFIX = ".jsonl"


class SampleLog:
    """What one member writes, a line at a time, so that it stays when the member is killed.

    Parameters
    ----------
    folder
        Of the log, '' for none.
    run
        Number of the run in this folder.
    device
        Whose lines these are.
    send
        Takes the lines to the program, which appends them, where the folder is on another host.
    """

    def __init__(self, folder: str, run: int, device: str, send: Callable[[bytes], None] | None = None) -> None:
        self._generation = 0
        self._file = -1
        self._send = send if folder else None
        if folder and send is None:
            self._file = os.open(_path(folder, run, device), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(self._file, b"\n")  # a line that a killed predecessor left torn ends here

    def begins(self, generation: int, step: int, device: str, samples: int, global_batch: int) -> None:
        """Record that a group begins, after so many steps."""
        self._generation = generation
        self._write("begins", step, device=device, of=samples, global_batch=global_batch)

    def computes(self, step: int, ids: Sequence[int]) -> None:
        """Note what this member hands in for a step."""
        self._write("computes", step, samples=list(ids))

    def applied(self, step: int) -> None:
        """Record that the optimizer took the step, with what all members handed in."""
        self._write("applied", step, at_s=clock.wall_time_s())

    def _write(self, what: str, step: int, **more: object) -> None:
        if self._file < 0 and self._send is None:
            return
        row = {"what": what, "generation": self._generation, "step": step, **more}
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        if self._send is not None:
            self._send(line)
        else:
            os.write(self._file, line)

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def append_line(folder: str, run: int, device: str, line: bytes) -> None:
    """Append a whole line for a member on another host."""
    with _path(folder, run, device).open("ab") as file:
        file.write(line)


def _path(folder: str, run: int, device: str) -> Path:
    return Path(folder) / f"run-{run:06d}-{device.replace(':', '-').replace('/', '-')}{_SUFFIX}"


_MOST_BYTES = 10**10
_COLUMNS: dict[str, dict[str, tuple[type, ...]]] = {
    "every": {"generation": (int,), "step": (int,)},
    "begins": {"device": (str,), "of": (int,), "global_batch": (int,)},
    "computes": {"samples": (list,)},
    "applied": {"at_s": (int, float)},
}
"""The columns of each kind of line."""


class LoggedStep(NamedTuple):
    """One applied step of the history that led to the model.

    Attributes
    ----------
    step
        Counted from 1.
    run, generation
        The run of a program, and the group within it.
    samples
        Ids by device.
    applied_s
        When the first member had applied it, s since 1970.
    """

    step: int
    run: int
    generation: int
    samples: dict[str, list[int]]
    applied_s: float


class SampleCheck(NamedTuple):
    """What a log came to.

    Attributes
    ----------
    steps
        Applied, without those that a later group or run did anew.
    epochs
        Whole ones.
    samples
        How many each device computed.
    """

    steps: int
    epochs: int
    samples: dict[str, int]


@dataclass(slots=True)
class _Generation:
    """What the members of one group wrote."""

    after: int = -1
    of: int = 0
    global_batch: int = 0
    computed: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    applied_s: dict[int, float] = field(default_factory=dict)

    def take(self, device: str, row: Mapping[str, Any]) -> None:
        """Take in a line."""
        step = row["step"]
        if row["what"] == "begins":
            self.after, self.of, self.global_batch = step, row["of"], row["global_batch"]
        elif row["what"] == "computes":
            self.computed.setdefault(step, {})[device] = row["samples"]
        else:
            self.applied_s[step] = min(row["at_s"], self.applied_s.get(step, row["at_s"]))


def next_run(folder: str | Path) -> int:
    """Return the number of the next run in a folder, which is made where it is absent.

    Raises
    ------
    BadValueError
        The folder cannot be made.
    """
    return max((_run_of(path) for path in output_folder(folder, "sample_log").glob(f"run-*{_SUFFIX}")), default=0) + 1


def read_sample_log(folder: str | Path) -> list[LoggedStep]:
    """Read the steps that led to the model, in order.

    Parameters
    ----------
    folder
        What was given to the Trainer as `sample_log`.

    Notes
    -----
    A step that was applied and then lost with those who had applied it, and one that came after the checkpoint from
    which a later run went on, is done anew: the later one counts.

    Raises
    ------
    TrainingError
        There is no log, or a group begins after a step that nobody has written of.

    Examples
    --------
    >>> import hetero, tempfile, torch
    >>> x, log = torch.arange(8.0).reshape(8, 1), tempfile.mkdtemp()
    >>> model = torch.nn.Linear(1, 1)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
    >>> logged = hetero.train.DataOptions(sample_log=log)
    >>> given = {"global_batch": 4, "data_options": logged, "devices": ctx}
    >>> _ = hetero.Trainer(model, torch.nn.MSELoss(), sgd, (x, 2 * x), **given).fit(1)
    >>> ctx.close()
    >>> [(step.step, len(step.samples["cpu:0"])) for step in hetero.train.read_sample_log(log)]
    [(1, 4), (2, 4)]
    """
    steps: dict[int, LoggedStep] = {}
    for (run, number), generation in sorted(_generations(Path(folder)).items()):
        if generation.after < 0:
            continue
        steps = {step: kept for step, kept in steps.items() if step <= generation.after}
        if len(steps) != generation.after:
            raise TrainingError(f"{folder}: run {run} begins after step {generation.after}, and {len(steps)} are known")
        for step, applied_s in sorted(generation.applied_s.items()):
            steps[step] = LoggedStep(step, run, number, generation.computed.get(step, {}), applied_s)
    return list(steps.values())


def check_sample_log(folder: str | Path) -> SampleCheck:
    """Check that every epoch used each of its samples exactly once, the last epoch at most once.

    Parameters
    ----------
    folder
        What was given to the Trainer as `sample_log`.

    Raises
    ------
    TrainingError
        A sample was used twice or not at all, a step is missing or has too few samples; the message says which.

    Examples
    --------
    >>> import hetero, tempfile, torch
    >>> x, log = torch.arange(8.0).reshape(8, 1), tempfile.mkdtemp()
    >>> model = torch.nn.Linear(1, 1)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
    >>> logged = hetero.train.DataOptions(sample_log=log)
    >>> given = {"global_batch": 4, "data_options": logged, "devices": ctx}
    >>> _ = hetero.Trainer(model, torch.nn.MSELoss(), sgd, (x, 2 * x), **given).fit(1)
    >>> ctx.close()
    >>> hetero.train.check_sample_log(log)
    SampleCheck(steps=2, epochs=1, samples={'cpu:0': 8})
    """
    steps = read_sample_log(folder)
    last = max(_generations(Path(folder)).items())[1]
    an_epoch = -(-last.of // last.global_batch)
    by_device: Counter[str] = Counter()
    used: dict[int, str] = {}
    for number, step in enumerate(steps, 1):
        if step.step != number:
            raise TrainingError(f"{folder}: step {number} is missing")
        if (number - 1) % an_epoch == 0:
            used = {}
        for device, ids in step.samples.items():
            by_device[device] += len(ids)
            _use(used, ids, f"step {number} by {device}", last.of)
        place = (number - 1) % an_epoch + 1
        if len(used) != min(place * last.global_batch, last.of):
            raise TrainingError(f"{folder}: after step {number} the epoch has used {len(used)} samples")
    return SampleCheck(len(steps), len(steps) // an_epoch, dict(sorted(by_device.items())))


def _use(used: dict[int, str], ids: Sequence[int], by: str, samples: int) -> None:
    for sample in ids:
        if sample in used:
            raise TrainingError(f"sample {sample} was used twice in an epoch: in {used[sample]}, and in {by}")
        if not 0 <= sample < samples:
            raise TrainingError(f"sample {sample} in {by} is none of the {samples}")
        used[sample] = by


def _generations(folder: Path) -> dict[tuple[int, int], _Generation]:
    found: dict[tuple[int, int], _Generation] = {}
    for path in sorted(folder.glob(f"run-*{_SUFFIX}")):
        device = path.stem
        for row in _rows(path):
            device = row.get("device", device)
            found.setdefault((_run_of(path), row["generation"]), _Generation()).take(device, row)
    if not found:
        raise TrainingError(f"{folder} has no log of samples", remedy="give the Trainer sample_log=FOLDER")
    return found


def _run_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines; one that a killed member left torn says nothing."""
    for number, line in enumerate(read_bytes(path, most=_MOST_BYTES).splitlines(), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and "what" in row:
            if not _is_sound(row):
                raise FileError(f"{path}:{number}: this is no line of a log of samples", remedy="take the line out")
            yield row


def _is_sound(row: Mapping[str, Any]) -> bool:
    """Return whether a line has the columns that its kind needs, each of its type."""
    wanted = {**_COLUMNS["every"], **_COLUMNS.get(str(row["what"]), {})}
    ids = row.get("samples", [])
    return (
        row["what"] in _COLUMNS
        and all(type(row.get(name)) in kinds for name, kinds in wanted.items())
        and (not isinstance(ids, list) or all(type(each) is int for each in ids))
        and row.get("global_batch", 1) >= 1
    )
