"""Gradients of members that share a step are those of one process, leave in one order, and can be the same bits."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from hetero.train import gradients
from hetero.train.gradients import FINEST, BitwiseGradients, Gradients
from hetero.train.values import TrainingError, TrainOptions

torch = pytest.importorskip("torch")

WAIT_S = 60.0
WIDTH = 8
"""A matrix of this width in float32 fills a bucket of its own, of those that `small_buckets` makes."""


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of 128 bytes in place of 1 MiB: the same cuts in a thousandth of the time."""
    monkeypatch.setattr(gradients, "_LEAST_BYTES", 128)
    monkeypatch.setattr(gradients, "_MOST_BYTES", 512)


class Meeting:
    """Where the members of a group in one process meet; sums are made when the last one comes."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.rows: dict[int, list[Any]] = defaultdict(list)
        self.sums: dict[int, Any] = {}
        self.left = False
        self.changed = threading.Condition()


class Member:
    """A group of threads, as far as gradients use one; `sizes` are of the rows that it started, in order."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.world_size = meeting, rank, meeting.members
        self.sizes: list[int] = []

    def all_reduce(self, row: Any) -> None:
        self.start_all_reduce(row).wait()

    def start_all_reduce(self, row: Any) -> _Sum:
        number = len(self.sizes)
        self.sizes.append(row.numel())
        with self.meeting.changed:
            rows = self.meeting.rows[number]
            rows.append(row.clone())
            if len(rows) == self.world_size:
                self.meeting.sums[number] = torch.stack(rows).sum(0)
                self.meeting.changed.notify_all()
        return _Sum(self.meeting, number, row)


class _Sum:
    def __init__(self, meeting: Meeting, number: int, row: Any) -> None:
        self.meeting, self.number, self.row = meeting, number, row

    def wait(self) -> None:
        with self.meeting.changed:
            come = self.meeting.changed.wait_for(lambda: self.number in self.meeting.sums or self.meeting.left, WAIT_S)
            assert come
            assert self.number in self.meeting.sums, "another member ended without this sum"
        self.row.copy_(self.meeting.sums[self.number])


def together(members: int, run: Callable[[Any], Any]) -> list[Any]:
    """Run a function of a member in a thread each; return what they gave by rank."""
    meeting, found, errors = Meeting(members), {}, []

    def live(rank: int) -> None:
        try:
            found[rank] = run(Member(meeting, rank))
        except BaseException as error:  # noqa: BLE001  it is raised below
            errors.append(error)
        finally:
            with meeting.changed:
                meeting.left = True
                meeting.changed.notify_all()

    threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    if errors:
        raise errors[0]
    return [found[rank] for rank in range(members)]


def model(*widths: int, dtype: Any = None) -> Any:
    """Return linear layers with the same weights each time, whatever other threads draw."""
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(*pair, bias=False) for pair in pairwise(widths)))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)
    return net.to(dtype or torch.float64)


def batch(samples: int, width: int, dtype: Any = None) -> Any:
    return torch.randn(samples, width, generator=torch.Generator().manual_seed(1)).to(dtype or torch.float64)


def options(**given: Any) -> TrainOptions:
    return TrainOptions(8, **given)


def step(kept: Gradients, net: Any, passes: Sequence[Any], group: Any, header: Sequence[float] = (1.0,)) -> list[float]:
    """Make one step: the passes in their order, then the sum."""
    kept.begin(group)
    for place, rows in enumerate(passes):
        if place == len(passes) - 1:
            kept.last_pass()
        net(rows).square().sum().backward()
        kept.take()
    return kept.reduce(group, header)


def alone(net: Any, rows: Any) -> list[Any]:
    net.zero_grad()
    net(rows).square().sum().backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


# --- sums --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Gradients, BitwiseGradients])
@pytest.mark.parametrize("cuts", [(4, 4), (7, 1), (1, 2, 5)])
def test_members_with_unequal_shares_get_the_gradients_of_one_process(
    kind: type[Gradients], cuts: Sequence[int]
) -> None:
    rows = batch(8, 5)
    expected = alone(model(5, 4, 3, 2), rows)

    def run(member: Any) -> Any:
        net, part = model(5, 4, 3, 2), torch.split(rows, list(cuts))[member.rank]
        kept = kind(list(net.parameters()), 2, options())
        for _ in range(3):
            header = step(kept, net, torch.split(part, 2), member, (1.0, float(member.rank)))
        return header, [parameter.grad.clone() for parameter in net.parameters()]

    for header, found in together(len(cuts), run):
        assert header == [len(cuts), sum(range(len(cuts)))]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_member_alone_needs_no_group() -> None:
    net, rows = model(5, 4), batch(4, 5)
    kept = Gradients(list(net.parameters()), 1, options())
    (member,) = [Member(Meeting(1), 0)]
    for _ in range(2):
        assert step(kept, net, [rows], member, (3.0,)) == [3.0]
    torch.testing.assert_close(net[0].weight.grad, alone(model(5, 4), rows)[0])
    assert member.sizes == []


