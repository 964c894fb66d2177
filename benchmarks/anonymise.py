"""Ten million rows made k-anonymous, Parquet to Parquet: speed beside Polars on one device, and sound for any cut."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio

K = 10
WIDTHS = (5, 10, 20, 40)
KEPT = (4, 3, 2, 1)
RECIPE: dict[str, Any] = {
    "columns": {
        "name": "suppress",
        "age": {"intervals": list(WIDTHS)},
        "postcode": {"prefix": list(KEPT)},
        "sex": "generalise",
        "illness": "keep",
        "cost": "keep",
    },
    "require": {"k": K, "suppressed": "1%"},
}


def write_people(path: Path, count: int) -> None:
    """Write people of uneven ages and places."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(2026)
    ages = np.clip(rng.normal(45, 20, count), 0, 100).astype(np.int64)
    places = np.minimum(rng.zipf(1.3, count), 5000) + 10_000
    table = pa.table(
        {
            "name": pa.array(rng.integers(0, count, count)).cast(pa.string()),
            "age": ages,
            "postcode": pa.array(places).cast(pa.string()),
            "sex": pa.array(["f", "m"]).take(pa.array(rng.integers(0, 2, count))),
            "illness": pa.array(rng.integers(0, 40, count)).cast(pa.string()),
            "cost": rng.random(count),
        }
    )
    pq.write_table(table, path, row_group_size=1 << 18)


POLARS = '''
import itertools, sys, time
import polars as pl

source, output, (k, share, widths, kept) = *sys.argv[1:3], map(eval, sys.argv[3:7])
begin_s = time.perf_counter()
frame = pl.scan_parquet(source).drop("name")
base = frame.group_by("age", "postcode", "sex").agg(pl.len().alias("rows")).collect(engine="streaming")
total, least, most = base["rows"].sum(), base["age"].min(), base["age"].max()

def age(level):
    if level == 0:
        return pl.col("age").cast(pl.String)
    if level > len(widths):
        return pl.lit("*").alias("age")
    low = pl.col("age") // widths[level - 1] * widths[level - 1]
    return pl.format("[{}, {})", low, low + widths[level - 1]).alias("age")

def postcode(level):
    if level == 0:
        return pl.col("postcode")
    if level > len(kept):
        return pl.lit("*").alias("postcode")
    return (pl.col("postcode").str.slice(0, kept[level - 1]) + "*").alias("postcode")

def sex(level):
    return pl.col("sex") if level == 0 else pl.lit("*").alias("sex")

def losses(column, makers, ordered):
    """Return what is lost by a column at each level, and at each label of it."""
    per_value = base.group_by(column).agg(pl.col("rows").sum())
    found = []
    for level in range(len(makers)):
        labelled = per_value.with_columns(makers[level].alias("label"))
        if level == len(makers) - 1:
            lost = labelled.select("label").unique().with_columns(pl.lit(1.0).alias("loss"))
        elif ordered:
            span = (pl.col(column).max() - pl.col(column).min()) / (most - least)
            lost = labelled.group_by("label").agg(span.cast(pl.Float64).alias("loss"))
        else:
            leaves = pl.len() / len(per_value)
            lost = labelled.group_by("label").agg(pl.when(pl.len() > 1).then(leaves).otherwise(0.0).alias("loss"))
        mean = labelled.join(lost, on="label").select((pl.col("rows") * pl.col("loss")).sum() / total).item()
        found.append((mean, lost.rename({"label": column, "loss": f"{column}_loss"})))
    return found

makers = {
    "age": [age(level) for level in range(len(widths) + 2)],
    "postcode": [postcode(level) for level in range(len(kept) + 2)],
    "sex": [sex(0), sex(1)],
}
lost = {name: losses(name, each, name == "age") for name, each in makers.items()}
nodes = sorted(
    (sum(lost[name][level][0] for name, level in zip(makers, node)) / 3, node)
    for node in itertools.product(*(range(len(each)) for each in makers.values()))
)
best = None
for bound, node in nodes:
    if best is not None and bound >= best[0]:
        break
    labels = [makers[name][level].alias(name) for name, level in zip(makers, node)]
    classes = base.select(*labels, "rows").group_by(*makers).agg(pl.col("rows").sum())
    gone = classes.filter(pl.col("rows") < k)
    if gone["rows"].sum() > share * total:
        continue
    for name, level in zip(makers, node):
        gone = gone.join(lost[name][level][1], on=name, how="left")
    mean = sum(pl.col(f"{name}_loss") for name in makers) / 3
    loss = bound + (gone.select((pl.col("rows") * (1 - mean)).sum()).item() or 0.0) / total
    if best is None or loss < best[0]:
        best = (loss, node, classes.filter(pl.col("rows") < k))
loss, node, gone = best
labels = [makers[name][level].alias(name) for name, level in zip(makers, node)]
result = frame.with_columns(*labels)
if len(gone):
    result = result.join(gone.lazy(), on=list(makers), how="anti", maintain_order="left")
result.sink_parquet(output)
print(time.perf_counter() - begin_s, loss)
'''


