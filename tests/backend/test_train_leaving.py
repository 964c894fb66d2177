"""Which batch of a script is in use, and whether a device may go, by the order of calls alone."""

from __future__ import annotations

import argparse
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from hetero.train.launch import summed_values  # noqa: E402
from hetero.train.launch.leaving import BatchOrder  # noqa: E402
from hetero.train.launch.summed_values import SummedValues  # noqa: E402
from hetero.train.launch.whole_draws import Rows  # noqa: E402

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


# --- what a script sums up ------------------------------------------------------------------------------------

MODULE = """
import torch
{begin}
for epoch in range(2):
    {reset}
    for inputs, targets in batches():
        out = model(inputs)
        loss = criterion(out, targets)
        {count}
    {sum}
"""
HOLDS, RIGHT = "right = 0", "right += int((out.argmax(1) >= targets).sum())"
ADDED = "fleet.sum(right)"
METER = """
class Meter:
    def __init__(self):
        self.total = self.count = 0
    def update(self, value, rows):
        self.total += value * rows
        self.count += rows
    @property
    def average(self):
        return self.total / max(self.count, 1)
"""
NOTHING_MISSED = {
    "a number": MODULE.format(begin="", reset=HOLDS, count=RIGHT, sum=ADDED),
    "a mean": MODULE.format(
        begin="",
        reset="right = seen = 0.0",
        count="right += loss.item() * len(inputs); seen += inputs.shape[0]",
        sum="fleet.sum(right / max(seen, 1)); fleet.sum(torch.tensor([right, seen]))",
    ),
    "a tensor": MODULE.format(
        begin="", reset="right = torch.zeros(2)", count="right[0] += (out.argmax(1) == targets).sum()", sum=ADDED
    ),
    "a list": MODULE.format(
        begin="rows = []", reset="rows.clear()", count="rows.append(targets)", sum="fleet.gather(torch.cat(rows))"
    ),
    "a dict": MODULE.format(
        begin="",
        reset="stats = {'right': 0, 'name': 'x'}",
        count="stats['right'] += len(inputs)",
        sum="fleet.sum(stats['right'])",
    ),
    "through another name": MODULE.format(
        begin="", reset=HOLDS, count=RIGHT, sum="found = float(right); found = found * 100; fleet.sum(found)"
    ),
    "a meter begun anew": MODULE.format(
        begin=METER,
        reset="meter = Meter()",
        count="meter.update(loss.item(), len(inputs))",
        sum="fleet.sum(meter.total); fleet.sum(meter.average)",
    ),
    "a constant factor": MODULE.format(
        begin="BATCH = 4", reset=HOLDS, count="right += loss.item() * BATCH; right += BATCH", sum=ADDED
    ),
    "class weights": MODULE.format(
        begin="weights = torch.ones(3)",
        reset=HOLDS,
        count="right += float(torch.nn.functional.cross_entropy(out, targets, weight=weights))",
        sum=ADDED,
    ),
    "in the loop": MODULE.format(
        begin="", reset="right = 0", count="right += fleet.sum((out.argmax(1) == targets).sum())", sum="print"
    ),
    "of a loader of tensors": """
args = argparse.Namespace(batch_size=2)
x, y = torch.ones(6, 3), torch.zeros(6, dtype=torch.long)
loader = Loader(torch.utils.data.TensorDataset(x, y), args.batch_size)
for epoch in range(2):
    right = seen = 0.0
    for number, (inputs, targets) in enumerate(loader):
        inputs, targets = inputs.to(model.weight.device), targets.to("cpu")
        out = model(inputs)
        right += criterion(out, targets).item() * inputs.size(0)
        seen += args.batch_size
    fleet.sum(right / len(loader.dataset))
    fleet.sum(seen)
    for epoch in range(2):
        pass
""",
    "of a class that runs the loop": """
class Trainer:
    def __init__(self):
        self.fleet, self.right = fleet, 0
    def run(self):
        for epoch in range(2):
            self.right = 0
            for inputs, targets in batches():
                self.right += len(inputs)
            self.fleet.sum(self.right)
Trainer().run()
""",
    "of an evaluation within a training epoch": """
def evaluate(model, held_out):
    right = 0
    for inputs, targets in held_out:
        right += int((model(inputs).argmax(1) == targets).sum())
    return fleet.sum(right)

for epoch in range(2):
    for inputs, targets in batches(looked_at=False):
        out = model(inputs)
        evaluate(model, batches())
""",
    "of functions that begin it": """
def train(model):
    seen, rows = 0, []
    for inputs, targets in batches():
        seen += len(inputs)
        rows.append(targets)
    return fleet.sum(seen), fleet.gather(torch.cat(rows))
import torch
for epoch in range(2):
    train(model)
""",
}
MISSED = {
    "never begun anew": (MODULE.format(begin=HOLDS, reset="", count=RIGHT, sum=ADDED), "right (a_script.py, line 10)"),
    "summed at the end": (MODULE.format(begin=HOLDS, reset="", count=RIGHT, sum="") + "fleet.sum(right)\n", "line 11)"),
    "kept by another name": (
        MODULE.format(begin="", reset=HOLDS, count=RIGHT, sum="found = right; right = 0")
        + "    for inputs, targets in batches():\n        pass\n    fleet.sum(found)\n",
        "found (a_script.py, line 13)",
    ),
    "counted again by a function": (
        MODULE.format(
            begin="right = 0\ndef report():\n    found = right\n    return fleet.sum(found)",
            reset="",
            count=RIGHT,
            sum="report()",
        ),
        "right (a_script.py, line 5)",
    ),
    "a global of a function": (
        MODULE.format(
            begin="right = 0\ndef count(rows):\n    global right\n    right += rows",
            reset="",
            count="count(len(inputs))",
            sum=ADDED,
        ),
        "right",
    ),
    "of a closure": (
        MODULE.format(
            begin="def counter():\n    right = 0\n    def add(n):\n        nonlocal right\n        right += n\n"
            "    def total():\n        return fleet.sum(right)\n    return add, total\nadd, total = counter()",
            reset="",
            count="add(len(inputs))",
            sum="total()",
        ),
        "right",
    ),
    "a meter that lasts": (
        MODULE.format(
            begin=METER + "meter = Meter()",
            reset="",
            count="meter.update(loss.item(), len(inputs))",
            sum="fleet.sum(meter.average)",
        ),
        "self.total",
    ),
    "a slot": (
        MODULE.format(
            begin="class Stats:\n    __slots__ = ('right',)\nstats = Stats()\nstats.right = 0",
            reset="",
            count="stats.right += len(inputs)",
            sum="fleet.sum(stats.right)",
        ),
        "stats.right",
    ),
    "a metric of a library": (
        MODULE.format(begin="", reset="", count="metric.update(out)", sum="fleet.sum(metric.compute())"),
        "metric",
    ),
    "a dict that lasts": (
        MODULE.format(
            begin="stats = {'right': 0}",
            reset="",
            count="stats['right'] += len(inputs)",
            sum="fleet.sum(stats['right'])",
        ),
        "stats['right']",
    ),
    "given to a function": (
        MODULE.format(
            begin="right = 0\ndef report(found, name='x'):\n    return fleet.sum(found)",
            reset="",
            count=RIGHT,
            sum="report(right)",
        ),
        "right",
    ),
    "counted before the loop": (
        MODULE.format(
            begin="",
            reset="seen = 0\n    for one, _ in batches(looked_at=False):\n        seen += len(one)",
            count="seen += len(inputs)",
            sum="fleet.sum(seen)",
        ),
        "seen",
    ),
    "returned to the caller": (
        """
def count():
    right = 0
    for inputs, targets in batches():
        right += len(inputs)
    return right
total = 0
for epoch in range(2):
    total += count()
fleet.sum(total)
""",
        "total",
    ),
    "counted in an evaluation": (
        """
def evaluate(held_out):
    for inputs, targets in held_out:
        pass
for epoch in range(2):
    right = 0
    for inputs, targets in batches(looked_at=False):
        right += len(inputs)
        evaluate(batches())
    fleet.sum(right)
""",
        "right",
    ),
    "of an object with a fleet of its own": (
        MODULE.format(
            begin="class Cat:\n    def __init__(self, given):\n        self.f, self.rows = given, []\n"
            "    def compute(self):\n        rows = torch.cat(self.rows)\n        return self.f.gather(rows)\n"
            "cat = Cat(fleet)",
            reset="",
            count="cat.rows.append(targets)",
            sum="",
        ),
        "self.rows",
    ),
    "rows of zeros": (
        MODULE.format(begin="rows = []", reset="", count="rows.append(targets)", sum="fleet.sum(len(rows))"),
        "rows",
    ),
    "zeros that are compared": (
        MODULE.format(
            begin="rows = []", reset="", count="rows.append(targets)", sum="fleet.sum((torch.cat(rows) == 0).sum())"
        ),
        "rows",
    ),
    "gone through": (
        MODULE.format(
            begin="def reduced(given, values):\n    return {key: given.sum(value) for key, value in values.items()}\n"
            "stats = {'right': 0}",
            reset="",
            count="stats['right'] += len(inputs)",
            sum="reduced(fleet, stats)",
        ),
        "stats",
    ),
    "copied from a counter": (
        MODULE.format(
            begin="from collections import Counter\ncounter = Counter()\n"
            "def show():\n    found = dict(counter)\n    return fleet.sum(found.get(0, 0))",
            reset="",
            count="counter.update(targets.tolist())",
            sum="show()",
        ),
        "counter",
    ),
    "by another name": (
        MODULE.format(begin="add = fleet.sum", reset=HOLDS, count=RIGHT, sum="add(right)"),
        "in another way",
    ),
    "read by eval": (
        MODULE.format(begin=HOLDS, reset="", count=RIGHT, sum="fleet.sum(eval('right'))"),
        "cannot be read",
    ),
    "of another module's variable": (
        MODULE.format(begin=HOLDS, reset="", count=RIGHT, sum="fleet.sum(globals()['right'])"),
        "cannot be read",
    ),
}


