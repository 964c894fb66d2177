"""Seconds of runs as llm-analysis sees them; started by speed_llm_analysis.py in the environment of that package.

In: rows with models, devices and runs, on standard input. Out: seconds, or what the package said, on standard output.
It imports nothing of hetero's.
"""

import json
import logging
import sys

from llm_analysis.analysis import LLMAnalysis
from llm_analysis.config import DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig


def seconds(row: dict) -> float:
    """Return the seconds of a run, or of a token where the row is of tokens.

    The package tells the latency of one pipeline stage; a sequence passes all of them.
    """
    bits, run = row["bits"], row["run"]
    analysis = LLMAnalysis(
        ModelConfig(**row["model"]),
        GPUConfig(**row["gpu"]),
        DtypeConfig("row", bits, 8 if bits == 8 else 16, 16),
        ParallelismConfig(tp_size=row["tensor"], pp_size=row["pipeline"]),
    )
    prompt, answer, batch = max(1, run["prompt"]), max(1, run["answer"]), max(1, run["batch"])
    found = analysis.inference(batch, prompt, answer)
    if row["kind"] == "max_throughput":
        batch = max(1, int(min(found["prefill_max_batch_size_per_gpu"], found["decode_max_batch_size_per_gpu"])))
        return analysis.inference(batch, prompt, answer)["total_latency"] / (batch * answer)
    key = {"decode": "decode_latency", "prefill": "prefill_latency", "e2e": "total_latency"}[row["kind"]]
    return found[key] * row["pipeline"]


def main() -> None:
    """Answer every row."""
    logging.disable(logging.CRITICAL)
    told = []
    for row in json.load(sys.stdin):
        try:
            told.append(float(seconds(row)))
        except (AssertionError, ArithmeticError, KeyError, TypeError, ValueError) as error:
            told.append(f"{type(error).__name__}: {error}"[:120])
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
