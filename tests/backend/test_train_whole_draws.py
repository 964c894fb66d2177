"""What each process draws of a whole batch is what one process would have drawn, cut to its rows."""

from __future__ import annotations

import itertools
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from torch import distributions  # noqa: E402

from hetero.train.keyed_random import RandomRefusedError  # noqa: E402
from hetero.train.launch.whole_draws import Rows, WholeDraws  # noqa: E402

KINDS = (torch.float32, torch.float64, torch.bfloat16)
PARTS = ((4, 5), (3, 7, 10), (2, 33, 5))
SHAPES = ((-1,), (-1, 3), (13, -1), (-1, 2, 2, 5), (14, -1, 8), (1, -1), (-1, 17, 1, 1))
Drawing = Callable[[int, int], Any]


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_rng_state(state)
    torch.set_num_threads(threads)


@pytest.fixture
def draws() -> Iterator[WholeDraws]:
    with WholeDraws() as installed:
        yield installed


def check(draws: WholeDraws, draw: Drawing, parts: tuple[int, ...], what: object, dim: int = 0) -> None:
    """Compare what `draw(begin, count)` returns part by part with what it returns for the whole, to the bit."""
    draws.rows = None
    draws._usual.clear()  # each layout by itself: within a script, a function that drew before is taken to draw alike
    torch.manual_seed(7)
    expected = draw(0, sum(parts))
    state = torch.get_rng_state()
    found, begin = [], 0
    for count in parts:
        torch.manual_seed(7)
        draws.rows = Rows(begin, count, sum(parts))
        found.append(draw(begin, count))
        begin += count
        assert torch.equal(torch.get_rng_state(), state), f"the generator's state: {what}"
    draws.rows = None
    assert torch.equal(torch.cat(found, dim), expected), what


def sized(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(count if size == -1 else size for size in shape)


def layouts(shape: tuple[int, ...], whole: int, kind: Any) -> Iterator[tuple[str, Drawing]]:
    """Yield how the same numbers may lie in memory."""
    dim = shape.index(-1)
    numbers = (torch.arange(math.prod(sized(shape, whole))) % 97 / 97 + 0.005).reshape(sized(shape, whole)).to(kind)
    back = tuple(reversed(range(len(shape))))

    def contiguous(begin: int, count: int) -> Any:
        return numbers.narrow(dim, begin, count).clone(memory_format=torch.contiguous_format)

    def transposed(begin: int, count: int) -> Any:
        return contiguous(begin, count).permute(back).clone(memory_format=torch.contiguous_format).permute(back)

    def sparse(begin: int, count: int) -> Any:
        wide = torch.zeros(*sized(shape, count), 2, dtype=kind)
        wide[..., 0] = numbers.narrow(dim, begin, count)
        return wide[..., 0]

    yield from (("contiguous", contiguous), ("transposed", transposed), ("with gaps", sparse))


OF_SHAPE: dict[str, Callable[..., Any]] = {
    "rand": lambda size, kind: torch.rand(size, dtype=kind),
    "rand of numbers": lambda size, kind: torch.rand(*size, dtype=kind),
    "randn": lambda size, kind: torch.randn(size=size, dtype=kind),
    "randint": lambda size, kind: torch.randint(3, 50, size),
    "randint by name": lambda size, kind: torch.randint(high=50, size=size, dtype=torch.int32),
    "normal": lambda size, kind: torch.normal(1.0, 2.0, size, dtype=kind),
    "uniform_": lambda size, kind: torch.empty(size, dtype=kind).uniform_(-1, 1),
    "out": lambda size, kind: torch.randn(size, out=torch.empty(size, dtype=kind)),
    "normal, out": lambda size, kind: torch.normal(0.0, 1.0, size, out=torch.empty(0, dtype=kind)),
}


@pytest.mark.parametrize("name", OF_SHAPE)
def test_numbers_of_a_given_shape(draws: WholeDraws, name: str) -> None:
    for parts, shape, kind in itertools.product(PARTS, SHAPES, KINDS):

        def draw(_: int, count: int, shape: Any = shape, kind: Any = kind) -> Any:
            return OF_SHAPE[name](sized(shape, count), kind)

        check(draws, draw, parts, (shape, kind), shape.index(-1))


OF_TENSOR: dict[str, Callable[[Any], Any]] = {
    "normal_": lambda x: x.normal_(1.0, 2.0),
    "uniform_": lambda x: x.uniform_(-1.0, 2.0),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "bernoulli_ of odds": lambda x: x.bernoulli_(x.clone()),
    "exponential_": lambda x: x.exponential_(2.0),
    "random_": lambda x: x.random_(),
    "random_ between": lambda x: x.random_(3, 90),
    "log_normal_": lambda x: x.log_normal_(),
    "geometric_": lambda x: x.geometric_(0.3),
    "cauchy_": lambda x: x.cauchy_(),
    "Tensor.bernoulli": lambda x: x.bernoulli(),
    "Tensor.bernoulli of p": lambda x: x.bernoulli(p=0.3),
    "bernoulli": lambda x: torch.bernoulli(x),
    "normal": lambda x: torch.normal(x, x),
    "normal of mean": lambda x: torch.normal(x, 2.0),
    "normal of deviation": lambda x: torch.normal(mean=1.0, std=x),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x),
    "randn_like of another kind": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randint_like": lambda x: torch.randint_like(x, 2, 9),
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout in place": lambda x: F.dropout(x, 0.3, inplace=True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "alpha_dropout in place": lambda x: F.alpha_dropout(x, 0.3, True, True),
    "torch.dropout": lambda x: torch.dropout(x, 0.9, True),
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, 0.5, dim=0 if x.dim() < 2 else -1) if x.dim() > 1 else x,
}


