"""Which batch of a script is in use, and whether a device may go, by the order of calls alone."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from hetero.train import leaving  # noqa: E402
from hetero.train.leaving import BatchOrder, SummedPlaces  # noqa: E402
from hetero.train.whole_draws import Rows  # noqa: E402

HALF, MORE, LESS = Rows(0, 4, 8), Rows(0, 6, 8), Rows(0, 2, 8)


def fed(order: BatchOrder, source: object, rows: Rows) -> torch.Tensor:
    order.handed(source, rows)
    batch = torch.zeros(rows.count)
    order.holds([batch])
    return batch


def passed(order: BatchOrder, *batches: torch.Tensor) -> None:
    if batches:
        order.given(list(batches))
    order.used()
    order.computed()


def test_a_plain_loop_is_done_with_a_batch_when_it_has_the_next() -> None:
    order = BatchOrder()
    for _ in range(3):
        assert order.is_done("loader") == (not order.sources or order.ahead == 0)
        passed(order, fed(order, "loader", HALF))
    order.ended("loader")
    assert order.sources == []
    assert order.is_done("another")


def test_a_loop_that_skips_batches_fetches_none_ahead() -> None:
    order = BatchOrder()
    kept = [fed(order, "loader", HALF) for _ in range(3)]
    passed(order, kept[-1])
    assert (order.ahead, order.is_seen) == (0, True)


@pytest.mark.parametrize("fetches_first", [False, True])
def test_the_rows_of_a_backward_pass_are_those_of_the_batch_that_the_model_was_given(fetches_first: bool) -> None:
    order = BatchOrder()
    rows, batch = HALF, fed(order, "split", HALF)
    for its_rows in (MORE, LESS, MORE):
        if fetches_first:
            following = fed(order, "split", its_rows)
        order.given([batch])
        if not fetches_first:
            following = fed(order, "split", its_rows)
        order.used()
        assert order.in_use == rows
        order.computed()
        rows, batch = its_rows, following
    assert (order.ahead, order.is_seen) == (1, True)


def test_batches_that_a_model_is_not_given_as_they_are_leave_it_open_which_is_in_use() -> None:
    order = BatchOrder()
    fed(order, "loader", HALF)
    fed(order, "loader", HALF)
    passed(order)
    assert (order.ahead, order.is_seen) == (1, False)


def test_the_last_batch_of_an_epoch_is_known_after_its_end() -> None:
    order = BatchOrder()
    batch = fed(order, "loader", LESS)
    order.ended("loader")
    assert order.given([batch]) == LESS
    passed(order, batch)
    fed(order, "loader", HALF)
    assert order.given([batch]) is None


def test_two_loaders_at_once_are_never_done() -> None:
    order = BatchOrder()
    for _ in range(3):
        passed(order, fed(order, "one", HALF), fed(order, "two", HALF))
        assert not order.is_done("one")
        assert not order.is_done("two")


def test_batches_of_unequal_parts_in_one_pass_are_noticed() -> None:
    order = BatchOrder()
    batches = fed(order, "one", MORE), fed(order, "two", HALF)
    for each in batches:
        order.given([each])
    assert order.are_several
    order.computed()
    assert not order.are_several
    for each in (fed(order, "one", HALF), fed(order, "two", HALF)):
        order.given([each])
    assert not order.are_several


SAFE = """
def epoch(model, loader):
    right, rows = 0, []
    for batch in loader:
        batches(__name__)
        right += batch
        rows.append(batch)
    return fleet.sum(right), fleet.gather(torch.cat(rows))
"""
UNSAFE = {
    "of a parameter": "def run(right):\n    return fleet.sum(right)\n",
    "of a module": "right = 0\ndef run():\n    return fleet.sum(right)\n",
    "of an object that lasts": "def run(stats):\n    right = stats.right\n    return fleet.sum(right)\n",
    "of a metric": "def run():\n    right = metric.compute()\n    return fleet.sum(right)\n",
    "in a module": "right = 0\nif right:\n    fleet.sum(right)\n",
    "by a parameter": "right = 0\ndef run(devices):\n    return devices.sum(right)\n",
    "of a closure": "def run():\n    right = 0\n    def add():\n        fleet.sum(right)\n",
    "by another name": "import hetero\nall_of_us = hetero.train.init()\ndef run(right):\n    all_of_us.gather(right)\n",
}


def script(folder: Path, fleet: Summing, text: str, **names: object) -> ModuleType:
    """Return a script that was imported, as `__main__` would have been."""
    file = folder / "a_script.py"
    file.write_text(text)
    module = ModuleType("a_script")
    module.__dict__.update(names, fleet=fleet, __file__=str(file))
    exec(compile(text, str(file), "exec"), module.__dict__)
    fleet.modules["a_script"] = module
    linecache.checkcache()
    return module


class Summing:
    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.places = SummedPlaces(self, self.modules)

    def sum(self, value: object) -> object:
        self.places.called()
        return value

    sum.__code__ = sum.__code__.replace(co_filename=leaving.__file__)  # as the real one, it is no part of the script
    gather = sum


def test_a_process_may_go_between_two_epochs_of_a_function_that_sums(tmp_path: Path) -> None:
    fleet, found = Summing(), []

    def batches(_: str) -> None:
        found.append(fleet.places.may_leave())
        fleet.places.handed()

    module = script(tmp_path, fleet, SAFE, batches=batches, torch=torch)
    for _ in range(2):
        module.epoch(None, [torch.ones(1)] * 3)
        assert fleet.places.are_safe
    assert found[:3] == [True, False, False]
    assert found[4:] == [False, False]


@pytest.mark.parametrize("text", UNSAFE.values(), ids=UNSAFE)
def test_no_process_may_go_where_sums_may_hold_what_it_counted(text: str, tmp_path: Path) -> None:
    fleet = Summing()
    script(tmp_path, fleet, text, metric=None)
    assert not fleet.places.are_safe


def test_sums_of_tensors_are_no_sums_over_processes(tmp_path: Path) -> None:
    fleet = Summing()
    script(tmp_path, fleet, "def run(x, dim):\n    return x.sum() + x.sum(1) + torch.sum(x)\n")
    assert fleet.places.may_leave()
    fleet.sum(1)  # by a name that no source shows
    assert not fleet.places.may_leave()


def test_a_script_below_the_folder_of_the_interpreter_is_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    fleet = Summing()
    script(tmp_path, fleet, UNSAFE["of a module"])
    assert not fleet.places.are_safe
