"""Gradients of several processes are added up alike in memory that they share and in rows of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hetero.comm import shared_memory  # noqa: E402
from hetero.comm.group import Group, open_rendezvous  # noqa: E402
from hetero.train.launch import parameter_rows  # noqa: E402
from hetero.train.launch.parameter_rows import ParameterRows, add_up  # noqa: E402

_SHAPES = ((3, 5), (7,), (), (2, 2, 2), (300,))


def _parameters(rank: int, seed: int) -> list[torch.Tensor]:
    """Return parameters with gradients: of several types, some without, some sparse, some that nobody has."""
    rng, common = np.random.default_rng([seed, rank]), np.random.default_rng(seed)
    found = []
    for number in range(12):
        dtype = [torch.float64, torch.float32, torch.float16][int(common.integers(3))]
        one = torch.zeros(_SHAPES[int(common.integers(len(_SHAPES)))], dtype=dtype, requires_grad=bool(number % 5))
        everybody, nobody = common.random() < 0.6, common.random() < 0.2
        there = one.requires_grad and not nobody and (everybody or rng.random() < 0.5)
        if there:
            one.grad = torch.tensor(rng.integers(-8, 8, one.shape) / 4.0, dtype=dtype)
        if there and one.dim() == 2 and dtype == torch.float32 and rng.random() < 0.5:
            one.grad = one.grad.to_sparse()
        found.append(one)
    return found


def _members(world: int, member: Callable[[Group], object]) -> list[object]:
    store, meeting = open_rendezvous("rows", world)

    def run(rank: int) -> object:
        group = Group(rank, world, meeting, store if rank == 0 else None)
        try:
            return member(group)
        finally:
            group.close()

    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(run, range(world)))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("factor", [1.0, 0.5])
@pytest.mark.parametrize("memory", ["plenty", "little"])
def test_sums_in_shared_memory_are_those_of_rows(
    world: int, factor: float, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_rows, "_PART_BYTES", 100)
    if memory == "little":  # the parts of 300 numbers have no room
        monkeypatch.setattr(shared_memory, "_BYTES", 6000)
    header = np.arange(3.0)

    def member(group: Group) -> list[object]:
        found: list[object] = []
        for seed in range(10):
            for whole_rows in (False, True):
                heard: list[list[float]] = []
                rows = [
                    ParameterRows("A", list(map(str, range(12))), _parameters(group.rank, seed + 100 * part))
                    for part in range(2)
                ]

                def hear(numbers: np.ndarray, heard: list[list[float]] = heard) -> float:
                    heard.append(numbers.tolist())
                    return factor

                add_up(rows, group, header, hear, whole_rows=whole_rows)
                gradients = [one.grad for each in rows for one in each.parameters]
                found.append((heard, [None if each is None else each.to_dense().tolist() for each in gradients]))
        return found

    everywhere = _members(world, member)
    for found in everywhere:
        assert found == everywhere[0]
        assert found[::2] == found[1::2]
    for seed in range(10):
        parts = [[each for part in range(2) for each in _parameters(rank, seed + 100 * part)] for rank in range(world)]
        want = [
            (factor * sum(there)).tolist() if there else None
            for same in zip(*parts, strict=True)
            for there in [[each.grad.to_dense().double() for each in same if each.grad is not None]]
        ]
        heard, got = everywhere[0][2 * seed]
        assert heard == [(world * header).tolist()]
        assert got == want


def test_gradients_travel_in_few_parts_of_which_three_have_room() -> None:
    rows = ParameterRows("A", ["a"] * 32, [torch.empty(1 << 17, requires_grad=True) for _ in range(32)])  # 16 MiB
    for members, parts in ((2, 1), (3, 2), (8, 4), (16, 8)):
        cut = rows.parts(members)
        assert len(cut) == parts
        assert 3 * members * max(sum(each.nbytes for each in part.parameters) for part in cut) < shared_memory._BYTES
