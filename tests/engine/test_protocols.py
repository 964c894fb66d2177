"""`communication.protocol` and `communication.buffer_size` decide how the values of group members travel."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.engines.local.engine import LocalEngine

pytestmark = pytest.mark.usefixtures("no_leaks")
ARRAY_BYTES = 8_000_000


@hetero.task(devices=2)
def passes_on(n: int, dtype: str = "float64") -> Any:
    """Rank 1 sends n numbers and a word; rank 0 changes them, to show that they are its own, and gives them back."""
    if hetero.collectives.rank() == 1:
        hetero.collectives.send({"x": np.arange(n, dtype=dtype), "word": "w" * 70_000}, to=0)
        return None
    got = hetero.collectives.recv(from_=1)
    got["x"][0] = 7
    return got["x"][0], got["x"].sum(), len(got["word"])


def counted(function: Any, *args: Any, isolation: str = "process", **talk: Any) -> tuple[Any, Counter[str]]:
    """Run a function with this `communication`, and give its result and the engine's counters."""
    config = {"devices": "2xcpu", "isolation": isolation, "communication": talk}
    with hetero.Context(config, history=False) as ctx:
        result = ctx.submit(function, *args).result(60)
        assert isinstance(ctx.driver.engine, LocalEngine)
        return result, ctx.driver.engine.counters


@pytest.mark.parametrize("protocol", ["shared_memory", "tcp"])
def test_an_array_travels_in_as_many_pieces_as_the_buffer_size_says(protocol: str) -> None:
    pieces = {}
    for size_bytes in (1_000_000, 4_000_000):
        result, counters = counted(passes_on, ARRAY_BYTES // 8, protocol=protocol, buffer_size=size_bytes)
        assert result == (7, 1_000_000 * 999_999 / 2 + 7, 70_000)
        pieces[size_bytes] = counters["pieces"]
    assert pieces == {1_000_000: ARRAY_BYTES // 1_000_000 + 1, 4_000_000: ARRAY_BYTES // 4_000_000 + 1}


def test_shared_memory_and_auto_use_the_pool_for_every_large_piece_and_tcp_for_none() -> None:
    in_pool = {
        protocol: counted(passes_on, ARRAY_BYTES // 8, protocol=protocol)[1]["pieces_in_pool"]
        for protocol in ("auto", "shared_memory", "tcp")
    }
    assert in_pool == {"auto": 3, "shared_memory": 3, "tcp": 0}


def test_a_small_value_is_one_message_whatever_the_protocol() -> None:
    @hetero.task(devices=2)
    def small() -> Any:
        other = 1 - hetero.collectives.rank()
        hetero.collectives.send(("x", other), to=other)
        return hetero.collectives.recv(from_=other)

    for protocol in ("shared_memory", "tcp"):
        result, counters = counted(small, protocol=protocol)
        assert (result, counters["pieces"], counters["pieces_in_pool"]) == (("x", 0), 2, 0)


@pytest.mark.parametrize("protocol", ["shared_memory", "tcp"])
def test_the_pool_is_given_back_once_a_piece_was_heard(protocol: str) -> None:
    @hetero.task(devices=2)
    def stream() -> float:
        if hetero.collectives.rank() == 1:
            for i in range(20):
                hetero.collectives.send(np.full(250_000, float(i)), to=0)
                hetero.collectives.recv(from_=0)
            return 0.0
        total = 0.0
        for _ in range(20):
            total += hetero.collectives.recv(from_=1)[0]
            hetero.collectives.send("next", to=1)
        return total

    config = {"devices": "2xcpu", "memory_pool_size": "8MB", "communication": {"protocol": protocol}}
    with hetero.Context(config, history=False) as ctx:
        assert ctx.submit(stream).result(60) == sum(range(20))
        assert ctx.driver.engine.usage()["h0/ram"].peak_bytes < 6_000_000


@pytest.mark.parametrize("dtype", ["int8", "float32", "complex128", "datetime64[s]"])
def test_numbers_of_any_kind_arrive_as_they_were_sent(dtype: str) -> None:
    @hetero.task(devices=2)
    def echo(x: Any) -> Any:
        if hetero.collectives.rank() == 1:
            hetero.collectives.send(x[::-1], to=0)
            return None
        return hetero.collectives.recv(from_=1)

    x = np.arange(300_000).astype(dtype)
    result, _ = counted(echo, x, protocol="tcp", buffer_size="1KB" if dtype == "int8" else "100KB")
    np.testing.assert_array_equal(result, x[::-1])


def test_a_thread_and_a_process_talk_too() -> None:
    thread = {"type": "cpu", "cores": 1, "isolation": "thread"}

    @hetero.task(devices=2)
    def swap() -> Any:
        other = 1 - hetero.collectives.rank()
        hetero.collectives.send(np.full(500_000, float(hetero.collectives.rank())), to=other)
        got = hetero.collectives.recv(from_=other)
        got += 1.0
        return got.sum()

    for protocol in ("shared_memory", "tcp"):
        config = {"devices": [thread, {"type": "cpu", "cores": 1}], "communication": {"protocol": protocol}}
        with hetero.Context(config, history=False) as ctx:
            assert ctx.submit(swap).result(60) == 1_000_000.0
