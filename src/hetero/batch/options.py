"""The options of bulk work as users write them, and as the run takes them once they are checked.

In: keywords with units and words. Out: frozen values. It must not open a source, a sink or a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hetero.batch.availability import FREE, Hours, parse_by_device, parse_hours, parse_share
from hetero.batch.base import Found
from hetero.batch.merges import Merge, merge_of
from hetero.batch.precision import Wish, wish_of
from hetero.floor.errors import BadValueError
from hetero.floor.options import check_fields, options_argument
from hetero.floor.units import parse_bytes, parse_energy, parse_seconds, shown
from hetero.model.device import Device
from hetero.session.requests import check_word

__all__ = ["BatchLimits", "BatchOptions", "BatchRequest", "CheckedLimits", "request_of"]

_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How bulk work is done; each field is a key of a job in a file, too.

    Attributes
    ----------
    overwrite
        True begins anew where `output` holds something.
    ordered
        False lets a function that takes the results have them as they come.
    name
        Of the run; a merge without a folder is resumed under it.
    part
        Items that make one file or one call; None for what suits the sink.
    cost
        Of a record, where records differ much: batches are then of equal cost, not of equal number.
    same_count
        False allows more or fewer results than records.
    check_finite
        True sets records aside whose results hold NaN or an infinity.
    check_merge
        True tries on the first records whether the merge is associative, and refuses one that is not.
    spill
        True keeps results that wait for their turn on disk.
    precision
        Of a torch module: 'float32', 'bfloat16', 'float16', or 'any' for each device's quickest; of an ONNX model
        'float32' (as in its file), 'float16' or 'any'.
    tolerance
        How far results of 'any' may be off, as a share of the largest one.
    progress
        True shows the records done, the rate of each device and the time left, on standard error.
    learn
        False neither uses nor keeps the batch sizes of other runs.

    Raises
    ------
    BadValueError
        A value is not allowed; the message says what is.

    Examples
    --------
    >>> BatchOptions(part=1000, cost=len, precision="any").wish
    Wish(word='any', tolerance_frac=0.01)
    """

    overwrite: bool = False
    ordered: bool = True
    name: str = ""
    part: int | None = None
    cost: Callable[..., float] | None = None
    same_count: bool = True
    check_finite: bool = False
    check_merge: bool = False
    spill: bool = False
    precision: str = "float32"
    tolerance: float = 0.01
    progress: bool = False
    learn: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.part is not None:
            _whole("part", self.part)
        wish_of(self.precision, self.tolerance)

    @property
    def wish(self) -> Wish:
        """The precision that is allowed."""
        return wish_of(self.precision, self.tolerance)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What bulk work may take; each field is a key of a job in a file, too.

    Attributes
    ----------
    timeout, time_limit
        Of a batch, and of the whole, as in '30s'.
    memory
        Bound on the records and results that are held at a time, as in '1GiB'.
    hours
        Of the local day in which batches may begin, as in '22:00-06:00'.
    share
        Of each device's time that the run may take, as in '50%'; it rests after each batch. 'free' follows what
        others leave of the host.
    price
        Dollars that the whole may cost.
    usd_per_hour
        Dollars an hour by device word, as in {'cuda': 2.5}.
    energy
        That the whole may take, as in '500Wh'.
    watts
        That devices draw, by device word, where they cannot be measured and the catalog does not know them.

    Raises
    ------
    BadValueError
        A value is not allowed; the message says what is.

    Examples
    --------
    >>> BatchLimits(memory="256MB", time_limit="8h").checked().time_limit_s
    28800.0
    """

    timeout: float | str | None = None
    time_limit: float | str | None = None
    memory: float | str = _MEMORY_BYTES
    hours: str | None = None
    share: float | str = 1.0
    price: float | None = None
    usd_per_hour: Mapping[str, float] | None = None
    energy: str | None = None
    watts: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.energy, (int, float)):
            _energy(self.energy)  # first, as it says of a bare number that it has no unit
        check_fields(self)
        self.checked()

    def checked(self) -> CheckedLimits:
        """Return these limits in SI units.

        Examples
        --------
        >>> BatchLimits(memory="1MB").checked().memory_bytes
        1000000
        """
        prices = parse_by_device("usd_per_hour", self.usd_per_hour, "dollars an hour")
        return CheckedLimits(
            timeout_s=None if self.timeout is None else parse_seconds(self.timeout),
            time_limit_s=None if self.time_limit is None else parse_seconds(self.time_limit),
            memory_bytes=parse_bytes(self.memory),
            hours=None if self.hours is None else parse_hours(self.hours),
            share_frac=1.0 if self.share == FREE else parse_share(self.share),
            follow=self.share == FREE,
            price_usd=_price(self.price, prices),
            usd_per_hour=prices,
            energy_j=None if self.energy is None else _energy(self.energy),
            watts=parse_by_device("watts", self.watts, "watts"),
        )


@dataclass(frozen=True, slots=True)
class CheckedLimits:
    """The limits of a run in SI units; None for none.

    Attributes
    ----------
    share_frac, follow
        Of each device that the run may take; True lowers it as others use the host.
    usd_per_hour, watts
        Dollars an hour and W by device word.
    """

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


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What was asked for, checked.

    Attributes
    ----------
    batch
        None to find each device's best size, a size, or sizes by device word.
    merge
        None to keep the results as they are.
    errors
        Bad records that are allowed, a share where below 1.
    found
        What to do where the sink holds something.
    options, limits
        How it is done, and what it may take.
    """

    batch: int | Mapping[str, int] | None = None
    merge: Merge | None = None
    errors: float = 0.0
    found: Found = "refuse"
    options: BatchOptions = field(default_factory=BatchOptions)
    limits: CheckedLimits = field(default_factory=CheckedLimits)

    def size_for(self, device: Device) -> int | None:
        """Return the size that was asked for on a device, None to find it."""
        if self.batch is None or isinstance(self.batch, int):
            return self.batch
        words = (device.id, device.short, *sorted(device.words))
        return next((self.batch[word] for word in words if word in self.batch), None)

    def allows(self, bad: int, items: int) -> bool:
        """Return whether so many bad records are within the budget."""
        return bad <= (self.errors * items if self.errors < 1 else self.errors)


