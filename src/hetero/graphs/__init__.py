"""Task graphs in files: formats, converters, planning within a budget, and an independent checker of plans.

The names here are for users: a graph that is submitted as a whole, and the graph of a run.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.graphs.check import violations as violations
    from hetero.graphs.planning import Budget as Budget
    from hetero.graphs.planning import plan_graph as plan_graph
    from hetero.graphs.program import Graph as Graph
    from hetero.graphs.show import graph as graph
    from hetero.model.graph import GraphDevice as GraphDevice
    from hetero.model.graph import GraphEdge as GraphEdge
    from hetero.model.graph import GraphTask as GraphTask
    from hetero.model.graph import TaskGraph as TaskGraph
    from hetero.model.topology import Link as Link
    from hetero.model.topology import MemoryNode as MemoryNode
    from hetero.model.topology import Topology as Topology
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "hetero.model.topology": (
                "Link",
                "MemoryNode",
                "Topology",
            ),
            "hetero.model.graph": (
                "GraphDevice",
                "GraphEdge",
                "GraphTask",
                "TaskGraph",
            ),
            "hetero.graphs.planning": (
                "Budget",
                "plan_graph",
            ),
            "hetero.graphs.check": ("violations",),
            "hetero.graphs.program": ("Graph",),
            "hetero.graphs.show": ("graph",),
        },
        {"faults": "hetero.graphs.violations"},
    )
