"""A device that is left out of the user's own loop: when it may go without a batch of it being missed.

In: the order in which batches are handed out and used. Out: which batch is in use, and whether all that was handed out
is used up. It must not talk to other processes.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hetero.train.launch.whole_draws import Rows

__all__ = ["BatchOrder"]

_KEPT = 4


@dataclass(slots=True)
class _Epoch:
    """What batches come from: a loader in one of its epochs, or what the script splits.

    Attributes
    ----------
    recent
        The rows of the last batches, and the tensors that the script has of each.
    handed
        Batches of this epoch.
    used
        Whether one of them was followed by a backward pass.
    newer
        Batches since the one that was given to a model and whose backward pass is to come; None where there is none.
    is_over
        Whether the epoch is; its last batches may still be in use.
    """

    recent: deque[tuple[Rows, tuple[weakref.ref[Tensor], ...]]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    handed: int = 0
    used: bool = False
    newer: int | None = None
    is_over: bool = False


class BatchOrder:
    """The order of batches, models and backward passes, which tells which batch is in use.

    Attributes
    ----------
    ahead
        Batches that the script fetches before it uses the one before.
    is_seen
        Whether it is known which batch each backward pass is of.
    in_use
        Rows of the batch that the next backward pass is of.
    are_several
        Whether batches of several sources, with other parts of the whole, meet in it.

    Notes
    -----
    A batch is recognised by its tensors where they are given to a prepared model as they are. Otherwise it is taken to
    be the newest. While a single source is open, and the script uses each batch before it fetches the next but `ahead`,
    a new batch says that those before are done with. With several sources at once nothing can be said.

    Examples
    --------
    >>> order = BatchOrder()
    >>> for _ in range(2):
    ...     order.handed("loader", Rows(0, 4, 8))
    ...     order.used()
    >>> order.is_done("loader"), order.ahead
    (True, 0)
    >>> order.handed("another", Rows(0, 4, 8)), order.is_done("loader")
    (None, False)
    """

    def __init__(self) -> None:
        self._open: dict[object, _Epoch] = {}
        self._last: object = None
        self._met: set[Rows] = set()
        self.ahead = 0
        self.is_seen = True
        self.in_use = Rows(0, 1, 1)

    @property
    def sources(self) -> list[object]:
        """Those of which batches may be in use."""
        return [source for source, one in self._open.items() if not one.is_over]

    @property
    def are_several(self) -> bool:
        """See above."""
        return len({rows.count / rows.whole for rows in self._met}) > 1

    @property
    def is_given(self) -> bool:
        """Return whether a model was given a batch that was handed out, since the last backward pass."""
        return any(one.newer is not None for one in self._open.values())

    def handed(self, source: object, rows: Rows) -> None:
        """Record that a batch was handed out."""
        for each in [each for each, one in self._open.items() if one.is_over and (each == source or one.newer is None)]:
            del self._open[each]
        one = self._open.setdefault(source, _Epoch())
        one.handed += 1
        one.recent.append((rows, ()))
        if one.newer is not None:
            one.newer += 1
        if all(each.newer is None for each in self._open.values()):
            self.in_use = rows
        self._last = source

    def holds(self, tensors: Sequence[Tensor]) -> None:
        """Record the tensors of the batch that was handed out last."""
        recent = self._open[self._last].recent
        recent[-1] = recent[-1][0], tuple(weakref.ref(each) for each in tensors)

    def given(self, tensors: Sequence[Tensor]) -> Rows | None:
        """Record that a model is given tensors; returns the rows of the batch that they are, None if unknown."""
        for one in self._open.values():
            for newer, (rows, known) in enumerate(reversed(one.recent)):
                if any(each() is tensor for each in known for tensor in tensors):
                    one.newer, self.in_use = newer, rows
                    self._met.add(rows)
                    return self.in_use
        return None

    def used(self) -> None:
        """Record that a backward pass begins."""
        pending = [one.newer for one in self._open.values() if one.newer is not None]
        last = self._open.get(self._last)
        if pending:
            self.ahead = max(self.ahead, *pending)
        elif last is not None and not last.used:  # what was fetched before it counts as fetched ahead
            self.ahead = max(self.ahead, last.handed - 1)
            self.is_seen = not self.ahead
        if last is not None:
            last.used = True

    def computed(self) -> None:
        """Record that a backward pass is over."""
        self._met.clear()
        for one in self._open.values():
            one.newer = None

    def ended(self, source: object) -> None:
        """Record that the epoch of a loader is over."""
        if source in self._open:
            self._open[source].is_over = True

    def ended_if_used(self, source: object) -> None:
        """Record that a source without an end is over, where a backward pass was made of what it gave."""
        one = self._open.get(source)
        if one is not None and one.used and one.newer is None:
            one.is_over = True

    def forget(self) -> None:
        """Record that the batch that was handed out last is handed out again, to other processes."""
        self._open.clear()
        self._met.clear()

    def is_done(self, source: object) -> bool:
        """Return whether all batches but the last `ahead` are done with when this source has its next one."""
        one = self._open.get(source)
        return set(self.sources) <= {source} and (one is None or one.is_over or one.used)
