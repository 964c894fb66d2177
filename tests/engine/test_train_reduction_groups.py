"""Gradients leave while others are computed, in fewer bytes, by kind or summed elsewhere, and the sum is the sum."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.backends.registry import load
from hetero.comm.errors import GroupBrokenError
from hetero.comm.group import Group, open_rendezvous
from tests.engine.members import Members, members
from tests.needs import need

torch = pytest.importorskip("torch")
nn = torch.nn

from hetero.train.gradient_compression import LowRankExchange, make_exchange, settle, starting  # noqa: E402
from hetero.train.gradients import Gradients  # noqa: E402
from hetero.train.reduction_groups import ByKind, SummedOn  # noqa: E402
from hetero.train.values import TrainingError, TrainOptions  # noqa: E402

WIDTH, SIZE = 384, 4
RANKS = range(SIZE)


@pytest.fixture(scope="module")
def team() -> Iterator[Members]:
    with members(SIZE) as four:
        four.form()
        yield four


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Travelling:
    """A function that travels with what it refers to, and gives tensors as NumPy arrays."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work

    def __call__(self, group: Group) -> Any:
        return as_numpy(self.work(group))

    def __reduce__(self) -> Any:
        return Travelling._of, (cloudpickle.dumps(self.work),)

    @staticmethod
    def _of(work: bytes) -> Travelling:
        return Travelling(cloudpickle.loads(work))


