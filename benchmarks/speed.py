"""How fast: estimates beside measured speeds, uncalibrated and after twelve own measurements, and beside formulas.

Data: gpubench_llamacpp.csv, trtllm_perf_overview.csv and argonne_llm_inference_bench.csv of the shared data, or files
of the same columns given as arguments. What was fitted on what stands in the notes of the result and in docs/plan.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import RESULTS, Bench
from hetero.advise.accuracy import Judged, Merit, leave_one_model_out, merits, ordered, uncalibrated
from hetero.advise.measurements import Measurement, read_rows, read_table
from hetero.advise.rates import rates_of
from hetero.floor import settings
from hetero.floor.errors import BadValueError
from hetero.plan.sizing.ideal_work import TERMS

FILES = ("gpubench_llamacpp.csv", "trtllm_perf_overview.csv", "argonne_llm_inference_bench.csv")
DRAWS = 9
"""How often twelve measurements are drawn; the median over the draws is claimed."""

ARITHMETIC = [TERMS.index(name) for name in ("prompt", "arithmetic", "attention")]
BYTES = [TERMS.index(name) for name in ("weights", "cache")]


def copied(row: Measurement) -> float:
    """Tokens × weights / bandwidth, at the data sheet's rates: what most blog posts compute."""
    work, rates = row.work, rates_of(row.device, row.work)
    size = work.model.parameters().total * (1 if work.weights == "fp8" else 2 if "16" in work.weights else 0.6)
    step_s = size / rates.bytes_per_s / row.spread.tensor
    if row.kind == "decode":
        return step_s
    prompt_s = 2 * work.model.parameters().total * work.prompt_tokens / rates.flop_per_s / row.spread.tensor
    if row.kind == "prefill":
        return prompt_s
    whole_s = prompt_s * work.batch + step_s * work.answer_tokens
    return whole_s if row.kind == "e2e" else step_s / max(1, work.batch)


def roofline(row: Measurement) -> float:
    """Max of arithmetic at half of its rate and of bytes at 70 % of the bandwidth, of everything that is counted here.

    The counting is ours: weights, cache, activations, tensor parallelism, sequences that fit.
    """
    amounts = row.sample.amounts
    return float(max(amounts[ARITHMETIC].sum() / 0.5, amounts[BYTES].sum() / 0.7))


def error_of(rows: Sequence[Measurement], rule: Callable[[Measurement], float]) -> float:
    """Return the median absolute relative error of a rule, of times or of rates as the rows are printed."""
    ratios = [rule(row) / row.sample.seconds for row in rows]
    return statistics.median(
        abs((1 / ratio if row.per_second else ratio) - 1) for row, ratio in zip(rows, ratios, strict=True)
    )


def _own(rows: Sequence[Measurement], draws: int) -> list[list[Judged]]:
    return [leave_one_model_out(rows, draw=draw) for draw in range(draws)]


def _framework(item: Judged) -> str:
    return f"{item.row.framework} on {item.row.device.name}"


def _show(name: str, items: Sequence[Judged], key: Callable[[Judged], str]) -> None:
    print(f"\n{name}: error of the median row, share of 80 % intervals that hold, mean of upper / lower end")
    for group, merit in {**merits(items, key), "all": Merit.of(items)}.items():
        line = (
            f"  {group:34} {merit.rows:5} rows  {merit.error_frac:6.1%}  {merit.held_frac:5.0%}  {merit.width:5.2f} ×"
        )
        print(line)


def _uncalibrated(bench: Bench, name: str, rows: list[Measurement], at_most: float) -> list[Judged]:
    if not rows:
        return []
    items = uncalibrated(rows)
    _show(f"{name}, uncalibrated", items, lambda item: item.row.device.name)
    blog, roof = error_of(rows, copied), error_of(rows, roofline)
    bench.claim(
        f"{name}, uncalibrated: median error",
        100 * Merit.of(items).error_frac,
        rival=f"copied formula {blog:.0%}, roofline {roof:.0%}",
        unit="%",
        at_most=at_most,
    )
    bench.claim(f"{name}: error of the copied formula / ours", blog / Merit.of(items).error_frac, at_least=2)
    bench.claim(f"{name}: 80 % intervals that hold (65 to 95)", 100 * Merit.of(items).held_frac, unit="%", at_least=65)
    bench.measure(f"{name}: error", [100 * item.error_frac for item in items], unit="%")
    bench.measure(f"{name}: width of the intervals", [item.width for item in items], unit="×")
    return items


