"""Run chaos: `python -m tests.chaos --seeds 10000`, each program in a process of its own, with a time bound."""

from __future__ import annotations

import argparse
import subprocess
import sys


def run(first: int, seeds: int, jobs: int) -> str:
    """Run seeds, so many at a time; return what is wrong, '' for nothing."""
    end = first + seeds
    command = [sys.executable, "-m", "tests.chaos.program"]
    lanes = [
        subprocess.Popen([*command, str(first + job), str(end), str(jobs)], stdout=subprocess.PIPE, text=True)
        for job in range(jobs)
    ]
    told = [lane.communicate()[0] for lane in lanes]
    return "".join(text for lane, text in zip(lanes, told, strict=True) if lane.returncode)


def main() -> None:
    """Run the seeds and say which are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    wrong = run(given.first, given.seeds, given.jobs)
    print(wrong or f"{given.seeds} seeds, none wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
