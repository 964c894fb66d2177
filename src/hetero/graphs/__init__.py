"""Task graphs in files: formats, converters, planning within a budget, and an independent checker of plans.

The names here are for users: a graph that is submitted as a whole, and the graph of a run.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.graphs.program import Graph as Graph
    from hetero.graphs.show import graph as graph
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "hetero.graphs.program": ("Graph",),
            "hetero.graphs.show": ("graph",),
        },
    )