@pytest.mark.parametrize("kind", [Gradients, BitwiseGradients])
def test_a_parameter_has_a_gradient_where_any_member_used_it(kind: type[Gradients]) -> None:
    def run(member: Any) -> list[bool]:
        nets = [model(3, 2), model(3, 2), model(3, 2)]
        kept = kind([net[0].weight for net in nets], 1, options())
        told = []
        for used in (member.rank, 1 - member.rank, 0):
            kept.begin(member)
            kept.last_pass()
            nets[used](batch(2, 3)).sum().backward()
            kept.take()
            kept.reduce(member, (0.0,))
            told.append([net[0].weight.grad is not None for net in nets])
        return told

    for told in together(2, run):
        assert told == [[True, True, False], [True, True, False], [True, False, False]]


def test_gradients_of_every_dtype_are_added_up_in_rows_of_their_own() -> None:
    def run(member: Any) -> Any:
        nets = [model(3, 2), model(3, 2, dtype=torch.float32), model(3, 2, dtype=torch.bfloat16)]
        kept = Gradients([net[0].weight for net in nets], 1, options())
        kept.begin(member)
        kept.last_pass()
        for net in nets:
            net(torch.ones(1, 3, dtype=net[0].weight.dtype)).sum().backward()
        kept.reduce(member, (0.5,))
        return kept.nbytes, member.sizes, [net[0].weight.grad.double().tolist() for net in nets]

    for nbytes, sizes, found in together(2, run):
        assert found == [[[2.0] * 3] * 2] * 3
        assert sizes == [6, 6, 6 + 1 + 3]
        assert nbytes == 6 * 8 + 6 * 2 + 10 * 4


def test_what_carries_no_header_gets_a_row_for_it() -> None:
    """A bfloat16 row would round the header."""
    net = model(3, 2, dtype=torch.bfloat16)
    kept = Gradients(list(net.parameters()), 2, options())
    assert step(kept, net, [batch(2, 3, torch.bfloat16)], Member(Meeting(1), 0), (1000.25, 3.0)) == [1000.25, 3.0]
    assert kept.nbytes == 6 * 2 + (2 + 1) * 8


def test_gradients_can_be_scaled_and_told_from_what_is_no_number() -> None:
    net, member = model(3, 2), Member(Meeting(1), 0)
    kept = Gradients(list(net.parameters()), 1, options())
    step(kept, net, [batch(2, 3)], member)
    before = net[0].weight.grad.clone()
    kept.scale(1.0)
    assert torch.equal(net[0].weight.grad, before)
    kept.scale(0.5)
    assert torch.equal(net[0].weight.grad, before / 2)
    assert kept.finite()
    net[0].weight.grad[0, 0] = torch.inf
    assert not kept.finite()


class Owing:
    """An exchange that records what it is told."""

    def __init__(self, row: Any) -> None:
        self.row, self.told = row, []

    def rescale(self, factor: float) -> None:
        self.told.append(factor)

    def forget(self) -> None:
        self.told.append("forget")


def test_what_compression_owes_follows_the_unit_and_is_forgotten_with_a_step() -> None:
    net = model(3, 2)
    kept = Gradients(list(net.parameters()), 1, options())
    owing = kept._rows[0].exchange = Owing(kept._rows[0].exchange.row)  # type: ignore[assignment]
    kept.begin(None, unit=1.0)
    kept.begin(None, unit=0.5)
    kept.begin(None, unit=0.5)
    kept.forget()
    assert owing.told == [2.0, "forget"]  # type: ignore[attr-defined]


# --- rows that leave early -----------------------------------------------------------------------------------


def big(member: Any, overlap: str = "always", **given: Any) -> tuple[Any, Gradients]:
    net = model(WIDTH, WIDTH, WIDTH, WIDTH, dtype=torch.float32)
    return net, Gradients(list(net.parameters()), 1, options(overlap=overlap, **given))


