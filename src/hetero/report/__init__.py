"""Reports: where the time of a run went, and how far from the best it was; read from its trace.

In: traces. Out: pages, tables, pictures. The package can be called, `hetero.report(ctx)`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A module that is also the function `hetero.report`."""

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        from hetero.report.api import report

        return report(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
