"""Plan: pure proposals. Values in, values out; no clock, no chance, no input or output.

The names here are for users: what fits, how fast it would be, and which hardware to take.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.advise.estimate import Estimate as Estimate
    from hetero.advise.estimate import Workload as Workload
    from hetero.advise.estimate import estimate as estimate
    from hetero.advise.match import match as match
    from hetero.plan.training.speed import training_time as training_time
    from hetero.train.footprint import footprint as footprint
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "hetero.advise.estimate": ("Estimate", "Workload", "estimate"),
            "hetero.advise.match": ("match",),
            "hetero.plan.training.speed": ("training_time",),
            "hetero.train.footprint": ("footprint",),
        },
    )
