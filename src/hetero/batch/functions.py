"""What may be given as the function of a batch, and what each worker makes of it, once.

In: a function, a class with `setup`, a torch module, an ONNX model. Out: a program that travels.
It must not import torch or ONNX Runtime before a worker needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hetero.floor.errors import BadValueError, HeteroError, did_you_mean
from hetero.model.device import Device
from hetero.session.functions import source_of

__all__ = ["PRECISIONS", "OnnxModel", "Precision", "Prepared", "TorchModel", "function_key", "prepared"]

Precision = Literal["float32", "bfloat16", "float16", "any"]

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16", "any")
"""In what a model may compute; 'any' lets each device take the quickest."""


class Prepared:
    """What a worker calls: the user's function, or an object that was set up for its device.

    Parameters
    ----------
    given : a function of a batch, a class, or an object with `setup(device)`
    """

    def __init__(self, given: Any) -> None:
        self.given = given

    def for_device(self, device: Device) -> Callable[[Any], Any]:
        """Make the function of a batch for a device; a class is made and set up here."""
        made = self.given() if _is_made_first(self.given) else self.given
        if hasattr(made, "setup"):
            made.setup(device)
        ready: Callable[[Any], Any] = made
        return ready


class TorchModel:
    """A torch module that is put on each worker's device, evaluated without gradients.

    Parameters
    ----------
    module : gets a batch as one tensor, gives a tensor with one row a record
    precision : in what it computes; results come back as float32
    """

    def __init__(self, module: Any, precision: Precision = "float32") -> None:
        self.module = module
        self.precision = precision
        self._ready: Any = None
        self._place = "cpu"

    def setup(self, device: Device) -> None:
        """Put the module on a device."""
        self._place = _torch_place(device)
        if self.precision != "any":
            self._ready = self._at(self.precision)

    def __call__(self, batch: Any) -> Any:
        """Evaluate a batch."""
        import torch

        with torch.inference_mode():
            inputs = torch.as_tensor(batch if hasattr(batch, "shape") else np.asarray(batch)).to(self._place)
            if self._ready is None:
                self._ready = self._quickest(inputs)
            module, kind = self._ready
            outputs = module(inputs.to(kind) if inputs.is_floating_point() else inputs)
            return (outputs.float() if outputs.is_floating_point() else outputs).cpu().numpy()

    def _at(self, precision: str) -> tuple[Any, Any]:
        import copy

        import torch

        kind = getattr(torch, precision)
        return copy.deepcopy(self.module).eval().to(device=self._place, dtype=kind), kind

    def _quickest(self, inputs: Any) -> tuple[Any, Any]:
        """Measure the precisions on a batch and keep the quickest."""
        from hetero.floor.clock import monotonic_s

        timed = []
        for number, precision in enumerate(("float32", "bfloat16", "float16")):
            module, kind = self._at(precision)
            batch = inputs.to(kind) if inputs.is_floating_point() else inputs
            try:
                module(batch).float().sum().item()
                begin_s = monotonic_s()
                module(batch).float().sum().item()
            except (RuntimeError, NotImplementedError):
                continue
            timed.append((monotonic_s() - begin_s, number, module, kind))
        _, _, module, kind = min(timed, key=lambda each: each[:2])
        return module, kind


class OnnxModel:
    """An ONNX model in ONNX Runtime, one session a worker.

    Parameters
    ----------
    data : bytes of the model
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._session: Any = None

    def setup(self, device: Device) -> None:
        """Open a session on a device, with as many threads as the device has cores."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = device.cores if device.kind == "cpu" else 0
        wanted = {"cuda": "CUDAExecutionProvider", "rocm": "ROCMExecutionProvider"}.get(device.kind, "")
        there = [name for name in (wanted, "CPUExecutionProvider") if name in onnxruntime.get_available_providers()]
        self._session = onnxruntime.InferenceSession(self.data, options, providers=there)

    def __call__(self, batch: Any) -> Any:
        """Evaluate a batch: an array for a model of one input, a dict by name for more."""
        inputs = batch if isinstance(batch, dict) else {self._session.get_inputs()[0].name: np.asarray(batch)}
        outputs = self._session.run(None, inputs)
        names = [output.name for output in self._session.get_outputs()]
        return outputs[0] if len(outputs) == 1 else dict(zip(names, outputs, strict=True))


def prepared(given: Any, precision: str = "float32") -> Prepared:
    """Give what workers make of a function or a model.

    Raises
    ------
    BadValueError
        It is neither, or the precision is unknown.
    """
    if precision not in PRECISIONS:
        raise BadValueError(
            f"precision={precision!r} is not allowed{did_you_mean(precision, PRECISIONS)}",
            remedy=f"allowed: {', '.join(PRECISIONS)}",
        )
    if isinstance(given, str | Path):
        return Prepared(OnnxModel(_onnx_bytes(Path(given))))
    if hasattr(given, "SerializeToString"):
        return Prepared(OnnxModel(given.SerializeToString()))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.nn.Module):
        return Prepared(TorchModel(given, precision))
    if not callable(given) or (hasattr(given, "setup") and isinstance(given, type) and not _is_made_first(given)):
        raise BadValueError(
            f"{_named(given)} is no function of a batch",
            remedy="give a function, a class with setup(device) and __call__(batch), a torch module or an ONNX file",
        )
    return Prepared(given)


def _is_made_first(given: Any) -> bool:
    """Tell a class whose objects take batches from a type that makes one value of a batch, as `list` does."""
    return isinstance(given, type) and any("__call__" in vars(base) for base in given.__mro__)


def function_key(given: Any) -> str:
    """Name a function or a model, the same in every run for the same code."""
    if isinstance(given, str | Path):
        import hashlib

        return f"onnx {hashlib.sha256(_onnx_bytes(Path(given))).hexdigest()[:16]}"
    source = source_of(given)
    source.current()
    return f"{source.name} {source.model_key}"


def _named(given: Any) -> str:
    return f"the class {given.__name__} without __call__" if isinstance(given, type) else f"a {type(given).__name__}"


def _torch_place(device: Device) -> str:
    if device.kind in ("cpu", "mps"):
        return device.kind
    if device.kind in ("cuda", "rocm", "xpu", "npu", "hpu"):
        return f"{'cuda' if device.kind == 'rocm' else device.kind}:{device.index}"
    raise HeteroError(f"torch cannot use {device.id}", remedy="name CPUs and GPUs that torch knows")


def _onnx_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise HeteroError(f"{path} cannot be read: {error.strerror}", remedy="give an ONNX file") from error
