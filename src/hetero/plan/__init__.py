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
    from hetero.advise.fit import does_it_fit as does_it_fit
    from hetero.advise.fit import read_model as read_model
    from hetero.advise.fleet import read_fleet as read_fleet
    from hetero.advise.llm import place_layers as place_layers
    from hetero.advise.llm import read_target as read_target
    from hetero.advise.match import match as match
    from hetero.plan.training.speed import training_time as training_time
    from hetero.train.footprint import footprint as footprint
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "hetero.advise.llm": (
                "place_layers",
                "read_target",
            ),
            "hetero.advise.estimate": ("Estimate", "Workload", "estimate"),
            "hetero.advise.fit": ("does_it_fit", "read_model"),
            "hetero.advise.fleet": ("read_fleet",),
            "hetero.advise.match": ("match",),
            "hetero.plan.training.speed": ("training_time",),
            "hetero.train.footprint": ("footprint",),
        },
    )
