from __future__ import annotations

import heapq
import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import hetero
import hetero.plan.policies as folder
from hetero.cli import doctor
from hetero.drive.sim import Program, SimHooks, SimTask, simulate
from hetero.floor.errors import BadValueError
from hetero.model.device import Device, DeviceType
from hetero.model.tasks import Request, Task
from hetero.plan.policies import registry
from hetero.plan.policies.base import Memory, Policy, Proposal, ReadyTask, View, Waiting, traits
from hetero.plan.policies.consistent_hash import LOAD, scores
from hetero.plan.policies.eft import EarliestFinishTime
from hetero.plan.policies.registry import choose, get, names
from hetero.plan.policies.round_robin import RoundRobin
from hetero.testing.policy import check_policy


def devices(count: int, **more: object) -> tuple[Device, ...]:
    return tuple(Device(f"h0/null:{i}", "null", DeviceType("NULL"), "null", i, **more) for i in range(count))  # type: ignore[arg-type]


def fleet(count: int, **columns: object) -> View:
    given: dict[str, object] = {
        "now_s": 0.0,
        "devices": devices(count),
        "ready": np.ones(count, dtype=np.bool_),
        "available_s": np.zeros(count),
        "queued": np.zeros(count, dtype=np.int64),
        "room": np.ones(count, dtype=np.int64),
        "busy_frac": np.zeros(count),
        "backlog": 1,
    }
    plain = {"waiting", "now_s", "backlog", "devices"}
    given.update({name: value if name in plain else np.asarray(value) for name, value in columns.items()})
    return View(**given)  # type: ignore[arg-type]


def task(number: int, *seconds: float, arrive: Sequence[float] | None = None, key: str = "f|") -> ReadyTask:
    return ReadyTask(number, np.array(seconds), None if arrive is None else np.array(arrive), key)


def asked(name: str, view: View, *ready: ReadyTask, memory: Memory = None) -> list[tuple[int, int]]:
    return [tuple(proposal) for proposal in get(name).propose(view, ready, memory)[0]]


def simulated(policy: Policy, table: np.ndarray, shown: int) -> tuple[float, list[int]]:
    """Run independent tasks with exact times on devices that take one task each; return makespan and placements."""
    count, n_devices = table.shape
    tasks = [ReadyTask(index + 1, table[index], None, "f|") for index in range(count)]
    left, where = list(tasks), [-1] * count
    ends = np.zeros(n_devices)
    busy: list[tuple[float, int]] = []
    now_s, memory = 0.0, None
    while left or busy:
        running = np.array([any(device == d for _, device in busy) for d in range(n_devices)])
        view = fleet(
            n_devices,
            now_s=now_s,
            available_s=np.where(running, ends, now_s),
            queued=running.astype(np.int64),
            room=(~running).astype(np.int64),
            backlog=len(left),
        )
        proposals, memory = policy.propose(view, left[:shown], memory)
        placed = 0
        for number, device in proposals:
            if running[device]:
                continue
            running[device] = True
            where[number - 1] = device
            ends[device] = now_s + table[number - 1, device]
            heapq.heappush(busy, (float(ends[device]), device))
            left = [entry for entry in left if entry.id != number]
            placed += 1
        if not placed or not left:
            assert busy, "tasks are left and nothing runs"
            now_s, _ = heapq.heappop(busy)
    return float(ends.max()), where


tables = st.tuples(st.integers(1, 12), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(0.01, 100.0))
)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", names())
def test_every_policy_passes_the_kit(name: str, seed: int) -> None:
    check_policy(name, seed)


def test_the_registry_lists_what_the_files_say() -> None:
    found = {}
    for entry in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"hetero.plan.policies.{entry.name}")
        for made in vars(module).values():
            own = isinstance(made, type) and made.__module__ == module.__name__
            if own and isinstance(vars(made).get("name"), str):
                found[made.name] = f"{entry.name}:{made.__name__}"
    assert found == registry.OURS


