"""Replicas on memory nodes of their own keep their bytes, whatever happens to the pool they travelled through."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import hetero
from hetero.floor.errors import DeviceLostError

TWO_NODES = {"devices": [{"type": "cpu", "cores": 1, "link": {"bandwidth": "1GB/s"}}] * 2}
SIZE = 100_000


def ones() -> np.ndarray:
    return np.ones(SIZE)


def same(array: np.ndarray) -> np.ndarray:
    return array


def total(array: np.ndarray) -> float:
    return float(array.sum())


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_copy_on_another_node_survives_the_reuse_of_the_pool(isolation: str) -> None:
    with hetero.Context(TWO_NODES, history=False, isolation=isolation) as ctx:
        first, second = (device.id for device in ctx.devices)
        leaf = ctx.submit(hetero.task(ones, on=first))
        on_second = hetero.task(total, on=second)
        assert ctx.run(on_second, leaf) == SIZE
        others = [ctx.put(np.full(SIZE, -1.0)) for _ in range(8)]
        assert ctx.run(on_second, leaf) == SIZE
        del others


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_result_that_is_an_argument_does_not_change_when_the_argument_goes(isolation: str) -> None:
    with hetero.Context(TWO_NODES, history=False, isolation=isolation) as ctx:
        first, _ = (device.id for device in ctx.devices)
        given = ctx.submit(hetero.task(same, on=first), np.ones(SIZE))
        hetero.wait([given], 60)
        others = [ctx.put(np.full(SIZE, -1.0)) for _ in range(8)]
        assert ctx.run(hetero.task(total, on=first), given) == SIZE
        del others


def test_what_travels_keeps_its_place_in_the_pool_until_it_has_arrived() -> None:
    slow = {"devices": [{"type": "cpu", "cores": 1, "link": {"bandwidth": "1GB/s", "latency": "300ms"}}] * 2}
    with hetero.Context(slow, history=False) as ctx:
        first, second = (device.id for device in ctx.devices)
        leaf = ctx.submit(hetero.task(ones, on=first))
        hetero.wait([leaf], 60)
        read = ctx.submit(hetero.task(total, on=second), leaf)
        others, end_s = [], time.monotonic() + 1.0
        while time.monotonic() < end_s:
            others.append(ctx.put(np.full(SIZE, -1.0)))
            time.sleep(0.01)
        assert read.result(60) == SIZE


def test_one_array_for_many_tasks_crosses_a_link_once_and_a_changed_one_again() -> None:
    far = {"devices": [{"type": "cpu", "cores": 1, "link": {"bandwidth": "100MB/s"}}]}
    with hetero.Context(far, history=False) as ctx:
        array = np.ones(SIZE)
        assert ctx.gather([ctx.submit(total, array) for _ in range(6)]) == [SIZE] * 6
        assert ctx.driver.engine.counters["transfers"] == 1
        array[0] = 5.0
        assert ctx.run(total, array) == SIZE + 4.0
        assert ctx.driver.engine.counters["transfers"] == 2


def test_a_device_behind_a_slow_link_gets_no_task_that_would_end_later_for_its_way() -> None:
    slow = {"type": "cpu", "cores": 1, "link": {"bandwidth": "2KB/s", "latency": "20ms"}}  # minutes for an array
    with hetero.Context({"devices": [{"type": "cpu", "cores": 1}, slow]}, history=False) as ctx:
        near, far = ctx.devices
        ctx.run(hetero.task(total, on=near.id), np.ones(SIZE))
        arrays = [np.full(SIZE, float(index)) for index in range(10)]
        futures = [ctx.submit(total, array) for array in arrays]
        assert [each.result(120) for each in futures] == [SIZE * float(i) for i in range(10)]
        assert ctx.driver.ask(lambda core: core).fleet.by_id[far.id].finished == 0


def test_a_loss_that_the_core_has_not_heard_of_yet_does_not_fail_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        future = ctx.submit(ones)
        load, losses = ctx.driver.engine.load, [1, 2, 3]

        def lost_for_a_while(item: int) -> object:
            if losses and losses.pop():
                raise DeviceLostError(f"data item {item} is not there any more")
            return load(item)

        monkeypatch.setattr(ctx.driver.engine, "load", lost_for_a_while)
        assert future.result(10).sum() == SIZE


def test_a_result_whose_worker_dies_as_it_is_read_is_computed_again() -> None:
    with hetero.Context(TWO_NODES, history=False) as ctx:
        first, _ = (device.id for device in ctx.devices)
        for _ in range(3):
            future = ctx.submit(hetero.task(ones, on=first))
            hetero.wait([future], 60)
            os.kill(ctx.driver.engine.pids()[first], signal.SIGKILL)
            assert future.result(60).sum() == SIZE
