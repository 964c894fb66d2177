"""Batch normalisation over unequal parts is that of one process with the whole batch."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hetero.comm.group import Group
from hetero.comm.rendezvous import open_rendezvous

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from hetero.train.launch import global_norm  # noqa: E402

SHAPES: tuple[tuple[int, ...], ...] = ((5,), (3, 7), (4, 3, 2), (2, 3, 2, 2))
_here = threading.local()


class Team:
    """Members of a group, each a thread of its own."""

    def __init__(self, size: int) -> None:
        store, meeting = open_rendezvous(f"norm-{size}", size)
        self._threads = [ThreadPoolExecutor(1) for _ in range(size)]
        self.groups = self._each(lambda rank: Group(rank, size, meeting, store if rank == 0 else None))

    def _each(self, call: Callable[[int], Any]) -> list[Any]:
        futures = [thread.submit(call, rank) for rank, thread in enumerate(self._threads)]
        return [future.result(timeout=60) for future in futures]

    def run(self, call: Callable[[int], Any]) -> list[Any]:
        """Call a function with each rank, in the member's thread, where its group is that of the layers."""

        def member(rank: int) -> Any:
            torch.set_num_threads(1)
            _here.group = self.groups[rank]
            return call(rank)

        return self._each(member)

    def close(self) -> None:
        self._each(lambda rank: self.groups[rank].close())
        for thread in self._threads:
            thread.shutdown()


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, Team]]:
    found = {size: Team(size) for size in (2, 3)}
    yield found
    for team in found.values():
        team.close()


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    global_norm.install(lambda _: getattr(_here, "group", None), lambda: getattr(_here, "group", None))
    yield
    global_norm.uninstall()
    torch.set_num_threads(threads)


def layer_for(shape: Sequence[int], **options: Any) -> Any:
    """Return a layer of batch normalisation for rows of a shape, with weights that are not all alike."""
    kinds = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}
    layer = kinds[len(shape)](shape[0], **options).double()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return layer


def passes(layer: Any, x: Any, weights: Any) -> list[Any]:
    """Return the outcome and the gradient of a pass of a layer over some rows."""
    x = x.detach().requires_grad_()
    found = layer(x)
    (found * weights).sum().backward()
    return [found.detach(), x.grad]


