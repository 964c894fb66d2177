"""What a task is told when it gives NumPy arrays to another framework's functions."""

from __future__ import annotations

import numpy as np
import pytest

import hetero


def product(a: np.ndarray, b: np.ndarray) -> object:
    xp = hetero.tasks.namespace()
    return xp.matmul(a, b)


def converted(a: np.ndarray, b: np.ndarray) -> object:
    xp = hetero.tasks.namespace()
    return xp.matmul(xp.asarray(a), xp.asarray(b))


def test_a_type_error_of_a_framework_tells_that_arguments_are_numpy_arrays() -> None:
    with hetero.Context(devices="1xtorch-cpu", history=False) as ctx:
        with pytest.raises(TypeError) as caught:
            ctx.run(product, np.eye(2), np.eye(2))
        assert any("write x = xp.asarray(x) first" in note for note in caught.value.__notes__)
        assert np.array_equal(ctx.run(converted, np.eye(2), np.eye(2)), np.eye(2))
