"""What every Python process of the tests does as it starts: torch does not load its compiler before it is used.

Loading it takes longer than loading torch itself. Torch does so at the first step of any optimizer, only to have the
compiler, if there is one, pass over that step, and loads symbolic shapes to compare those of a tensor and its gradient.
Where `torch.compile` is called, all of it is loaded as usual.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_SYMBOLIC = "torch.fx.experimental.symbolic_shapes"


def _unless_loaded(plain: Callable[..., Any], compiler_passes_over: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does what is plain as long as there is no compiler."""

    @functools.wraps(plain)
    def either(*args: Any, **kwargs: Any) -> Any:
        return (compiler_passes_over if _COMPILER in sys.modules else plain)(*args, **kwargs)

    return either


def _disable_of(real: Callable[..., Any]) -> Callable[..., Any]:
    def disable(fn: Callable[..., Any] | None = None, recursive: bool = True) -> Callable[..., Any]:
        if fn is None:
            return functools.partial(disable, recursive=recursive)
        return _unless_loaded(fn, real(fn, recursive))

    return disable


def _use_grad_of(real: Callable[..., Any]) -> Callable[..., Any]:
    def use_grad(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def plain(self: Any, *args: Any, **kwargs: Any) -> Any:
            import torch

            with torch.set_grad_enabled(self.defaults["differentiable"]):
                return step(self, *args, **kwargs)

        return _unless_loaded(plain, real(step))

    return use_grad


def _make_grads_of(real: Callable[..., Any]) -> Callable[..., Any]:
    def is_plain(output: Any, grad: Any) -> bool:
        import torch

        return (
            type(output) is type(grad) is torch.Tensor
            and output.layout == grad.layout == torch.strided
            and (output.shape, output.dtype) == (grad.shape, grad.dtype)
        )

    @functools.wraps(real)
    def make_grads(outputs: Any, grads: Any, is_grads_batched: bool) -> Any:
        if _SYMBOLIC in sys.modules or is_grads_batched or not all(map(is_plain, outputs, grads)):
            return real(outputs, grads, is_grads_batched)
        return tuple(grads)

    return make_grads


_REPLACED: dict[str, tuple[str, Callable[..., Any]]] = {
    "torch.autograd": ("_make_grads", _make_grads_of),
    "torch._compile": ("_disable_dynamo", _disable_of),
    "torch.optim.optimizer": ("_use_grad_for_differentiable", _use_grad_of),
}


class _Replacing(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        name, replacement = _REPLACED[module.__name__]
        setattr(module, name, replacement(getattr(module, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # the source of the module


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _REPLACED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Replacing(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
