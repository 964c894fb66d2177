"""The harness of every benchmark: contestants alternate, medians are compared, results are kept as JSON.

In: callables, or figures that they measured themselves. Out: one table, and benchmarks/results/NAME.json.
It must not decide what is measured, and a missed figure is shown as missed, never left out.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import threadpoolctl
from rich.console import Console
from rich.table import Table

__all__ = ["Bench", "Claim", "Measured", "alternate", "arguments", "machine", "process_s", "ratio", "versions"]

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Measured:
    """The samples of one contestant.

    Attributes
    ----------
    median, low, high : in `unit`; low and high are the quartiles
    n : number of samples
    unit : 's', 'tasks/s', …
    """

    median: float
    low: float
    high: float
    n: int
    unit: str

    @classmethod
    def of(cls, samples: Sequence[float], unit: str = "s") -> Measured:
        """Sum up samples.

        Examples
        --------
        >>> Measured.of([3.0, 1.0, 2.0]).median
        2.0
        """
        if len(samples) < 2:
            return cls(samples[0], samples[0], samples[0], len(samples), unit)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, len(samples), unit)


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure beside what was aimed at.

    Attributes
    ----------
    what : what is measured, as in 'no-op round trip, thread'
    value : in `unit`
    rival : what it is compared with, '' for none
    unit : '×' for a ratio
    at_most, at_least : the figure aimed at, one of them or none
    """

    what: str
    value: float
    rival: str = ""
    unit: str = "×"
    at_most: float | None = None
    at_least: float | None = None

    @property
    def aim(self) -> str:
        """The figure aimed at, in words."""
        if self.at_most is not None:
            return f"≤ {number(self.at_most)} {self.unit}".rstrip()
        return f"≥ {number(self.at_least)} {self.unit}".rstrip() if self.at_least is not None else "—"

    @property
    def verdict(self) -> str:
        """'met', 'missed', or '' where nothing was aimed at."""
        if self.at_most is None and self.at_least is None:
            return ""
        high = self.at_most is None or self.value <= self.at_most
        low = self.at_least is None or self.value >= self.at_least
        return "met" if high and low else "missed"


def number(value: float) -> str:
    """Write a number with three significant digits, four just above 1, where ratios are told apart by thousandths.

    Examples
    --------
    >>> number(0.01234), number(123456.0), number(2.0), number(1.003), number(1.2345)
    ('0.0123', '123,456', '2', '1.003', '1.23')
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if 1.0 <= value < 1.1 else f"{value:.3g}"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of ours over the median of theirs.

    Examples
    --------
    >>> ratio([2.0, 4.0, 3.0], [1.0, 2.0, 1.5])
    2.0
    """
    return statistics.median(ours) / statistics.median(theirs)


