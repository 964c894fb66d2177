"""The keyed mode is on where a model draws and nowhere else, and what is drawn is the same as with it on everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
keyed = pytest.importorskip("hetero.train.keyed_random")
KeyedPasses, KeyedRandom, RandomRefusedError = keyed.KeyedPasses, keyed.KeyedRandom, keyed.RandomRefusedError
refuse_unkeyed, states, set_states = keyed.refuse_unkeyed, keyed.states, keyed.set_states
compatibility, replica = pytest.importorskip("hetero.train.compatibility"), pytest.importorskip("hetero.train.replica")
in_process, process_settings, made_on = compatibility.in_process, compatibility.process_settings, replica.made_on


@pytest.fixture(autouse=True)
def generator_kept() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


class Net(nn.Module):  # type: ignore[misc]
    """Draws in one place, later in another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
        self.draw: Any = None
        self.modes: list[bool] = []
        self.layers[2].register_forward_hook(lambda *_: self.modes.append(_is_on()))

    def forward(self, x: Any) -> Any:
        found = self.layers(x)
        return found if self.draw is None else found + self.draw(x)


def _is_on() -> bool:
    return bool(torch.overrides._len_torch_function_stack())


def passes(net: Any, drawing: Any, steps: range) -> list[Any]:
    found = []
    for step in steps:
        with drawing.over(step, [3, 5]) as forward:
            found.append(forward(lambda: net(torch.ones(2, 4))))
    return found


def everywhere(steps: range, draw: Any = None) -> list[Any]:
    """Do passes of a fresh network with the mode on throughout."""
    net, random, found = Net(), KeyedRandom(7), []
    net.draw = draw
    for step in steps:
        with random.begin(step, [3, 5]):
            found.append(net(torch.ones(2, 4)))
    return found


def alike(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_mode_is_on_in_the_first_pass_and_then_only_where_something_was_drawn() -> None:
    net = Net()
    drawing = KeyedPasses(KeyedRandom(7), net)
    found = passes(net, drawing, range(4))
    assert net.modes == [True, False, False, False]
    assert alike(found, everywhere(range(4)))


def test_a_pass_that_draws_where_none_did_is_done_again_with_the_same_numbers() -> None:
    net = Net()
    drawing = KeyedPasses(KeyedRandom(7), net)
    passes(net, drawing, range(2))
    net.draw = torch.rand_like
    before = torch.get_rng_state()
    found = passes(net, drawing, range(2, 5))
    assert torch.equal(before, torch.get_rng_state())
    assert alike(found, everywhere(range(2, 5), torch.rand_like))


def test_what_cannot_be_keyed_is_refused_by_name_also_when_it_comes_late() -> None:
    net = Net()
    drawing = KeyedPasses(KeyedRandom(7), net)
    passes(net, drawing, range(2))
    net.draw = lambda x: torch.randint(0, 3, (2, 4))
    with pytest.raises(RandomRefusedError, match="randint"):
        passes(net, drawing, range(2, 3))


def test_a_pass_that_fails_leaves_no_mode_behind() -> None:
    net = Net()
    drawing = KeyedPasses(KeyedRandom(7), net)
    passes(net, drawing, range(2))
    with pytest.raises(RuntimeError, match="shapes"), drawing.over(2, [3, 5]) as forward:
        forward(lambda: net(torch.ones(2, 5)))
    assert not _is_on()
    assert alike(passes(net, drawing, range(3, 4)), everywhere(range(3, 4)))


def test_numbers_drawn_outside_all_modules_keep_the_mode_on() -> None:
    net = Net()
    drawing = KeyedPasses(KeyedRandom(7), net)
    for step in range(3):
        with drawing.over(step, [3, 5]) as forward:
            forward(lambda: net(torch.ones(2, 4)) * torch.rand(2, 4))
    assert net.modes == [True, True, True]


# --- where tensors are made ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, process_settings()])
def test_code_of_datasets_and_loops_makes_its_tensors_on_the_host_also_where_the_worker_makes_them_on_its_device(
    given: dict[str, Any],
) -> None:
    with torch.device("meta"):
        with in_process(given):
            assert torch.zeros(2).device.type == "cpu"
            with made_on(torch.device("meta")):
                assert torch.zeros(2).device.type == "meta"
            with made_on(torch.device("cpu")):
                assert torch.zeros(2).device.type == "cpu"
        assert torch.zeros(2).device.type == "meta"


class _Accelerator:
    """What torch has for a device with a random generator of its own."""

    def __init__(self) -> None:
        self.state = torch.zeros(1)

    def get_rng_state(self, place: Any) -> Any:
        return self.state.clone()

    def set_rng_state(self, state: Any, place: Any) -> None:
        self.state = state.clone()


def test_numbers_drawn_from_the_generator_of_a_device_are_seen_as_those_of_the_host_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = _Accelerator()
    monkeypatch.setattr(torch, "xpu", device)
    place = torch.device("xpu", 0)
    before = states(place)
    refuse_unkeyed(before, "the model", place)
    device.state += 1
    with pytest.raises(RandomRefusedError, match="the model draws random numbers"):
        refuse_unkeyed(before, "the model", place)
    set_states(before, place)
    refuse_unkeyed(before, "the model", place)
