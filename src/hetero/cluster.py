"""A fleet that is shared, linked and resized: leases, links, and how long work waits for devices.

In: devices, files on their links, a Context. Out: leases, links, pressure. It must not define anything of its own.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.backends.topology_files import topology as topology
    from hetero.session.leases import Pool as Pool
    from hetero.session.pressure import Pressure as Pressure
    from hetero.session.pressure import on_pressure as on_pressure
    from hetero.session.pressure import pressure as pressure
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "hetero.backends.topology_files": ("topology",),
            "hetero.session.leases": ("Pool",),
            "hetero.session.pressure": ("Pressure", "on_pressure", "pressure"),
        },
    )
