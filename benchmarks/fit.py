"""What fits where: our answer beside measured peaks and out-of-memory marks, and beside the rules that people copy.

Data: gpubench_llamacpp.csv and finetune_memory_fit.csv of the shared data, or files of the same columns given as
arguments. No constant of the model was fitted on these rows; where each comes from stands in docs/fit.md.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import RESULTS, Bench
from hetero.advise.fit import room_of
from hetero.catalog.load import find, find_model
from hetero.catalog.values import DeviceSpec
from hetero.floor import settings
from hetero.floor.errors import BadValueError
from hetero.model.architecture import ModelSpec
from hetero.model.quantisation import number_format
from hetero.model.workload import Job, Sharding, WorkloadSpec
from hetero.plan.sizing.footprint import Fit, Room, fit, weight_bytes

FILES = ("gpubench_llamacpp.csv", "finetune_memory_fit.csv")
JOBS: dict[str, Job] = {
    "lora": "lora",
    "qlora": "lora",
    "full": "finetune",
    "finetune": "finetune",
    "train": "pretrain",
}
LITGPT_TOKENS = 64
"""LitGPT's generate without arguments: a short prompt and 50 new tokens; its tables name no lengths."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One row and what was said of it.

    Attributes
    ----------
    row : as in the file
    fit : our answer
    work, spread, room : what was asked
    measured_bytes : the measured peak, None where there is none
    """

    row: Mapping[str, str]
    fit: Fit
    work: WorkloadSpec
    spread: Sharding
    room: Room
    measured_bytes: float | None

    @property
    def ran(self) -> bool:
        """Return whether it ran."""
        return self.row["oom"] == "0"

    @property
    def right(self) -> bool:
        """Return whether 'fits' was said of what ran, and something else of what did not; 'tight' is not 'fits'."""
        return (self.fit.answer == "fits") == self.ran

    @property
    def unsafe(self) -> bool:
        """Return whether 'fits' was said of what did not run."""
        return self.fit.answer == "fits" and not self.ran

    @property
    def error_frac(self) -> float | None:
        """How far the computed peak lies from the measured one."""
        if self.measured_bytes is None:
            return None
        return abs(self.fit.footprint.allocated / self.measured_bytes - 1)


def rows_of(paths: Iterable[Path]) -> list[Mapping[str, str]]:
    """Read the labelled rows: one a device, count, model, precision, kind of job and batch."""
    found: dict[tuple[str, ...], Mapping[str, str]] = {}
    needed = {"device", "count", "framework", "model", "precision", "kind", "batch", "input_len", "output_len", "oom"}
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if missing := needed - set(reader.fieldnames or ()):
                raise BadValueError(
                    f"{path} lacks the columns {', '.join(sorted(missing))}", remedy="see the data's README"
                )
            for row in reader:
                if row["kind"] not in ("inference", "decode", *JOBS) or row["oom"] not in ("0", "1"):
                    continue
                key = tuple(
                    row[name] for name in ("device", "count", "model", "precision", "kind", "batch", "framework")
                )
                found.setdefault(key, row)
    return list(found.values())


def _room(label: str) -> Room:
    """Return the room of a device by its label, from the catalog, else from the gigabytes that the label names."""
    try:
        return room_of(find(label))
    except BadValueError:
        size = re.search(r"(\d+)\s*GB", label)
        if size is None:
            raise
        kind = "mps" if re.match(r"M\d", label) else "cuda"
        return room_of(DeviceSpec(label, "", kind, memory_bytes=int(size[1]) * 2**30))


def judge(row: Mapping[str, str]) -> Judged:
    """Ask for one row as its software ran it."""
    model, count = find_model(row["model"]), int(row["count"])
    asked = int(row["input_len"] or 0) + int(row["output_len"] or 0)
    spread = Sharding(pipeline=count)
    if row["framework"].startswith("llama.cpp"):
        work = WorkloadSpec(model, weights=row["precision"], context=asked or 2048, framework="llama.cpp")
    elif row["kind"] in ("inference", "decode"):
        tokens = asked or LITGPT_TOKENS
        work = WorkloadSpec(replace(model, tied=False), weights=row["precision"], context=tokens, framework="litgpt")
    else:
        work = WorkloadSpec(
            replace(model, tied=False),
            job=JOBS[row["kind"]],
            weights=row["precision"],
            batch=int(row["batch"] or 1),
            context=asked,
            checkpointing=count > 1,
            framework="litgpt",
        )
        spread = Sharding(data=count, zero=3 if count > 1 else 0, mixed_units=True, synced=count == 1)
    room = _room(row["device"])
    unit = {"GB": 1e9, "GiB": 2**30, "MiB": 2**20}.get(row.get("unit", ""))
    peak = float(row["value"]) * unit if unit and row.get("value") else None
    return Judged(row, fit(work, room, spread), work, spread, room, peak)


def judge_all(rows: Iterable[Mapping[str, str]]) -> tuple[list[Judged], list[str]]:
    """Ask for every row; a model, device or format that nobody knows is told and not left out in silence."""
    items, unanswered = [], []
    for row in rows:
        try:
            items.append(judge(row))
        except BadValueError as error:
            unanswered.append(f"{row['device']}, {row['model']}, {row['precision']}: {error}")
    return items, unanswered


def _bytes_in_bits(model: ModelSpec, name: str) -> float:
    return model.parameters().total * number_format(name).bits / 8


def twenty_percent_more(item: Judged) -> float:
    """Parameters × bytes a weight × 1.2, over the devices."""
    return _bytes_in_bits(item.work.model, item.work.weights) * 1.2 / item.spread.devices


def weights_cache_reserve(item: Judged) -> float:
    """Exact weights, the KV cache and 0.6 GB a device."""
    work = item.work
    cache = 2 * work.model.kv_values(work.context) * work.batch
    return (weight_bytes(work.model, number_format(work.weights)) + cache) / item.spread.devices + 0.6e9


def sixteen_a_parameter(item: Judged) -> float:
    """Sixteen bytes a parameter for training with Adam, whatever is trained, over the devices."""
    if item.work.job == "inference":
        return twenty_percent_more(item)
    return 16.0 * item.work.model.parameters().total / item.spread.devices


RULES: dict[str, Callable[[Judged], float]] = {
    "parameters × bytes × 1.2": twenty_percent_more,
    "weights + KV + 0.6 GB": weights_cache_reserve,
    "16 bytes a parameter in training": sixteen_a_parameter,
}


def _rule(items: list[Judged], rule: Callable[[Judged], float]) -> tuple[int, int, float]:
    """Return how many a rule has right, how many of its answers are unsafe, and its median error."""
    said = [(item, rule(item)) for item in items]
    right = sum((size <= item.room.usable_bytes) == item.ran for item, size in said)
    unsafe = sum(size <= item.room.usable_bytes and not item.ran for item, size in said)
    errors = [abs(size / item.measured_bytes - 1) for item, size in said if item.measured_bytes]
    return right, unsafe, statistics.median(errors) if errors else float("nan")


def _show(items: list[Judged]) -> None:
    heading = f"{'device':28} {'n':>2} {'model':14} {'format':7} {'job':9} {'b':>2}"
    print(f"{heading} {'measured':>9} {'computed':>9} {'off':>7}  answer")
    for item in items:
        row, peak = item.row, item.measured_bytes
        measured = "OOM" if not item.ran else f"{peak / 1e9:.2f}" if peak else "ran"
        off = f"{item.fit.footprint.allocated / peak - 1:+.1%}" if peak else ""
        remark = "UNSAFE" if item.unsafe else "" if item.right else "wrong"
        asked = f"{row['device'][:28]:28} {row['count']:>2} {row['model'][:14]:14} {row['precision']:7} {row['kind']:9}"
        computed = item.fit.footprint.allocated / 1e9
        print(f"{asked} {row['batch']:>2} {measured:>9} {computed:9.2f} {off:>7}  {item.fit.answer} {remark}".rstrip())


def _part(bench: Bench, name: str, items: list[Judged], least_frac: float, most_error: float) -> None:
    errors = [error for item in items if (error := item.error_frac) is not None]
    right, unsafe = sum(item.right for item in items), sum(item.unsafe for item in items)
    tight = sum(item.fit.answer == "tight" for item in items)
    rule, (others, wrong, off) = "parameters × bytes × 1.2", _rule(items, twenty_percent_more)
    rival = f"{rule}: {others}"
    bench.claim(f"{name}: right of {len(items)}", right, rival=rival, unit="rows", at_least=least_frac * len(items))
    bench.claim(f"{name}: said to fit, did not", unsafe, rival=f"{rule}: {wrong}", unit="rows", at_most=0)
    if errors:
        bench.measure(f"{name}: error of the peak", [100 * error for error in errors], unit="%")
        bench.claim(
            f"{name}: median error of the peak",
            100 * statistics.median(errors),
            rival=f"{rule}: {100 * off:.0f} %",
            unit="%",
            at_most=100 * most_error,
        )
    print(f"\n{name}: {right}/{len(items)} right, {unsafe} unsafe, {tight} tight")
    for other, compute in RULES.items():
        has, bad, error = _rule(items, compute)
        print(f"  {other:34} {has}/{len(items)} right, {bad} unsafe, median error {error:.1%}")
        if errors:
            bench.measure(f"{name}: error of '{other}'", [100 * error], unit="%")


def _paths(given: list[Path]) -> list[Path]:
    folder = settings.test_data() or Path(__file__).resolve().parents[2] / "shared" / "data"
    paths = given or [folder / "planner" / name for name in FILES]
    if absent := [str(path) for path in paths if not path.is_file()]:
        raise BadValueError(
            f"no file {', '.join(absent)}", remedy="set HETERO_TEST_DATA, or name files with these columns"
        )
    return paths


def main() -> int:
    """Judge every row, print them, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="CSV files with the columns of the shared data")
    parser.add_argument("--quick", action="store_true", help="keep nothing")
    parser.add_argument("--out", type=Path, help="folder of the results")
    given = parser.parse_args()
    out = given.out or (None if given.quick else RESULTS)
    try:
        rows = rows_of(_paths(given.files))
    except BadValueError as error:
        print(f"fit: {error}", file=sys.stderr)
        return error.exit_code
    items, unanswered = judge_all(rows)
    _show(items)
    for line in unanswered:
        print(f"not answered: {line}")
    bench = Bench("fit", "What fits where: labels and peaks of llama.cpp and LitGPT", (), out)
    inference = [item for item in items if item.work.job == "inference"]
    adapters = [item for item in items if item.work.training]
    if inference:
        _part(bench, "inference", inference, 1.0, 0.10)
    if adapters:
        _part(bench, "LoRA", adapters, 0.95, 0.15)
    bench.claim("rows that could not be answered", len(unanswered), unit="rows", at_most=0)
    bench.note(
        fitted="nothing; declared: 0.6 GB a device for the driver, 2 % of a device's memory, 10 % doubt",
        seen="the rows were looked at while the structure of the model was written: which tensors autograd keeps, the"
        " copies that bitsandbytes makes, gradients of mixed FSDP units",
    )
    bench.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