def test_rows_leave_in_the_order_in_which_the_first_members_gradients_come_about() -> None:
    rows = batch(2, WIDTH, torch.float32)

    def run(member: Any) -> Any:
        net, kept = big(member)
        early = []
        for _ in range(3):
            begin = len(member.sizes)
            kept.begin(member)
            kept.last_pass()
            net(rows).sum().backward()
            early.append(len(member.sizes) - begin)
            header = kept.reduce(member, (2.0,))
            first = net[0].weight.grad.clone()
        return early, [row.indices for row in kept._rows], member.sizes, header, first

    whole = WIDTH * WIDTH
    for early, indices, sizes, header, first in together(2, run):
        assert early == [0, 2, 2], "the first step shows the order, then all but the last row leave early"
        assert indices == [(2,), (1,), (0,)]
        assert sizes == [3 * whole + 4, 4, whole, whole, whole + 4, whole, whole, whole + 4]
        assert header == [4.0]
        net = model(WIDTH, WIDTH, WIDTH, WIDTH, dtype=torch.float32)
        torch.testing.assert_close(
            first, 2 * torch.autograd.grad(net(rows).sum(), net[0].weight)[0], rtol=1e-4, atol=1e-4
        )


def test_rows_wait_for_the_last_pass() -> None:
    rows = batch(4, WIDTH, torch.float32)

    def run(member: Any) -> Any:
        net, kept = big(member)
        for _ in range(2):
            step(kept, net, [rows], member)
        kept.begin(member)
        net(rows[:2]).sum().backward()
        begun = len(member.sizes)
        kept.last_pass()
        net(rows[2:]).sum().backward()
        early = len(member.sizes) - begun
        before = begun
        kept.reduce(member, (1.0,))
        return before, early

    assert together(2, run) == [(2 + 3, 2)] * 2


def test_one_pass_that_is_not_the_last_takes_no_part_in_the_order() -> None:
    def run(member: Any) -> Any:
        net, kept = big(member)
        kept.begin(member)
        net(batch(2, WIDTH, torch.float32)).sum().backward()
        assert kept._came == []
        kept.last_pass()
        net(batch(2, WIDTH, torch.float32)).sum().backward()
        assert kept._came == [2, 1, 0]
        kept.reduce(member, (1.0,))
        kept.begin(member)
        return kept._came

    assert together(2, run) == [[], []]


def test_a_gradient_that_changes_after_its_row_left_is_an_error() -> None:
    def run(member: Any) -> str:
        net, kept = big(member)
        rows = batch(2, WIDTH, torch.float32)
        step(kept, net, [rows], member)
        kept.begin(member)
        kept.last_pass()
        net(rows).sum().backward()
        try:
            net(rows).sum().backward()
        except TrainingError as error:
            return str(error)
        return ""

    assert all("after its row had left" in words for words in together(2, run))


def test_gradients_that_come_twice_are_not_sent_early() -> None:
    def run(member: Any) -> Any:
        net, kept = big(member)
        rows = batch(2, WIDTH, torch.float32)
        for _ in range(2):
            kept.begin(member)
            kept.last_pass()
            net(rows).sum().backward()
            net(rows).sum().backward()
            kept.reduce(member, (1.0,))
        return member.sizes, kept._learns

    whole = 3 * WIDTH * WIDTH + 4
    assert together(2, run) == [([whole, 4, whole], False)] * 2


def test_a_step_that_is_begun_anew_leaves_rows_alone_that_are_under_way() -> None:
    """As after memory ran out in the last pass, when some rows had left already."""
    rows = batch(2, WIDTH, torch.float32)

    def run(member: Any) -> Any:
        net, kept = big(member)
        step(kept, net, [rows], member)
        kept.begin(member)
        kept.last_pass()
        net[2](batch(2, WIDTH, torch.float32)).sum().backward()
        assert len(kept._under_way) == 1
        kept.begin(member)
        assert net[2].weight.grad is None
        assert kept._used == [False, False, True]
        kept.last_pass()
        net(rows).sum().backward()
        kept.reduce(member, (1.0,))
        return [parameter.grad.clone() for parameter in net.parameters()]

    net = model(WIDTH, WIDTH, WIDTH, WIDTH, dtype=torch.float32)
    expected = list(torch.autograd.grad(net(rows).sum(), list(net.parameters())[:2]))
    expected += torch.autograd.grad(net[2](rows).sum(), net[2].weight)
    for found in together(2, run):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, 2 * other, rtol=1e-4, atol=1e-4)


