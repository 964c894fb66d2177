"""What is learned of kernels from a few raw timings, first calls and spikes included, and what of sizes never seen.

The timings are other people's, of four kernels in six sizes on a Broadwell core. The truth is the median of the calls
that the model was not shown. The rival is the mean of what was measured, and for sizes never seen a line through the
means by least squares on logarithms.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from hetero.floor import settings
from hetero.model.device import Device, DeviceType
from hetero.plan.performance.cost_model import CostModel, TimeEstimate

CALLS = 5
STARTS = 40
CORE = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", name="Broadwell")
Times = Mapping[int, Sequence[float]]


class Guess(NamedTuple):
    """One estimate beside the truth, s."""

    kernel: str
    size: int
    ours: TimeEstimate
    rival_s: float
    truth_s: float

    @property
    def error(self) -> float:
        """How far off ours is, as a share of the truth."""
        return abs(self.ours.seconds - self.truth_s) / self.truth_s

    @property
    def rival_error(self) -> float:
        """How far off the rival is."""
        return abs(self.rival_s - self.truth_s) / self.truth_s

    @property
    def covered(self) -> bool:
        """Return whether the truth lies between the 10th and the 90th percentile that ours gives."""
        return self.ours.low_s <= self.truth_s <= self.ours.high_s


def kernels() -> dict[str, Times]:
    """Return the seconds of every call by kernel and size, in the order in which they were measured."""
    data = settings.test_data() or Path(__file__).resolve().parents[2] / "shared" / "data"
    found: dict[str, dict[int, list[float]]] = {}
    for path in sorted((data / "graphs" / "cholesky_broadwell").glob("*_timing.csv")):
        times = found.setdefault(path.stem.partition("_")[0], {})
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                times.setdefault(int(row["Size"]), []).append(float(row["time(us)"]) * 1e-6)
    return dict(found.items())


def taught(kernel: str, times: Mapping[int, Sequence[float]]) -> CostModel:
    """Return a model that was shown some calls, size after size."""
    model = CostModel([CORE])
    for size, calls in times.items():
        for seconds in calls:
            model.observe(signature(kernel, size), nbytes(size), CORE, seconds)
    return model


def signature(kernel: str, size: int) -> str:
    """Return the signature of a call on tiles of a size."""
    return f"{kernel}|float64[{size},{size}]"


def nbytes(size: int) -> float:
    """Return what the time is expected to grow with: the bytes of a tile."""
    return 8.0 * size * size


def seen(times: dict[str, Times], starts: int) -> Iterator[Guess]:
    """Show five calls a size: the first one, and four in a row from somewhere later in the file."""
    for kernel, sizes in times.items():
        for start in range(starts):
            shown = {}
            for size, calls in sizes.items():
                at = 1 + start * (len(calls) - CALLS) // starts
                shown[size] = [calls[0], *calls[at : at + CALLS - 1]]
            model = taught(kernel, shown)
            for size, calls in sizes.items():
                at = 1 + start * (len(calls) - CALLS) // starts
                truth_s = statistics.median([*calls[1:at], *calls[at + CALLS - 1 :]])
                ours = model.estimate(signature(kernel, size), nbytes(size), CORE)
                yield Guess(kernel, size, ours, statistics.fmean(shown[size]), truth_s)


def unseen(times: dict[str, Times]) -> Iterator[Guess]:
    """Show the first five calls of every size but one, which is asked for; those at the ends are outside."""
    for kernel, sizes in times.items():
        for left_out, calls in sizes.items():
            shown = {size: each[:CALLS] for size, each in sizes.items() if size != left_out}
            ours = taught(kernel, shown).estimate(signature(kernel, left_out), nbytes(left_out), CORE)
            means = [statistics.fmean(each) for each in shown.values()]
            slope, at_one = np.polyfit(np.log(list(shown)), np.log(means), 1)
            rival_s = float(np.exp(at_one) * left_out**slope)
            yield Guess(kernel, left_out, ours, rival_s, statistics.median(calls[CALLS:]))


def main() -> None:
    """Judge the models."""
    given = arguments(__doc__ or "")
    bench = Bench("history_models", "Times learned from five raw calls a size, and of sizes never seen", out=given.out)
    times = kernels()
    known, new = list(seen(times, 2 if given.quick else STARTS)), list(unseen(times))
    inside = [row for row in new if row.size not in (min(times[row.kernel]), max(times[row.kernel]))]
    for what, rows, at_most in (
        ("five calls", known, 5.0),
        ("unseen size", new, 15.0),
        ("of these, inside", inside, None),
    ):
        bench.measure(f"{what}: error", [100.0 * row.error for row in rows], "%")
        bench.measure(f"{what}: error of the rival", [100.0 * row.rival_error for row in rows], "%")
        bench.claim(
            f"{what}: median error", 100.0 * statistics.median(row.error for row in rows), unit="%", at_most=at_most
        )
        covered = statistics.fmean(row.covered for row in rows)
        bench.claim(f"{what}: truth between the 10th and 90th percentile", covered, unit="of all")
    bench.note(unseen={f"{row.kernel} {row.size}": round(100.0 * row.error, 1) for row in new})
    bench.finish()


if __name__ == "__main__":
    main()
