"""Fleets of the catalog in virtual time: the same decisions as at leisure, data over each link once, clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hetero.errors import BadValueError
from hetero.graphs.fleet_simulation import SimulatedLoad, read_hosts, run_at_scale
from hetero.plan.policies import eft

WORDS = ["30 x 10 x H100-SXM", "25 x 10 x T4", "2 x 10 x V100-SXM2-16GB"]


@pytest.mark.slow
def test_looking_only_at_devices_that_could_be_chosen_decides_as_looking_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    racks = read_hosts(WORDS)
    for nbytes in (0, 1_000_000):
        load = SimulatedLoad(900, (1e13, 4e13), nbytes=nbytes)
        quick = run_at_scale(racks, load)[1].decisions
        with monkeypatch.context() as patch:
            patch.setattr(eft, "_MANY", 1 << 30)
            assert run_at_scale(racks, load)[1].decisions == quick


def test_data_cross_each_link_once_a_size_and_only_where_they_are_read() -> None:
    found, _ = run_at_scale(read_hosts(["4 x 2 x T4"]), SimulatedLoad(400, (1e13, 2e13), nbytes=1_000_000), tick_s=0.01)
    assert found.moved_bytes == 3 * 2 * 1_000_000
    assert (found.devices, found.hosts, found.tasks) == (8, 4, 400)


def test_a_tick_costs_no_more_than_itself_a_task() -> None:
    racks, load = read_hosts(["2 x 2 x T4"]), SimulatedLoad(80, (1e13,))
    at_once = run_at_scale(racks, load, noise=0.0)[0].makespan_s
    assert at_once <= run_at_scale(racks, load, noise=0.0, tick_s=0.01)[0].makespan_s <= at_once + 20 * 0.02


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [run_at_scale(read_hosts(["2 x 4 x T4"]), SimulatedLoad(100), seed=3, tick_s=0.01)[0] for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].best_s <= runs[0].makespan_s


def test_what_names_no_hosts_is_refused() -> None:
    cases = {"H100": "says no hosts", "0 x 8 x T4": "says no hosts", "9999 x 9 x T4": "89,991 devices"}
    for word, problem in cases.items():
        with pytest.raises(BadValueError, match=problem):
            read_hosts([word])
    with pytest.raises(BadValueError, match="no fp3 operations/s of T4"):
        run_at_scale(read_hosts(["1 x 1 x T4"]), SimulatedLoad(1, precision="fp3"))


def test_the_command_tells_a_run_of_hosts_and_takes_no_graph_beside_it() -> None:
    command = [sys.executable, "-m", "hetero", "plan", "tasks", "--hosts", "2 x 2 x T4", "--tasks", "40"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=250, check=True)
    told = json.loads(done.stdout)
    assert (told["devices"], told["hosts"], told["tasks"]) == (4, 2, 40)
    both = subprocess.run([*command, "graph.json"], capture_output=True, text=True, timeout=250, check=False)
    assert both.returncode == 2
    assert "unexpected extra argument (graph.json)" in both.stderr.replace("(s)", "")
