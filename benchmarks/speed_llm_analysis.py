"""The published simulator llm-analysis on the rows of `speed.py`: its error beside ours, uncalibrated.

llm-analysis 0.2.2 (Apache-2.0) pins a transformers and a hub library of 2023, so it is never a dependency: `--run`
installs it into an environment of its own below HETERO_HOME, hands it the same models, devices and runs with its own
default efficiencies, and keeps what it said in speed_llm_analysis.json. Without `--run` the kept seconds are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import RESULTS, Bench
from benchmarks.speed import paths
from hetero.advise.accuracy import Merit, uncalibrated
from hetero.advise.measurements import Measurement, read_rows, read_table
from hetero.advise.rates import rates_of
from hetero.floor import settings
from hetero.model.quantisation import number_format

KEPT = Path(__file__).resolve().with_name("speed_llm_analysis.json")
PACKAGE = "llm-analysis==0.2.2"
KINDS = {
    "decode": "llama.cpp, decode",
    "prefill": "llama.cpp, prefill",
    "max_throughput": "TensorRT-LLM, most throughput",
    "e2e": "all latencies",
}


def _python() -> Path:
    """Return the interpreter of the package's environment, made where it is not there."""
    folder = settings.home() / "cache" / "llm-analysis"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", PACKAGE], check=True, timeout=600)
    return python


def _bits(weights: str) -> int:
    """Return the width that the package knows and that is nearest to a number format's."""
    each = 8 * number_format(weights).bytes_per_weight
    return min((4, 8, 16), key=lambda bits: abs(bits - each))


def _plain(row: Measurement) -> dict[str, Any]:
    model, rates = row.work.model, rates_of(row.device, row.work)
    width = (model.expert_intermediate if model.experts else model.intermediate) or 4 * model.hidden
    peak = rates.flop_per_s / 1e12 / (2 if _bits(row.work.weights) == 8 and "fp8" in row.work.weights else 1)
    return {
        "kind": row.kind,
        "bits": _bits(row.work.weights),
        "tensor": row.spread.tensor,
        "pipeline": row.spread.pipeline,
        "model": {
            "name": model.name,
            "num_layers": model.layers,
            "n_head": model.heads,
            "hidden_dim": model.hidden,
            "vocab_size": model.vocab,
            "max_seq_len": 1 << 20,
            "num_key_value_heads": model.kv_heads,
            "ffn_embed_dim": width,
            "expansion_ratio": width / model.hidden,
            "moe_num_experts": max(1, model.experts),
            "moe_top_k": max(1, model.experts_per_token),
        },
        "gpu": {
            "name": row.device.name,
            "mem_per_GPU_in_GB": (row.device.memory_bytes or 0) / 1e9,
            "hbm_bandwidth_in_GB_per_sec": rates.bytes_per_s / 1e9,
            "intra_node_bandwidth_in_GB_per_sec": rates.link_bytes_per_s / 1e9,
            "intra_node_min_message_latency": 8e-6,
            "peak_fp16_TFLOPS": peak,
        },
        "run": {"prompt": row.work.prompt_tokens, "answer": row.work.answer_tokens, "batch": row.work.batch},
    }


def _key(plain: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def run(rows: Sequence[Measurement]) -> None:
    """Have the package answer every row, and keep what it said."""
    plain = {_key(made): made for made in map(_plain, rows)}
    command = [str(_python()), str(KEPT.with_name("llm_analysis") / "run.py")]
    given = json.dumps(list(plain.values()))
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True, timeout=3600)
    said = [round(one, 9) if isinstance(one, float) else one for one in json.loads(done.stdout)]
    KEPT.write_text(json.dumps({"package": PACKAGE, "seconds": dict(zip(plain, said, strict=True))}, indent=0) + "\n")


def main() -> int:
    """Compare, kind by kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="CSV files with the columns of the shared data")
    parser.add_argument("--run", action="store_true", help="install llm-analysis apart, and ask it anew")
    parser.add_argument("--quick", action="store_true", help="every eighth row; keep nothing")
    parser.add_argument("--out", type=Path, help="folder of the results")
    given = parser.parse_args()
    rows = [row for path in paths(given.files) for row in read_rows(read_table(path))[0]]
    if given.run:
        run(rows)
    kept: dict[str, float | str] = json.loads(KEPT.read_text())["seconds"]
    bench = Bench("speed_llm_analysis", "How fast: llm-analysis beside hetero, both uncalibrated", (), None)
    bench.out = given.out or (None if given.quick else RESULTS)
    unanswered = 0
    for kind, words in KINDS.items():
        asked = [row for row in rows if row.kind == kind][:: 8 if given.quick else 1]
        told = {id(row): kept.get(_key(_plain(row))) for row in asked}
        answered = [row for row in asked if isinstance(told[id(row)], float)]
        unanswered += len(asked) - len(answered)
        if answered:
            _claim(bench, words, answered, [float(told[id(row)] or 0.0) for row in answered])
    bench.note(
        package=PACKAGE,
        how="its own default efficiencies; models, data sheets and runs as hetero has them; formats of other widths as"
        " the nearest of 4, 8 and 16 bits",
        unanswered=f"{unanswered} rows, which it refused or for which it gave no figure",
    )
    bench.finish()
    return 0


def _claim(bench: Bench, words: str, rows: Sequence[Measurement], theirs_s: Sequence[float]) -> None:
    ours = Merit.of(uncalibrated(list(rows))).error_frac
    ratios = [said / row.sample.seconds for said, row in zip(theirs_s, rows, strict=True)]
    errors = [
        abs((1 / ratio if row.per_second else ratio) - 1)
        for ratio, row in zip(ratios, rows, strict=True)
        if ratio > 0.0
    ]
    theirs = statistics.median(errors)
    rival = f"llm-analysis {theirs:.0%}, hetero {ours:.0%}, {len(rows)} rows"
    bench.claim(f"{words}: error of llm-analysis / ours", theirs / ours, rival=rival, at_least=2)


if __name__ == "__main__":
    sys.exit(main())
