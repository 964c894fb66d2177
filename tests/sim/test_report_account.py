from __future__ import annotations

import pytest

from hetero.model.annotations import CollectiveDone
from hetero.model.commands import Commit, Run, RunGroup, Transfer
from hetero.model.events import DeviceReady, TaskFailed, TaskFinished, TaskSubmitted, TransferFinished
from hetero.report.account import CATEGORIES, account
from hetero.report.best_possible import best_possible
from hetero.report.trace_reader import collect
from tests.sim.report_runs import run, swept, with_collectives, with_parts

CHECKED = (TaskSubmitted, Run, RunGroup, TaskFinished, TaskFailed, Commit, Transfer, TransferFinished, DeviceReady)


def _is_same(seed: int, rough: bool) -> None:
    records, devices = run(seed, rough=rough)
    records = with_parts(records, seed) if seed % 3 else with_collectives(records, seed)
    given = account(collect(records, devices))
    assert given.problems == (), seed
    for mine, theirs in zip(given.seconds, swept(records, devices), strict=True):
        assert sum(mine.values()) == pytest.approx(given.span_s, abs=1e-9)
        for name in CATEGORIES:
            assert mine[name] == pytest.approx(theirs.get(name, 0.0), abs=1e-9), (seed, name)


@pytest.mark.parametrize("rough", [False, True])
def test_each_category_is_what_a_sweep_over_the_events_finds(rough: bool) -> None:
    for seed in range(40):
        _is_same(seed, rough)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.timeout(600)
def test_each_category_is_what_a_sweep_finds_on_a_thousand_runs() -> None:
    for seed in range(1000):
        _is_same(seed, rough=seed % 2 == 0)


def test_parts_are_found_in_the_account_and_a_trace_without_them_is_read() -> None:
    records, devices = run(1, rough=False)
    told, bare = account(collect(with_parts(records, 1), devices)), account(collect(records, devices))
    for name in ("loading", "storing", "waiting for memory"):
        assert told.total_s(name) > 0.0 == bare.total_s(name)
    assert told.problems == bare.problems == ()


@pytest.mark.slow
def test_an_event_that_is_dropped_makes_the_check_fail() -> None:
    dropped = set()
    for seed in (3, 4, 6, 7):
        records, devices = run(seed, rough=False, count=25)
        used = {record.device for _, record in records if isinstance(record, Run | TaskFinished)}
        for place, (_, record) in enumerate(records):
            if isinstance(record, CHECKED) and not (isinstance(record, DeviceReady) and record.device not in used):
                assert account(collect(records[:place] + records[place + 1 :], devices)).problems, (seed, record)
                dropped.add(type(record))
    assert dropped >= set(CHECKED) - {TaskFailed}


def test_a_collective_that_is_dropped_moved_or_told_twice_makes_the_check_fail() -> None:
    dropped = 0
    for seed in range(12):
        records, devices = run(seed, rough=False, count=25)
        records = with_collectives(records, seed)
        for place, (at_s, record) in enumerate(records):
            if isinstance(record, CollectiveDone):
                before, after = records[:place], records[place + 1 :]
                moved = (at_s, record._replace(started_s=record.started_s + 5.0))
                for changed in (
                    [*before, *after],
                    [*before, moved, *after],
                    [*before, *records[place:][:1] * 2, *after],
                ):
                    assert account(collect(changed, devices)).problems, (seed, record)
                dropped += 1
    assert dropped > 10


def test_an_event_that_overlaps_another_makes_the_check_fail() -> None:
    records, devices = run(4, rough=False, count=25)
    last: dict[str, int] = {}
    for place, (at_s, record) in enumerate(records):
        if isinstance(record, TaskFinished):
            if record.device in last:
                longer = record._replace(started_s=record.started_s - 0.05, seconds=record.seconds + 0.05)
                changed = [*records[:place], (at_s, longer), *records[place + 1 :]]
                problems = account(collect(changed, devices)).problems
                assert any("at the same time" in problem for problem in problems)
            last[record.device] = place
    assert last


def _is_below(seed: int, rough: bool) -> None:
    records, devices = run(seed, rough=rough)
    found = collect(records, devices)
    best = best_possible(found)
    assert 0.0 <= best.seconds <= found.span_s + 1e-9, seed
    assert best.seconds <= found.makespan_s + found.span_s * 1e-9 + best.quiet_s, seed


@pytest.mark.slow
@pytest.mark.parametrize("rough", [False, True])
def test_the_lower_bound_is_never_above_what_the_run_took(rough: bool) -> None:
    for seed in range(40):
        _is_below(seed, rough)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hundreds", range(0, 10, 2))
def test_the_lower_bound_is_never_above_what_the_run_took_on_a_thousand_runs(hundreds: int) -> None:
    for seed in range(100 * hundreds, 100 * hundreds + 200):
        _is_below(seed, rough=seed % 2 == 0)


def test_times_of_pairs_that_never_ran_are_counted_as_estimates() -> None:
    records, devices = run(6, rough=False, count=3)
    few = best_possible(collect(records, devices))
    records, devices = run(6, rough=False, count=200)
    many = best_possible(collect(records, devices))
    assert 0 < few.estimated <= few.pairs
    assert many.estimated / many.pairs < few.estimated / few.pairs
