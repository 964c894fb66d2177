"""The memory_limit of a CPU device holds for real: what takes more goes elsewhere, is cut, or fails in one line."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import NothingFitsError, OutOfDeviceMemoryError
from hetero.floor import platform

LIMIT = "96MB"
LIMITED = {"type": "cpu", "cores": 1, "memory_limit": LIMIT}
FREE = {"type": "cpu", "cores": 1}


def takes(nbytes: int) -> str:
    """Take memory and say which device had it."""
    np.ones(nbytes, np.uint8)
    return hetero.get_current_device().short


def context(*devices: dict[str, Any], **keys: Any) -> hetero.Context:
    return hetero.Context({"devices": list(devices)}, history=False, **keys)


@pytest.mark.usefixtures("no_leaks")
def test_a_task_that_takes_more_than_the_limit_runs_on_the_other_device() -> None:
    with context(LIMITED, FREE) as ctx:
        on_limited = hetero.task(takes, on="cpu:0")
        assert ctx.run(on_limited, 10_000_000) == "cpu:0"
        assert {future.result(60) for future in [ctx.submit(takes, 400_000_000) for _ in range(4)]} == {"cpu:1"}
        assert ctx.run(on_limited, 40_000_000) == "cpu:0"


def test_where_no_other_device_is_it_fails_with_one_line_and_the_cause() -> None:
    with context(LIMITED) as ctx:
        with pytest.raises(OutOfDeviceMemoryError, match="takes does not fit into the memory of any device") as caught:
            ctx.run(takes, 400_000_000)
        assert isinstance(caught.value, MemoryError)
        assert isinstance(caught.value.__cause__, MemoryError)
        assert ctx.run(takes, 10_000_000) == "cpu:0"


def test_a_splittable_task_is_cut_until_its_parts_fit() -> None:
    @hetero.task(split=lambda n: [n // 2, n - n // 2], merge=sum)
    def counted(n: int) -> int:
        return int(np.ones(n, np.uint8).sum(dtype=np.int64))

    with context(LIMITED) as ctx:
        assert ctx.submit(counted, 200_000_000).result(60) == 200_000_000


def test_arguments_in_the_pool_do_not_count_against_the_limit() -> None:
    with context(LIMITED, memory_pool_size="1GB") as ctx:
        array = np.ones(60_000_000)
        for _ in range(3):
            assert ctx.run(lambda a: float(a[::1000].sum()), array) == 60_000.0
        with pytest.raises(OutOfDeviceMemoryError):
            ctx.run(lambda a: a + 1.0, array)


def test_a_result_larger_than_what_is_left_is_told_as_out_of_memory() -> None:
    with context(LIMITED) as ctx, pytest.raises(OutOfDeviceMemoryError):
        ctx.run(lambda: [b"x" * 60_000_000, bytearray(30_000_000)])


def test_results_that_fill_a_memory_of_their_own_go_to_the_host_so_that_the_next_ones_fit() -> None:
    own_memory = {**LIMITED, "link": {"bandwidth": "2GB/s"}}
    with context(own_memory) as ctx:
        full = [ctx.submit(np.full, 2_000_000, float(number)) for number in range(12)]
        assert [float(future.result(100)[-1]) for future in full] == [float(number) for number in range(12)]


def test_a_request_beyond_the_limit_is_refused_before_it_is_submitted() -> None:
    with context(LIMITED) as ctx, pytest.raises(NothingFitsError, match="its memory_limit allows 96 MB of the 1 GB"):
        ctx.submit(hetero.task(takes, memory="1GB"), 1)


@pytest.mark.parametrize("why", ["a thread", "a system without such limits"])
def test_a_limit_that_cannot_be_enforced_is_told(
    why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform.FEATURES, "data_limit", why == "a thread")
    caplog.set_level(logging.WARNING, "hetero")
    with context(LIMITED, isolation="thread" if why == "a thread" else "process") as ctx:
        assert ctx.run(takes, 400_000_000) == "cpu:0"
    assert [line for line in caplog.messages if "memory_limit of cpu:0 keeps out tasks that ask for more" in line]


def runs_out(_: object) -> None:
    raise MemoryError("mine")


def passed(value: object) -> object:
    return value


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_the_task_that_does_not_fit_is_named_by_all_that_fail_with_it(isolation: str) -> None:
    text = "^runs_out does not fit into the memory of any device that may run it: MemoryError: mine; raise"
    with hetero.Context(devices="1xcpu", isolation=isolation, history=False) as ctx:
        first = ctx.submit(runs_out, 1)
        for future in (first, ctx.submit(passed, first), ctx.submit(passed, [ctx.submit(passed, first)])):
            with pytest.raises(OutOfDeviceMemoryError, match=text):
                future.result(60)
        with pytest.raises(OutOfDeviceMemoryError, match=text):
            list(ctx.executor().map(runs_out, [1, 2, 3], chunksize=2))


def nested(n: int) -> object:
    return hetero.current_context().run(runs_out, n)


@pytest.mark.parametrize("how", [{"isolation": "thread"}, {"isolation": "process"}, {"engine": "inline"}])
def test_a_nested_task_that_does_not_fit_is_named_and_its_parent_is_not(how: dict[str, str]) -> None:
    with (
        hetero.Context(devices="1xcpu", history=False, **how) as ctx,
        pytest.raises(OutOfDeviceMemoryError, match=r"^runs_out does not fit into the memory of .*: MemoryError: mine"),
    ):
        ctx.run(nested, 1)
