"""Processes that train together and have come apart are told what is wrong by name."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hetero.train.launch.parameter_rows import ParameterRows  # noqa: E402
from hetero.train.launch.process_states import of_process, trouble  # noqa: E402


def told(rate: float = 0.1, weight: float = 1.0, seed: int = 0, given: int = 5, number: int = 0) -> list[float]:
    torch.manual_seed(seed)
    parameter = torch.nn.Parameter(torch.full((3,), weight))
    optimizer: Any = torch.optim.SGD([parameter], rate)
    return list(of_process(given, [optimizer], [ParameterRows("Model", ["weight"], [parameter])], number))


def found(*processes: list[float]) -> str:
    error = trouble(*(list(values) for values in zip(*processes, strict=True)))
    return "" if error is None else str(error)


def test_processes_that_are_alike_go_on() -> None:
    assert found(told(), told()) == ""
    assert found(told(weight=1.0), told(weight=1.0 + 1e-6)) == ""  # devices of other kinds round in another way


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"seed": 1}, "have drawn different random numbers"),
        ({"given": 6}, "was given different batches"),
        ({"rate": 0.2}, "such as its learning rate, differ"),
        ({"weight": 1.5}, "the weights of the processes have come apart"),
    ],
)
def test_processes_that_have_come_apart_are_told_what_differs(other: dict[str, Any], words: str) -> None:
    assert words in found(told(), told(**other))


def test_weights_are_looked_at_now_and_then() -> None:
    assert [told(number=number)[-1] > 0.0 for number in range(9)] == [True, *[False] * 7, True]
