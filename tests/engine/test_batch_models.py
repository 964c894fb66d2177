"""Models over many records: torch modules and ONNX models, put on each device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.batch.options import BatchOptions
from hetero.errors import HeteroError


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as context:
        yield context


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "any"])
def test_a_torch_module_is_evaluated_on_every_device(ctx: hetero.Context, precision: str) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    rows = np.random.default_rng(1).random((200, 8), dtype=np.float32)
    found = ctx.map_batches(model, rows, options=BatchOptions(precision=precision)).value
    with torch.inference_mode():
        expected = model.eval()(torch.from_numpy(rows)).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6 if precision == "float32" else 0.05)


def small_onnx(path: Path) -> Path:
    onnx: Any = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 2], [float(x) for x in range(8)])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    shape_in = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    shape_out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    graph = helper.make_graph([node], "small", [shape_in], [shape_out], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_an_onnx_file_is_evaluated_on_every_device(ctx: hetero.Context, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = small_onnx(tmp_path / "small.onnx")
    rows = np.random.default_rng(1).random((100, 4), dtype=np.float32)
    expected = rows @ np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_allclose(ctx.map_batches(path, rows).value, expected, rtol=1e-5)


def test_an_onnx_file_that_is_absent_is_told(ctx: hetero.Context) -> None:
    with pytest.raises(HeteroError, match=r"none.onnx cannot be read"):
        ctx.map_batches("none.onnx", np.zeros((2, 4)))