def test_nothing_leaves_early_where_one_row_is_enough_or_overlap_is_never() -> None:
    def run(member: Any) -> Any:
        small = model(3, 2)
        kept = Gradients(list(small.parameters()), 1, options(overlap="always"))
        for _ in range(2):
            step(kept, small, [batch(2, 3)], member)
        begin = len(member.sizes)
        net, never = big(member, "never")
        for _ in range(2):
            step(never, net, [batch(2, WIDTH, torch.float32)], member)
        return kept._learns, never._learns, member.sizes[:begin], member.sizes[begin:]

    whole = 3 * WIDTH * WIDTH + 4
    assert together(2, run) == [(False, False, [8, 8], [whole, whole])] * 2


def test_bytes_of_a_usual_step_are_known_before_the_first() -> None:
    def run(member: Any) -> Any:
        _, kept = big(member, compression="bf16")
        before = kept.nbytes
        net, plain = big(member)
        step(plain, net, [batch(2, WIDTH, torch.float32)], member)
        plain.begin(member)
        return before, plain.nbytes

    whole = 3 * WIDTH * WIDTH
    assert together(2, run) == [(2 * whole + 4 * 4, 4 * whole + 4 * 4)] * 2


@pytest.mark.parametrize(("with_s", "without_s", "gains"), [(1.0, 2.0, True), (2.0, 1.0, False), (1.0, 1.0, False)])
def test_overlap_is_kept_only_where_ten_steps_showed_that_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, with_s: float, without_s: float, gains: bool
) -> None:
    now = threading.local()
    monkeypatch.setattr(gradients.clock, "monotonic_s", lambda: getattr(now, "s", 0.0))
    rows = batch(1, WIDTH, torch.float32)

    def run(member: Any) -> Any:
        net, kept = big(member, "auto")
        early = []
        now.s = 0.0
        for _ in range(13):
            kept.begin(member)
            kept.last_pass()
            begin = len(member.sizes)
            net(rows).sum().backward()
            early.append(len(member.sizes) > begin)
            now.s += with_s if early[-1] == (member.rank == 0) else without_s  # the first member's times count
            kept.reduce(member, (1.0,))
        return early, len(kept._rows)

    for early, rows_kept in together(2, run):
        assert early == [False, *[True, False] * 5, gains, gains]
        assert rows_kept == (3 if gains else 1)


def test_ten_steps_count_and_the_odd_ones_go_without_overlap() -> None:
    _, kept = big(None, "auto")
    assert not kept._leaves_early(), "nothing leaves early while the order is not known"
    kept._ordered = True
    told = []
    for step_number in range(10):
        told.append(kept._leaves_early())
        kept._tried.append(float(step_number))
    assert told == [True, False] * 5
    for gains in (True, False):
        kept._gains = gains
        assert kept._leaves_early() == gains


def test_the_time_of_a_step_counts_from_where_it_was_begun_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 20.0])
    monkeypatch.setattr(gradients.clock, "monotonic_s", lambda: next(now))
    _, kept = big(None)
    kept.begin(None)
    assert kept._begun_s == 10.0
    kept._under_way = [(iter(()), None)]  # type: ignore[list-item]
    kept.begin(None)
    assert kept._begun_s == 10.0
    kept._under_way = []
    kept.begin(None)
    assert kept._begun_s == 20.0


@pytest.mark.parametrize(
    ("nbytes", "buckets"),
    [
        ([100, 28], [(0, 1)]),  # a bucket of the limit is not cut
        ([100, 29], [(0,), (1,)]),
        ([500, 15], [(0, 1)]),  # the last one is less than an eighth full
        ([500, 16], [(0,), (1,)]),
        ([100] * 20, [(0,), *((one, one + 1) for one in range(1, 18, 2)), (19,)]),
    ],
)
def test_buckets_are_filled_from_the_end(nbytes: Sequence[int], buckets: Sequence[Sequence[int]]) -> None:
    found = gradients.cut_buckets(nbytes, ["f4"] * len(nbytes), range(len(nbytes)))
    assert [bucket.indices for bucket in found] == buckets


def test_each_kind_has_a_small_last_bucket_of_its_own() -> None:
    nbytes, kinds = [100] * 20 + [100, 29], ["f4"] * 20 + ["f8"] * 2
    found = gradients.cut_buckets(nbytes, kinds, range(22))
    assert [bucket.indices for bucket in found if bucket.kind == "f8"] == [(20,), (21,)]


