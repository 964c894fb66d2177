"""Collectives for users: the ranks of a group task, and groups of processes that add up rows.

In: rows of numbers, messages. Out: their sums and copies at every member. It must not define anything of its own.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.comm.group import Group as Group
    from hetero.comm.group import open_rendezvous as open_rendezvous
    from hetero.comm.mpi import MpiGroup as MpiGroup
    from hetero.plan.collectives.groups import Terms as Terms
    from hetero.plan.collectives.groups import best_group as best_group
    from hetero.session.collectives import all_gather as all_gather
    from hetero.session.collectives import all_reduce as all_reduce
    from hetero.session.collectives import broadcast as broadcast
    from hetero.session.collectives import reduce_scatter as reduce_scatter
    from hetero.session.task_api import rank as rank
    from hetero.session.task_api import recv as recv
    from hetero.session.task_api import send as send
    from hetero.session.task_api import world_size as world_size
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "hetero.comm.group": ("Group", "open_rendezvous"),
            "hetero.comm.mpi": ("MpiGroup",),
            "hetero.plan.collectives.groups": (
                "Terms",
                "best_group",
            ),
            "hetero.session.collectives": ("all_gather", "all_reduce", "broadcast", "reduce_scatter"),
            "hetero.session.task_api": ("rank", "recv", "send", "world_size"),
        },
    )
