"""What each policy proposes for small fleets that are written by hand, and against slow versions of its rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b
from importlib.metadata import EntryPoint
from math import ceil, inf, isfinite

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.plan.policies import registry
from hetero.plan.policies.base import ReadyTask, View, Waiting, plan_of, traits
from hetero.plan.policies.consistent_hash import LOAD, scores
from hetero.plan.policies.eft import EarliestFinishTime, _others_end
from hetero.plan.policies.migration import THRESHOLD_FRAC, utilisation
from hetero.plan.policies.planned import Planned
from hetero.plan.policies.registry import choose, get, names, why_unusable
from hetero.plan.replanning.lookahead import Ahead
from hetero.plan.replanning.replan import Ranks, RemainingPlan
from tests.pure.test_policies import asked, devices, fleet, task
from tests.pure.test_scenarios import loose

TIMES = st.one_of(st.just(inf), st.integers(1, 40).map(lambda tenths: tenths / 8))
SOME = st.integers(1, 5)


def held(device: int, *tasks: ReadyTask) -> tuple[Waiting, ...]:
    return tuple(Waiting(each, device) for each in tasks)


def row(data: st.DataObject, count: int, values: st.SearchStrategy[float]) -> list[float]:
    return data.draw(st.lists(values, min_size=count, max_size=count))


def drawn(data: st.DataObject, count: int) -> tuple[View, list[ReadyTask]]:
    """Return a fleet of some devices and up to six tasks."""
    now_s = data.draw(st.sampled_from([0.0, 2.0]))
    view = fleet(
        count,
        now_s=now_s,
        ready=row(data, count, st.booleans()),
        available_s=[now_s + left for left in row(data, count, st.sampled_from([0.0, 0.5, 1.0, 4.0]))],
        queued=row(data, count, st.integers(0, 3)),
    )
    tasks = [task(n, *row(data, count, TIMES), key=f"key {n % 3}") for n in range(1, 1 + data.draw(st.integers(0, 6)))]
    return view, tasks


# earliest finish time


@pytest.mark.parametrize(
    ("offered", "proposed"),
    [
        (None, [(1, 0), (2, 1), (3, 0)]),
        ([1, 0], [(1, 0)]),
        ([0, 1], [(1, 0), (2, 1)]),
        ([1, 1], [(1, 0), (2, 1)]),
        ([0, 0], []),
        ([9, 1], [(1, 0), (2, 1), (3, 0)]),
    ],
)
def test_eft_stops_once_the_room_that_is_offered_is_used_up(
    offered: list[int] | None, proposed: list[tuple[int, int]]
) -> None:
    columns = {} if offered is None else {"offered": offered}
    tasks = [task(number, 1.0, 1.0) for number in (1, 2, 3, 4)]
    assert asked("eft", fleet(2, room=[2, 1], backlog=4, **columns), *tasks) == proposed


def test_eft_counts_transfers_from_now_and_beside_the_work_of_the_device() -> None:
    late = fleet(2, now_s=5.0, available_s=[5.0, 5.0])
    assert asked("eft", late, task(1, 1.0, 2.5, arrive=(2.0, 0.0))) == [(1, 1)]
    assert asked("eft", late, task(1, 1.0, 3.5, arrive=(2.0, 0.0))) == [(1, 0)]
    busy = fleet(2, now_s=5.0, available_s=[7.0, 5.0])
    assert asked("eft", busy, task(1, 1.0, 3.5, arrive=(2.0, 0.0))) == [(1, 0)]


def test_eft_leaves_room_below_nothing_and_of_a_device_that_is_not_ready_alone() -> None:
    tasks = [task(number, 1.0, 1.0) for number in (1, 2)]
    assert asked("eft", fleet(2, room=[-1, 1]), *tasks) == [(2, 1)]
    assert asked("eft", fleet(2, ready=[False, True], available_s=[0.0, 0.0], room=[5, 1]), *tasks) == [(2, 1)]


@pytest.mark.parametrize(("back_s", "device"), [(0.5, 1), (1.0, 1), (1.5, 0), (inf, 0)])
def test_eft_counts_the_way_back_of_a_result_to_the_best_device(back_s: float, device: int) -> None:
    one = ReadyTask(1, np.array([2.0, 1.0]), None, "f|", np.array([0.0, back_s]))
    assert asked("eft", fleet(2, best_device=0), one) == [(1, device)]


def test_eft_says_for_each_fleet_why_it_is_the_right_one() -> None:
    suits = EarliestFinishTime.suits
    assert suits(()) == "no device is known yet"
    assert suits(devices(1)).startswith("h0/null:0 is the only device")
    assert suits(devices(4)).startswith("the 4 devices are equal")
    mixed = (*devices(2), *devices(1, throttle_frac=0.5))
    assert suits(mixed).startswith("3 devices of 2 kinds")


def test_a_slow_device_takes_the_last_task_shown_where_the_others_need_longer_for_the_backlog() -> None:
    shown = [task(number, 1.0, 4.0) for number in (1, 2)]
    for backlog, proposed in ((3, []), (4, [(2, 1)]), (9, [(2, 1)])):
        assert asked("eft", fleet(2, room=[0, 1], backlog=backlog), *shown) == proposed, backlog
    busy = fleet(2, room=[0, 1], backlog=3, available_s=[1.0, 0.0])
    assert asked("eft", busy, *shown) == [(2, 1)]
    assert asked("eft", fleet(2, room=[0, 1], backlog=2, available_s=[2.0, 0.0]), *shown) == []


def test_each_idle_device_takes_one_task_from_the_end_and_none_that_is_proposed() -> None:
    shown = [task(number, 1.0, 4.0, 4.0) for number in (1, 2, 3)]
    view = fleet(3, room=[1, 1, 2], backlog=90)
    assert asked("eft", view, *shown) == [(1, 0), (3, 1), (2, 2)]
    cannot = [task(1, 1.0, 4.0), task(2, 1.0, 4.0), task(3, 1.0, inf)]
    assert asked("eft", fleet(2, room=[0, 1], backlog=90), *cannot) == [(2, 1)]


def test_what_comes_from_the_end_counts_transfers_and_the_way_back() -> None:
    def shown(arrive_s: float, back_s: float) -> ReadyTask:
        return ReadyTask(1, np.array([1.0, 4.0]), np.array([0.0, arrive_s]), "f|", np.array([0.0, back_s]))

    view = fleet(2, now_s=3.0, available_s=[3.0, 3.0], room=[0, 1], backlog=6, best_device=0)
    assert asked("eft", view, shown(0.0, 0.0)) == [(1, 1)]
    assert asked("eft", view, shown(2.0, 0.0)) == [(1, 1)]
    assert asked("eft", view, shown(2.5, 0.0)) == []
    assert asked("eft", view, shown(1.0, 1.0)) == [(1, 1)]
    assert asked("eft", view, shown(1.0, 1.5)) == []


@given(SOME, st.data())
@settings(max_examples=60)
def test_the_end_of_the_others_is_the_work_of_the_backlog_over_their_rates(count: int, data: st.DataObject) -> None:
    view, tasks = drawn(data, count)
    start_s = [data.draw(st.sampled_from([each, inf])) for each in view.available_s.tolist()]
    view.backlog = len(tasks) + 7
    taking = [device for device in range(count) if isfinite(start_s[device])]
    shortest = [min([float(each.seconds[d]) for d in taking], default=inf) for each in tasks]
    able = [(each, least) for each, least in zip(tasks, shortest, strict=True) if isfinite(least)]
    work_s = view.backlog * sum(least for _, least in able) / max(len(able), 1)
    rate = [max([least / float(each.seconds[d]) for each, least in able], default=0.0) for d in range(count)]
    found = _others_end(view, tasks, np.array(start_s))
    for device in range(count):
        others = [other for other in taking if other != device and rate[other] > 0.0]
        total = sum(rate[other] for other in others)
        expected = (work_s + sum(rate[d] * start_s[d] for d in others)) / total if others else inf
        assert found[device] == pytest.approx(expected, rel=1e-9), device


def test_on_a_large_fleet_eft_proposes_what_it_would_after_looking_at_each_device() -> None:
    chance = np.random.default_rng(5)
    for kinds, arriving, shown in ((1, False, 6), (3, True, 9), (8, False, 20), (9, False, 20)):
        count = 520
        avail = chance.choice([4.0, 4.25, 4.5, 6.0], count)
        seconds = [chance.choice([1.0, 1.5, 2.0, 9.0, inf], count) for _ in range(kinds)]
        arrive = [chance.choice([0.0, 1.0], count) for _ in range(kinds)] if arriving else [None] * kinds
        tasks = [ReadyTask(n, seconds[n % kinds], arrive[n % kinds], "f|") for n in range(1, shown + 1)]
        room = chance.choice([0, 1, 2], count)
        expected, ends, left = [], avail.copy(), room.copy()
        for each in tasks:
            begin = ends if each.arrive_s is None else np.maximum(ends, 4.0 + each.arrive_s)
            device = int((begin + each.seconds).argmin())
            ends[device] = (begin + each.seconds)[device]
            if left[device]:
                left[device] -= 1
                expected.append((each.id, device))
        assert asked("eft", fleet(count, now_s=4.0, available_s=avail, room=room, backlog=shown), *tasks) == expected


# policies with queues


@given(SOME, st.data())
@settings(max_examples=60)
def test_least_loaded_takes_the_device_that_has_the_least_seconds_left(count: int, data: st.DataObject) -> None:
    view, tasks = drawn(data, count)
    load = view.available_s.tolist()
    expected = []
    for each in tasks:
        able = [d for d in range(count) if view.ready[d] and isfinite(each.seconds[d])]
        if able:
            device = min(able, key=lambda d: (load[d], d))
            load[device] += float(each.seconds[device])
            expected.append((each.id, device))
    assert asked("least_loaded", view, *tasks) == expected


@given(SOME, st.data())
@settings(max_examples=60)
def test_round_robin_takes_the_next_device_that_is_able(count: int, data: st.DataObject) -> None:
    view, tasks = drawn(data, count)
    turn = data.draw(st.integers(0, count - 1))
    proposals, memory = get("round_robin").propose(view, tasks, turn)
    expected = []
    for each in tasks:
        for device in [(turn + step) % count for step in range(count)]:
            if view.ready[device] and isfinite(each.seconds[device]):
                expected.append((each.id, device))
                turn = (device + 1) % count
                break
    assert [tuple(each) for each in proposals] == expected
    assert memory == turn


@given(SOME, st.data())
@settings(max_examples=60)
def test_a_key_goes_to_the_first_of_its_devices_that_is_not_overfull(count: int, data: st.DataObject) -> None:
    view, tasks = drawn(data, count)
    load = [int(view.queued[d]) if view.ready[d] else 0 for d in range(count)]
    ids = [device.id for device in view.devices]
    expected = []
    for each in tasks:
        able = [d for d in range(count) if view.ready[d] and isfinite(each.seconds[d])]
        limit = ceil(LOAD * (sum(load) + 1) / max(int(view.ready.sum()), 1))
        light = [d for d in able if load[d] < limit] or able
        if able:
            device = max(light, key=lambda d: int(scores(each.key, ids)[d]))
            load[device] += 1
            expected.append((each.id, device))
    assert asked("consistent_hash", view, *tasks) == expected
    known = get("consistent_hash").propose(fleet(count + 1), (), None)[1]
    assert asked("consistent_hash", view, *tasks, memory=known) == expected, "another fleet's hashes are not used"


def test_a_score_is_the_finaliser_of_splitmix_over_both_digests() -> None:
    def digest(text: str) -> int:
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")

    def mixed(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return (z ^ z >> 31) | 1

    ids = [device.id for device in devices(6)]
    for key in ("f|", "g|4"):
        assert scores(key, ids).tolist() == [mixed(digest(name) ^ digest(key)) for name in ids]


@pytest.mark.parametrize(
    "name", ["eft", "least_loaded", "round_robin", "consistent_hash", "work_stealing", "migration"]
)
def test_a_task_that_can_run_nowhere_does_not_keep_the_others_back(name: str) -> None:
    tasks = [task(1, inf, inf), task(2, inf, 1.0), task(3, inf, inf), task(4, 1.0, inf)]
    assert asked(name, fleet(2, room=[2, 2], backlog=4), *tasks) == [(2, 1), (4, 0)]


def test_hashes_are_remembered_for_the_fleet_that_they_belong_to() -> None:
    memory = get("consistent_hash").propose(fleet(3), (), None)[1]
    assert get("consistent_hash").propose(fleet(3), (), memory)[1] is memory
    assert get("consistent_hash").propose(fleet(2), (), memory)[1] is not memory


# work stealing


@given(SOME, st.data())
@settings(max_examples=40)
def test_the_home_of_a_task_is_the_one_that_its_id_falls_on(count: int, data: st.DataObject) -> None:
    view, tasks = drawn(data, count)
    expected = []
    for each in tasks:
        able = [d for d in range(count) if view.ready[d] and isfinite(each.seconds[d])]
        expected += [(each.id, able[each.id % len(able)])] if able else []
    assert asked("work_stealing", view, *tasks) == expected


def test_a_device_that_is_busy_gone_or_just_given_a_task_steals_nothing() -> None:
    waiting = held(0, task(1, 1.0, 1.0), task(3, 1.0, 1.0))
    view = fleet(2, queued=[3, 0], available_s=[3.0, 0.0], waiting=waiting)
    assert asked("work_stealing", view) == [(1, 1)]
    assert asked("work_stealing", view, task(5, 1.0, 1.0)) == [(5, 1)]
    assert asked("work_stealing", fleet(2, queued=[3, 1], available_s=[3.0, 0.0], waiting=waiting)) == []
    gone = fleet(2, queued=[3, 0], ready=[True, False], available_s=[3.0, 0.0], waiting=waiting)
    assert asked("work_stealing", gone) == []


def test_thieves_go_on_until_no_queue_has_what_would_end_sooner_with_them() -> None:
    tasks = [task(number, 1.0, 1.0, 1.0, 1.0) for number in range(1, 7)]
    view = fleet(
        4, queued=[4, 3, 0, 0], available_s=[4.0, 3.0, 0.0, 0.0], waiting=(*held(0, *tasks[:3]), *held(1, *tasks[3:5]))
    )
    assert asked("work_stealing", view) == [(1, 2), (2, 3)]
    one = fleet(4, queued=[2, 2, 0, 0], available_s=[2.0, 2.0, 0.0, 0.0], waiting=held(1, tasks[0]) + held(0, tasks[1]))
    assert asked("work_stealing", one) == [(2, 2), (1, 3)]
    glued = fleet(
        3, queued=[3, 2, 0], available_s=[3.0, 2.0, 0.0],
        waiting=(*held(0, task(1, 1.0, inf, inf), task(2, 1.0, inf, inf)), *held(1, task(3, 1.0, 1.0, 1.0))),
    )  # fmt: skip
    assert asked("work_stealing", glued) == [(3, 2)], "a queue that keeps its tasks does not shield the others"


@pytest.mark.parametrize(("arrive_s", "moves"), [(0.0, True), (0.9, True), (1.0, False), (3.0, False)])
def test_a_thief_counts_the_transfer_and_what_waits_behind_the_task(arrive_s: float, moves: bool) -> None:
    """Task 1 would end at 7 - 2 = 5 s where it is; task 3 cannot run there and counts nothing."""
    first = task(1, 1.0, 2.0, arrive=(0.0, arrive_s))
    waiting = held(0, first, task(2, 2.0, inf), task(3, inf, inf))
    view = fleet(2, now_s=2.0, queued=[4, 0], available_s=[7.0, 1.0], waiting=waiting)
    assert asked("work_stealing", view) == ([(1, 1)] if moves else [])


# migration


def test_use_by_others_makes_the_work_of_a_device_longer() -> None:
    assert asked("migration", fleet(2, now_s=5.0, available_s=[7.0, 6.0]), task(1, 1.0, 1.0)) == [(1, 1)]
    used = fleet(2, now_s=5.0, available_s=[7.0, 6.0], busy_frac=[0.0, 0.75])
    assert asked("migration", used, task(1, 1.0, 1.0), task(2, 1.0, 1.0)) == [(1, 0), (2, 0)]
    own = fleet(2, available_s=[0.0, 1.0], busy_frac=[0.5, 0.0])
    assert asked("migration", own, task(1, 1.0, 9.0), task(2, 1.0, 9.0)) == [(1, 0), (2, 1)]
    full = fleet(2, available_s=[0.1, 9.0], busy_frac=[1.0, 0.0])
    assert asked("migration", full, task(1, 1.0, 1.0)) == [(1, 1)]
    assert asked("migration", fleet(2, available_s=[0.1, 11.0], busy_frac=[1.0, 0.0]), task(1, 1.0, 1.0)) == [(1, 0)]


def test_migration_passes_over_what_cannot_run_and_what_is_gone() -> None:
    view = fleet(3, ready=[False, True, True], available_s=[0.0, 1.0, 2.0])
    assert asked("migration", view, task(1, 1.0, inf, inf), task(2, 1.0, inf, 1.0)) == [(2, 2)]
    assert asked("migration", fleet(2, ready=[False, False]), task(1, 1.0, 1.0)) == []
    assert asked("least_loaded", fleet(2, ready=[False, False]), task(1, 1.0, 1.0)) == []


def test_use_is_that_of_others_and_ours_and_a_device_that_takes_nothing_is_full() -> None:
    used = utilisation(np.array([4.0, 1.0, 0.0, inf]), np.array([0.0, 0.5, 0.5, 0.0]))
    assert used.tolist() == [1.0, 0.625, 0.5, 1.0]
    assert utilisation(np.zeros(2), np.array([0.0, 0.25])).tolist() == [0.0, 0.25]
    assert utilisation(np.array([0.5, 0.25]), np.zeros(2)).tolist() == [1.0, 0.5]


def test_the_newest_task_of_the_device_that_ends_last_moves_while_it_ends_sooner() -> None:
    tasks = [task(number, 2.0, 3.0) for number in range(1, 5)]
    view = fleet(2, queued=[5, 0], available_s=[10.0, 0.0], waiting=held(0, *tasks))
    assert asked("migration", view) == [(4, 1)], "after one the receiver has 3 s of 8 s to do, which is over 0.3"
    long = fleet(2, queued=[5, 0], available_s=[40.0, 0.0], waiting=held(0, *tasks))
    assert asked("migration", long) == [(4, 1), (3, 1), (2, 1), (1, 1)]
    late = fleet(2, queued=[2, 0], available_s=[3.0, 0.0], waiting=held(0, tasks[0]))
    assert asked("migration", late) == [], "it would end as late there"


def test_a_move_counts_transfers_use_and_the_end_of_either_queue() -> None:
    def moved(arrive_s: float, busy: float = 0.0) -> list[tuple[int, int]]:
        one = task(1, 2.0, 3.0, arrive=(0.0, arrive_s))
        return asked(
            "migration", fleet(2, queued=[2, 0], available_s=[10.0, 0.0], busy_frac=[0.0, busy], waiting=held(0, one))
        )

    assert moved(6.5) == [(1, 1)]
    assert moved(7.0) == []
    assert moved(5.9, 0.25) == [(1, 1)]
    assert moved(6.0, 0.25) == []
    assert moved(0.0, 0.3) == []
    both = held(0, task(1, 1.0, 9.0, 1.0)) + held(1, task(2, 9.0, 1.0, 1.0))
    view = fleet(3, queued=[2, 2, 0], available_s=[8.0, 9.0, 0.0], waiting=both)
    assert asked("migration", view) == [(2, 2), (1, 2)]


def test_a_receiver_is_used_less_than_the_threshold_and_slowed_by_others() -> None:
    at = fleet(
        2, queued=[2, 0], available_s=[10.0, 0.0], busy_frac=[0.0, THRESHOLD_FRAC], waiting=held(0, task(1, 1.0, 1.0))
    )
    assert asked("migration", at) == []
    slowed = fleet(2, queued=[2, 0], available_s=[4.0, 0.0], busy_frac=[0.0, 0.25], waiting=held(0, task(1, 2.0, 3.5)))
    assert asked("migration", slowed) == []


# planned


def plan(ahead: Ahead, device: Sequence[int], start_s: Sequence[float], urgent: Sequence[float] = ()) -> RemainingPlan:
    """Return a plan that is up to date, so that it is followed as it is."""
    ranks = np.array(urgent or [0.0] * len(device))
    starts = np.array(start_s)
    return RemainingPlan(
        ahead.version, ahead.table, len(device), np.array(device), starts, starts + 1.0, 9.0,
        Ranks(ranks, ranks, ranks, np.empty((0, 0))), 0, 0,
    )  # fmt: skip


def followed(
    ahead: Ahead, made: RemainingPlan, view: View, ready: Sequence[int], ahead_s: float = 0.1, **arrive: Sequence[float]
) -> list[tuple[int, int]]:
    view.ahead = ahead
    tasks = [task(slot, *ahead.graph.seconds[slot], arrive=arrive.get(f"of{slot}")) for slot in ready]
    proposals, memory = Planned(ahead_s=ahead_s).propose(view, tasks, made)
    assert memory is made
    return [tuple(each) for each in proposals]


def test_each_device_starts_what_the_plan_gives_it_first() -> None:
    ahead = loose([[1.0, 1.0]] * 4, 0.1)
    made = plan(ahead, [0, 1, 1, 0], [1.0, 1.0, 0.0, 0.0])
    assert followed(ahead, made, fleet(2, room=[2, 1]), range(4)) == [(3, 0), (2, 1)]
    assert followed(ahead, made, fleet(2, room=[0, 1]), range(4)) == [(2, 1)]
    assert followed(ahead, made, fleet(2, ready=[True, False]), range(4)) == [(3, 0)]
    equal = plan(ahead, [0, 0, 0, 0], [2.0, 0.0, 0.0, 2.0])
    assert followed(ahead, equal, fleet(2), (3, 2, 1, 0)) == [(1, 0)]


@pytest.mark.parametrize(("seconds", "proposed"), [(1.0, [(1, 0)]), (2.0, [(1, 0)]), (2.5, [])])
def test_while_the_next_task_is_not_ready_one_that_ends_before_it_begins_goes_first(
    seconds: float, proposed: list[tuple[int, int]]
) -> None:
    ahead = loose([[1.0, 9.0], [seconds, 9.0]], 0.1)
    made = plan(ahead, [0, 0], [5.0, 6.0])
    busy = fleet(2, now_s=3.0, available_s=[3.0, 5.0], queued=[0, 1])
    assert followed(ahead, made, busy, (1,)) == proposed


@pytest.mark.parametrize(
    ("left_s", "arrive_s", "given"),
    [(0.125, 0.0, True), (0.25, 0.0, True), (0.5, 0.0, False), (0.5, 0.09, False), (0.5, 0.1, True), (0.5, 4.0, True)],
)
def test_a_busy_device_has_its_next_task_shortly_before_it_is_free_or_as_its_inputs_travel(
    left_s: float, arrive_s: float, given: bool
) -> None:
    ahead = loose([[1.0]], 0.1)
    made = plan(ahead, [0], [0.0])
    view = fleet(1, now_s=2.0, queued=[1], available_s=[2.0 + left_s])
    assert followed(ahead, made, view, (0,), ahead_s=0.25, of0=(arrive_s,)) == ([(0, 0)] if given else [])
    idle = fleet(1, now_s=2.0, queued=[0], available_s=[2.0 + left_s])
    assert followed(ahead, made, idle, (0,), of0=(arrive_s,)) == [(0, 0)]


def test_a_waiting_task_is_moved_to_where_the_plan_has_it_now_and_left_where_it_is_there() -> None:
    ahead = loose([[1.0, 1.0]] * 2, 0.1)
    made = plan(ahead, [1, 1], [0.0, 1.0])
    seconds = task(0, 1.0, 1.0)
    moved = fleet(2, queued=[2, 0], waiting=held(0, seconds))
    assert followed(ahead, made, moved, ()) == [(0, 1)]
    there = fleet(2, queued=[0, 1], available_s=[0.0, 0.05], waiting=held(1, seconds))
    assert followed(ahead, made, there, ()) == []


def test_a_task_that_the_plan_does_not_know_goes_where_it_ends_first_if_there_is_room() -> None:
    ahead = loose([[1.0, 1.0]] * 5, 0.1)
    made = plan(ahead, [0, 0, 0, 0], [0.0, 1.0, 2.0, 3.0])
    view = fleet(2, queued=[1, 0], available_s=[4.0, 0.0])
    assert followed(ahead, made, view, (4,)) == [(4, 1)]
    assert followed(ahead, made, fleet(2, queued=[1, 0], available_s=[4.0, 3.5], room=[1, 0]), (4,)) == []
    far = fleet(2, now_s=1.0, queued=[1, 1], available_s=[4.0, 1.0])
    assert followed(ahead, made, far, (4,), of4=(0.0, 2.5)) == [(4, 1)]
    assert followed(ahead, made, far, (4,), of4=(0.0, 3.5)) == [(4, 0)]


def test_a_device_whose_room_the_plan_used_takes_no_new_task_beside() -> None:
    ahead = loose([[1.0, 9.0]] * 5, 0.1)
    made = plan(ahead, [0, 0, 0, 0], [0.0, 1.0, 2.0, 3.0])
    assert followed(ahead, made, fleet(2), (0, 4)) == [(0, 0)]
    assert followed(ahead, made, fleet(2, room=[2, 1]), (0, 4)) == [(0, 0), (4, 0)]
    assert followed(ahead, made, fleet(2, room=[3, 1]), (0, 4, 1)) == [(0, 0), (4, 0)]


def test_where_nothing_runs_and_the_plan_starts_nothing_what_is_ready_goes_where_it_ends_first() -> None:
    ahead = loose([[1.0, 3.0], [7.0, 9.0]], 0.1)
    made = plan(ahead, [0, 0], [5.0, 6.0])
    assert followed(ahead, made, fleet(2), (1,)) == [(1, 0)]
    assert followed(ahead, made, fleet(2, queued=[0, 1]), (1,)) == []
    assert followed(ahead, made, fleet(2, queued=[0, 1], ready=[True, False]), (1,)) == [(1, 0)]


def test_what_the_plan_has_where_it_cannot_run_is_placed_anew() -> None:
    ahead = loose([[inf, 1.0], [1.0, 1.0]], 0.1)
    made = plan(ahead, [0, 1], [0.0, 7.0])
    assert followed(ahead, made, fleet(2, queued=[1, 1], available_s=[9.0, 9.0]), (0,)) == [(0, 1)]


def test_once_times_have_strayed_an_idle_device_takes_what_it_ends_before_the_plan_begins_it() -> None:
    def proposed(error: float, start_s: float, arrive_s: float = 0.0) -> list[tuple[int, int]]:
        ahead = loose([[1.0, 2.0]] * 3, error)
        made = plan(ahead, [0, 0, 0], [0.0, start_s, start_s], urgent=(9.0, 1.0, 2.0))
        view = fleet(2, now_s=1.0, available_s=[1.5, 1.0], queued=[1, 0], room=[1, 3])
        ready = range(3)
        return followed(ahead, made, view, ready, of1=(0.0, arrive_s), of2=(0.0, arrive_s))

    assert proposed(0.6, 3.0) == []
    assert proposed(0.8, 3.0) == [(2, 1), (1, 1)]
    assert proposed(0.8, 2.9) == []
    assert proposed(0.8, 3.5, 0.5) == [(2, 1), (1, 1)]
    assert proposed(0.8, 3.0, 0.5) == []


def test_a_device_that_has_strayed_work_but_no_room_takes_nothing_more() -> None:
    ahead = loose([[1.0, 2.0]] * 3, 0.8)
    made = plan(ahead, [0, 0, 0], [0.0, 3.0, 3.0])
    view = fleet(2, now_s=0.0, available_s=[0.5, 0.0], queued=[1, 0], room=[1, 0])
    assert followed(ahead, made, view, range(3)) == []


def test_without_a_graph_ahead_the_plan_is_earliest_finish_time() -> None:
    tasks = [task(1, 2.0, 1.0), task(2, 2.0, 1.0)]
    assert asked("planned", fleet(2), *tasks) == asked("eft", fleet(2), *tasks)
    done = loose([[1.0, 1.0]], 0.1)._replace(open=0)
    assert asked("planned", fleet(2, backlog=2), *tasks, memory="kept") == asked("eft", fleet(2, backlog=2), *tasks)
    view = fleet(2)
    view.ahead = done
    assert Planned().propose(view, tasks, "kept")[1] == "kept"


def test_a_plan_is_made_anew_when_something_changed_or_a_quarter_more_tasks_are_known() -> None:
    for count, version, kept in ((5, 1, True), (6, 1, False), (4, 2, False), (4, 1, True)):
        ahead = loose([[1.0, 2.0]] * count, 0.1)
        made = plan(ahead, [0] * 4, [0.0, 1.0, 2.0, 3.0])
        view = fleet(2)
        view.ahead = ahead._replace(version=version)
        memory = Planned().propose(view, [], made)[1]
        assert (memory is made) == kept, (count, version)
        assert isinstance(memory, RemainingPlan)


def test_a_new_plan_waits_for_a_device_that_starts_and_for_none_that_is_lost_with_its_tasks() -> None:
    ahead = loose([[1.0, 9.0]], 0.1)
    for queued, available_s, device in ((0, 2.0, 0), (0, 9.0, 1), (1, 2.0, 1)):
        view = fleet(2, ready=[False, True], available_s=[available_s, 0.0], queued=[queued, 0])
        view.ahead = ahead
        memory = Planned().propose(view, [], None)[1]
        assert isinstance(memory, RemainingPlan)
        assert int(memory.device[0]) == device


def test_the_core_is_told_the_plan_and_nothing_before_there_is_one() -> None:
    ahead = loose([[1.0, 2.0]] * 2, 0.1)
    told = plan_of(get("planned"))
    assert told is not None
    assert told(None) is None
    found = told(plan(ahead, [1, 0], [3.0, 4.0]))
    assert found is not None
    assert (found.device.tolist(), found.start_s.tolist()) == ([1, 0], [3.0, 4.0])
    assert plan_of(get("eft")) is None


# the registry


def test_each_policy_declares_what_the_core_may_rely_on() -> None:
    def declared(name: str) -> list[str]:
        return [word for word, holds in asdict(traits(get(name))).items() if holds]

    assert {name: declared(name) for name in registry.OURS} == {
        "eft": ["lazy_sends", "lone_to_fastest"], "planned": ["looks_ahead"], "least_loaded": [], "round_robin": [],
        "consistent_hash": [], "work_stealing": [], "migration": ["watches_use"],
    }  # fmt: skip


def test_a_policy_of_another_package_is_found_by_name_and_refused_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def point(name: str, value: str = "hetero.plan.policies.round_robin:RoundRobin") -> EntryPoint:
        return EntryPoint(name, value, registry.GROUP)

    monkeypatch.setattr(
        registry, "entry_points", lambda group: (point("zeta"), point("eft"), point("alpha", "nowhere:It"))
    )
    assert names() == (*registry.OURS, "auto", "alpha", "zeta")
    assert get("zeta").name == "round_robin"
    assert get("eft").name == "eft"
    assert why_unusable(point("zeta")) == ""
    assert why_unusable(point("eft")) == "the name 'eft' is taken"
    assert why_unusable(point("auto")) == "the name 'auto' is taken"
    assert why_unusable(point("alpha", "nowhere:It")).startswith("policy 'alpha' of nowhere:It cannot be loaded")
    policy, reason = choose(devices(1))
    assert policy.name == "eft"
    assert "; policy 'alpha' of nowhere:It" in reason
