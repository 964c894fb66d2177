"""Gradients of JAX over the devices of `hetero launch`.

In: a function of parameters and a batch. Out: its value and gradients for the whole batch, of which each process
computes its rows.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.train.frameworks.jax_gradients import value_and_grad as value_and_grad
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, {"hetero.train.frameworks.jax_gradients": ("value_and_grad",)})
