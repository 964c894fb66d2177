"""A batch under way: who works on it, and what is known of its trouble.

In: a batch. Out: a record that the run keeps. It must not submit or commit anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hetero.batch.reading import Batch

if TYPE_CHECKING:
    from hetero.session.futures import Future

__all__ = ["Flight"]


@dataclass(slots=True)
class Flight:
    """A batch that one device works on, or two.

    Attributes
    ----------
    batch : the items
    avoid : the device where it failed, '' where it did not
    suspected : True where it is part of a batch that failed
    crashes : workers that died of it
    step : first and last of the stages of a pipeline that it goes through
    runs : future and time of handing in, by device
    """

    batch: Batch
    avoid: str = ""
    suspected: bool = False
    crashes: int = 0
    step: tuple[int, int] = (0, 0)
    runs: dict[str, tuple[Future, float]] = field(default_factory=dict)