@pytest.mark.parametrize("name", OF_TENSOR)
def test_numbers_like_a_tensor_however_it_lies_in_memory(draws: WholeDraws, name: str) -> None:
    for number, (parts, shape) in enumerate(itertools.product(PARTS, SHAPES)):
        if name == "gumbel_softmax" and shape[-1] == -1:
            continue
        for layout, make in layouts(shape, sum(parts), KINDS[number % 3]):

            def draw(begin: int, count: int, make: Drawing = make) -> Any:
                return OF_TENSOR[name](make(begin, count))

            check(draws, draw, parts, (layout, shape), shape.index(-1))


@pytest.mark.parametrize("name", ["dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"])
def test_dropout_of_features(draws: WholeDraws, name: str) -> None:
    inner = {"dropout1d": (3,), "dropout2d": (2, 3), "dropout3d": (2, 3, 4)}.get(name, (6, 2))
    for parts in (*PARTS, (1, 6), (0, 7)):
        for layout, make in layouts((-1, 17, *inner), sum(parts), torch.float32):

            def draw(begin: int, count: int, make: Drawing = make) -> Any:
                return getattr(F, name)(make(begin, count), 0.4, True)

            check(draws, draw, parts, layout)


def test_parts_of_one_row_and_of_none(draws: WholeDraws) -> None:
    for parts in ((1, 6), (0, 7), (1, 2, 37)):
        for shape in ((-1,), (-1, 3), (13, -1, 8)):
            dim, whole = shape.index(-1), sum(parts)
            _, make = next(layouts(shape, whole, torch.float32))
            for name in OF_TENSOR:
                if name != "gumbel_softmax" and not (dim and 0 in parts):

                    def draw(begin: int, count: int, name: str = name, make: Drawing = make) -> Any:
                        return OF_TENSOR[name](make(begin, count))

                    check(draws, draw, parts, (name, shape), dim)


def test_the_options_of_torch_are_honoured(draws: WholeDraws) -> None:
    draws.rows = Rows(2, 3, 7)
    own = torch.Generator().manual_seed(5)
    before = torch.get_rng_state()
    drawn = torch.rand(3, 4, generator=own, dtype=torch.float64, requires_grad=True)
    assert drawn.is_leaf
    assert drawn.requires_grad
    assert drawn.dtype == torch.float64
    assert drawn.is_contiguous()
    assert drawn.untyped_storage().nbytes() == 3 * 4 * 8
    noise = torch.empty(3, 4, dtype=torch.float64)
    assert noise.normal_(generator=own) is noise
    assert torch.randn_like(noise, requires_grad=True).requires_grad
    state = torch.get_rng_state()
    assert not torch.equal(before, state)  # by randn_like, which has no generator
    draws.rows = None
    again = torch.Generator().manual_seed(5)
    assert torch.equal(torch.rand(7, 4, generator=again, dtype=torch.float64)[2:5], drawn)
    assert torch.equal(torch.empty(7, 4, dtype=torch.float64).normal_(generator=again)[2:5], noise)
    assert torch.equal(own.get_state(), again.get_state())


