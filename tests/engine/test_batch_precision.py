"""In what a model computes on each device, how far that may be off, and results that are not finite."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.batch.options import BatchOptions
from hetero.batch.precision import Chooser, Wish
from hetero.floor.errors import BadValueError, HeteroError


@pytest.fixture(scope="module")
def threads() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as context:
        yield context


def exact(batch: Any) -> Any:
    time.sleep(0.05)
    return batch


def rounded(batch: Any) -> Any:
    return batch.astype(np.float16).astype(np.float32)


def broken(batch: Any) -> Any:
    raise NotImplementedError("no such kernel")


def chosen(others: dict[str, Any], tolerance_frac: float) -> Chooser:
    """Choose among an exact way that sleeps and others that do not."""
    makers = {name: lambda way=way: way for name, way in {"float32": exact, **others}.items()}
    chooser = Chooser(Wish("any", tolerance_frac), makers)
    batch = np.linspace(0.1, 1.0, 7, dtype=np.float32)
    assert chooser(batch, len(batch)) == pytest.approx(batch, rel=1e-3)
    return chooser


def test_the_quickest_precision_within_the_tolerance_is_taken_and_told() -> None:
    assert chosen({"float16": rounded}, 0.01).computed_in.startswith("float16, off by 0.0")


def test_a_precision_that_is_further_off_than_the_tolerance_is_out() -> None:
    assert chosen({"float16": rounded}, 1e-6).computed_in == "float32"


def test_a_precision_that_the_device_cannot_do_is_out() -> None:
    assert chosen({"float16": broken}, 0.5).computed_in == "float32"


def test_results_that_are_no_numbers_are_further_off_than_any_tolerance() -> None:
    assert chosen({"float16": lambda batch: batch * np.nan}, 0.9).computed_in == "float32"


def test_the_choice_is_made_again_where_a_batch_is_eight_times_as_large() -> None:
    made = []

    def make() -> Any:
        made.append("float32")
        return exact

    chooser = Chooser(Wish("any", 0.5), {"float32": make})
    for size in (1, 4, 8, 9, 64):
        chooser(np.zeros(size), size)
    assert len(made) == 3


def test_a_torch_module_computes_within_the_tolerance_and_says_in_what(threads: hetero.Context) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3).eval()
    rows = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    with torch.inference_mode():
        expected = model(torch.from_numpy(rows)).numpy()
    strict = threads.map_batches(model, rows, options=BatchOptions(precision="any", tolerance=0.0, learn=False))
    np.testing.assert_allclose(strict.value, expected, atol=1e-5)
    assert {stats.precision for stats in strict.devices if stats.items} == {"float32"}
    half = threads.map_batches(model, rows, options=BatchOptions(precision="bfloat16", learn=False))
    assert {stats.as_dict()["precision"] for stats in half.devices if stats.items} == {"bfloat16"}
    assert threads.map_batches(lambda batch: batch, rows).devices[0].precision == ""


def test_an_onnx_model_computes_in_float16_where_the_user_allows(threads: hetero.Context, tmp_path: Path) -> None:
    onnx: Any = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    weights = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "small",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "small.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    rows = np.random.default_rng(1).standard_normal((50, 4)).astype(np.float32)
    half = threads.map_batches(path, rows, options=BatchOptions(precision="float16", learn=False))
    assert half.value.dtype == np.float32
    assert 0.0 < np.abs(half.value - rows @ weights).max() < 0.05
    assert {stats.precision for stats in half.devices if stats.items} == {"float16"}
    free = threads.map_batches(path, rows, options=BatchOptions(precision="any", tolerance=1e-7, learn=False))
    np.testing.assert_allclose(free.value, rows @ weights, atol=1e-5)
    with pytest.raises(BadValueError, match="'bfloat16' is not allowed for an ONNX model; allowed: float32, float16"):
        threads.map_batches(path, rows, options=BatchOptions(precision="bfloat16"))


@pytest.mark.parametrize("tolerance", [-0.1, 1, "tight", float("nan"), True])
def test_a_tolerance_that_is_no_share_is_refused(threads: hetero.Context, tolerance: Any) -> None:
    with pytest.raises(BadValueError, match=r"tolerance=.* is not allowed"):
        threads.map_batches(lambda batch: batch, [1], options=BatchOptions(tolerance=tolerance))


@pytest.mark.parametrize(
    "wrong",
    [float("nan"), {"v": float("nan")}, [1.0, float("inf")], {"v": [0.0, (1.0, float("nan"))]}, np.array([np.inf])],
)
def test_a_result_that_is_not_finite_is_found_however_deep(threads: hetero.Context, wrong: Any) -> None:
    def work(batch: list[int]) -> list[Any]:
        return [wrong if x == 3 else None if x == 4 else {"v": [1.0] * x} for x in batch]

    outcome = threads.map_batches(work, range(20), options=BatchOptions(check_finite=True), errors=1, batch=10)
    assert [bad.item for bad in outcome.bad] == [3]
    assert len(outcome.value) == 19
    assert sum(stats.again for stats in outcome.devices) == 0


def test_spilling_without_a_folder_is_refused(threads: hetero.Context) -> None:
    with pytest.raises(HeteroError, match="spill=True needs a folder to spill to; give output='FOLDER'"):
        threads.map_batches(lambda batch: batch, [1], options=BatchOptions(spill=True))
