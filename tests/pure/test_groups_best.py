"""Groups of devices: the best by the bandwidth of their collective, with who must be together and who apart."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.backends.topology import from_matrix
from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.model.fabric import Fabric, FabricPart, Wire
from hetero.plan.collectives.group_search import Search, searched
from hetero.plan.collectives.groups import COLLECTIVES, Terms, best_group, group_bandwidth
from tests.matrices import DGX1_V100, DGX_A100

SHAPES = ("ring", "tree", "pairs")


def _speeds(n: int, seed: int, levels: int) -> np.ndarray:
    draw = np.random.default_rng(seed).integers(0, levels, (n, n)).astype(float)
    speeds = np.minimum(draw, draw.T)
    np.fill_diagonal(speeds, 0.0)
    return speeds


def _fabric(speeds: np.ndarray) -> Fabric:
    parts = tuple(FabricPart(f"d{at:02}", "device") for at in range(len(speeds)))
    wires = tuple(
        Wire(f"d{one:02}", f"d{other:02}", "nvlink", float(speeds[one, other]))
        for one, other in combinations(range(len(speeds)), 2)
        if speeds[one, other]
    )
    return Fabric(parts, wires)


def _brute_force(speeds: np.ndarray, count: int, shape: str) -> float:
    """Inspect every group and, for rings, at every order."""
    best = 0.0
    for members in combinations(range(len(speeds)), count):
        orders = ((members[0], *rest) for rest in permutations(members[1:])) if shape == "ring" else (members,)
        best = max(best, *(group_bandwidth(speeds, order, shape) for order in orders))
    return best


@given(st.integers(3, 6), st.integers(2, 4), st.integers(0, 10**6), st.integers(2, 9))
@settings(max_examples=60, deadline=None)
def test_the_best_group_equals_that_of_every_group_in_every_order(n: int, count: int, seed: int, levels: int) -> None:
    speeds = _speeds(n, seed, levels)
    count = min(count, n)
    for collective, shape in (("all_reduce", "ring"), ("broadcast", "tree"), ("all_to_all", "pairs")):
        best = _brute_force(speeds, count, shape)
        if best == 0.0:
            with pytest.raises(NothingFitsError):
                best_group(_fabric(speeds), count, collective)
        else:
            assert best_group(_fabric(speeds), count, collective).bytes_per_s == best


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", SHAPES)
def test_the_search_for_many_devices_finds_the_best_of_few(seed: int, shape: str) -> None:
    speeds = _speeds(14, seed, 1000)
    collective = next(name for name, its in COLLECTIVES.items() if its == shape)
    best = best_group(_fabric(speeds), 6, collective)
    found = searched(Search(speeds, 6, shape, (), [str(at) for at in range(14)]))
    assert found is not None
    assert group_bandwidth(speeds, found, shape) >= 0.99 * best.bytes_per_s


def test_the_search_keeps_what_must_be_in_and_takes_one_a_place() -> None:
    speeds = _speeds(24, 5, 50) + 1.0
    np.fill_diagonal(speeds, 0.0)
    homes = [str(at // 3) for at in range(24)]
    found = searched(Search(speeds, 5, "ring", (4, 20), homes))
    assert found is not None
    assert {4, 20} <= set(found)
    assert len({homes[at] for at in found}) == 5


def test_four_of_a_cube_of_nvlinks_are_a_ring_of_nvlinks() -> None:
    fabric = from_matrix(DGX1_V100)
    group = best_group(fabric, 4, terms=Terms(include=("cuda:0",)))
    pairs = zip(group.devices, (*group.devices[1:], group.devices[0]), strict=True)
    assert group.exact
    assert all(fabric.path(*pair).hops <= 4 for pair in pairs)
    assert group.bytes_per_s >= 25e9


def test_between_equals_the_pair_on_the_wider_link_is_taken() -> None:
    group = best_group(from_matrix(DGX1_V100), 2)
    assert group.bytes_per_s == 50e9


def test_within_spread_near_and_apart_are_kept() -> None:
    fabric = from_matrix(DGX_A100)
    near = best_group(fabric, 2, terms=Terms(near=(("cuda:4", "numa"),)))
    assert set(near.devices) == {"h0/cuda:4", "h0/cuda:5"}
    spread = best_group(fabric, 4, terms=Terms(spread="numa"))
    assert len({fabric.place(name, "numa") for name in spread.devices}) == 4
    apart = best_group(fabric, 6, terms=Terms(apart=(("cuda:0", "numa"),)))
    assert not {"h0/cuda:0", "h0/cuda:1"} & set(apart.devices)
    within = best_group(fabric, 2, terms=Terms(within="pcie", exclude=("cuda:0", "cuda:2", "cuda:4")))
    assert set(within.devices) == {"h0/cuda:6", "h0/cuda:7"}


@pytest.mark.parametrize(
    ("count", "terms", "told"),
    [
        (9, Terms(), "8 of 8 devices meet the terms"),
        (3, Terms(within="numa"), "2 of 8 devices meet the terms"),
        (5, Terms(spread="numa"), "no more than 4 different places by numa"),
        (2, Terms(include=("cuda:0",), apart=(("cuda:0", "numa"),)), "0 of 8"),
    ],
)
def test_a_group_that_cannot_be_is_refused_with_the_reason(count: int, terms: Terms, told: str) -> None:
    with pytest.raises(NothingFitsError, match=told):
        best_group(from_matrix(DGX_A100), count, terms=terms)


def test_words_that_nobody_knows_are_refused() -> None:
    fabric = from_matrix(DGX_A100)
    with pytest.raises(BadValueError, match="did you mean 'all_reduce'"):
        best_group(fabric, 2, "allreduce")
    with pytest.raises(BadValueError, match="did you mean 'numa'"):
        best_group(fabric, 2, terms=Terms(within="nuna"))
    with pytest.raises(BadValueError, match="no part 'cuda:9'"):
        best_group(fabric, 2, terms=Terms(include=("cuda:9",)))
    with pytest.raises(BadValueError, match="both included and excluded"):
        best_group(fabric, 2, terms=Terms(include=("cuda:0",), exclude=("cuda:0",)))


def test_a_ring_of_eight_moves_seven_eighths_twice() -> None:
    group = best_group(from_matrix(DGX_A100), 8)
    assert group.seconds(8e9) == pytest.approx(2 * 7e9 / 300e9)


def test_the_former_module_of_groups_still_imports_and_warns() -> None:
    import importlib

    with pytest.warns(DeprecationWarning, match=r"hetero\.plan\.collectives\.groups"):
        former = importlib.reload(importlib.import_module(".groups", "hetero.plan"))
    assert former.best_group is best_group