def alternate(
    contestants: Mapping[str, Callable[[], float | None]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Run the contestants in turn, so that whatever disturbs the machine disturbs all of them.

    Parameters
    ----------
    contestants : each gives the figure that it measured itself, or None to have its wall time taken
    rounds : number of samples of each; every other round runs in reverse order
    warm_up : rounds that are not counted

    Returns
    -------
    dict
        The samples of each contestant in the order of the rounds; wall times in s.
    """
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        order = list(contestants)[:: 1 if turn % 2 == 0 else -1]
        for name in order:
            begin_s = time.perf_counter()
            own = contestants[name]()
            figure = time.perf_counter() - begin_s if own is None else own
            if turn >= warm_up:
                samples[name].append(figure)
    return samples


def process_s(command: Sequence[str], timeout_s: float = 120.0) -> float:
    """Return the wall seconds of a whole process; raises CalledProcessError when it fails."""
    begin_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=timeout_s)
    return time.perf_counter() - begin_s


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the version of each distribution, of hetero and of Python; 'absent' where one is not installed."""
    found = {"python": platform.python_version()}
    for name in ("hetero-core", "numpy", *packages):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Describe the machine: CPU, cores, memory, and what the BLAS libraries make of them."""
    return {
        "cpu": _cpu_model(),
        "cores": len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "OPENBLAS_CORETYPE": os.environ.get("OPENBLAS_CORETYPE", ""),
        "blas": [
            {key: pool.get(key) for key in ("internal_api", "version", "architecture", "num_threads")}
            for pool in threadpoolctl.threadpool_info()
        ],
    }


def arguments(description: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options that every benchmark has.

    Returns
    -------
    argparse.Namespace
        `quick` : True for a smoke run, whose figures mean nothing and are not kept;
        `out` : folder of the results, None where they are not kept
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures mean nothing and are not kept")
    parser.add_argument("--out", type=Path, help=f"folder of the results (default: {RESULTS.name}/ beside this file)")
    given = parser.parse_args(argv)
    if given.out is None and not given.quick:
        given.out = RESULTS
    return given


@dataclass(slots=True)
class Bench:
    """One benchmark file's run: collect samples and claims, then `finish`.

    Attributes
    ----------
    name : name of the file without '.py', and of its result
    title : what is claimed, one line
    packages : distributions whose versions belong to the result
    out : folder of the result, None to keep none

    Examples
    --------
    >>> bench = Bench("example", "adding is quick")
    >>> bench.measure("add", [1.0, 2.0, 3.0])
    >>> bench.claim("add / subtract", 1.1, rival="subtract", at_most=2.0)
    >>> bench.claims[0].aim, bench.claims[0].verdict
    ('≤ 2 ×', 'met')
    """

    name: str
    title: str
    packages: Sequence[str] = ()
    out: Path | None = None
    measured: dict[str, Measured] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    _load: tuple[float, float, float] = field(default_factory=psutil.getloadavg)

    def measure(self, what: str, samples: Sequence[float], unit: str = "s") -> None:
        """Keep the samples of one contestant."""
        self.measured[what] = Measured.of(samples, unit)

    def claim(
        self,
        what: str,
        value: float,
        *,
        rival: str = "",
        unit: str = "×",
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Keep a figure beside what was aimed at."""
        self.claims.append(Claim(what, float(value), rival, unit, at_most, at_least))

    def note(self, **facts: Any) -> None:
        """Keep whatever else belongs to the result: sizes, devices, what stands in the way of a figure."""
        self.notes.update(facts)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as it is written."""
        return {
            "name": self.name,
            "title": self.title,
            "command": f"python benchmarks/{self.name}.py {shlex.join(sys.argv[1:])}".rstrip(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "versions": versions(self.packages),
            "machine": {**machine(), "load_at_start": self._load, "load_at_end": psutil.getloadavg()},
            "measured": {what: asdict(row) for what, row in self.measured.items()},
            "claims": [{**asdict(row), "aim": row.aim, "verdict": row.verdict} for row in self.claims],
            "notes": self.notes,
        }

    def finish(self) -> None:
        """Print the tables, and write the result where one is kept."""
        console = Console(soft_wrap=True)
        console.print(self._samples_table())
        if self.claims:
            console.print(self._claims_table())
        for fact, value in self.notes.items():
            console.print(f"{fact}: {value}", markup=False)
        if self.out is None:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.as_dict(), indent=2, ensure_ascii=False, default=str)
        (self.out / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")

    def _samples_table(self) -> Table:
        table = Table(title=self.title, title_justify="left")
        for heading in ("contestant", "median", "quartiles", "n", "unit"):
            table.add_column(heading, justify="left" if heading in ("contestant", "unit") else "right")
        for what, row in self.measured.items():
            spread = f"{number(row.low)} … {number(row.high)}"
            table.add_row(what, number(row.median), spread, str(row.n), row.unit)
        return table

    def _claims_table(self) -> Table:
        table = Table()
        for heading in ("claim", "rival", "aim", "measured", ""):
            table.add_column(heading)
        for row in self.claims:
            table.add_row(row.what, row.rival, row.aim, f"{number(row.value)} {row.unit}".rstrip(), row.verdict)
        return table
