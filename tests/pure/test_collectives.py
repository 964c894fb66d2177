"""Collectives as plans: every member ends with the sum, links carry what the formula says, nobody waits in vain."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.plan.collectives.choose import Links, choose, pipelined, ring_s, tree_s
from hetero.plan.collectives.steps import (
    CollectivePiece,
    Step,
    chunks,
    owned_pieces,
    ring_pieces,
    split,
    steps_of,
    tree_pieces,
)
from hetero.plan.collectives.trees import MemberTree, balanced_tree, capped_tree, ring_path

_MBIT = 125_000.0


class Network:
    """Carries schedules out without any buffer: a transfer happens when both ends are ready, in any such order.

    Attributes
    ----------
    rows : what each member holds
    sent : elements by (sender, receiver)
    """

    def __init__(self, schedules: list[tuple[Step, ...]], rows: list[np.ndarray]) -> None:
        self.schedules = schedules
        self.rows = rows
        self.sent: Counter[tuple[int, int]] = Counter()
        self._done: list[set[int]] = [set() for _ in schedules]

    def run(self, chance: random.Random) -> None:
        """Let transfers happen until there is none; all steps must have been done."""
        while ready := self._ready():
            self._transfer(*chance.choice(ready))
        for steps, done in zip(self.schedules, self._done, strict=True):
            assert len(done) == len(steps), "members wait for each other"

    def total(self) -> np.ndarray:
        """Return the sum of all rows."""
        total: np.ndarray = np.stack(self.rows).sum(axis=0)
        return total

    def _heads(self, rank: int) -> dict[tuple[int, bool], int]:
        heads: dict[tuple[int, bool], int] = {}
        for index, step in enumerate(self.schedules[rank]):
            if index not in self._done[rank]:
                heads.setdefault((step.peer, step.action == "send"), index)
        return {
            end: index
            for end, index in heads.items()
            if self.schedules[rank][index].after < 0 or self.schedules[rank][index].after in self._done[rank]
        }

    def _ready(self) -> list[tuple[int, int, int, int]]:
        heads = [self._heads(rank) for rank in range(len(self.schedules))]
        return [
            (rank, index, peer, heads[peer][rank, False])
            for rank, own in enumerate(heads)
            for (peer, sends), index in own.items()
            if sends and (rank, False) in heads[peer]
        ]

    def _transfer(self, rank: int, index: int, peer: int, at_peer: int) -> None:
        sent, got = self.schedules[rank][index], self.schedules[peer][at_peer]
        assert sent[2:4] == got[2:4], "the two ends of a connection disagree"
        data = self.rows[rank][sent.begin : sent.end]
        target = self.rows[peer][got.begin : got.end]
        target[:] = data if got.action == "copy" else target + data
        self.sent[rank, peer] += sent.end - sent.begin
        self._done[rank].add(index)
        self._done[peer].add(at_peer)


def _tree(size: int, chance: random.Random) -> MemberTree:
    names = chance.sample(range(size), size)
    parents = [-1] * size
    for place in range(1, size):
        parents[names[place]] = names[chance.randrange(place)]
    return MemberTree(tuple(parents))


def _network(
    size: int, count: int, pieces: list[CollectivePiece], *, reduce: bool = True, broadcast: bool = True
) -> Network:
    schedules = [steps_of(rank, pieces, reduce=reduce, broadcast=broadcast) for rank in range(size)]
    rows = [np.arange(count, dtype=np.int64) + 1000 * 3**rank for rank in range(size)]
    return Network(schedules, rows)


sizes = st.integers(1, 9)
counts = st.integers(0, 40)
chunk_sizes = st.integers(1, 12)
chances = st.randoms(use_true_random=False)


@given(sizes, counts, chunk_sizes, chances)
def test_a_ring_leaves_the_sum_with_everyone(size: int, count: int, chunk: int, chance: random.Random) -> None:
    network = _network(size, count, ring_pieces(count, size, chunk))
    total = network.total()
    network.run(chance)
    for row in network.rows:
        np.testing.assert_array_equal(row, total)


@given(sizes, counts, chunk_sizes, chances)
def test_any_tree_leaves_the_sum_with_everyone(size: int, count: int, chunk: int, chance: random.Random) -> None:
    network = _network(size, count, tree_pieces(count, chunk, _tree(size, chance)))
    total = network.total()
    network.run(chance)
    for row in network.rows:
        np.testing.assert_array_equal(row, total)


@given(sizes, counts, chunk_sizes, chances)
def test_pieces_on_different_trees_do_not_block_each_other(
    size: int, count: int, chunk: int, chance: random.Random
) -> None:
    trees = [_tree(size, chance) for _ in range(3)]
    cut = enumerate(chunks(0, count, chunk))
    pieces = [CollectivePiece(begin, end, trees[number % 3], chance.randrange(4)) for number, (begin, end) in cut]
    network = _network(size, count, pieces)
    total = network.total()
    network.run(chance)
    for row in network.rows:
        np.testing.assert_array_equal(row, total)


@given(st.integers(2, 9), st.integers(1, 4), chunk_sizes, chances)
def test_a_ring_sends_no_more_than_its_bound(size: int, each: int, chunk: int, chance: random.Random) -> None:
    network = _network(size, size * each, ring_pieces(size * each, size, chunk))
    network.run(chance)
    for rank in range(size):
        neighbours = {(rank, (rank + 1) % size), (rank, (rank - 1) % size)}
        assert sum(network.sent[each_way] for each_way in neighbours) == 2 * (size - 1) * each
        assert all(pair in neighbours for pair in network.sent if pair[0] == rank)


@given(st.integers(2, 9), st.integers(1, 40), chunk_sizes, chances)
def test_a_tree_sends_the_row_once_over_each_connection_and_direction(
    size: int, count: int, chunk: int, chance: random.Random
) -> None:
    tree = _tree(size, chance)
    network = _network(size, count, tree_pieces(count, chunk, tree))
    network.run(chance)
    edges = {(member, parent) for member, parent in enumerate(tree.parents) if parent >= 0}
    assert network.sent == dict.fromkeys(edges | {(parent, member) for member, parent in edges}, count)


@given(sizes, counts, chunk_sizes, st.booleans(), chances)
def test_gathering_brings_every_part_to_everyone(
    size: int, count: int, chunk: int, in_waves: bool, chance: random.Random
) -> None:
    tree = _tree(size, chance)
    network = _network(size, count, owned_pieces(count, size, chunk, tree.rerooted, in_waves=in_waves), reduce=False)
    parts = split(count, size)
    expected = np.concatenate([network.rows[rank][begin:end].copy() for rank, (begin, end) in enumerate(parts)])
    network.run(chance)
    for row in network.rows:
        np.testing.assert_array_equal(row, expected)


@given(sizes, counts, chunk_sizes, st.booleans(), chances)
def test_reduce_scatter_leaves_each_owner_its_part_of_the_sum(
    size: int, count: int, chunk: int, in_waves: bool, chance: random.Random
) -> None:
    tree = _tree(size, chance)
    network = _network(size, count, owned_pieces(count, size, chunk, tree.rerooted, in_waves=in_waves), broadcast=False)
    total = network.total()
    network.run(chance)
    for rank, (begin, end) in enumerate(split(count, size)):
        np.testing.assert_array_equal(network.rows[rank][begin:end], total[begin:end])


@given(sizes, chances)
def test_a_tree_with_another_root_has_the_same_neighbours(size: int, chance: random.Random) -> None:
    tree = _tree(size, chance)
    root = chance.randrange(size)
    moved = tree.rerooted(root)
    assert moved.root == root
    assert moved.degrees == tree.degrees
    assert moved.rerooted(tree.root) == tree


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.booleans())
def test_a_capped_tree_keeps_to_its_caps(caps: list[int], rooted: bool) -> None:
    tree = capped_tree(caps, len(caps) - 1 if rooted else None)
    if tree is None:
        assert rooted or sum(caps) < 2 * (len(caps) - 1) or len(caps) == 1
    else:
        assert all(degree <= cap for degree, cap in zip(tree.degrees, caps, strict=True))
        assert sorted(tree.depths)[0] == 0


@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_equal_links_make_the_pipelined_tree_a_path_rooted_in_its_middle(size: int) -> None:
    tree = pipelined(Links((12.5e6,) * size, 1e-4), 16_000_000).tree
    assert tree is not None
    assert max(tree.degrees) <= 2
    assert tree.heights[tree.root] == size // 2


@given(st.integers(4, 24), st.integers(1, 4), st.floats(3.0, 20.0))
def test_members_behind_slow_links_are_leaves(size: int, slow: int, factor: float) -> None:
    slow = min(slow, size // 2)
    links = Links((100 * _MBIT,) * (size - slow) + (100 * _MBIT / factor,) * slow, 1e-4)
    choice = choose(links, 16_000_000)
    assert choice.algorithm == "pipelined_tree"
    assert choice.tree is not None
    assert choice.tree.degrees[size - slow :] == (1,) * slow
    assert choice.seconds < ring_s(links, 16_000_000)


def test_four_slow_links_of_sixteen_cost_the_tree_little_over_half_of_the_ring() -> None:
    links = Links((100 * _MBIT,) * 12 + (20 * _MBIT,) * 4, 1e-4)
    assert choose(links, 16_000_000).seconds < 0.65 * ring_s(links, 16_000_000)


@given(st.integers(2, 24), st.floats(1.0, 1.1), st.integers(1, 10**8))
def test_links_that_are_alike_take_the_ring(size: int, spread: float, nbytes: int) -> None:
    links = Links(tuple(12.5e6 * (spread if rank % 2 else 1.0) for rank in range(size)), 1e-4)
    assert choose(links, nbytes).algorithm == "library"
    assert choose(links, nbytes, library=False).algorithm == "ring"


@pytest.mark.parametrize("size", [4, 8, 16])
def test_chunks_take_two_fifths_off_a_tree(size: int) -> None:
    links = Links((100 * _MBIT,) * size, 1e-4)
    whole = choose(links, 16_000_000, "tree")
    assert choose(links, 16_000_000, "pipelined_tree").seconds < 0.6 * whole.seconds


def test_a_smaller_time_is_predicted_for_chunks_than_for_the_whole() -> None:
    links = Links((12.5e6,) * 8, 1e-4)
    tree = balanced_tree(8)
    assert tree_s(links, tree, 16e6, 64e3) < tree_s(links, tree, 16e6, 16e6)


def test_the_paths_of_a_ring_end_at_each_member() -> None:
    assert [ring_path(5, end).root for end in range(5)] == [0, 1, 2, 3, 4]