class Summing:
    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.values = SummedValues(self, self.modules)
        self.found: list[str] = []

    def look(self) -> None:
        self.found.append(str(self.values.missed(by_value=True) or ""))

    def sum(self, value: object) -> object:
        self.values.called()
        return value

    # As the real ones, they are no part of the script.
    sum.__code__ = sum.__code__.replace(co_filename=summed_values.__file__)
    look.__code__ = look.__code__.replace(co_filename=summed_values.__file__)
    gather = sum


class Loader(torch.utils.data.DataLoader):  # type: ignore[misc]
    look: Callable[[], None]

    def __iter__(self) -> Iterator[object]:
        self.look()
        return super().__iter__()


class Metric(torch.nn.Module):  # type: ignore[misc]
    __module__ = "torchmetrics"

    def update(self, rows: torch.Tensor) -> None:
        pass

    def compute(self) -> int:
        return 0


def run(folder: Path, text: str) -> Summing:
    """Run a script as `__main__` would be, and look at the beginning of its loops what would be missed."""
    fleet = Summing()

    def batches(looked_at: bool = True) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        if looked_at:
            fleet.look()
        for _ in range(3):
            yield torch.ones(2, 3), torch.zeros(2, dtype=torch.long)

    file = folder / "a_script.py"
    file.write_text(text)
    module = ModuleType("a_script")
    fleet.modules["a_script"] = module
    module.__dict__.update(
        fleet=fleet, __file__=str(file), batches=batches, model=torch.nn.Linear(3, 3), metric=Metric(),
        criterion=torch.nn.CrossEntropyLoss(), torch=torch, argparse=argparse, Loader=Loader,
    )  # fmt: skip
    Loader.look = staticmethod(fleet.look)
    linecache.checkcache()
    exec(compile(text, str(file), "exec"), module.__dict__)
    return fleet


