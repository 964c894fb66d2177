"""Tables of measured speeds: rows of text as runs of a workload, each with the time that it took.

In: a CSV file with the columns of `COLUMNS`, or such rows. Out: runs with their amounts of ideal work, and what could
not be read. It must not judge or fit anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hetero.advise.fit import room_of
from hetero.advise.rates import rates_of
from hetero.catalog.load import find, find_model, published_rows
from hetero.catalog.values import DeviceSpec
from hetero.floor import documents
from hetero.floor.errors import BadValueError, FileError
from hetero.floor.units import shown
from hetero.model.workload import Sharding, WorkloadSpec
from hetero.plan.sizing import ideal_work
from hetero.plan.sizing.efficiency import MeasuredRun, Vector

__all__ = [
    "COLUMNS",
    "KINDS",
    "Measurement",
    "device_of",
    "engine_of",
    "published",
    "read_known_rows",
    "read_rows",
    "read_table",
]

COLUMNS = ("device", "count", "framework", "model", "precision", "kind", "batch", "input_len", "output_len", "value")
"""The columns that a table must have; 'oom' and others may be there."""

KINDS = ("e2e", "prefill", "decode", "throughput", "max_throughput")
"""What a value may be: seconds of a whole run; prompt tokens/s; answer tokens/s of one sequence; answer tokens/s of
all, for the batch given or for as many as fit."""

_SKUS = {
    "a100": "A100-SXM-40GB",
    "a100-sxm": "A100-SXM-80GB",
    "a100-pcie": "A100-PCIe-80GB",
    "h100": "H100-SXM",
    "a100 40gb": "A100-SXM-40GB",
    "a100 80gb": "A100-SXM-80GB",
    "v100": "V100-SXM-16GB",
    "v100 16gb": "V100-SXM-16GB",
    "v100 32gb": "V100-SXM-32GB",
}
"""Which card a table means that names none: as the publishers of the common tables describe their machines."""

_NO_NAME = ("nvidia", "amd", "habana", "intel", "apple", "gpu")
_CORES = re.compile(r"\s*\b\d+-?core\b", re.IGNORECASE)
_MEMORY = re.compile(r"\s*\b\d+\s*GB$", re.IGNORECASE)

_DIGITS = 9
_FRAMEWORKS = {"llama": "llama.cpp", "tensorrt": "tensorrt-llm", "trt": "tensorrt-llm", "deepspeed": "deepspeed"}
_PRECISIONS = {"fp16/bf16": "fp16", "f16": "F16", "bf16": "bf16", "fp8": "fp8", "fp16": "fp16"}


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """One measured run.

    Attributes
    ----------
    device, count, framework, work, spread, kind
        What ran.
    sample
        Its amounts and the time, of a whole run or of a token.
    value
        As printed.
    per_second
        True where the value is a rate, False where it is seconds.
    """

    device: DeviceSpec
    count: int
    framework: str
    work: WorkloadSpec
    spread: Sharding
    kind: str
    sample: MeasuredRun
    value: float
    per_second: bool

    @property
    def engine(self) -> str:
        """The engine that hetero knows."""
        return self.work.framework


def engine_of(framework: str) -> str:
    """Return hetero's name of an engine.

    Examples
    --------
    >>> engine_of("TensorRT-LLM 0.14"), engine_of("Deepspeed-MII"), engine_of("vLLM")
    ('tensorrt-llm', 'deepspeed', 'vllm')
    """
    folded = framework.casefold()
    return next(
        (name for start, name in _FRAMEWORKS.items() if folded.startswith(start)),
        (folded.split() or ["?"])[0].split("@")[0],
    )


def _spellings(label: str) -> Iterator[str]:
    """Yield what a label may mean, the surest first: without makers, without counted cores, without the memory."""
    words = [word for word in label.replace("‑", "-").split() if word.casefold() not in _NO_NAME]
    plain = " ".join(words)
    yield _SKUS.get(plain.casefold(), plain)
    yield label
    bare = _CORES.sub("", plain)
    yield _SKUS.get(bare.casefold(), bare)
    yield _MEMORY.sub("", bare)


@cache
def device_of(label: str) -> DeviceSpec:
    """Return the device that a table's label means, by the usual card where it names none.

    Raises
    ------
    BadValueError
        The catalog has no such device.

    Examples
    --------
    >>> device_of("Nvidia A100 GPU").name, device_of("Habana Gaudi2").name, device_of("M4 Max 40-Core GPU 128GB").name
    ('A100-SXM-40GB', 'Gaudi2', 'M4-Max-128GB')
    """
    for spelling in _spellings(label):
        with suppress(BadValueError):
            return find(spelling)
    return find(label)


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise BadValueError(f"{shown(text)} has too many digits", remedy="give a count or a number of tokens")
    return int(text)


def _workload(row: Mapping[str, str], engine: str) -> WorkloadSpec:
    prompt, answer = _whole(row["input_len"] or "0"), _whole(row["output_len"] or "0")
    batch = _whole(row["batch"]) if row["batch"].isdecimal() else 1
    weights = _PRECISIONS.get(row["precision"].casefold(), row["precision"])
    work = WorkloadSpec(
        find_model(row["model"]),
        weights=weights,
        batch=batch,
        prompt=max(1, prompt),
        context=max(1, prompt) + answer,
        framework=engine,
    )
    if weights == "fp8":
        work = replace(work, kv="fp8")
    if engine == "llama.cpp":
        work = replace(work, flash=False)
    if engine == "llama.cpp" and row["kind"] == "e2e":
        work = replace(work, batch=1, chunk=batch)
    return work


def _amounts(kind: str, row: Mapping[str, str], spec: DeviceSpec, work: WorkloadSpec, spread: Sharding) -> Vector:
    """Return the amounts of what was timed: the run, the prompt, or one token."""
    rates = rates_of(spec, work)
    if kind == "prefill":
        return ideal_work.prompt_amounts(work, spread, rates, work.batch)
    if kind == "decode":
        return ideal_work.step_amounts(work, spread, rates, work.batch, work.prompt_tokens + work.answer_tokens / 2)
    if kind == "e2e":
        return ideal_work.run_amounts(work, spread, rates, ideal_work.sequences_at_once(work, room_of(spec), spread))
    batch = work.batch
    if not row["batch"].isdecimal():
        batch = max(1, ideal_work.sequences_at_once(work, room_of(spec), spread, steady=True))
    amounts = ideal_work.prompt_amounts(work, spread, rates, batch) + ideal_work.answers_amounts(
        work, spread, rates, batch
    )
    return amounts / (batch * work.answer_tokens)


def read_row(row: Mapping[str, str]) -> Measurement:
    """Read one row.

    Raises
    ------
    BadValueError
        A device, model, engine, format or kind that nobody knows, or a value that is no positive number.
    """
    kind, engine = row["kind"], engine_of(row["framework"])
    if kind not in KINDS:
        raise BadValueError(f"{kind!r} is no kind of measurement", remedy=f"allowed: {', '.join(KINDS)}")
    try:
        value, count = float(row["value"]), _whole(row["count"])
        work = _workload(row, engine)
    except BadValueError:
        raise
    except ValueError as error:
        raise BadValueError(str(error), remedy="value, count and lengths must be numbers") from error
    if not 0 < value < math.inf or count < 1:
        raise BadValueError(f"value {value}, count {count}", remedy="both must be above 0, and no infinity")
    if kind in ("throughput", "max_throughput") and work.answer_tokens < 1:
        raise BadValueError("output_len is 0", remedy=f"a {kind} counts tokens of the answer: give their number")
    spec = device_of(row["device"])
    spread = Sharding(pipeline=count) if engine == "llama.cpp" else Sharding(tensor=count)
    per_second = kind != "e2e"
    tokens = work.batch * work.prompt_tokens if kind == "prefill" else 1
    sample = MeasuredRun(
        _amounts(kind, row, spec, work, spread),
        tokens / value if per_second else value,
        ideal_work.place_of(work, spread) if kind == "e2e" else None,
    )
    return Measurement(spec, count, row["framework"], work, spread, kind, sample, value, per_second)


def read_rows(rows: Iterable[Mapping[str, str]]) -> tuple[list[Measurement], list[str]]:
    """Read rows that have a value; return also a line for each that could not be read."""
    found, unread = [], []
    for number, row in enumerate(rows, start=2):
        if row.get("oom", "0") not in ("0", "") or not row["value"]:
            continue
        try:
            found.append(read_row(row))
        except BadValueError as error:
            row_of = f"{shown(row['device'])[1:-1]}, {shown(row['model'])[1:-1]}"
            unread.append(f"line {number}: {row_of}: {error}")
    return found, unread


def read_table(path: Path) -> list[Mapping[str, str]]:
    """Read a CSV file's rows as text.

    Raises
    ------
    FileError
        The file cannot be read, or lacks a column.
    """
    found: list[Mapping[str, str]] = list(documents.read_table(path, COLUMNS))
    return found


def read_known_rows(path: Path) -> tuple[list[Measurement], list[str]]:
    """Read a table; return also a line for each row that could not be read.

    Raises
    ------
    BadValueError
        No row could be read; or, as a FileError, the file cannot be read, or lacks a column.
    """
    found, unread = read_rows(read_table(path))
    if not found:
        why = unread[0] if unread else "no row has a value"
        raise FileError(f"{path} has no row that can be read: {why}", remedy="correct the rows")
    return found, unread


@cache
def published() -> tuple[Measurement, ...]:
    """Return the published measurements that the catalog keeps."""
    found, unread = read_rows(published_rows())
    assert not unread, unread
    return tuple(found)
