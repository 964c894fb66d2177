"""Ten million small records from Parquet to Parquet through a trivial function: speed beside pyarrow's, and memory."""

from __future__ import annotations

import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from benchmarks.rivals import dask_client, ray_module
from hetero.batch import BatchLimits, BatchOptions

FILES = 4
LOOK_S = 0.1
MEMORY = "128MB"


def write_records(folder: Path, count: int) -> None:
    """Write records of a number, a value and a word."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, part = np.random.default_rng(2026), count // FILES
    for number in range(FILES):
        words = pa.array(rng.integers(0, 1000, part)).cast(pa.string())
        ids = np.arange(number * part, (number + 1) * part)
        pq.write_table(pa.table({"id": ids, "x": rng.random(part), "word": words}), folder / f"{number}.parquet")


def double(table: Any) -> Any:
    """Double one column of a table or a batch of rows."""
    import pyarrow.compute as pc

    return table.set_column(1, "x", pc.multiply(table["x"], 2.0))


def read_back(folder: Path, count: int) -> None:
    """See that every record is there, doubled."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    found = ds.dataset([str(path) for path in sorted(folder.rglob("*.parquet"))]).to_table(columns=["id", "x"])
    assert found.num_rows == count, f"{found.num_rows} of {count} records"
    assert pc.sum(found["id"]).as_py() == count * (count - 1) // 2, "every record once"
    assert pc.max(found["x"]).as_py() > 1.5, "doubled"


class Watch(threading.Thread):
    """Notes the memory of this process and its workers, shared pages counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[float] = []
        self.ending = threading.Event()

    def run(self) -> None:
        """Look until told to stop."""
        me = psutil.Process()
        while not self.ending.wait(LOOK_S):
            self.samples.append(sum(map(_memory_mb, (me, *me.children(recursive=True)))))

    def spread_mb(self) -> float:
        """Return half the difference between the means of the last three quarters of what was seen."""
        self.ending.set()
        self.join()
        quarters = [part for part in np.array_split(np.array(self.samples), 4)[1:] if len(part)]
        means = [float(part.mean()) for part in quarters]
        return (max(means) - min(means)) / 2 if means else 0.0


def _memory_mb(process: psutil.Process) -> float:
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0.0
    found = re.search(r"Pss:\s+(\d+)", text)
    return int(found[1]) / 1e3 if found else 0.0


def contestants(data: Path, out: Path, count: int, ctx: hetero.Context, ray: Any) -> dict[str, Callable[[], float]]:
    """Make the runs; each gives its own seconds, and what it wrote is read back."""
    import dask.dataframe as dd
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    def by_hetero() -> None:
        ctx.map_batches(double, data, output=out, form="parquet", limits=BatchLimits(memory=MEMORY))

    def by_pyarrow() -> None:
        found = ds.dataset(data)
        ds.write_dataset((double(batch) for batch in found.to_batches()), out, schema=found.schema, format="parquet")

    def inside_pyarrow() -> None:
        field = ds.field
        columns = {"id": field("id"), "x": pc.multiply(field("x"), 2.0), "word": field("word")}
        ds.write_dataset(ds.dataset(data).scanner(columns=columns), out, format="parquet")

    def by_ray() -> None:
        ray.data.read_parquet(str(data)).map_batches(double, batch_format="pyarrow").write_parquet(str(out))

    def by_dask() -> None:
        frame = dd.read_parquet(data)
        frame.assign(x=frame.x * 2.0).to_parquet(out)

    def timed(run: Callable[[], None]) -> Callable[[], float]:
        def once() -> float:
            shutil.rmtree(out, ignore_errors=True)
            begin_s = time.perf_counter()
            run()
            took_s = time.perf_counter() - begin_s
            read_back(out, count)
            return took_s

        return once

    runs = {"hetero": by_hetero, "pyarrow, a function of its batches": by_pyarrow}
    runs |= {"pyarrow, an expression of its own": inside_pyarrow, "Ray Data": by_ray, "Dask": by_dask}
    return {name: timed(run) for name, run in runs.items()}


def main() -> None:
    """Run the benchmark."""
    import logging

    given = arguments(__doc__ or "")
    count, rounds = (200_000, 1) if given.quick else (10_000_000, 5)
    bench = Bench("batch_parquet", (__doc__ or "").strip(), ("pyarrow", "ray", "dask", "distributed"), given.out)
    bench.note(records=count, files=FILES, devices="two CPU cores, as all contestants have", memory=MEMORY)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name, hetero.Context(devices="2xcpu", history=False) as ctx:
        data, out = Path(name) / "data", Path(name) / "out"
        data.mkdir()
        write_records(data, count)
        with ray_module() as ray, dask_client():
            ray.data.DataContext.get_current().enable_progress_bars = False
            samples = alternate(contestants(data, out, count, ctx, ray), rounds)
        watch = Watch()
        watch.start()
        for _ in range(rounds):
            ctx.map_batches(
                double,
                data,
                output=out,
                form="parquet",
                options=BatchOptions(overwrite=out.exists()),
                limits=BatchLimits(memory=MEMORY),
            )
        spread_mb = watch.spread_mb()
    for contestant, taken in samples.items():
        bench.measure(contestant, taken)
    mine = samples["hetero"]
    for rival, aim in (("pyarrow, a function of its batches", 0.8), ("pyarrow, an expression of its own", None)):
        bench.claim("speed over pyarrow's scan and write", ratio(samples[rival], mine), rival=rival, at_least=aim)
    for rival in ("Ray Data", "Dask"):
        bench.claim("speed over another's", ratio(samples[rival], mine), rival=rival)
    bench.claim(f"memory over {rounds} runs, highest less lowest quarter, halved", spread_mb, unit="MB", at_most=50)
    bench.note(highest_memory_mb=round(max(watch.samples, default=0.0)), typical_mb=_median(watch.samples))
    bench.finish()


def _median(samples: list[float]) -> int:
    return round(statistics.median(samples)) if samples else 0


if __name__ == "__main__":
    main()