def _calibrated(bench: Bench, rows: list[Measurement], draws: int) -> None:
    runs = _own(rows, draws)
    _show("after 12 own measurements of other models, draw 0", runs[0], _framework)

    def middle(figure: Callable[[list[Judged]], float], only: str = "", device: str = "") -> float:
        def chosen(items: list[Judged]) -> list[Judged]:
            return [
                item
                for item in items
                if item.row.engine in (only or item.row.engine)
                and item.row.device.name in (device or item.row.device.name)
            ]

        return statistics.median(figure(found) for items in runs if (found := chosen(items)))

    def error(items: list[Judged]) -> float:
        return 100 * Merit.of(items).error_frac

    def held(items: list[Judged]) -> float:
        return 100 * Merit.of(items).held_frac

    def order(items: list[Judged]) -> float:
        right, asked = ordered(items)
        return right / max(1, asked)

    def order_single(items: list[Judged]) -> float:
        right, asked = ordered(items, single=True)
        return right / max(1, asked)

    rival = f"copied formula {error_of(rows, copied):.0%}, roofline {error_of(rows, roofline):.0%}"
    bench.claim("12 own points, other models: median error", middle(error), rival=rival, unit="%", at_most=18)
    bench.claim(
        "the same: error of the copied formula / ours", 100 * error_of(rows, copied) / middle(error), at_least=2
    )
    engines = {item.row.engine for item in runs[0]}
    if "tensorrt-llm" in engines:
        bench.claim("the same, TensorRT-LLM", middle(error, "tensorrt-llm"), unit="%", at_most=8)
    if any(item.row.engine == "deepspeed" and item.row.device.name == "Gaudi2" for item in runs[0]):
        bench.claim("the same, DeepSpeed on Gaudi2", middle(error, "deepspeed", "Gaudi2"), unit="%", at_most=12)
    bench.claim("pairs of devices ordered right", middle(order), unit="", at_least=0.90)
    bench.claim("pairs of single devices ordered right", middle(order_single), unit="", at_least=0.94)
    bench.claim("80 % intervals that hold, at least", middle(held), unit="%", at_least=75)
    bench.claim("80 % intervals that hold, at most", middle(held), unit="%", at_most=85)
    for framework in sorted({item.row.framework for item in runs[0]}):
        parts = [[item for item in items if item.row.framework == framework] for items in runs]
        share = statistics.median(held(part) for part in parts)
        bench.claim(f"80 % intervals that hold, {framework} (65 to 95)", share, unit="%", at_least=65)
    bench.measure("width of the intervals, upper / lower", [Merit.of(items).width for items in runs], unit="×")


def paths(given: list[Path]) -> list[Path]:
    """Return the files that were named, else those of the shared data."""
    folder = settings.test_data() or Path(__file__).resolve().parents[2] / "shared" / "data"
    return given or [folder / "planner" / name for name in FILES]


def main() -> int:
    """Judge every row, print them, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="CSV files with the columns of the shared data")
    parser.add_argument("--quick", action="store_true", help="one draw; keep nothing")
    parser.add_argument("--out", type=Path, help="folder of the results")
    given = parser.parse_args()
    bench = Bench("speed", "How fast: measured speeds of llama.cpp, TensorRT-LLM, vLLM and DeepSpeed", (), None)
    bench.out = given.out or (None if given.quick else RESULTS)
    try:
        read = [read_rows(read_table(path)) for path in paths(given.files)]
    except BadValueError as error:
        print(f"speed: {error}", file=sys.stderr)
        return error.exit_code
    rows = [row for found, _ in read for row in found]
    unread = [line for _, lines in read for line in lines]
    _uncalibrated(bench, "llama.cpp, decode", [row for row in rows if row.kind == "decode"], 16)
    _uncalibrated(bench, "llama.cpp, prefill", [row for row in rows if row.kind == "prefill"], 25)
    _uncalibrated(bench, "TensorRT-LLM, most throughput", [row for row in rows if row.kind == "max_throughput"], 18)
    if whole := [row for row in rows if row.kind == "e2e"]:
        _calibrated(bench, whole, 1 if given.quick else DRAWS)
    for line in sorted(set(unread)):
        print(f"not answered: {line}")
    bench.note(
        fitted="the priors, on the rows of src/hetero/catalog/published.yaml, none of which is of these files; the"
        " calibrated figures, on 12 runs of each device and engine drawn by chance, none of the model that is judged",
        declared="the spread of priors and of noise; they were chosen with the shares of held intervals of these"
        " files in sight",
        not_answered=f"{len(unread)} rows, of models or devices that the catalog does not know",
        draws=DRAWS,
    )
    bench.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