def test_another_group_starts_anew() -> None:
    rows = batch(2, WIDTH, torch.float32)
    net, kept = big(None)

    def run(member: Any) -> Any:
        mine, own = (net, kept) if member.rank == 0 else big(member)
        step(own, mine, [rows], member)
        own.begin(member)
        return len(own._rows)

    for _ in range(2):
        assert together(2, run) == [3, 3]
        kept._under_way = []
        kept.begin(None)
        assert len(kept._rows) == 1


# --- the same bits -------------------------------------------------------------------------------------------


def test_sums_are_the_same_bits_however_the_batch_is_shared() -> None:
    rows = batch(8, 5) * 3.7

    def bits(cuts: Sequence[int]) -> Any:
        def run(member: Any) -> Any:
            net = model(5, 4, 3, 2)
            kept = BitwiseGradients(list(net.parameters()), 1, options(exact="bitwise"))
            found = []
            for _ in range(3):
                part = torch.split(rows, list(cuts))[member.rank]
                step(kept, net, torch.split(part, 1), member, (0.1,) if member.rank == 0 else (0.0,))
                found += [parameter.grad.clone() for parameter in net.parameters()]
            return found, list(kept.exponents), kept.overflowed

        return together(len(cuts), run)

    (expected, exponents, overflowed), *_ = bits((8,))
    assert not overflowed
    largest = [float(each.abs().max()) for each in expected[-3:]]
    assert all(2.0 ** (exponent - 1) <= top < 2.0**exponent for exponent, top in zip(exponents, largest, strict=True))
    for cuts in ((4, 4), (1, 7), (3, 3, 2)):
        for found, others, _ in bits(cuts):
            assert others == exponents
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_header_is_summed_without_an_order() -> None:
    numbers = [0.1, 1e5, -1e-9, 3.0]

    def total(order: Sequence[float]) -> list[float]:
        def run(member: Any) -> Any:
            kept = BitwiseGradients(list(model(2, 1).parameters()), 1, options(exact="bitwise"))
            kept.begin(member)
            return kept.reduce(member, (order[member.rank],))

        return together(4, run)[0]

    exact = sum((Fraction(round(Fraction(number) * FINEST), FINEST) for number in numbers), Fraction(0))
    assert total(numbers) == total(numbers[::-1]) == [float(exact)]


def test_no_number_in_a_header_counts_as_nothing() -> None:
    assert gradients._in_two(float("nan")) == gradients._in_two(float("inf")) == (0, 0)
    assert gradients._in_two(-1.5) == (-1.5 * 2**20, 0)
    assert gradients._in_two(2.0**-30) == (0, 2**42)


def test_growth_beyond_what_the_integers_hold_is_told_until_the_next_step() -> None:
    net, member = model(1, 1), Member(Meeting(1), 0)
    kept = BitwiseGradients(list(net.parameters()), 1, options(exact="bitwise"))

    def given(gradient: float) -> bool:
        kept.begin(member)
        net[0].weight.grad.fill_(gradient)
        kept.take()
        return kept.overflowed

    assert not given(2.0**14 * (1 - 1e-9))
    assert given(2.0**14)
    for odd in (float("nan"), float("inf"), -float("inf")):
        assert given(odd)
        assert int(kept._total[0]) == 0
    assert not given(1.0)
    assert float(kept._rows[0].exchange.row[0]) == 0.0, "a micro-batch is counted once"


def test_integers_are_counted_in_parts_of_the_last_sums_largest_entry() -> None:
    net, member = model(1, 1), Member(Meeting(1), 0)
    kept = BitwiseGradients(list(net.parameters()), 1, options(exact="bitwise"))
    for gradient, exponent in ((3.0, 2), (0.25, -1), (0.0, -1), (0.5, 0)):
        kept.begin(member)
        net[0].weight.grad.fill_(gradient)
        kept._used[0] = True
        kept.take()
        kept.reduce(member, (0.0,))
        assert float(net[0].weight.grad) == gradient
        assert kept.exponents == [exponent]
    assert kept.nbytes == 8 * (1 + 2 + 1)


def test_an_exact_sum_never_leaves_early() -> None:
    net = model(WIDTH, WIDTH, WIDTH, WIDTH, dtype=torch.float32)
    kept = BitwiseGradients(list(net.parameters()), 1, options(overlap="always", exact="bitwise"))
    assert kept.options.overlap == "never"
    assert not kept._learns
