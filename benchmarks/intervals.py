"""How sure: what a few own measurements make of the error and of the 80 % intervals, engine by engine.

Data: argonne_llm_inference_bench.csv of the shared data, or files of the same columns given as arguments. Each run is
judged after 0, 3, 6, 12 and 24 runs of other models on each device and engine, drawn by chance.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import RESULTS, Bench
from hetero.advise.accuracy import Judged, Merit, leave_one_model_out, merits, uncalibrated
from hetero.advise.measurements import Measurement, read_rows, read_table
from hetero.floor import settings
from hetero.floor.errors import BadValueError

FILE = "argonne_llm_inference_bench.csv"
POINTS = (0, 3, 6, 12, 24)
DRAWS = 9
LOW, HIGH = 75, 85
EACH_LOW, EACH_HIGH = 65, 95


def _runs(rows: Sequence[Measurement], points: int, draws: int) -> list[list[Judged]]:
    if not points:
        return [uncalibrated(rows)]
    return [leave_one_model_out(rows, points, draw) for draw in range(draws)]


def _middle(found: Sequence[Merit]) -> tuple[float, float, float]:
    """Return the medians over the draws: error in %, share that held in %, width."""
    return (
        100 * statistics.median(merit.error_frac for merit in found),
        100 * statistics.median(merit.held_frac for merit in found),
        statistics.median(merit.width for merit in found),
    )


def _framework(item: Judged) -> str:
    return item.row.framework


def _show(points: int, runs: Sequence[Sequence[Judged]]) -> dict[str, tuple[float, float, float]]:
    """Print a line for each engine and one for all; returns the figures by engine, 'all' last."""
    draws = [{**merits(items, _framework), "all": Merit.of(items)} for items in runs]
    found = {name: _middle([draw[name] for draw in draws]) for name in draws[0]}
    for name, (error, held, width) in found.items():
        print(f"{points:>3} own runs  {name:16} error {error:5.1f} %  held {held:5.1f} %  upper / lower {width:5.2f}")
    return found


def main() -> int:
    """Judge every row after more and more runs, print the figures and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="CSV files with the columns of the shared data")
    parser.add_argument("--quick", action="store_true", help="one draw; keep nothing")
    parser.add_argument("--out", type=Path, help="folder of the results")
    given = parser.parse_args()
    folder = settings.test_data() or Path(__file__).resolve().parents[2] / "shared" / "data"
    bench = Bench("intervals", "Errors and 80 % intervals after a few own measurements")
    bench.out = given.out or (None if given.quick else RESULTS)
    try:
        tables = [read_table(path) for path in given.files or [folder / "planner" / FILE]]
    except BadValueError as error:
        print(f"intervals: {error}", file=sys.stderr)
        return error.exit_code
    rows = [row for table in tables for row in read_rows(table)[0] if row.kind == "e2e"]
    figures = {points: _show(points, _runs(rows, points, 1 if given.quick else DRAWS)) for points in POINTS}
    for points, found in figures.items():
        bench.measure(
            f"{points} own runs: width, upper / lower, of each engine", [row[2] for row in found.values()], "×"
        )
    _claim(bench, figures)
    bench.note(
        fitted="the priors on src/hetero/catalog/published.yaml, the rest on the drawn runs, none of the judged model",
        declared="the spreads of priors and of noise, chosen with the shares that hold on these rows in sight",
    )
    bench.finish()
    return 0


def _claim(bench: Bench, figures: dict[int, dict[str, tuple[float, float, float]]]) -> None:
    most, dozen = figures[0]["all"], figures[12]["all"]
    bench.claim("all engines, 12 own runs: intervals that hold, at least", dozen[1], unit="%", at_least=LOW)
    bench.claim("all engines, 12 own runs: intervals that hold, at most", dozen[1], unit="%", at_most=HIGH)
    shares = [row[1] for name, row in figures[12].items() if name != "all"]
    bench.claim("the engine whose intervals hold least", min(shares), unit="%", at_least=EACH_LOW)
    bench.claim("the engine whose intervals hold most", max(shares), unit="%", at_most=EACH_HIGH)
    bench.claim("median error after 12 own runs / without any", dozen[0] / most[0], at_most=0.5)
    bench.claim("width after 12 own runs / without any", dozen[2] / most[2])


if __name__ == "__main__":
    sys.exit(main())
