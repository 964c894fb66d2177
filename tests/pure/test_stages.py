"""The plan of stages is the best there is, fits into the memories, and predicts what a pipeline takes."""

from __future__ import annotations

from itertools import combinations, permutations
from math import inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.plan.training.stages import (
    LayerChain,
    best_alone,
    fixed_stages,
    one_forward_one_backward,
    pipeline_s,
    plan_stages,
)

UNLIMITED = (inf, inf, inf, inf)


@st.composite
def chains(draw: st.DrawFn) -> LayerChain:
    layers, devices = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    numbers = st.integers(0, 9)

    def row(of: st.SearchStrategy[float], count: int) -> list[float]:
        return draw(st.lists(of, min_size=count, max_size=count))

    crossings = [
        [[0 if a == b else draw(numbers) for b in range(devices)] for a in range(devices)] for _ in range(layers)
    ]
    return LayerChain(
        seconds=[row(st.one_of(st.integers(1, 9), st.just(inf)), devices) for _ in range(layers)],
        crossing_s=crossings,
        weight_bytes=row(numbers, layers),
        kept_bytes=row(numbers, layers),
        working_bytes=row(numbers, layers),
        limit_bytes=row(st.sampled_from([inf, 10, 25, 40]), devices),
        micro_batches=draw(st.integers(1, 6)),
    )


def every_plan_s(chain: LayerChain) -> list[float]:
    """Return the step of every way to cut the chain and to place its parts that fits."""
    layers, devices, found = len(chain.seconds), len(chain.limit_bytes), []
    for count in range(1, min(layers, devices) + 1):
        for cuts in combinations(range(1, layers), count - 1):
            bounds = [0, *cuts, layers]
            for order in permutations(range(devices), count):
                needs = [chain.need_bytes(bounds[i], bounds[i + 1], count - 1 - i) for i in range(count)]
                if all(need <= chain.limit_bytes[device] for need, device in zip(needs, order, strict=True)):
                    placed = [(device, bounds[i + 1] - bounds[i]) for i, device in enumerate(order)]
                    found.append(fixed_stages(chain, placed).step_s)
    return found


@given(chains())
def test_no_way_to_cut_and_place_a_chain_is_faster_than_the_plan(chain: LayerChain) -> None:
    least_s = min(every_plan_s(chain), default=inf)
    plan = plan_stages(chain)
    assert isclose(inf if plan is None else plan.step_s, least_s, rel_tol=1e-6)


@given(chains())
def test_a_plan_covers_every_layer_once_on_devices_of_their_own_that_hold_them(chain: LayerChain) -> None:
    plan = plan_stages(chain)
    if plan is None:
        return
    stages = plan.stages
    assert [layer for stage in stages for layer in range(stage.first, stage.end)] == list(range(len(chain.seconds)))
    assert len({stage.device for stage in stages}) == len(stages)
    for number, stage in enumerate(stages):
        need = chain.need_bytes(stage.first, stage.end, len(stages) - 1 - number)
        assert need <= chain.limit_bytes[stage.device]


@given(chains())
def test_a_plan_is_never_slower_than_the_best_device_alone(chain: LayerChain) -> None:
    plan, alone = plan_stages(chain), best_alone(chain)
    assert alone is None or (plan is not None and plan.step_s <= alone.step_s)


def chain(seconds: list[list[float]], crossing_s: float = 0.0, micro_batches: int = 8) -> LayerChain:
    devices, layers = len(seconds[0]), len(seconds)
    table = [[0.0 if a == b else crossing_s for b in range(devices)] for a in range(devices)]
    nothing = [0.0] * layers
    return LayerChain(seconds, [table] * layers, nothing, nothing, nothing, UNLIMITED[:devices], micro_batches)


def test_each_kind_of_layer_goes_to_the_device_that_is_fast_at_it() -> None:
    plan = plan_stages(chain([[1.0, 9.0], [1.0, 9.0], [9.0, 2.0]]))
    assert plan is not None
    assert [(stage.device, stage.first, stage.end) for stage in plan.stages] == [(0, 0, 2), (1, 2, 3)]


def test_a_slow_link_keeps_a_model_on_one_device() -> None:
    plan = plan_stages(chain([[1.0, 1.0]] * 4, crossing_s=20.0))
    assert plan is not None
    assert len(plan.stages) == 1


def test_of_equal_plans_one_device_wins() -> None:
    plan = plan_stages(chain([[1.0, 1.0]] * 2, micro_batches=1))
    assert plan is not None
    assert len(plan.stages) == 1


def test_a_hundred_layers_on_four_devices_are_planned() -> None:
    plan = plan_stages(chain([[1.0 + layer % 3, 2.0, 3.0 - layer % 2, 4.0] for layer in range(100)], 0.1))
    assert plan is not None
    assert len(plan.stages) == 4


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 9))
def test_the_predicted_step_is_that_of_a_pipeline_run_by_hand(periods_s: list[int], micro_batches: int) -> None:
    ends_s = [0.0] * len(periods_s)
    for _ in range(micro_batches):
        arrived_s = 0.0
        for stage, period_s in enumerate(periods_s):
            ends_s[stage] = arrived_s = max(ends_s[stage], arrived_s) + period_s
    assert pipeline_s(periods_s, micro_batches) == ends_s[-1]


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_one_forward_one_backward_ends_and_keeps_few_micro_batches_in_flight(stages: int, micro_batches: int) -> None:
    orders = [list(one_forward_one_backward(stage, stages, micro_batches)) for stage in range(stages)]
    done: set[tuple[bool, int, int]] = set()
    flying = [0] * stages
    while any(orders):
        ready = [stage for stage, order in enumerate(orders) if order and can_run(done, stage, stages, *order[0])]
        assert ready, "the stages wait for each other"
        for stage in ready:
            forward, number = orders[stage].pop(0)
            done.add((forward, stage, number))
            flying[stage] += 1 if forward else -1
            assert flying[stage] <= stages - stage
    assert flying == [0] * stages


def can_run(done: set[tuple[bool, int, int]], stage: int, stages: int, forward: bool, number: int) -> bool:
    if forward:
        return stage == 0 or (True, stage - 1, number) in done
    return stage == stages - 1 or (False, stage + 1, number) in done
