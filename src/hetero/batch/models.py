"""Models as functions of a batch: torch modules and ONNX models, put on each worker's device.

In: a module, the bytes of an ONNX model. Out: arrays. It must not import torch or ONNX Runtime before a worker needs
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.batch.precision import Chooser, Wish
from hetero.batch.records import count
from hetero.floor.errors import HeteroError, MissingPackageError
from hetero.model.device import Device

__all__ = ["OnnxModel", "TorchModel"]

_LARGEST_PROTO_BYTES = 1 << 31


class TorchModel:
    """A torch module that is put on each worker's device, evaluated without gradients.

    Parameters
    ----------
    module : gets a batch as one tensor, gives a tensor with one row a record
    wish : in what it may compute; results come back as float32
    """

    def __init__(self, module: Any, wish: Wish) -> None:
        self.module, self.wish = module, wish
        self._place = "cpu"
        self._chooser: Chooser | None = None

    @property
    def computed_in(self) -> str:
        """In what it computes here, '' before the first batch."""
        return "" if self._chooser is None else self._chooser.computed_in

    def setup(self, device: Device) -> None:
        """Put the module on a device."""
        self._place = _torch_place(device)
        self._chooser = Chooser(
            self.wish,
            {
                "float32": lambda: self._at("float32"),
                "bfloat16": lambda: self._at("bfloat16"),
                "float16": lambda: self._at("float16"),
            },
        )

    def __call__(self, batch: Any) -> Any:
        """Evaluate a batch."""
        import torch

        assert self._chooser is not None, "a worker sets it up"
        with torch.inference_mode():
            inputs = torch.as_tensor(batch if hasattr(batch, "shape") else np.asarray(batch)).to(self._place)
            return self._chooser(inputs, len(inputs))

    def _at(self, precision: str) -> Callable[[Any], Any]:
        import copy

        import torch

        kind = getattr(torch, precision)
        module = copy.deepcopy(self.module).eval().to(device=self._place, dtype=kind)

        def run(inputs: Any) -> Any:
            outputs = module(inputs.to(kind) if inputs.is_floating_point() else inputs)
            return (outputs.float() if outputs.is_floating_point() else outputs).cpu().numpy()

        return run


class OnnxModel:
    """An ONNX model in ONNX Runtime, one session a worker.

    Parameters
    ----------
    data : bytes of the model
    wish : in what it may compute; 'float32' is as in its file
    """

    def __init__(self, data: bytes, wish: Wish) -> None:
        self.data, self.wish = data, wish
        self._chooser: Chooser | None = None

    @property
    def computed_in(self) -> str:
        """In what it computes here, '' before the first batch."""
        return "" if self._chooser is None else self._chooser.computed_in

    def setup(self, device: Device) -> None:
        """Prepare to open sessions on a device, with as many threads as the device has cores."""
        makers = {
            "float32": lambda: self._session(device, self.data),
            "float16": lambda: self._session(device, _halved(self.data)),
        }
        self._chooser = Chooser(self.wish, makers)

    def __call__(self, batch: Any) -> Any:
        """Evaluate a batch: an array for a model of one input, a dict by name for more."""
        assert self._chooser is not None, "a worker sets it up"
        return self._chooser(batch, count(batch))

    def _session(self, device: Device, data: bytes) -> Callable[[Any], Any]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = device.cores if device.kind == "cpu" else 0
        wanted = {"cuda": "CUDAExecutionProvider", "rocm": "ROCMExecutionProvider"}.get(device.kind, "")
        there = [name for name in (wanted, "CPUExecutionProvider") if name in onnxruntime.get_available_providers()]
        session = onnxruntime.InferenceSession(data, options, providers=there)
        first, names = session.get_inputs()[0].name, [output.name for output in session.get_outputs()]

        def run(batch: Any) -> Any:
            outputs = session.run(None, batch if isinstance(batch, dict) else {first: np.asarray(batch)})
            return outputs[0] if len(outputs) == 1 else dict(zip(names, outputs, strict=True))

        return run


def _halved(data: bytes) -> bytes:
    """Return an ONNX model that computes in float16, and takes and gives what it did before."""
    try:
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16
    except ImportError as error:
        raise MissingPackageError(
            f"an ONNX model in float16 needs onnx: {error}", remedy="pip install onnx, or leave precision away"
        ) from error
    if len(data) >= _LARGEST_PROTO_BYTES:
        raise HeteroError("an ONNX model of 2 GiB cannot be converted to float16", remedy="leave precision away")
    halved: bytes = convert_float_to_float16(onnx.load_model_from_string(data), keep_io_types=True).SerializeToString()
    return halved


def _torch_place(device: Device) -> str:
    if device.kind in ("cpu", "mps"):
        return device.kind
    if device.kind in ("cuda", "rocm", "xpu", "npu", "hpu"):
        return f"{'cuda' if device.kind == 'rocm' else device.kind}:{device.index}"
    raise HeteroError(f"torch cannot use {device.id}", remedy="name CPUs and GPUs that torch knows")