def test_choices_of_rows(draws: WholeDraws) -> None:
    odds = torch.rand(20, 6, generator=torch.Generator().manual_seed(1))
    one = odds[0].clone()
    for replacement, samples in ((False, 1), (False, 4), (True, 1), (True, 8)):

        def rows(begin: int, count: int, replacement: bool = replacement, samples: int = samples) -> Any:
            part = odds[begin : begin + count]
            return torch.cat([torch.multinomial(part, samples, replacement), part.multinomial(samples, replacement)])

        draws.rows = Rows(3, 7, 20)
        for parts in ((3, 7, 10), (11, 9)):
            torch.manual_seed(0)

            def first(begin: int, count: int, rows: Any = rows) -> Any:
                return rows(begin, count)[:count]

            check(draws, first, parts, (replacement, samples))
    check(draws, lambda _, count: torch.multinomial(one, count, True), (11, 9), "one row of odds")


def test_choices_among_samples_of_all_are_refused(draws: WholeDraws) -> None:
    draws.rows = Rows(0, 6, 20)
    with pytest.raises(RandomRefusedError, match="chooses among 6 entries"):
        torch.multinomial(torch.ones(6), 2)
    with pytest.raises(RandomRefusedError, match=r"randperm\(6\)"):
        torch.randperm(6)
    assert len(torch.randperm(6, generator=torch.Generator())) == 6
    assert len(torch.randperm(20)) == 20
    draws.rows = Rows(0, 20, 20)
    assert len(torch.randperm(20)) == 20
    assert torch.multinomial(torch.ones(20), 2).shape == (2,)


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("poisson", lambda x: torch.poisson(x)),
        ("binomial", lambda x: torch.binomial(torch.full((4, 3), 9.0), x)),
        ("_standard_gamma", lambda x: distributions.Gamma(x, x).rsample()),
        ("_sample_dirichlet", lambda x: distributions.Beta(x, x).rsample()),
        ("_sample_dirichlet", lambda x: distributions.Dirichlet(x).sample()),
        ("rrelu", lambda x: F.rrelu(x, training=True)),
        ("rrelu_", lambda x: nn.RReLU(inplace=True)(x)),
    ],
)
def test_what_draws_until_it_accepts_is_refused_by_name(draws: WholeDraws, name: str, draw: Any) -> None:
    odds = torch.full((4, 3), 0.5)
    draws.rows = Rows(1, 4, 9)
    state = torch.get_rng_state()
    with pytest.raises(RandomRefusedError, match=rf"torch\.{name} draws as many") as refused:
        draw(odds)
    assert refused.value.remedy
    assert torch.equal(torch.get_rng_state(), state)
    draws.rows = Rows(0, 4, 4)
    assert draw(odds).shape[0] == 4
    draws.rows = Rows(1, 5, 9)
    assert draw(odds).shape[0] == 4
    assert F.rrelu(torch.ones(5), training=False).tolist() == [1.0] * 5