def test_every_policy_cites_a_paper_and_says_where_it_departs() -> None:
    for name in registry.OURS:
        told = type(get(name)).__doc__ or ""
        assert "References" in told, name
        assert "departs from" in told, name


def test_an_unknown_policy_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(BadValueError, match=r"no policy is named 'round_robbin'.*did you mean 'round_robin'"):
        get("round_robbin")


class _Fixed:
    """A policy that gives whatever it is told to, for the kit to refuse."""

    name = "fixed"

    def __init__(self, *proposals: tuple[int, int]) -> None:
        self.proposals = [Proposal(*proposal) for proposal in proposals]

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        return (self.proposals if ready else []), memory


class _Greedy(_Fixed):
    """Puts everything on the device that is fastest, even where that is inf or not ready."""

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        return [Proposal(entry.id, 0) for entry in ready], memory


class _Forgetful(_Fixed):
    """Keeps its counter to itself."""

    calls = 0

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        self.calls += 1
        return [], self.calls


class _Writer(_Fixed):
    """Writes into the view."""

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        view.available_s += 1.0
        return [], memory


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (_Fixed((10**6, 0)), "fixed proposed task 1000000, which it was not shown"),
        (_Greedy(), "fixed proposed task .* for h0/null:0, which (is not ready|cannot run it)"),
        (_Forgetful(), "fixed answered the same call in two ways: it must be deterministic"),
        (_Writer(), "fixed changed the view that it was handed: it must be pure"),
        (_Fixed(), "fixed never proposed, in 16 calls, a task that only the idle device can run"),
    ],
)
def test_the_kit_refuses_a_broken_policy_in_one_sentence(policy: Policy, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_policy(policy)


# earliest finish time


@given(tables)
def test_eft_with_exact_times_is_never_slower_than_the_best_device_alone(table: np.ndarray) -> None:
    makespan, _ = simulated(get("eft"), table, shown=len(table))
    assert makespan <= table.sum(axis=0).min() * (1 + 1e-9)


@given(arrays(np.float64, st.integers(1, 5), elements=st.floats(0.01, 100.0)), st.integers(1, 60), st.integers(1, 8))
def test_eft_shown_a_part_of_a_backlog_of_equal_tasks_is_never_slower_than_the_best_device_alone(
    row: np.ndarray, count: int, shown: int
) -> None:
    makespan, _ = simulated(get("eft"), np.tile(row, (count, 1)), shown)
    assert makespan <= count * row.min() * (1 + 1e-9)


@given(tables)
def test_eft_bound_late_ends_like_the_list_schedule_made_at_once(table: np.ndarray) -> None:
    avail = np.zeros(table.shape[1])
    for row in table:
        device = int((avail + row).argmin())
        avail[device] += row[device]
    makespan, _ = simulated(get("eft"), table, shown=len(table))
    assert makespan == pytest.approx(avail.max())


def test_eft_shares_a_backlog_by_speed_although_it_sees_little_of_it() -> None:
    makespan, where = simulated(get("eft"), np.tile([1.0, 4.0], (100, 1)), shown=3)
    assert Counter(where) == {0: 80, 1: 20}
    assert makespan == 80.0


def test_eft_leaves_a_useless_device_out() -> None:
    _, where = simulated(get("eft"), np.tile([1.0, 50.0], (40, 1)), shown=8)
    assert Counter(where) == {0: 40}


def test_eft_gives_a_slow_device_nothing_at_the_end_of_the_work() -> None:
    assert asked("eft", fleet(2, room=[0, 1], available_s=[0.5, 0.0]), task(1, 1.0, 4.0)) == []


def test_eft_counts_the_transfer_of_inputs() -> None:
    assert asked("eft", fleet(2), task(1, 1.0, 0.5, arrive=(0.0, 2.0))) == [(1, 0)]
    assert asked("eft", fleet(2), task(1, 1.0, 0.5, arrive=(0.0, 0.1))) == [(1, 1)]
    assert asked("eft", fleet(2, available_s=[9.0, 0.0]), task(1, 1.0, 0.5, arrive=(0.0, 2.0))) == [(1, 1)]


def test_eft_proposes_no_more_than_there_is_room_and_takes_ties_by_the_lowest_index() -> None:
    tasks = [task(number, 1.0, 1.0) for number in range(1, 6)]
    assert asked("eft", fleet(2), *tasks) == [(1, 0), (2, 1)]
    assert asked("eft", fleet(2, room=[2, 0]), *tasks) == [(1, 0), (3, 0)]


def test_eft_passes_over_a_task_that_nobody_can_run_and_a_device_that_is_gone() -> None:
    gone = fleet(2, ready=[False, True], available_s=[inf, 0.0])
    assert asked("eft", gone, task(1, 1.0, inf), task(2, 1.0, 3.0)) == [(2, 1)]


def test_eft_waits_for_a_device_that_is_starting_where_the_task_would_end_sooner_there() -> None:
    starting = fleet(2, ready=[False, True], available_s=[0.2, 0.0])
    assert asked("eft", starting, task(1, 1.0, 3.0)) == []
    assert asked("eft", starting, task(1, 1.0, 1.1)) == [(1, 1)]


# the others


def test_round_robin_gives_equal_tasks_in_turn_and_goes_on_where_it_stopped() -> None:
    policy, memory, counted = get("round_robin"), None, Counter[int]()
    for number in range(1, 13):
        proposals, memory = policy.propose(fleet(4), [task(number, *[1.0] * 4)], memory)
        counted.update(proposal.device for proposal in proposals)
    assert counted == {0: 3, 1: 3, 2: 3, 3: 3}


def test_round_robin_passes_over_a_device_that_cannot_run_the_task() -> None:
    tasks = [task(1, 1.0, 1.0, 1.0), task(2, 1.0, inf, 1.0), task(3, 1.0, 1.0, 1.0)]
    assert asked("round_robin", fleet(3), *tasks) == [(1, 0), (2, 2), (3, 0)]


def test_least_loaded_counts_seconds_and_not_tasks() -> None:
    view = fleet(2, queued=[1, 5], available_s=[9.0, 2.0])
    assert asked("least_loaded", view, task(1, 1.0, 8.0), task(2, 1.0, 1.0)) == [(1, 1), (2, 0)]


@given(st.integers(2, 40), st.data())
def test_when_a_device_leaves_only_its_own_keys_move(count: int, data: st.DataObject) -> None:
    ids = [device.id for device in devices(count)]
    gone = data.draw(st.integers(0, count - 1))
    left = ids[:gone] + ids[gone + 1 :]
    moved = 0
    for number in range(300):
        before = ids[int(scores(f"key {number}", ids).argmax())]
        after = left[int(scores(f"key {number}", left).argmax())]
        assert before == ids[gone] or before == after
        moved += before != after
    assert moved <= 300 / count + 5 * (300 / count) ** 0.5


def test_keys_keep_their_device_from_call_to_call_and_when_one_joins_a_third_at_most_moves_to_it() -> None:
    policy = get("consistent_hash")
    home: dict[str, int] = {}
    for count in (3, 4):
        moved = 0
        for number in range(200):
            key = f"key {number}"
            ((_, device),) = policy.propose(fleet(count), [task(1, *[1.0] * count, key=key)], None)[0]
            moved += home.setdefault(key, device) != device
            assert home[key] == device or device == 3
    assert 200 / 8 < moved < 200 / 3


def test_one_key_does_not_overfill_its_device() -> None:
    proposals = asked("consistent_hash", fleet(4), *[task(number, *[1.0] * 4) for number in range(1, 101)])
    counted = Counter(device for _, device in proposals)
    assert max(counted.values()) <= LOAD * 101 / 4 + 1
    assert len(counted) == 4


def test_an_idle_device_steals_the_oldest_task_of_the_longest_queue() -> None:
    held = (
        Waiting(task(1, 2.0, 2.0, 2.0), 0),
        Waiting(task(2, 2.0, 2.0, 2.0), 1),
        Waiting(task(3, 2.0, 2.0, 2.0), 1),
    )
    view = fleet(3, queued=[2, 3, 0], available_s=[4.0, 6.0, 0.0], waiting=held)
    assert asked("work_stealing", view) == [(2, 2)]


def test_a_slow_device_does_not_steal_what_would_end_later_there() -> None:
    view = fleet(2, queued=[2, 0], available_s=[2.0, 0.0], waiting=(Waiting(task(1, 1.0, 50.0), 0),))
    assert asked("work_stealing", view) == []


def test_a_device_that_is_not_ready_loses_its_waiting_tasks_to_thieves() -> None:
    view = fleet(2, ready=[False, True], queued=[1, 0], waiting=(Waiting(task(1, 1.0, 50.0), 0),))
    assert asked("work_stealing", view) == [(1, 1)]


def test_waiting_tasks_move_to_a_device_whose_utilisation_fell_and_not_to_one_that_others_use() -> None:
    held = tuple(Waiting(task(number, 1.0, 1.0, 1.0), 0) for number in (1, 2, 3))
    view = fleet(3, queued=[4, 0, 0], available_s=[4.0, 0.0, 0.0], busy_frac=[0.0, 0.9, 0.0], waiting=held)
    moves = asked("migration", view)
    assert moves[0] == (3, 2)
    assert all(device == 2 for _, device in moves)


def test_nothing_moves_while_every_device_is_well_used() -> None:
    held = tuple(Waiting(task(number, 1.0, 1.0), 0) for number in (1, 2))
    assert asked("migration", fleet(2, queued=[3, 3], available_s=[3.0, 2.5], waiting=held)) == []


def test_auto_takes_the_default_where_no_other_claims_the_fleet_and_says_why() -> None:
    policy, reason = choose(devices(1))
    assert (policy.name, reason) == ("eft", "h0/null:0 is the only device, and a lone task is sent there at once")
    policy, reason = choose(devices(3))
    assert policy.name == "eft"
    assert reason.startswith("the 3 devices are equal")
    assert get("auto", devices(3)).name == "eft"


class _ForPairs(_Fixed):
    """A policy of another package that claims fleets of two devices."""

    name = "for_pairs"

    def suits(self, devices: Sequence[Device]) -> str:
        return "it is made for two" if len(devices) == 2 else ""


def test_auto_asks_every_policy_whether_it_suits_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("for_pairs", f"{__name__}:_ForPairs", registry.GROUP)
    broken = EntryPoint("broken", "no_such_package:Policy", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: (point, broken))
    policy, reason = choose(devices(2))
    assert policy.name == "for_pairs"
    assert reason.startswith("it is made for two; policy 'broken' of no_such_package:Policy cannot be loaded")
    assert choose(devices(3))[0].name == "eft"
    assert "auto" in names()


class _Narrow(_Fixed):
    """A policy whose `propose` takes another number of arguments than the core gives."""

    name = "narrow"

    def propose(self, view: View, ready: Sequence[ReadyTask]) -> Any:  # type: ignore[override]
        return [], None


@pytest.mark.parametrize(
    ("name", "made", "state", "why"),
    [
        ("fixed", "_Fixed", "ok", ""),
        ("other", "_Fixed", "poor", "'fixed' is registered as 'other'"),
        ("narrow", "_Narrow", "missing", "narrow has propose(view: "),
        ("eft", "_Fixed", "missing", "the name 'eft' is taken"),
    ],
)
def test_doctor_finds_what_the_kit_of_policies_refuses(
    monkeypatch: pytest.MonkeyPatch, name: str, made: str, state: str, why: str
) -> None:
    point = EntryPoint(name, f"{__name__}:{made}", registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: (point,) if group == registry.GROUP else ())
    monkeypatch.setattr(registry, "entry_points", lambda group: (point,))
    (finding,) = doctor._extensions()
    assert (finding.state, why in finding.found) == (state, True)
    if why and name not in registry.OURS:
        with pytest.raises(AssertionError, match=re.escape(why)):
            check_policy(name)
    if made == "_Narrow":
        with pytest.raises(BadValueError, match="cannot be asked: narrow has propose"):
            get(name)


def test_the_former_name_of_the_best_device_still_works_and_warns() -> None:
    view = fleet(2)
    view.best_device = 1
    with pytest.warns(DeprecationWarning, match="View.home is now View.best_device") as warned:
        assert view.home == 1
    assert warned[0].filename == __file__, "the warning names the line that uses the former name"


class _Renamed(EarliestFinishTime):
    """The default under another name."""

    name = "mine"


def test_the_core_reads_what_a_policy_declares_and_never_its_name() -> None:
    def commands(policy: Policy) -> list[object]:
        found: list[object] = []
        program = Program([SimTask(Task(n, "f", "f|", 0.0, (), (), Request()), 0.01 * n) for n in range(1, 60)])
        simulate(
            program,
            devices(3),
            lambda task, device: 1e-4 * (1 + device.index),
            policy=policy,
            hooks=SimHooks(found.append),
        )
        return found

    assert traits(_Renamed()) == traits(EarliestFinishTime())
    assert commands(_Renamed()) == commands(EarliestFinishTime())
    folders = [Path(hetero.__file__).parent / part for part in ("core", "drive", "session", "engines")]
    words = {f"{quote}{name}{quote}" for name in registry.OURS for quote in "'\""}
    for file in (file for part in folders for file in part.rglob("*.py")):
        code = "\n".join(line for line in file.read_text().splitlines() if ">>>" not in line)
        assert not [word for word in words if word in code], file


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"lazy_sends": True}, "which has no room"),
        ({"lone_to_fastest": True}, "declares lone_to_fastest and"),
        ({"looks_ahead": "no"}, "declares looks_ahead = 'no'"),
        ({"lazy_send": True}, "lazy_send = True, which nothing reads; did you mean 'lazy_sends'?"),
    ],
)
def test_the_kit_refuses_a_policy_that_does_not_keep_to_what_it_declares(declared: dict[str, Any], told: str) -> None:
    policy = type("Liar", (RoundRobin,), {"name": "liar", **declared})()
    with pytest.raises(AssertionError, match=re.escape(told)):
        check_policy(policy)


class _Counting(RoundRobin):
    """Counts its calls, on itself or in a list of its class, and decides nothing by them."""

    calls: ClassVar[list[int]] = []

    def __init__(self, in_class: bool) -> None:
        self._in_class = in_class

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        if self._in_class:
            self.calls.append(len(ready))
        else:
            self.count = getattr(self, "count", 0) + 1
        return super().propose(view, ready, memory)


@pytest.mark.parametrize(("in_class", "name"), [(True, "calls"), (False, "count")])
def test_the_kit_refuses_a_policy_that_keeps_state_which_changes_no_answer(in_class: bool, name: str) -> None:
    with pytest.raises(AssertionError, match=f"round_robin changes {name} on self when it is asked"):
        check_policy(_Counting(in_class))


@pytest.mark.parametrize("name", ["least_loaded", "round_robin", "consistent_hash", "work_stealing", "migration"])
def test_policies_with_queues_propose_everything_they_are_shown(name: str) -> None:
    proposals = asked(name, fleet(3), *[task(number, 1.0, 1.0, 1.0) for number in range(1, 21)])
    assert sorted(number for number, _ in proposals) == list(range(1, 21))