def by_polars(source: Path, output: Path, losses: list[float], threads: int) -> float:
    """Run the same job by Polars alone, with its imports already done; return its seconds."""
    words = [str(source), str(output), str(K), "0.01", repr(WIDTHS), repr(KEPT)]
    done = subprocess.run(
        [sys.executable, "-c", POLARS, *words],
        env={**os.environ, "POLARS_MAX_THREADS": str(threads)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    taken_s, loss = map(float, done.stdout.split())
    losses.append(loss)
    return taken_s


def by_hetero(ctx: hetero.Context, source: Path, output: Path, losses: list[float]) -> float:
    """Run the job on the devices of a Context; return its seconds."""
    begin_s = time.perf_counter()
    report = hetero.batch.anonymise(RECIPE, source, output, ctx=ctx)
    taken_s = time.perf_counter() - begin_s
    assert report.loss is not None
    losses.append(report.loss["certainty_penalty"])
    return taken_s


def smallest_class(path: Path) -> int:
    """Return the rows of the smallest class of a file, counted by nothing of what is measured."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["age", "postcode", "sex"])
    return int(pc.min(table.group_by(["age", "postcode", "sex"]).aggregate([([], "count_all")])["count_all"]).as_py())


def random_tables(many: int) -> tuple[int, float]:
    """Return of random tables, cut at random, how many results have a class below k, and the worst ratio of losses."""
    import random

    import pyarrow as pa

    from hetero.privacy.classes import merged, tally_of
    from hetero.privacy.recipe import read_anonymisation
    from hetero.privacy.run import chosen, counted_margins
    from tests.pure.test_privacy import RECIPE as SMALL
    from tests.pure.test_privacy import class_rows, cut, people

    below, worst = 0, 1.0
    for seed in range(many):
        rng = random.Random(seed)
        k = rng.randrange(2, 8)
        recipe = read_anonymisation({**SMALL, "require": {"k": k, "suppressed": f"{rng.randrange(10)}%"}})
        table = people(rng, rng.randrange(20, 300))
        names, margins = counted_margins(recipe)
        parts = cut(table, rng)
        split = chosen(recipe, table.column_names, merged([tally_of(part, names, margins) for part in parts]))
        whole = chosen(recipe, table.column_names, merged([tally_of(table, names, margins)]))
        result = pa.concat_tables([split(part) for part in parts])
        below += min(map(len, class_rows(result).values())) < k
        assert split.report.loss is not None
        assert whole.report.loss is not None
        one, other = (each["certainty_penalty"] for each in (split.report.loss, whole.report.loss))
        worst = max(worst, one / other if other else 1.0 if one == other else float("inf"))
    return below, worst


def main() -> None:
    """Run the benchmark."""
    given = arguments(__doc__ or "")
    count, rounds, tables = (1_000_000, 1, 50) if given.quick else (10_000_000, 5, 1000)
    bench = Bench("anonymise", (__doc__ or "").strip(), ("pyarrow", "polars"), given.out)
    bench.note(rows=count, k=K, suppressed="1 %", devices="CPU cores of this machine; a device is one core")
    with tempfile.TemporaryDirectory() as name, hetero.Context(devices="1xcpu", history=False) as one:
        folder = Path(name)
        source = folder / "people.parquet"
        write_people(source, count)
        losses: dict[str, list[float]] = {"hetero": [], "Polars": []}
        with hetero.Context(devices="2xcpu", history=False) as two:
            runs: dict[str, Callable[[], float]] = {
                "hetero, one device": partial(by_hetero, one, source, folder / "a.parquet", losses["hetero"]),
                "hetero, two devices": partial(by_hetero, two, source, folder / "b.parquet", losses["hetero"]),
                "Polars, one thread": partial(by_polars, source, folder / "c.parquet", losses["Polars"], 1),
                "Polars, two threads": partial(by_polars, source, folder / "d.parquet", losses["Polars"], 2),
            }
            samples = alternate(runs, rounds)
        smallest = {path: smallest_class(folder / f"{path}.parquet") for path in "abcd"}
    for contestant, taken in samples.items():
        bench.measure(contestant, taken)
    ours, both = samples["hetero, one device"], samples["hetero, two devices"]
    theirs = samples["Polars, one thread"]
    bench.claim("speed on one device", ratio(theirs, ours), rival="Polars, one thread", at_least=0.8)
    bench.claim("speed on two devices", ratio(ours, both), rival="one device", at_least=1.0)
    bench.claim("speed on two devices", ratio(samples["Polars, two threads"], both), rival="Polars, two threads")
    bench.claim("smallest class", min(smallest.values()), unit="rows", at_least=K)
    bench.claim("loss", max(losses["hetero"]) / min(losses["Polars"]), rival="Polars", at_most=1.1)
    below, worst = random_tables(tables)
    bench.claim(f"{tables:,} random tables cut at random: results with a class below k", below, unit="", at_most=0)
    bench.claim(f"{tables:,} random tables cut at random: the most lost", worst, rival="uncut", at_most=1.1)
    bench.finish()


if __name__ == "__main__":
    main()