DISTRIBUTIONS: dict[str, Callable[[Any], Any]] = {
    "normal": lambda x: distributions.Normal(x, x.exp()).rsample(),
    "normal, samples": lambda x: distributions.Normal(x, 1.0).sample((5,)),
    "normal, the same for each": lambda x: distributions.Normal(0.0, 1.0).sample(x.shape),
    "independent": lambda x: distributions.Independent(distributions.Normal(x, 1.0), 1).rsample(),
    "bernoulli": lambda x: distributions.Bernoulli(x).sample(),
    "bernoulli, samples": lambda x: distributions.Bernoulli(x).sample((5,)),
    "categorical": lambda x: distributions.Categorical(logits=x).sample(),
    "one hot": lambda x: distributions.OneHotCategorical(logits=x).sample(),
    "gumbel": lambda x: distributions.Gumbel(x, 1.0).rsample(),
    "uniform": lambda x: distributions.Uniform(x, x + 1).rsample(),
    "exponential": lambda x: distributions.Exponential(x).rsample(),
    "laplace": lambda x: distributions.Laplace(x, 1.0).rsample(),
    "log-normal": lambda x: distributions.LogNormal(x, 1.0).rsample(),
    "cauchy": lambda x: distributions.Cauchy(x, 1.0).rsample(),
    "geometric": lambda x: distributions.Geometric(x).sample(),
    "relaxed": lambda x: distributions.RelaxedOneHotCategorical(torch.tensor(0.5), logits=x).rsample(),
    "multivariate": lambda x: distributions.MultivariateNormal(x, torch.eye(3)).rsample(),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_of_torch(draws: WholeDraws, name: str) -> None:
    x = torch.rand(20, 3, generator=torch.Generator().manual_seed(1)) * 0.5 + 0.25
    dim = 1 if "samples" in name else 0
    for parts in ((*(3, 7, 10)[1:], 3), (11, 9)):
        check(draws, lambda begin, count: DISTRIBUTIONS[name](x[begin : begin + count]), parts, name, dim)


ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "negative": {"scale": -0.3},
    "added mask": {"attn_mask": 1.0},
    "mask": {"attn_mask": True},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.parametrize("name", ATTENTION)
def test_the_dropout_of_attention(draws: WholeDraws, name: str) -> None:
    for kind in KINDS:
        own = torch.Generator().manual_seed(1)
        query = torch.randn(9, 4, 6, 8, dtype=kind, generator=own)
        key, value = torch.randn(2, 9, 2 if name == "grouped" else 4, 6, 8, dtype=kind, generator=own)
        mask = torch.randn(9, 1, 6, 6, dtype=kind, generator=own) if "attn_mask" in ATTENTION[name] else None
        if name == "mask":
            mask = mask > 0
            mask[0] = False

        def draw(begin: int, count: int, tensors: Any = (query, key, value), mask: Any = mask) -> Any:
            part = slice(begin, begin + count)
            options = {**ATTENTION[name], "attn_mask": None if mask is None else mask[part]}
            return F.scaled_dot_product_attention(*(each[part] for each in tensors), dropout_p=0.3, **options)

        check(draws, draw, (2, 7), kind)
        check(draws, draw, (1, 3, 5), kind)


@pytest.mark.parametrize("needs_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_of_many_heads(draws: WholeDraws, batch_first: bool, needs_weights: bool) -> None:
    layer = nn.MultiheadAttention(8, 4, dropout=0.4, batch_first=batch_first).double()
    x = torch.randn(9, 6, 8, dtype=torch.float64)
    x = x if batch_first else x.transpose(0, 1).contiguous()
    dim = 0 if batch_first else 1

    def draw(begin: int, count: int) -> Any:
        part = x.narrow(dim, begin, count).contiguous()
        return layer(part, part, part, need_weights=needs_weights)[0].detach().mul(2**20).round()

    check(draws, draw, (2, 7), "heads", dim)
    check(draws, draw, (4, 3, 2), "heads", dim)


def _gradients(begin: int, count: int, forward: Callable[[Any], Any]) -> Any:
    x = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(20, 3)[begin : begin + count].clone().requires_grad_()
    (forward(x) * torch.arange(3.0)).sum().backward()
    return x.grad


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: F.dropout(x, 0.4),
        lambda x: F.dropout(x * 1.0, 0.4, inplace=True),
        lambda x: F.alpha_dropout(x, 0.4, True),
        lambda x: F.dropout1d(x[:, :, None], 0.4)[:, :, 0],
        lambda x: F.gumbel_softmax(x, hard=True),
        lambda x: torch.normal(x, 1.0) * x,
        lambda x: torch.bernoulli(x.sigmoid()) * x,
        lambda x: x * torch.rand_like(x),
        lambda x: distributions.Normal(x, x.exp()).rsample(),
        lambda x: (x * 2.0).uniform_() + x,
    ],
)
def test_gradients_go_through_what_is_drawn(draws: WholeDraws, forward: Any) -> None:
    for parts in ((11, 9), (7, 4, 9)):
        check(draws, lambda begin, count: _gradients(begin, count, forward), parts, "gradients")


def test_what_is_of_one_size_is_drawn_whole_where_a_process_has_as_many_rows_later(draws: WholeDraws) -> None:
    draws.folded = True
    cases: tuple[Callable[[], Any], ...] = (
        lambda: torch.randn(8, 3),
        lambda: F.dropout(torch.ones(8, 3), 0.5),
        lambda: torch.multinomial(torch.ones(8), 5),
        lambda: torch.randperm(8),
    )
    for number, draw in enumerate(cases):
        draws.rows = None
        torch.manual_seed(1)
        whole = draw()
        for own in (9, 8, 4, 1):  # 8 is a multiple of the last two
            torch.manual_seed(1)
            draws.rows = Rows(0, own, 16)
            assert torch.equal(draw(), whole), (number, own)


