"""The options of bulk work as users write them, checked once.

In: keywords with units and words. Out: one frozen value. It must not open a source, a sink or a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hetero.batch.availability import FREE, Hours, parse_by_device, parse_hours, parse_share
from hetero.batch.base import Found
from hetero.batch.merges import Merge, merge_of
from hetero.floor.errors import BadValueError
from hetero.floor.units import parse_bytes, parse_energy, parse_seconds, shown
from hetero.model.device import Device
from hetero.session.requests import check_word

__all__ = ["BatchOptions", "options_of"]

_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What was asked for.

    Attributes
    ----------
    batch : None to find each device's best size, a size, or sizes by device word
    merge : None to keep the results as they are
    errors : bad records that are allowed, a share where below 1
    found : what to do where the sink holds something
    timeout_s, time_limit_s : of a batch and of the whole, None for none
    hours : of the day in which batches may begin, None for all
    share_frac, follow : of each device that the run may take; True lowers it as others use the host
    price_usd, usd_per_hour : what the whole may cost, None for any price; dollars an hour by device word
    energy_j, watts : what the whole may take, None for any; W by device word, where the user knows it
    memory_bytes : bound on records and results in flight
    part_items : items of a part, None to follow the sink
    """

    batch: int | Mapping[str, int] | None = None
    merge: Merge | None = None
    ordered: bool = True
    name: str = ""
    errors: float = 0.0
    found: Found = "refuse"
    timeout_s: float | None = None
    time_limit_s: float | None = None
    memory_bytes: int = _MEMORY_BYTES
    hours: Hours | None = None
    share_frac: float = 1.0
    follow: bool = False
    price_usd: float | None = None
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    energy_j: float | None = None
    watts: Mapping[str, float] = field(default_factory=dict)
    part_items: int | None = None
    cost: Callable[[Any], float] | None = None
    same_count: bool = True
    check_finite: bool = False
    check_merge: bool = False
    spill: bool = False
    progress: bool = False
    learn: bool = True

    def size_for(self, device: Device) -> int | None:
        """Return the size that was asked for on a device, None to find it."""
        if self.batch is None or isinstance(self.batch, int):
            return self.batch
        words = (device.id, device.short, *sorted(device.words))
        return next((self.batch[word] for word in words if word in self.batch), None)

    def allows(self, bad: int, items: int) -> bool:
        """Return whether so many bad records are within the budget."""
        return bad <= (self.errors * items if self.errors < 1 else self.errors)


def options_of(
    *,
    batch: str | int | Mapping[str, int] = "auto",
    merge: Any = None,
    errors: float | str = 0,
    resume: bool = False,
    overwrite: bool = False,
    timeout: float | str | None = None,
    time_limit: float | str | None = None,
    memory: int | str = _MEMORY_BYTES,
    part: int | None = None,
    hours: str | None = None,
    share: float | str = 1.0,
    price: float | None = None,
    usd_per_hour: Mapping[str, float] | None = None,
    energy: str | None = None,
    watts: Mapping[str, float] | None = None,
    **others: Any,
) -> BatchOptions:
    """Check the keywords of `map_batches`.

    Raises
    ------
    BadValueError
        A value is not allowed; the message says what is.

    Examples
    --------
    >>> options_of(batch={"cpu": 8}, errors="1%", memory="256MB").errors
    0.01
    """
    if resume and overwrite:
        raise BadValueError("resume and overwrite exclude one another", remedy="give one of them")
    prices = parse_by_device("usd_per_hour", usd_per_hour, "dollars an hour")
    return BatchOptions(
        batch=_batch(batch),
        merge=merge_of(merge),
        errors=_budget(errors),
        found="resume" if resume else "overwrite" if overwrite else "refuse",
        timeout_s=None if timeout is None else parse_seconds(timeout),
        time_limit_s=None if time_limit is None else parse_seconds(time_limit),
        memory_bytes=parse_bytes(memory),
        hours=None if hours is None else parse_hours(hours),
        share_frac=1.0 if share == FREE else parse_share(share),
        follow=share == FREE,
        price_usd=_price(price, prices),
        usd_per_hour=prices,
        energy_j=None if energy is None else _energy(energy),
        watts=parse_by_device("watts", watts, "watts"),
        part_items=None if part is None else _whole("part", part),
        **others,
    )


def _batch(given: Any) -> int | dict[str, int] | None:
    if given == "auto":
        return None
    if isinstance(given, Mapping):
        return {check_word("batch", word): _whole(f"batch[{word!r}]", size) for word, size in given.items()}
    return _whole("batch", given)


def _whole(name: str, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        allowed = "give 'auto', a whole number from 1, or one by device" if name == "batch" else "give one from 1"
        raise BadValueError(f"{name}={shown(given)} is not allowed", remedy=allowed)
    return given


def _price(given: Any, prices: Mapping[str, float]) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
        raise BadValueError(f"price={shown(given)} is not allowed", remedy="give dollars above 0")
    if not prices:
        raise BadValueError(
            f"price={shown(given)} needs to know what devices cost", remedy="write usd_per_hour={'cuda': 2.5}"
        )
    return float(given)


def _energy(given: Any) -> float:
    energy_j = parse_energy(given)
    if energy_j == 0.0:
        raise BadValueError(f"energy={shown(given)} is not allowed", remedy="give more than none, as in '500Wh'")
    return energy_j


def _budget(given: float | str) -> float:
    try:
        text = str(given).strip()
        value = float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise BadValueError(f"errors={shown(given)} is not allowed", remedy="give a number of records, or '1%'")
    return value