def compare(team: Team, layer: Any, x: Any, parts: Sequence[int], tolerance: float = 1e-12, steps: int = 2) -> None:
    """Compare passes over parts with passes over the whole: outcomes, gradients and buffers, the same on all."""
    whole, layers = copy.deepcopy(layer), [copy.deepcopy(layer) for _ in parts]
    for step in range(steps):
        rows, weights = x * (step + 1) + step, torch.randn_like(x)
        expected = passes(whole, rows, weights)
        each, other = rows.split(tuple(parts)), weights.split(tuple(parts))
        found = team.run(lambda rank, a=each, b=other: passes(layers[rank], a[rank], b[rank]))
        for one, all_of_it in zip(zip(*found, strict=True), expected, strict=True):
            torch.testing.assert_close(torch.cat(one), all_of_it, rtol=tolerance, atol=tolerance)
    for name, parameter in whole.named_parameters():
        total = sum(dict(part.named_parameters())[name].grad for part in layers)
        torch.testing.assert_close(total, parameter.grad, rtol=tolerance, atol=tolerance * 10)
    for name, buffer in whole.named_buffers():
        own = [dict(part.named_buffers())[name] for part in layers]
        assert all(torch.equal(one, own[0]) for one in own), name
        torch.testing.assert_close(own[0], buffer, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("parts", [(4, 5), (1, 8), (9, 0), (2, 3, 6), (0, 1, 9)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_over_parts_is_the_layer_over_the_whole(
    teams: dict[int, Team], shape: tuple[int, ...], parts: tuple[int, ...]
) -> None:
    torch.manual_seed(sum(parts))
    x = torch.randn(sum(parts), *shape, dtype=torch.float64) * 3 + 5
    compare(teams[len(parts)], layer_for(shape), x, parts)


@pytest.mark.parametrize("parts", [(4, 5), (1, 8), (2, 3, 6)])
@pytest.mark.parametrize("options", [{"affine": True}, {"momentum": 0.7, "eps": 0.1}])
def test_the_statistics_that_instances_track_are_those_of_the_whole_batch(
    teams: dict[int, Team], options: dict[str, Any], parts: tuple[int, ...]
) -> None:
    torch.manual_seed(sum(parts))
    x = torch.randn(sum(parts), 4, 5, 3, dtype=torch.float64) * 3 + 5
    layer = nn.InstanceNorm2d(4, track_running_stats=True, **options).double()
    compare(teams[len(parts)], layer, x, parts)


@pytest.mark.parametrize(
    "options",
    [{"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.1, "momentum": 0.7}],
)
def test_the_options_of_a_layer_are_honoured(teams: dict[int, Team], options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    x = torch.randn(9, 4, 3, 2, dtype=torch.float64)
    compare(teams[2], layer_for((4, 3, 2), **options), x, (2, 7), steps=3)
    layer = layer_for((4, 3, 2), **options).eval()
    if options.get("track_running_stats", True):
        assert torch.equal(teams[2].run(lambda _: layer(x))[1], layer(x))
    else:
        compare(teams[2], layer, x, (2, 7))


def test_rows_in_channels_last_stay_so(teams: dict[int, Team]) -> None:
    torch.manual_seed(1)
    x = torch.randn(9, 4, 3, 2, dtype=torch.float64).to(memory_format=torch.channels_last)
    compare(teams[2], layer_for((4, 3, 2)), x, (2, 7))
    found = teams[2].run(lambda rank: passes(layer_for((4, 3, 2)), x.split((2, 7))[rank], 1.0))
    assert all(one.is_contiguous(memory_format=torch.channels_last) for pair in found for one in pair)


def test_a_layer_for_many_devices_normalises_likewise(teams: dict[int, Team]) -> None:
    torch.manual_seed(1)
    x = torch.randn(9, 4, 3, dtype=torch.float64)
    layer = nn.SyncBatchNorm.convert_sync_batchnorm(layer_for((4, 3)))
    assert type(layer) is nn.SyncBatchNorm
    compare(teams[2], layer, x, (2, 7))


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_other_precisions(teams: dict[int, Team], kind: Any, tolerance: float) -> None:
    torch.manual_seed(1)
    x = torch.randn(9, 4, 3, dtype=torch.float64).to(kind)
    compare(teams[2], layer_for((4, 3)).float(), x, (2, 7), tolerance)
    layer = layer_for((4, 3)).to(kind)
    for one, part in zip(teams[2].run(lambda rank: layer(x.split((2, 7))[rank])), x.split((2, 7)), strict=True):
        assert one.dtype == kind
        assert one.shape == part.shape


def test_statistics_of_half_precision_are_of_single(teams: dict[int, Team]) -> None:
    x = (torch.arange(600.0).reshape(300, 2) % 7 + 100).bfloat16()
    layer = nn.BatchNorm1d(2, momentum=1.0)
    teams[2].run(
        lambda rank: layer(x.split((1, 299))[rank]) if rank == 0 else copy.deepcopy(layer)(x.split((1, 299))[1])
    )
    torch.testing.assert_close(layer.running_mean, x.float().mean(0), rtol=1e-6, atol=0)


def test_values_far_from_zero_keep_their_digits(teams: dict[int, Team]) -> None:
    torch.manual_seed(1)
    x = torch.randn(90, 3, dtype=torch.float64) + 1e4
    layer = nn.BatchNorm1d(3, momentum=1.0).double()
    found = teams[3].run(lambda rank: copy.deepcopy(layer)(x.split((1, 30, 59))[rank]))
    torch.testing.assert_close(torch.cat(found), layer(x), rtol=1e-9, atol=1e-9)


def test_one_value_a_channel_is_refused_where_the_whole_batch_has_one(teams: dict[int, Team]) -> None:
    layer = nn.BatchNorm1d(3).double()

    def refusal(rank: int) -> str:
        with pytest.raises(ValueError, match="Expected more than 1 value per channel") as refused:
            layer(torch.ones(1 - rank, 3, dtype=torch.float64))
        return str(refused.value)

    assert set(teams[2].run(refusal)) == {
        "Expected more than 1 value per channel when training, got input size torch.Size([1, 3])"
    }
    assert [one.shape for one in teams[2].run(lambda _: layer(torch.ones(1, 3, dtype=torch.float64)))] == [(1, 3)] * 2


def test_inputs_without_gradients_need_no_exchange_backward(teams: dict[int, Team]) -> None:
    layer = layer_for((3,))
    x = torch.randn(9, 3, dtype=torch.float64)

    def member(rank: int) -> int:
        calls, group = [], _here.group

        class Counting:
            rank, world_size = group.rank, group.world_size

            def all_reduce(self, tensor: Any) -> None:
                calls.append(tensor.shape)
                group.all_reduce(tensor)

        _here.group = Counting()
        own = copy.deepcopy(layer)
        own(x.split((4, 5))[rank]).sum().backward()
        first = len(calls)
        own(x.split((4, 5))[rank].clone().requires_grad_()).sum().backward()
        assert len(calls) == first + 2
        with torch.no_grad():
            own(x.split((4, 5))[rank])
        assert len(calls) == first + 3
        return first

    assert teams[2].run(member) == [1, 1]


def _penalty(layer: Any, x: Any, weights: Any) -> list[Any]:
    """Return the gradients of a loss that contains a gradient."""
    x = x.detach().requires_grad_()
    first = torch.autograd.grad((layer(x).tanh() * weights).sum(), x, create_graph=True)[0]
    (first * first).sum().backward()
    return [first.detach(), x.grad]


def test_a_penalty_on_gradients_is_that_of_the_whole(teams: dict[int, Team]) -> None:
    torch.manual_seed(1)
    x, weights = torch.randn(2, 9, 4, 3, dtype=torch.float64)
    layer = layer_for((4, 3))
    layers = [copy.deepcopy(layer) for _ in range(3)]
    parts = (2, 3, 4)
    found = teams[3].run(lambda rank: _penalty(layers[rank], x.split(parts)[rank], weights.split(parts)[rank]))
    expected = _penalty(layer, x, weights)
    for one, all_of_it in zip(zip(*found, strict=True), expected, strict=True):
        torch.testing.assert_close(torch.cat(one), all_of_it, rtol=1e-11, atol=1e-12)
    total = sum(each.weight.grad for each in layers)
    torch.testing.assert_close(total, layer.weight.grad, rtol=1e-11, atol=1e-12)


def test_a_network_of_several_layers_over_many_seeds(teams: dict[int, Team]) -> None:
    for seed in range(12):
        torch.manual_seed(seed)
        parts = [int(torch.randint(0, 9, ())) for _ in range(2 + seed % 2)]
        parts[seed % len(parts)] += 2
        widths = [int(torch.randint(2, 6, ())) for _ in range(2)] * 2
        inner = (4, 4) if seed % 3 else ()
        mixing: Any = nn.Conv2d if inner else nn.Linear
        more = (1,) if inner else ()
        normal: Any = nn.BatchNorm2d if inner else nn.BatchNorm1d
        network = nn.Sequential(
            *(mixing(widths[0], widths[1], *more), normal(widths[1]), nn.Tanh()),
            *(mixing(widths[1], widths[2], *more), normal(widths[2], momentum=None), nn.Sigmoid()),
        ).double()
        x = torch.randn(sum(parts), widths[0], *inner, dtype=torch.float64)
        compare(teams[len(parts)], network, x, parts)


def test_a_compiled_network_normalises_over_the_whole(teams: dict[int, Team]) -> None:
    torch.manual_seed(1)
    x = torch.randn(9, 3, dtype=torch.float64)
    network = nn.Sequential(nn.Linear(3, 3), layer_for((3,)), nn.Tanh()).double()
    expected = copy.deepcopy(network)(x)
    try:
        compiled = torch.compile(network, backend="eager")
        first = threading.Barrier(2)

        def member(rank: int) -> Any:
            if rank:
                first.wait(60)
                return network(x[4:])
            group, _here.group = _here.group, None
            compiled(x[:4])  # as in a step of one process
            _here.group = group
            first.wait(60)
            return compiled(x[:4])

        torch.testing.assert_close(torch.cat(teams[2].run(member)), expected, rtol=1e-12, atol=1e-12)
    finally:
        torch._dynamo.reset()


def test_torch_is_as_it_was_where_there_is_no_group() -> None:
    global_norm.uninstall()
    plain, synchronised = F.batch_norm, nn.SyncBatchNorm.forward
    x = torch.randn(5, 3)
    expected = nn.BatchNorm1d(3)(x)
    global_norm.install(lambda _: None)
    global_norm.install(lambda _: Group(0, 1))
    assert F.batch_norm is not plain
    assert torch.equal(nn.BatchNorm1d(3)(x), expected)
    assert torch.equal(nn.SyncBatchNorm(3)(x), expected)
    with pytest.raises(ValueError, match="more than 1 value"):
        nn.BatchNorm1d(3)(x[:1])
    global_norm.uninstall()
    assert F.batch_norm is plain
    assert nn.SyncBatchNorm.forward is synchronised


@pytest.mark.parametrize("kind", ["embedding", "bag"])
def test_embeddings_of_bounded_norm_bound_what_any_member_looks_up(kind: str, teams: dict[int, Team]) -> None:
    table = torch.randn(12, 3, dtype=torch.float64)
    indices = torch.tensor([[1, 2], [2, 5], [7, 7], [8, 1], [0, 5]])
    parts = {2: indices.split((3, 2)), 3: indices.split((1, 0, 4))}

    def looked_up(rows: Any) -> Any:
        make = nn.Embedding if kind == "embedding" else nn.EmbeddingBag
        layer = make.from_pretrained(table.clone(), max_norm=0.9)
        layer(rows)
        return layer.weight.data

    _here.group = None
    whole = looked_up(indices)
    assert not torch.equal(whole, table)
    for size, cut in parts.items():
        found = teams[size].run(lambda rank, cut=cut: looked_up(cut[rank]))
        assert all(torch.equal(each, whole) for each in found), kind


@pytest.mark.parametrize("is_cut", [True, False])
def test_how_often_a_row_of_a_table_is_looked_up_is_counted_over_the_whole_batch(
    teams: dict[int, Team], is_cut: bool
) -> None:
    torch.manual_seed(2)
    table, words = torch.randn(5, 3, dtype=torch.float64), torch.randint(0, 5, (9, 4))

    def gradient(indices: Any) -> Any:
        weight = table.clone().requires_grad_()
        (F.embedding(indices, weight, scale_grad_by_freq=True) ** 2).sum().backward()
        return weight.grad

    expected, parts = gradient(words), words.split((4, 5))
    if is_cut:
        found = sum(teams[2].run(lambda rank: gradient(parts[rank])))
    else:
        for group in teams[2].groups:
            group.is_of_rows = False
        found = teams[2].run(lambda rank: gradient(words))[1]
        for group in teams[2].groups:
            del group.is_of_rows
    torch.testing.assert_close(found, expected)