def request_of(
    options: BatchOptions | None,
    limits: BatchLimits | None,
    *,
    batch: str | int | Mapping[str, int] = "auto",
    merge: object = None,
    errors: float | str = 0,
    resume: bool = False,
) -> BatchRequest:
    """Check what `map_batches` was given.

    Raises
    ------
    BadValueError
        A value is not allowed; the message says what is.

    Examples
    --------
    >>> request_of(None, None, batch={"cpu": 8}, errors="1%").errors
    0.01
    """
    options = options_argument("options", options, BatchOptions) or BatchOptions()
    limits = options_argument("limits", limits, BatchLimits) or BatchLimits()
    if resume and options.overwrite:
        raise BadValueError("resume and overwrite exclude one another", remedy="give one of them")
    return BatchRequest(
        batch=_batch(batch),
        merge=merge_of(merge),
        errors=_budget(errors),
        found="resume" if resume else "overwrite" if options.overwrite else "refuse",
        options=options,
        limits=limits.checked(),
    )


def _batch(given: object) -> int | dict[str, int] | None:
    if given == "auto":
        return None
    if isinstance(given, Mapping):
        return {check_word("batch", word): _whole(f"batch[{word!r}]", size) for word, size in given.items()}
    return _whole("batch", given)


def _whole(name: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        allowed = "give 'auto', a whole number from 1, or one by device" if name == "batch" else "give one from 1"
        raise BadValueError(f"{name}={shown(given)} is not allowed", remedy=allowed)
    return given


def _price(given: object, prices: Mapping[str, float]) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
        raise BadValueError(f"price={shown(given)} is not allowed", remedy="give dollars above 0")
    if not prices:
        raise BadValueError(
            f"price={shown(given)} needs to know what devices cost", remedy="write usd_per_hour={'cuda': 2.5}"
        )
    return float(given)


def _energy(given: object) -> float:
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