def test_the_first_draw_that_differs_is_known_and_whether_it_was_taken_for_rows() -> None:
    """One process has 8 rows and draws 8 numbers that are none; another one has 9, and is not misled."""
    logs = []
    for count in (8, 9, 17):
        with WholeDraws() as draws:
            draws.rows = Rows(0, count, 17)
            torch.rand(count, 2)
            torch.rand(8)
            logs.append(draws.log)
    codes = [log.codes for log in logs]
    first, by_chance = logs[0].first_apart(codes)
    assert first is not None
    assert (by_chance, first.shape, "test_train_whole_draws.py, line" in first.words) == (True, (8,), True)
    assert logs[1].first_apart(codes)[1] is False
    assert logs[1].first_apart(codes[1:]) == (None, False)
    logs[2].begin()
    assert logs[0].first_apart([logs[2].codes])[1] is False


def test_a_batch_flattened_with_its_positions_is_cut_where_asked(draws: WholeDraws) -> None:
    draws.rows = Rows(2, 3, 7)
    assert draws.folded is False
    odds = torch.rand(21, 4, generator=torch.Generator().manual_seed(1)).repeat_interleave(4, 0)
    draws.folded = True

    def draw(begin: int, count: int) -> Any:
        return torch.multinomial(odds[4 * begin : 4 * (begin + count)], 1)

    check(draws, draw, (9, 12), "folded")
    draws.folded = False
    with pytest.raises(AssertionError):
        check(draws, draw, (9, 12), "folded")


def test_parameters_are_drawn_whole(draws: WholeDraws) -> None:
    def layer() -> Any:
        torch.manual_seed(3)
        return nn.Linear(6, 6)

    plain = layer()
    draws.rows = Rows(1, 6, 9)
    here = layer()
    assert torch.equal(here.weight, plain.weight)
    assert torch.equal(here.bias, plain.bias)
    torch.manual_seed(3)
    noise = torch.randn_like(here.weight)
    draws.rows = None
    torch.manual_seed(3)
    assert torch.equal(noise, torch.randn_like(here.weight))


def test_other_threads_draw_as_ever(draws: WholeDraws) -> None:
    draws.rows = Rows(1, 4, 9)
    found: list[Any] = []

    def draw() -> None:
        own = torch.Generator().manual_seed(2)
        found.append(torch.rand(4, generator=own))

    thread = threading.Thread(target=draw)
    thread.start()
    thread.join()
    draw()
    whole = torch.rand(9, generator=torch.Generator().manual_seed(2))
    assert torch.equal(found[0], whole[:4])
    assert torch.equal(found[1], whole[1:5])


def test_torch_is_as_it_was_afterwards() -> None:
    places = (torch, torch.Tensor, torch._VF, F)
    before = [dict(vars(place)) for place in places]
    draws = WholeDraws()
    draws.install()
    draws.install()
    assert torch.rand is not before[0]["rand"]
    assert torch.rand.__name__ == "rand"
    assert "dropout" in vars(torch._VF)
    draws.uninstall()
    draws.uninstall()
    assert [dict(vars(place)) for place in places] == before


def test_torch_finds_its_functions_in_the_replaced_ones(draws: WholeDraws) -> None:
    draws.rows = Rows(1, 3, 5)
    with torch.device("meta"):
        assert torch.rand(3, 2).is_meta
        assert torch.rand(4).is_meta
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert torch.jit.script(nn.Sequential(nn.Dropout(0.5)))(torch.ones(3)).shape == (3,)


def test_a_compiled_function_draws_as_torch_does(draws: WholeDraws) -> None:
    def noisy(x: Any) -> Any:
        return F.dropout(x, 0.5) + torch.randn_like(x) + torch.rand(4, 1) + torch.empty(4, 1).normal_()

    torch.manual_seed(1)
    plain = noisy(torch.ones(4, 3))
    draws.rows = Rows(1, 4, 9)
    torch.manual_seed(1)
    compiled = torch.compile(noisy, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(4, 3)), plain)
    torch._dynamo.reset()


def test_recomputed_activations_drop_the_same(draws: WholeDraws) -> None:
    from torch.utils.checkpoint import checkpoint

    def forward(x: Any) -> Any:
        return checkpoint(lambda y: F.dropout(y, 0.4).square() * torch.randn_like(y), x, use_reentrant=False)

    check(draws, lambda begin, count: _gradients(begin, count, forward), (11, 9), "recomputed")


