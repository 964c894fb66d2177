"""A program is told when its fleet needs long, and what more devices would change, never more than they can."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import hetero
from hetero.errors import BadValueError

PATIENCE_S = 60.0


def nap(seconds: float) -> None:
    time.sleep(seconds)


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as made:
        made.gather([made.submit(nap, 0.01) for _ in range(8)])
        yield made


def test_twice_as_many_devices_need_half_as_long_and_an_idle_fleet_nothing(ctx: hetero.Context) -> None:
    idle = hetero.cluster.pressure(ctx)
    assert (idle.tasks, idle.seconds) == (0, 0.0)
    futures = [ctx.submit(nap, 0.01) for _ in range(400)]
    found = hetero.cluster.pressure(ctx)
    assert found.tasks > 100
    assert found.seconds == found.what_if({})
    more = found.what_if({found.devices[0]: 1, found.devices[1]: 1})
    assert more == pytest.approx(found.seconds / 2, rel=0.05)
    with pytest.raises(BadValueError, match="the fleet has no device 'h0/cuda:0'"):
        found.what_if({"h0/cuda:0": 1})
    with pytest.raises(BadValueError, match=r"-1 more of .* is none"):
        found.what_if({found.devices[0]: -1})
    for future in futures:
        future.cancel()


def test_the_hook_is_called_as_long_as_there_is_pressure_and_not_after_close(ctx: hetero.Context) -> None:
    told: list[hetero.cluster.Pressure] = []
    twice = threading.Event()

    def hook(pressure: hetero.cluster.Pressure) -> None:
        told.append(pressure)
        if len(told) == 2:
            twice.set()

    futures = [ctx.submit(nap, 0.05) for _ in range(400)]
    watch = hetero.cluster.on_pressure(ctx, hook, above=0.05, every=0.01)
    assert twice.wait(PATIENCE_S)
    watch.close()
    assert all(pressure.seconds > 0.05 for pressure in told)
    for future in futures:
        future.cancel()


def test_a_fleet_that_is_quick_enough_asks_for_nothing(ctx: hetero.Context) -> None:
    told: list[hetero.cluster.Pressure] = []
    watch = hetero.cluster.on_pressure(ctx, told.append, above="1h", every="1ms")
    ctx.gather([ctx.submit(nap, 0.01) for _ in range(40)])
    watch.close()
    assert told == []