@pytest.mark.parametrize("text", NOTHING_MISSED.values(), ids=NOTHING_MISSED)
def test_a_process_may_go_where_nothing_that_is_summed_holds_what_it_counted(text: str, tmp_path: Path) -> None:
    fleet = run(tmp_path, text)
    assert len(fleet.found) >= 2
    assert fleet.found[1:] == [""] * len(fleet.found[1:])
    assert fleet.values.is_readable


@pytest.mark.parametrize(("text", "words"), MISSED.values(), ids=MISSED)
def test_no_process_may_go_where_sums_hold_what_it_counted(text: str, words: str, tmp_path: Path) -> None:
    fleet = run(tmp_path, text)
    assert words in fleet.found[-1]


def test_a_value_that_is_set_anew_in_time_may_have_held_anything(tmp_path: Path) -> None:
    """What is left of the batch before is no count, though it is something."""
    text = MODULE.format(begin="", reset="right = 0", count="part = len(inputs); right += part", sum=ADDED)
    assert run(tmp_path, text).found == ["", ""]
    late = MODULE.format(begin="part = 0", reset="right = 0", count="right += part; part = len(inputs)", sum=ADDED)
    assert run(tmp_path, late).found[0] == ""
    assert "part" in run(tmp_path, late).found[1]


def test_in_a_loop_no_variable_may_be_there_that_could_be_counted_in(tmp_path: Path) -> None:
    fleet = run(tmp_path, NOTHING_MISSED["of functions that begin it"])
    assert fleet.values.missed(by_value=False) is None
    fleet = run(tmp_path, NOTHING_MISSED["a number"])
    fleet.modules["a_script"].__dict__["right"] = 0
    assert fleet.values.missed(by_value=True) is None
    assert "right" in str(fleet.values.missed(by_value=False))


def test_nothing_of_a_script_is_run_to_look_at_it(tmp_path: Path) -> None:
    text = """
class Odd:
    __class__ = property(lambda self: ran.append("class") or Odd)
    total = property(lambda self: ran.append("total") or 1)
    def __getattr__(self, name):
        ran.append(name)
        return 1
    def __len__(self):
        ran.append("len")
        return 1
    def __eq__(self, other):
        ran.append("eq")
        return True
    __hash__ = None
ran = []
odd = Odd()
for inputs, targets in batches():
    pass
fleet.values.called = lambda: None
fleet.sum(odd.total)
fleet.sum(odd.other)
"""
    fleet = run(tmp_path, text)
    assert len(fleet.found) == 1
    assert [name for name in fleet.modules["a_script"].__dict__["ran"] if name not in ("total", "other")] == []


def test_sums_of_tensors_are_no_sums_over_processes(tmp_path: Path) -> None:
    fleet = run(tmp_path, "def run(x, dim):\n    return x.sum() + x.sum(1) + torch.sum(x)\nright = 1\n")
    assert fleet.values.missed(by_value=False) is None
    fleet.sum(1)  # by a name that no source shows
    assert fleet.values.missed(by_value=True) is not None


def test_a_script_below_the_folder_of_the_interpreter_is_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    text, words = MISSED["never begun anew"]
    assert words in run(tmp_path, text).found[-1]
