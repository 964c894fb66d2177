"""Copies that an actor makes beside its tasks: between its device's own memory and the object store, and to its host.

In: values and keys. Out: a call of `done(error, started_s, seconds, item)` in the hub's thread for each.
It must not know tasks.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from hetero.engines.local.arena import Payload
from hetero.engines.local.items import Item
from hetero.engines.ray.lodge import Lodge
from hetero.engines.ray.seat import COPIES
from hetero.engines.ray.starting import why_ended
from hetero.engines.ray.vault import Cargo, Stored

__all__ = ["Copies", "Done"]

Done = Callable[[str, float, float, Item | None], None]


class Copies:
    """The copies of one actor.

    Attributes
    ----------
    handle : the actor, None before it is ready and after its end
    """

    def __init__(self, lodge: Lodge, device: str) -> None:
        self.handle: Any = None
        self._lodge = lodge
        self._device = device
        self._numbers = itertools.count(1)
        self._orders: dict[int, tuple[Any, Done]] = {}

    def take_in(self, key: Any, payload: Payload, done: Done) -> None:
        """Copy a value to the device's memory node."""
        cargo = Cargo()
        wire = cargo.wire(payload)
        self._order(done, lambda group: (self.handle.take_in.options(**group).remote(key, wire, *cargo.refs), None))

    def give_out(self, key: Any, done: Done) -> None:
        """Copy a kept value to its host's main memory; `done` gets it as an item."""
        self._order(done, lambda group: self.handle.give_out.options(num_returns=2, **group).remote(key))

    def touch(self, payload: Payload, done: Done) -> None:
        """Copy a value to the main memory of the actor's host."""
        cargo = Cargo()
        cargo.wire(payload)
        self._order(done, lambda group: (self.handle.touch.options(**group).remote(*cargo.refs), None))

    def end(self) -> None:
        """Tell of every copy under way that it will not come."""
        self.handle = None
        orders, self._orders = self._orders, {}
        for _, done in orders.values():
            done(self._gone, 0.0, 0.0, None)

    @property
    def _gone(self) -> str:
        return f"the worker of {self._device} went away"

    def _order(self, done: Done, call: Callable[[dict[str, str]], Any]) -> None:
        if self.handle is None:
            self._lodge.hub.call(lambda: done(self._gone, 0.0, 0.0, None))
            return
        asked_s = self._lodge.clock.now_s()
        ref, data = call({"concurrency_group": COPIES})
        number = next(self._numbers)
        self._orders[number] = ((ref, data), done)
        ref._on_completed(lambda answer: self._lodge.hub.call(partial(self._copied, number, data, asked_s, answer)))

    def _copied(self, number: int, data: Any, asked_s: float, answer: Any) -> None:
        order = self._orders.pop(number, None)
        if order is None:
            return
        done, now_s = order[1], self._lodge.clock.now_s()
        if isinstance(answer, Exception):
            done(why_ended(answer), 0.0, 0.0, None)
            return
        self._lodge.counters["transfers"] += 1
        item = None
        if data is not None:
            _, _, body, sizes = pickle.loads(answer)
            parts = [self._lodge.vault.part(data, place, size) for place, size in enumerate(sizes)]
            item = Item(Stored(body, parts))
        done("", asked_s, now_s - asked_s, item)
