from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from hetero.engines.shared.memory_pool import Allocator

PAGE = 4096
PAGES = 64


class PoolMachine(RuleBasedStateMachine):
    blocks = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.pool = Allocator(PAGES * PAGE, PAGE)
        self.sizes: dict[int, int] = {}

    @rule(target=blocks, nbytes=st.integers(0, PAGES * PAGE // 4))
    def take(self, nbytes: int) -> int | None:
        free = self.pool.free()
        pages = max(1, -(-nbytes // PAGE))
        fitting = [size for size in free.values() if size >= pages * PAGE]
        offset = self.pool.take(nbytes)
        assert (offset is None) == (not fitting)
        if offset is not None:
            assert free[offset] == min(fitting), "not the best fit"
            self.sizes[offset] = pages * PAGE
        return offset

    @rule(offset=consumes(blocks))
    def free(self, offset: int | None) -> None:
        if offset is not None:
            self.pool.release(offset)
            del self.sizes[offset]

    @invariant()
    def every_page_is_free_or_taken_once(self) -> None:
        assert self.pool.taken() == self.sizes
        rows = sorted([*self.pool.taken().items(), *self.pool.free().items()])
        position = 0
        for offset, size in rows:
            assert offset == position
            assert size % PAGE == 0
            position += size
        assert position == PAGES * PAGE

    @invariant()
    def free_blocks_never_touch(self) -> None:
        free = self.pool.free()
        assert not any(offset + size in free for offset, size in free.items())

    @invariant()
    def figures_are_right(self) -> None:
        usage = self.pool.usage()
        assert usage.capacity_bytes == PAGES * PAGE
        assert usage.used_bytes == sum(self.sizes.values()) <= usage.peak_bytes
        free = self.pool.free()
        wanted = 1.0 - max(free.values()) / sum(free.values()) if free else 0.0
        assert abs(usage.fragmentation_frac - wanted) < 1e-12

    def teardown(self) -> None:
        for offset in list(self.sizes):
            self.pool.release(offset)
        assert self.pool.free() == {0: PAGES * PAGE}


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_a_pool_smaller_than_a_page_has_no_room() -> None:
    assert Allocator(100, PAGE).take(1) is None


def test_two_neighbours_given_back_serve_one_larger_block() -> None:
    pool = Allocator(4 * PAGE, PAGE)
    offsets = [pool.take(PAGE) for _ in range(4)]
    assert offsets == [0, PAGE, 2 * PAGE, 3 * PAGE]
    pool.release(PAGE)
    pool.release(2 * PAGE)
    assert pool.take(2 * PAGE) == PAGE


def test_the_work_of_the_pool_grows_slower_than_its_blocks() -> None:
    pool = Allocator(20_000 * PAGE, PAGE)
    offsets = [pool.take(PAGE) for _ in range(20_000)]
    for offset in offsets[::2]:
        assert offset is not None
        pool.release(offset)
    assert len(pool.free()) == 10_000
    assert pool.usage().fragmentation_frac > 0.99
    for offset in offsets[1::2]:
        assert offset is not None
        pool.release(offset)
    assert pool.free() == {0: 20_000 * PAGE}
