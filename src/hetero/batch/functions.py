"""What may be given as the function of a batch, and what each worker makes of it, once.

In: a function, a class with `setup`, a torch module, an ONNX model. Out: a program that travels.
It must not import torch or ONNX Runtime before a worker needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.backends.registry import kind_of, torch_place
from hetero.batch.precision import Chooser, Wish
from hetero.batch.records import count
from hetero.floor.errors import BadValueError, HeteroError, MissingPackageError
from hetero.model.device import Device
from hetero.session.functions import source_of
from hetero.session.identity import value_identity
from hetero.session.requests import refuse_coroutine

if TYPE_CHECKING:
    import torch

__all__ = ["OnnxModel", "Prepared", "TorchModel", "function_identity", "function_key", "prepared"]

_LARGEST_PROTO_BYTES = 1 << 31


class Prepared:
    """What a worker calls: the user's function, or an object that was set up for its device.

    Parameters
    ----------
    given
        A function of a batch, a class, or an object with `setup(device)`.
    """

    def __init__(self, given: Any) -> None:
        self.given = given

    def for_device(self, device: Device) -> Callable[[object], object]:
        """Make the function of a batch for a device; a class is made and set up here."""
        made = self.given() if _is_made_first(self.given) else self.given
        if hasattr(made, "setup"):
            made.setup(device)
        ready: Callable[[object], object] = made
        return ready


def prepared(given: object, wish: Wish) -> Prepared:
    """Return what workers make of a function or a model.

    Raises
    ------
    BadValueError
        It is neither, or an ONNX model is wanted in bfloat16.
    """
    if isinstance(given, str | Path):
        return _onnx(_onnx_bytes(Path(given)), wish)
    if hasattr(given, "SerializeToString"):
        return _onnx(given.SerializeToString(), wish)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.nn.Module):
        return Prepared(TorchModel(given, wish))
    if not callable(given) or (hasattr(given, "setup") and isinstance(given, type) and not _is_made_first(given)):
        raise BadValueError(
            f"{_named(given)} is no function of a batch",
            remedy="give a function, a class with setup(device) and __call__(batch), a torch module or an ONNX file",
        )
    refuse_coroutine(given.__call__ if _is_made_first(given) else given)
    return Prepared(given)


def _is_made_first(given: object) -> bool:
    """Distinguish a class whose objects take batches from a type that makes one value of a batch, as `list` does."""
    return isinstance(given, type) and any("__call__" in vars(base) for base in given.__mro__)


def function_identity(given: object) -> str:
    """Return the digest of what a function or a model computes: its code, what it takes along, and its weights."""
    return function_key(given) if isinstance(given, str | Path) else value_identity(given)


def function_key(given: object) -> str:
    """Name a function or a model, the same in every run for the same code: the key of measured batch sizes."""
    if isinstance(given, str | Path):
        import hashlib

        return f"onnx {hashlib.sha256(_onnx_bytes(Path(given))).hexdigest()[:16]}"
    source = source_of(given)
    source.current()
    return f"{source.name} {source.model_key}"


def _named(given: object) -> str:
    return f"the class {given.__name__} without __call__" if isinstance(given, type) else f"a {type(given).__name__}"


def _onnx(data: bytes, wish: Wish) -> Prepared:
    if wish.word == "bfloat16":
        raise BadValueError(
            "precision='bfloat16' is not allowed for an ONNX model", remedy="allowed: float32, float16, any"
        )
    return Prepared(OnnxModel(data, wish))


def _onnx_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise HeteroError(f"{path} cannot be read: {error.strerror}", remedy="give an ONNX file") from error


class TorchModel:
    """A torch module that is put on each worker's device, evaluated without gradients.

    Parameters
    ----------
    module
        Gets a batch as one tensor, gives a tensor with one row a record.
    wish
        In what it may compute; results come back as float32.
    """

    def __init__(self, module: torch.nn.Module, wish: Wish) -> None:
        self.module, self.wish = module, wish
        self._place = "cpu"
        self._chooser: Chooser | None = None

    @property
    def computed_in(self) -> str:
        """In what it computes here, '' before the first batch."""
        return "" if self._chooser is None else self._chooser.computed_in

    def setup(self, device: Device) -> None:
        """Put the module on a device."""
        self._place = torch_place(device)
        self._chooser = Chooser(
            self.wish,
            {
                "float32": lambda: self._at("float32"),
                "bfloat16": lambda: self._at("bfloat16"),
                "float16": lambda: self._at("float16"),
            },
        )

    def __call__(self, batch: object) -> object:
        """Evaluate a batch."""
        import torch

        assert self._chooser is not None, "a worker sets it up"
        with torch.inference_mode():
            inputs = torch.as_tensor(batch if hasattr(batch, "shape") else np.asarray(batch)).to(self._place)
            return self._chooser(inputs, len(inputs))

    def _at(self, precision: str) -> Callable[[object], object]:
        import copy

        import torch

        kind = getattr(torch, precision)
        module = copy.deepcopy(self.module).eval().to(device=self._place, dtype=kind)

        def run(inputs: torch.Tensor) -> object:
            outputs = module(inputs.to(kind) if inputs.is_floating_point() else inputs)
            return (outputs.float() if outputs.is_floating_point() else outputs).cpu().numpy()

        return run


class OnnxModel:
    """An ONNX model in ONNX Runtime, one session a worker.

    Parameters
    ----------
    data
        Bytes of the model.
    wish
        In what it may compute; 'float32' is as in its file.
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

    def __call__(self, batch: object) -> object:
        """Evaluate a batch: an array for a model of one input, a dict by name for more."""
        assert self._chooser is not None, "a worker sets it up"
        return self._chooser(batch, count(batch))

    def _session(self, device: Device, data: bytes) -> Callable[[object], object]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = device.cores if device.is_host else 0
        wanted = kind_of(device).onnx
        there = [name for name in (wanted, "CPUExecutionProvider") if name in onnxruntime.get_available_providers()]
        session = onnxruntime.InferenceSession(data, options, providers=there)
        first, names = session.get_inputs()[0].name, [output.name for output in session.get_outputs()]

        def run(batch: object) -> object:
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