def as_numpy(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [as_numpy(part) for part in value]
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy() if torch.is_tensor(value) else value


def asked(team: Members, work: Callable[[Any], Any]) -> list[Any]:
    """Let all members do something; returns what each gave."""
    found = team.run(Travelling(work))
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


def again(group: Group, kind: Callable[..., Group]) -> Group:
    """Form a group of another kind with the members of a group."""
    where = torch.zeros(1, dtype=torch.int64)
    store = rendezvous = None
    if group.rank == 0:
        store, rendezvous = open_rendezvous("again", group.world_size)
        where += rendezvous[1]
    group.broadcast(where, 0)
    return kind(group.rank, group.world_size, ("127.0.0.1", int(where), "again"), store)


class Counting(Group):
    """A group that counts the bytes that it is given to add up."""

    sent_bytes = 0

    def start_all_reduce(self, tensor: Any, *how: Any) -> Any:
        self.sent_bytes += tensor.nbytes
        return super().start_all_reduce(tensor, *how)


class Stack(nn.Module):  # type: ignore[misc]
    """Layers of about half a MiB, one of which the first member uses alone, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(5)])
        self.firsts, self.nobodys = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.wide = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
        self.narrow = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16))

    def forward(self, x: Any, first: bool) -> Any:
        for layer in self.layers:
            x = torch.relu(layer(x))
        x = x * self.wide.float() * self.narrow.float()
        return self.firsts(x) if first else x


@pytest.fixture(scope="module")
def model() -> Any:
    return Stack()


def samples(rank: int, step: int) -> Any:
    return torch.from_numpy(np.random.default_rng([rank, step]).standard_normal((4, WIDTH)).astype(np.float32))


def own_gradients(model: Any, rank: int, step: int) -> list[Any]:
    """Compute what one member adds, in one pass, without hetero."""
    alone = copy.deepcopy(model)
    alone(samples(rank, step), rank == 0).square().mean().backward()
    return [p.grad for p in alone.parameters()]


def check_sums(found: list[list[Any]], model: Any, step: int, ranks: Any = RANKS) -> None:
    """Compare what every member has after a step with the sum of what these members computed."""
    for *mine, parts in zip(
        *found, zip(*(own_gradients(model, rank, step) for rank in ranks), strict=True), strict=True
    ):
        there = [part for part in parts if part is not None]
        assert all((one is None) == (not there) for one in mine), "what nobody used has no gradient"
        if there:
            assert all(np.array_equal(one, mine[0]) for one in mine)
            expected = sum(there).float().numpy()
            tolerance = 0.02 if there[0].dtype == torch.bfloat16 else 1e-5
            np.testing.assert_allclose(mine[0], expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def stepped(
    group: Group, model: Any, steps: int, passes: int = 1, overlap: str = "always"
) -> list[tuple[int, list[Any]]]:
    """Do some steps on one member; returns for each the rows that left early, and the gradients."""
    own = copy.deepcopy(model)
    gradients = Gradients(list(own.parameters()), 1, TrainOptions(8, overlap=overlap))
    found = []
    for step in range(steps):
        gradients.begin(group)
        for number, piece in enumerate(samples(group.rank, step).chunk(passes)):
            if number == passes - 1:
                gradients.last_pass()
            (own(piece, group.rank == 0).square().mean() / passes).backward()
        early = len(gradients._under_way)
        assert gradients.reduce(group, [1.0]) == [group.world_size]
        found.append((early, [None if p.grad is None else p.grad.clone() for p in own.parameters()]))
    return found


@pytest.mark.parametrize("passes", [1, 2])
def test_rows_leave_during_the_last_pass_and_the_sum_is_that_of_all_members(
    team: Members, model: Any, passes: int
) -> None:
    found = asked(team, lambda group: stepped(group, model, 3, passes))
    assert found[0][0][0] == 0, "the first step shows the order"
    assert found[0][1][0] >= 3
    for step in range(3):
        check_sums([mine[step][1] for mine in found], model, step)


def test_without_overlap_nothing_leaves_early(team: Members, model: Any) -> None:
    found = asked(team, lambda group: stepped(group, model, 2, overlap="never"))
    assert [early for early, _ in found[0]] == [0, 0]
    check_sums([mine[1][1] for mine in found], model, 1)


def test_overlap_is_tried_in_turn_and_all_members_stay_with_one_way(team: Members) -> None:
    plain = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(5)])

    def work(group: Group) -> list[bool]:
        own = copy.deepcopy(plain)
        gradients = Gradients(list(own.parameters()), 1, TrainOptions(8))
        early = []
        for step in range(14):
            gradients.begin(group)
            gradients.last_pass()
            own(samples(group.rank, step)).square().mean().backward()
            early.append(bool(gradients._under_way))
            gradients.reduce(group, [1.0])
        return early

    found = asked(team, work)
    assert found == [found[0]] * SIZE
    assert found[0][:11] == [False, *[True, False] * 5]
    assert len(set(found[0][11:])) == 1


def test_a_member_without_samples_adds_nothing_and_holds_nobody_up(team: Members, model: Any) -> None:
    def work(group: Group) -> list[Any]:
        own = copy.deepcopy(model)
        gradients = Gradients(list(own.parameters()), 1, TrainOptions(8, overlap="always"))
        for step in range(2):
            gradients.begin(group)
            if group.rank:
                gradients.last_pass()
                own(samples(group.rank, step), False).square().mean().backward()
            gradients.reduce(group, [float(group.rank)])
        return [p.grad for p in own.parameters()]

    check_sums(asked(team, work), model, 1, RANKS[1:])


def test_a_step_that_is_begun_anew_keeps_what_has_left(team: Members, model: Any) -> None:
    def work(group: Group) -> list[Any]:
        own = copy.deepcopy(model)
        gradients = Gradients(list(own.parameters()), 1, TrainOptions(8, overlap="always"))
        for step in range(2):
            for tries in range(2 if step and group.rank else 1):
                gradients.begin(group)
                pieces = samples(group.rank, step).chunk(1 + tries)
                for piece in pieces:
                    if piece is pieces[-1]:
                        gradients.last_pass()
                    (own(piece, group.rank == 0).square().mean() / len(pieces)).backward()
            gradients.reduce(group, [1.0])
        return [p.grad for p in own.parameters()]

    check_sums(asked(team, work), model, 1)


def test_gradients_that_come_in_parts_do_not_leave_early(team: Members) -> None:
    from torch.utils.checkpoint import checkpoint

    shared = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])

    def work(group: Group) -> list[int]:
        own = copy.deepcopy(shared)
        gradients = Gradients(list(own.parameters()), 1, TrainOptions(8, overlap="always"))
        early = []
        for step in range(2):
            gradients.begin(group)
            gradients.last_pass()
            x = samples(group.rank, step).requires_grad_()
            for _ in range(2):
                x = checkpoint(own, x, use_reentrant=True)
            x.square().mean().backward()
            early.append(len(gradients._under_way))
            gradients.reduce(group, [1.0])
        return early

    assert asked(team, work) == [[0, 0]] * SIZE


def test_a_gradient_that_changes_after_its_row_has_left_is_an_error(team: Members, model: Any) -> None:
    def work(group: Group) -> str:
        own = copy.deepcopy(model)
        gradients = Gradients(list(own.parameters()), 1, TrainOptions(8, overlap="always"))
        try:
            for passes in (1, 2):
                gradients.begin(group)
                gradients.last_pass()
                for _ in range(passes):
                    own(samples(0, 0), True).sum().backward()
                gradients.reduce(group, [1.0])
        except TrainingError as error:
            return str(error)
        return ""

    assert all("give the Trainer overlap='never'" in said for said in asked(team, work))
    team.form()


# --- compression ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "most"), [("none", 1.001), ("fp16", 0.51), ("bf16", 0.51), ("powersgd", 0.04)])
def test_compression_sends_as_few_bytes_as_it_says(team: Members, kind: str, most: float) -> None:
    plain = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(5)])
    whole = sum(p.nbytes for p in plain.parameters())

    def work(plain_group: Group) -> tuple[int, int]:
        group: Any = again(plain_group, Counting)
        own = copy.deepcopy(plain)
        gradients = Gradients(list(own.parameters()), 1, TrainOptions(8, compression=kind))
        said = gradients.nbytes
        for step in range(2):
            group.sent_bytes = 0
            gradients.begin(group)
            gradients.last_pass()
            own(samples(group.rank, step)).sum().backward()
            gradients.reduce(group, [1.0])
            sent_bytes = group.sent_bytes
        group.close()
        return sent_bytes, said

    for sent, said in asked(team, work):
        assert sent <= most * whole
        assert sent == pytest.approx(said, rel=0.01)


@settings(max_examples=8)
@given(
    kind=st.sampled_from(["fp16", "bf16", "powersgd"]),
    seed=st.integers(0, 2**31),
    rank=st.integers(1, 3),
    scale=st.sampled_from([1e-8, 1.0, 1e6]),
)
def test_what_was_applied_and_what_is_owed_make_up_the_gradients(
    team: Members, kind: str, seed: int, rank: int, scale: float
) -> None:
    shapes = [(12, 3, 4), (40,), (9, 20)]
    numel = sum(int(np.prod(shape)) for shape in shapes)

    def work(group: Group) -> tuple[Any, Any, Any]:
        row = torch.zeros(numel, dtype=torch.float64 if kind == "powersgd" else torch.float32)
        options = TrainOptions(8, compression=kind, compression_rank=rank)
        exchange = make_exchange(options, row, shapes, 0)
        rng = np.random.default_rng([seed, group.rank])
        given_, applied = torch.zeros(numel, dtype=torch.float64), torch.zeros(numel, dtype=torch.float64)
        for _ in range(5):
            own = torch.from_numpy(rng.standard_normal(numel) * scale).to(row.dtype)
            row.copy_(own)
            given_ += own
            settle([starting(exchange, group)])
            applied += row
        return given_, applied, exchange.owed.double()

    found = asked(team, work)
    due = sum(given_ for given_, _, _ in found)
    owed = sum(owed for _, _, owed in found)
    assert all(np.array_equal(found[0][1], applied) for _, applied, _ in found)
    # the 16-bit sum itself is rounded, which nobody owes
    tolerance = {"powersgd": 1e-12, "fp16": 5e-3, "bf16": 5e-2}[kind]
    assert np.abs(found[0][1] + owed - due).max() <= tolerance * np.abs(due).max()


def test_a_matrix_of_low_rank_arrives_whole_once_its_factors_are_found(team: Members) -> None:
    thin = torch.randn(30, 2, generator=torch.Generator().manual_seed(1)).double()
    matrix = thin @ thin.T

    def work(group: Group) -> float:
        row = torch.zeros(900, dtype=torch.float64)
        exchange = LowRankExchange(row, [(30, 30)], 2, 0)
        for _ in range(2):
            row.copy_(matrix.reshape(-1))
            settle([starting(exchange, group)])
        return float((row.reshape(30, 30) - SIZE * matrix).abs().max())

    assert max(asked(team, work)) < 1e-9


@pytest.mark.parametrize("kind", ["fp16", "bf16", "powersgd"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_with_what_is_no_number_arrives_as_that_and_leaves_nothing_behind(
    team: Members, kind: str, bad: float
) -> None:
    def work(group: Group) -> list[bool]:
        row = torch.zeros(400)
        exchange = make_exchange(TrainOptions(8, compression=kind, compression_rank=1), row, [(20, 20)], 0)
        finite = []
        for step in range(3):
            row.fill_(1.0)
            if step == 1 and group.rank == 0:
                row[7] = bad
            settle([starting(exchange, group)])
            finite.append(bool(torch.isfinite(row).all()))
        return finite

    assert asked(team, work) == [[True, False, True]] * SIZE


# --- by kind, and on another device --------------------------------------------------------------------------

TEAM = ("cuda:0", "cuda:1", "cpu:0", "xpu:0")


def by_kind(rank: int, size: int, rendezvous: Any, store: Any) -> Group:
    """Form a group by kinds, where Gloo stands in for the library inside a kind."""
    return ByKind(rank, TEAM, rendezvous, store, 20.0, lambda kind, *how: Group(*how))


def test_a_sum_by_kinds_is_the_sum_and_the_same_bits_on_all(team: Members) -> None:
    def work(group: Group) -> list[Any]:
        by = again(group, by_kind)
        rows = [samples(group.rank, step) for step in range(3)]
        works = [by.start_all_reduce(row) for row in rows]
        for under_way in works:
            under_way.wait()
        most = torch.tensor([float(group.rank)])
        by.all_reduce(most, "max")
        by.close()
        return [*rows, most]

    found = asked(team, work)
    for step in range(3):
        np.testing.assert_allclose(
            found[0][step], sum(samples(rank, step).numpy() for rank in RANKS), rtol=1e-5, atol=1e-5
        )
    assert all(np.array_equal(a, b) for rows in found for a, b in zip(rows, found[0], strict=True))
    assert found[0][3] == SIZE - 1


def test_training_goes_over_a_group_by_kinds(team: Members, model: Any) -> None:
    def work(group: Group) -> list[Any]:
        by = again(group, by_kind)
        found = stepped(by, model, 2)[1][1]
        by.close()
        return found

    check_sums(asked(team, work), model, 1)


def test_a_member_that_leaves_a_group_by_kinds_frees_all_others(team: Members) -> None:
    def work(group: Group) -> bool:
        by = again(group, by_kind)
        by.all_reduce(torch.ones(1))
        try:
            if group.rank == SIZE - 1:
                by.abort()
                return True
            by.all_reduce(torch.ones(1000))
        except GroupBrokenError:
            return True
        finally:
            by.close()
        return False

    assert all(asked(team, work))


@pytest.mark.parametrize(("part", "dtype"), [("opencl", "float32"), ("opencl", "bfloat16"), ("vulkan", "float32")])
def test_rows_are_added_up_on_the_device_that_was_named(team: Members, part: str, dtype: str) -> None:
    need(part)
    device = next(found.device for found in load(part).probe() if found.device and not found.reason)
    kind = getattr(torch, dtype)

    def work(group: Group) -> tuple[Any, int]:
        on: Any = again(group, lambda *how: SummedOn(*how, 20.0, device))
        row, header = samples(group.rank, 0).to(kind), torch.tensor([2.0], dtype=torch.float64)
        works = [on.start_all_reduce(row), on.start_all_reduce(header)]
        for under_way in works:
            under_way.wait()
        on.close()
        assert header == 2.0 * SIZE
        return row, on.summer.rows if on.summer else 0

    found = asked(team, work)
    expected = sum(samples(rank, 0).to(kind).float() for rank in RANKS).to(kind).float().numpy()
    assert [rows for _, rows in found] == [SIZE, 0, 0, 0]
    for row, _ in found:
        np.testing.assert_allclose(row, expected, rtol=1e-6, atol=1e-6)
