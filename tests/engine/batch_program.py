"""A bulk run that a test kills: `python batch_program.py OUT FORM`; each call of the function adds a line to $CALLS."""

from __future__ import annotations

import os
import sys
import time

import hetero
from hetero.batch.options import BatchOptions


def main(out: str, merge: str) -> None:
    """Run to the end."""

    def work(batch: list[int]) -> list[str]:
        with open(os.environ["CALLS"], "a", encoding="utf-8") as file:
            file.write(f"{batch[0]} {len(batch)} {os.getpid()}\n")
        time.sleep(0.01 * len(batch))
        return [f"record {x}" for x in batch]

    def value(batch: list[int]) -> list[float]:
        work(batch)
        return [0.1 * x for x in batch]

    with hetero.Context(devices="1xcpu,1xcpu*0.5", history=False) as ctx:
        if merge:
            outcome = ctx.map_batches(value, range(160), merge="sum", options=BatchOptions(name=out, part=40), batch=8)
        else:
            outcome = ctx.map_batches(work, range(160), output=out, options=BatchOptions(part=40), batch=8, resume=True)
    print(repr(outcome.value), outcome.resumed)


if __name__ == "__main__":
    main(*sys.argv[1:])
