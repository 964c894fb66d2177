"""What may be given as the function of a batch, and what each worker makes of it, once.

In: a function, a class with `setup`, a torch module, an ONNX model. Out: a program that travels.
It must not import torch or ONNX Runtime before a worker needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetero.batch.models import OnnxModel, TorchModel
from hetero.batch.precision import Wish
from hetero.floor.errors import BadValueError, HeteroError
from hetero.model.device import Device
from hetero.session.functions import source_of
from hetero.session.identity import value_identity
from hetero.session.requests import refuse_coroutine

__all__ = ["Prepared", "function_identity", "function_key", "prepared"]


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


def prepared(given: Any, wish: Wish) -> Prepared:
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


def _is_made_first(given: Any) -> bool:
    """Tell a class whose objects take batches from a type that makes one value of a batch, as `list` does."""
    return isinstance(given, type) and any("__call__" in vars(base) for base in given.__mro__)


def function_identity(given: Any) -> str:
    """Return the digest of what a function or a model computes: its code, what it takes along, and its weights."""
    return function_key(given) if isinstance(given, str | Path) else value_identity(given)


def function_key(given: Any) -> str:
    """Name a function or a model, the same in every run for the same code: the key of measured batch sizes."""
    if isinstance(given, str | Path):
        import hashlib

        return f"onnx {hashlib.sha256(_onnx_bytes(Path(given))).hexdigest()[:16]}"
    source = source_of(given)
    source.current()
    return f"{source.name} {source.model_key}"


def _named(given: Any) -> str:
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
