"""Keras models over the devices of `hetero launch`: a scope, as that of a distribution strategy.

In: models that are compiled in the scope. Out: the same models, whose `fit`, `evaluate` and `predict` divide batches.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.train.frameworks.keras_models import distribute as distribute
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, {"hetero.train.frameworks.keras_models": ("distribute",)})
