"""Run chaos: `python -m tests.chaos --seeds 10000`, each program in a process of its own, with a time bound."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

BOUND_S = 120.0


def run(seed: int) -> str:
    """Run one seed; return what is wrong with it, '' for nothing."""
    with tempfile.TemporaryDirectory(prefix="hetero-chaos-") as folder:
        command = [sys.executable, "-m", "tests.chaos.program", str(seed), folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
        except subprocess.TimeoutExpired:
            return f"seed {seed}: hangs for more than {BOUND_S:g} s"
    return "" if done.returncode == 0 else f"seed {seed}: {done.stdout[-500:]}{done.stderr[-1500:]}"


def main() -> None:
    """Run the seeds and say which are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    with ThreadPoolExecutor(given.jobs) as pool:
        wrong = [text for text in pool.map(run, range(given.first, given.first + given.seeds)) if text]
    print(*wrong, f"{given.seeds} seeds, {len(wrong)} wrong", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
