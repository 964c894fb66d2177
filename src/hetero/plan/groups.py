"""The former place of `hetero.plan.collectives.groups`."""

import warnings

from hetero.plan.collectives.groups import DeviceGroup as Group
from hetero.plan.collectives.groups import Terms, best_group, group_bandwidth

__all__ = ["Group", "Terms", "best_group", "group_bandwidth"]

warnings.warn("hetero.plan.groups has moved to hetero.plan.collectives.groups", DeprecationWarning, stacklevel=2)
