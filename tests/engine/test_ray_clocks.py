"""Times that workers on other hosts tell are on the run's clock."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hetero.report.trace_reader import read_run
from tests.cluster import Cluster, cluster_of_namespaces
from tests.needs import need

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow, pytest.mark.servers]

PATIENCE_S = 240.0
PROGRAM = """
import sys, time, hetero
def clock(number):
    return time.monotonic()
there = hetero.task(clock, on=("h1/cpu:0",))
with hetero.Context(engine="ray", address="auto", history=False, trace=sys.argv[1]) as ctx:
    print(*[ctx.run(there, number) for number in range(30)])
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need("netns")
    with cluster_of_namespaces(tmp_path_factory.mktemp("hosts"), [1e9, 1e9], ["1xcpu", "1xcpu"], {}) as made:
        yield made


def test_a_task_on_another_host_began_when_its_own_clock_says(hosts: Cluster) -> None:
    """Hosts that are namespaces of one machine share its clock, so that the right answer is known."""
    trace = hosts.folder / "run.trace.jsonl"
    with hosts.start(0, sys.executable, "-c", PROGRAM, str(trace)) as program:
        said, wrong = program.communicate(timeout=PATIENCE_S)
    run = read_run(hosts.path(0, trace))
    assert len(run.attempts) == 30, wrong
    origin_s = run.head["clock_origin_s"]
    pairs = zip(run.attempts, map(float, said.split()), strict=True)
    assert min(abs(attempt.start_s + origin_s - began_s) for attempt, began_s in pairs) < 0.25