def test_any_sizes_of_parts(draws: WholeDraws) -> None:
    rng = torch.Generator().manual_seed(11)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=rng))

    for _ in range(100):
        parts = tuple(number(2, 40) for _ in range(number(2, 5)))
        inner = tuple(number(41, 60) for _ in range(number(0, 3)))
        shape = (-1, *inner) if number(0, 2) else (*inner, -1)
        name = list(OF_TENSOR)[number(0, len(OF_TENSOR))]
        if name == "gumbel_softmax":
            continue
        layout, make = list(layouts(shape, sum(parts), KINDS[number(0, 3)]))[number(0, 3)]

        def draw(begin: int, count: int, make: Drawing = make, name: str = name) -> Any:
            return OF_TENSOR[name](make(begin, count))

        check(draws, draw, parts, (name, layout, shape), shape.index(-1))


def test_two_processes_may_be_threads() -> None:
    def member(rows: Rows) -> Any:
        own = WholeDraws()
        own._thread = threading.get_ident()
        own.rows = rows
        return own._rand("rand", torch.rand, rows.count, generator=torch.Generator().manual_seed(1))

    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(member, (Rows(0, 3, 8), Rows(3, 5, 8))))
    assert torch.equal(torch.cat(parts), torch.rand(8, generator=torch.Generator().manual_seed(1)))


def test_a_sequence_as_long_as_the_own_rows_is_told_from_the_batch_by_what_was_drawn_before() -> None:
    with WholeDraws() as draws:
        for time in (7, 4, 3):  # of 10 columns this process has 4
            torch.manual_seed(7)
            draws.rows = None
            whole = torch.nn.functional.dropout(torch.ones(time, 10, 2), 0.5)
            torch.manual_seed(7)
            draws.rows = Rows(3, 4, 10)
            own = torch.nn.functional.dropout(torch.ones(time, 4, 2), 0.5)
            assert torch.equal(own, whole[:, 3:7])


def test_where_nothing_was_drawn_before_the_batch_is_where_it_was_split() -> None:
    with WholeDraws() as draws:
        torch.manual_seed(7)
        whole = torch.rand(4, 10)
        torch.manual_seed(7)
        draws.rows, draws.dim = Rows(3, 4, 10), 1
        assert torch.equal(torch.rand(4, 4), whole[:, 3:7])


RECURRENT = {
    "lstm": (nn.LSTM, {"proj_size": 2}),
    "gru": (nn.GRU, {"bidirectional": True, "batch_first": True}),
    "rnn": (nn.RNN, {"nonlinearity": "relu", "bias": False}),
    "both ways": (nn.LSTM, {"bidirectional": True}),
}


@pytest.mark.parametrize("order", [None, True, False], ids=["padded", "sorted", "packed"])
@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_dropout_between_the_layers_of_recurrent_networks(kind: str, order: bool | None, dtype: Any) -> None:
    """Not to the bit: matrix products of fewer rows add in another order."""
    make, options = RECURRENT[kind]
    net, first = make(5, 4, 3, dropout=0.4, **options).to(dtype), options.get("batch_first", False)
    inputs, lengths = torch.randn(9, 7, 5, dtype=dtype), torch.tensor([3, 6, 1, 4, 2, 2, 5, 1, 2])
    lengths = lengths.sort(descending=True)[0] if order else lengths

    def run(begin: int, count: int) -> Any:
        own = inputs[begin : begin + count]
        flow = own if first else own.transpose(0, 1)
        if order is None:
            found = net(flow)[0]
        else:
            some = lengths[begin : begin + count]
            packed = nn.utils.rnn.pack_padded_sequence(flow, some, batch_first=first, enforce_sorted=order)
            found = nn.utils.rnn.pad_packed_sequence(net(packed)[0], batch_first=first)[0]
        return (found if first else found.transpose(0, 1)).detach()

    torch.manual_seed(7)
    expected, state, parts = run(0, 9), torch.get_rng_state(), []
    with WholeDraws() as draws:
        draws.gathered = lambda own: lengths
        for draws.rows in (Rows(0, 2, 9), Rows(2, 7, 9)):
            torch.manual_seed(7)
            parts.append(run(draws.rows.begin, draws.rows.count))
            assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(torch.cat(parts), expected)  # of the same length in time
