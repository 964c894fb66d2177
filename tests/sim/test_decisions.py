"""What the core decides in seeded worlds, event by event, is what was accepted: a change of any decision is seen.

A change of a policy or of the core that is meant to decide otherwise is accepted with `--accept`; the first line that
differs says from which record on. Times are told to six digits, so that no processor's last bit matters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from hetero.drive.sim import Costs, Program, SimHooks, SimLease, SimResult, SimTask, simulate
from hetero.drive.sim_faults import Faults, Loss
from hetero.graphs.planning import Budget, plan_graph
from hetero.graphs.simulation import guide_of, run_graph
from hetero.model.leases import LeaseRequest
from hetero.model.tasks import Request
from hetero.plan.policies.planned import Planned
from hetero.plan.policies.registry import OURS
from tests.conftest import Golden
from tests.sim import soak, test_lookahead, test_nested, test_sim_leases
from tests.sim.small_worlds import World
from tests.sim.worlds import cpus, gpu, independent, joined, known, program, speeds, task

_FLOAT = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
CHUNK = 100
"""Records of a line."""


class Told:
    """Takes every event and command of a run; `lines` has a digest of each hundred and of the end."""

    def __init__(self) -> None:
        self.records: list[str] = []

    def __call__(self, record: tuple[object, ...]) -> None:
        text = f"{type(record).__name__}{record!r}"
        self.records.append(_FLOAT.sub(lambda match: f"{float(match[0]):.6g}", text))

    def digest(self, begin: int = 0, end: int | None = None) -> str:
        """Return a digest of some of the records."""
        return hashlib.sha256("\n".join(self.records[begin:end]).encode()).hexdigest()[:16]

    def lines(self, result: SimResult) -> Iterator[str]:
        for begin in range(0, len(self.records), CHUNK):
            yield f"{begin:5} {self.digest(begin, begin + CHUNK)}"
        happened = " ".join(f"{name}={count}" for name, count in sorted(result.happened.items()))
        counts = f"{len(result.commits)} committed, {len(result.failures)} failed, {result.makespan_s:.6g} s"
        yield f"{counts}; {happened}".rstrip("; ")


def soaked(told: Told, count: int, seed: int, policy: str = "eft", faults: Faults = soak.FAULTS) -> SimResult:
    return simulate(
        soak.program(count, seed), soak.fleet(), soak.truth, policy=policy, topology=soak.topology(), seed=seed,
        costs=soak.COSTS, faults=faults, rules=soak.RULES, check_every=50, hooks=SimHooks(trace=told),
    )  # fmt: skip


def killed(told: Told) -> SimResult:
    faults = replace(soak.FAULTS, kill_every_s=0.1, start=0.3, hang=0.01, poison_names=frozenset({"large"}))
    return soaked(told, 300, 5, faults=faults)


def tight(told: Told) -> SimResult:
    """Run tasks with data over devices whose memories hold a few of them."""
    fleet = [*cpus(2), gpu(0), gpu(1)]
    rows = [task(100 + n, name="make") for n in range(12)]
    rows += [task(200 + n, name="use", inputs=(100 + n % 12, 100 + n * 5 % 12)) for n in range(60)]
    made = [SimTask(row, 0.01 * place, 300_000) for place, row in enumerate(rows)]
    links = joined(*fleet[2:], bytes_per_s=2e7, capacity_bytes=1_000_000)
    truth = speeds(fleet, 0.1, 1.0, 1.2, 4.0, 3.0)
    return simulate(
        program(made), fleet, truth, topology=links, costs=Costs(noise=0.2), seed=3,
        cost=known(fleet, truth, "make", "use"), faults=Faults(losses=(Loss(1.0, "h0/cuda:1"),)), check_every=10,
        hooks=SimHooks(trace=told),
    )  # fmt: skip


def gangs(told: Told) -> SimResult:
    """Run groups, exclusive and small tasks that learn as they go."""
    fleet = cpus(4)
    kinds = (Request(), Request(devices=3), Request(exclusive=True), Request(devices=2, priority=3), Request())
    rows = [SimTask(task(n + 1, kinds[n % 5], name=f"f{n % 3}"), 0.003 * n) for n in range(120)]
    return simulate(
        Program(rows), fleet, speeds(fleet, 0.02, 1.0, 2.0, 0.5, 1.0), costs=Costs(noise=0.3, tick_s=1e-3), seed=2,
        faults=Faults(crash=0.02), check_every=10, hooks=SimHooks(trace=told),
    )  # fmt: skip


def slow_ones(told: Told) -> SimResult:
    """Run short tasks on a fleet whose worst device does not help."""
    fleet = cpus(3)
    return simulate(
        program([*independent(80), *independent(20, Request(splittable=True), first=200, at_s=0.2)]), fleet,
        speeds(fleet, 0.01, 1.0, 1.0, 0.02), seed=1, costs=Costs(noise=0.1), check_every=10,
        hooks=SimHooks(trace=told),
    )  # fmt: skip


def leased(told: Told) -> SimResult:
    work = test_sim_leases.work
    leases = [
        SimLease(1, LeaseRequest(count=2), tasks=work(100, 6)),
        SimLease(2, LeaseRequest(on=("h0/cuda:0",), lease_s=2.5), at_s=0.5, tasks=work(120, 5), held_s=9.0),
        SimLease(3, LeaseRequest(count=4, timeout_s=30.0), at_s=1.0, held_s=2.0),
        SimLease(4, LeaseRequest(timeout_s=1.0), at_s=1.5),
    ]
    faults = Faults(losses=(Loss(4.5, "h1/cuda:1"),), crash=0.05)
    return test_sim_leases.run(leases, work(1, 30), faults=faults, seed=4, hooks=SimHooks(trace=told))


def nested(told: Told) -> SimResult:
    worlds = [test_nested.run(seed, Faults(crash=0.02, hang=0.002) if seed % 2 else None) for seed in range(6)]
    for result, _ in worlds:
        for decision in result.decisions:
            told(decision)
    return worlds[-1][0]


def planned_tiles(told: Told) -> SimResult:
    graph = test_lookahead.cholesky(6, 10 * test_lookahead.TILE)
    guide = guide_of(graph, plan_graph(graph, "heft", Budget(iterations=1), transfer_model="free").schedule)
    for noise, seed in ((0.0, 0), (0.3, 1)):
        result = run_graph(graph, Planned(guide, ahead_s=0.0), noise=noise, seed=seed)
        for decision in result.decisions:
            told(decision)
        for row in sorted(test_lookahead.replicas(result).moved.items()):
            told(row)
    return result


WORLDS: dict[str, Callable[[Told], SimResult]] = {
    "every_fault": lambda told: soaked(told, 500, 3),
    "killed": killed,
    "tight_memories": tight,
    "gangs": gangs,
    "a_slow_device": slow_ones,
    "leases": leased,
    "nested": nested,
    "planned_tiles": planned_tiles,
    **{f"policy_{name}": lambda told, name=name: soaked(told, 200, 7, name) for name in OURS},
}


@pytest.mark.parametrize("world", WORLDS)
def test_decisions_are_those_that_were_accepted(world: str, golden: Golden) -> None:
    told = Told()
    result = WORLDS[world](told)
    golden(f"decisions_{world}.txt", "\n".join(told.lines(result)) + "\n")


@pytest.mark.parametrize("seed", range(160))
def test_what_a_small_world_decides_is_what_was_accepted(seed: int, golden: Golden) -> None:
    told = Told()
    result = World(seed).run(SimHooks(trace=told))
    counts = f"{len(result.commits)} committed, {len(result.failures)} failed, {result.makespan_s:.6g} s"
    golden("decisions_small_worlds.txt", f"{seed:4} {len(told.records):5} records {told.digest()}; {counts}", seed)
