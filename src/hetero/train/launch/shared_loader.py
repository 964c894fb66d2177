"""A DataLoader whose batches come in parts: each process of `hetero launch` reads its own rows of the same batch.

In: the user's loader, who has how many rows. Out: batches of own rows, in the order in which one process has them.
It must not choose the shares, and must not know gradients.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate

from hetero.floor.errors import BadValueError
from hetero.train.data import generators_kept
from hetero.train.keyed_random import sample_seed
from hetero.train.launch.whole_draws import Rows
from hetero.train.recurrent_layers import repacked

__all__ = [
    "BatchOwner", "SharedLoader", "map_tensors", "moved_to", "part_of", "rebuilt", "rows_of", "samples_in",
    "tensors_in",
]  # fmt: skip

_KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip

_END = object()
_of_others: list[object] = []
"""Readers of the process that this one was forked from, which end their workers where they are dropped."""

Batch = Any
"""What a loader yields: tensors, arrays, and tuples, lists and dicts of them; the user's own classes too."""


class BatchOwner(Protocol):
    """What a loader asks its fleet."""

    @property
    def shares(self) -> tuple[float, ...]:
        """Who has how much of a batch from now on; equal in all processes."""
        ...

    @property
    def seed(self) -> int:
        """Of what is keyed by sample."""
        ...

    @property
    def is_alone(self) -> bool:
        """Return whether nobody else has rows of the batches any more."""
        ...

    def rows_for(self, shares: Sequence[float], samples: int) -> Rows:
        """Return this process's rows of a batch of so many samples."""
        ...

    def begin_batches(self, source: object) -> None:
        """Record that a loader begins an epoch."""
        ...

    def begin_batch(self, source: object) -> None:
        """Record that the next batch is about to be read."""
        ...

    def hand_out(self, rows: Rows, shares: tuple[float, ...], source: object) -> None:
        """Record that the next batch has these rows; a process that gets none any more ends here."""
        ...

    def place(self, batch: Batch) -> Batch:
        """Return a batch on this process's device."""
        ...

    def between_batches(self) -> None:
        """Record that what is drawn until the next batch is handed out is for all of it, as in a `collate_fn`."""
        ...

    def read_through(self) -> None:
        """Record that all batches of an epoch were handed out."""
        ...

    def note(self, words: str) -> None:
        """Notify people, once of each thing."""

    def end_of_batches(self, source: object) -> None:
        """Record that an epoch is over, and that what is drawn from here on is not for a batch."""
        ...


def rows_of(counts: Sequence[int], rank: int) -> Rows:
    """Return which rows of a batch a process has.

    Examples
    --------
    >>> rows_of((96, 32), 1)
    Rows(begin=96, count=32, whole=128)
    """
    ends = [0, *accumulate(counts)]
    return Rows(ends[rank], counts[rank], ends[-1])


def map_tensors(function: Callable[[Tensor], object], value: Batch) -> Batch:
    """Return a batch with a function applied to each tensor and array in it; other things stay as they are."""
    return function(value) if _is_array(value) else rebuilt(lambda part: map_tensors(function, part), value)


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def rebuilt(function: Callable[[Batch], Batch], value: Batch) -> Batch:
    """Return a dict, list or tuple with a function applied to each part of it; other things stay as they are."""
    kind: Batch = type(value)
    if isinstance(value, Mapping):
        found = {name: function(part) for name, part in value.items()}
        try:
            return kind(found)
        except TypeError:
            return found
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(function(part) for part in value))
    return kind(function(part) for part in value) if isinstance(value, list | tuple) else value


def moved_to(device: torch.device, batch: Batch) -> Batch:
    """Return a batch on a device, each part by its own `to` where it has one."""
    if hasattr(batch, "to"):
        return batch.to(device)
    return rebuilt(lambda part: moved_to(device, part), batch)


def part_of(value: Batch, rows: Rows, dim: int = 0) -> Batch:
    """Return the rows of a batch: of each tensor and array whose first dimension is the batch, and of lists so long.

    Parameters
    ----------
    dim
        Where tensors and arrays have the samples.

    Raises
    ------
    BadValueError
        Nothing in it has so many rows.
    """
    cut = [0]
    own = slice(rows.begin, rows.begin + rows.count)

    def walk(part: Batch) -> Batch:
        if not _has_rows(part, rows.whole, dim):
            return rebuilt(walk, part)
        cut[0] += 1
        if isinstance(part, PackedSequence):
            return repacked(part, rows.begin, rows.count)
        return part[own] if isinstance(part, list | tuple) else part[(slice(None),) * dim + (own,)]

    found = walk(value)
    if not cut[0]:
        raise BadValueError(
            f"no part of a {type(value).__name__} has {rows.whole} rows, so it cannot be cut into parts of a batch",
            remedy="give tensors whose first dimension is the samples",
        )
    return found


def _has_rows(part: Batch, whole: int, dim: int) -> bool:
    """Return whether a part of a batch has so many rows itself, and not the parts that it is made of."""
    if isinstance(part, PackedSequence | Tensor | np.ndarray):
        return samples_in(part, dim) == whole
    is_list = isinstance(part, list | tuple) and not hasattr(part, "_fields")
    return is_list and len(part) == whole and not any(_holds_rows(each, whole, dim) for each in part)


def _holds_rows(batch: Batch, whole: int, dim: int = 0) -> bool:
    """Return whether something in a batch has so many rows."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return _has_rows(batch, whole, dim) or any(_holds_rows(part, whole, dim) for part in parts)


class _KeyedDataset:
    """A dataset whose samples draw numbers of their own, the same whoever reads them."""

    def __init__(self, dataset: Batch, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: tuple[int, object]) -> object:
        epoch, index = key
        number = index if isinstance(index, int) else hash(index) & 0x7FFFFFFF
        seed = sample_seed(self._seed, epoch, number)
        with generators_kept():
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed & 0xFFFFFFFF)
            return self._dataset[index]


class _OwnParts:
    """A batch sampler that yields this process's part of what another one yields."""

    def __init__(self, loader: SharedLoader, batches: Sampler[list[object]]) -> None:
        self._loader = loader
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[object]]:
        if self._loader.is_whole:
            for ids in self._batches:
                yield self._loader.keyed(ids)
            return
        for number, ids in self._loader.ids_from(self._batches):
            yield self._loader.own_of(number, ids)


class SharedLoader:
    """Hands out this process's part of each batch of a loader.

    Parameters
    ----------
    loader
        The user's; whatever is asked of this object that it does not have itself, it is asked of that one.
    fleet
        Who shares with whom.

    Attributes
    ----------
    is_keyed
        Whether the dataset draws random numbers, which are keyed by sample then.
    epochs
        How many epochs have begun.
    is_whole
        Whether the last one began when nobody else was left.

    Notes
    -----
    A `collate_fn` of the user's sees the whole batch in every process, and its result is cut: it may pad to the
    longest, or mix. So are the batches of streams. Where it makes what cannot be cut, as one graph of several, it sees
    the own samples only. With workers that read ahead, a new share counts from the first
    batch that nobody has begun to read, which is the same one in every process.
    """

    def __init__(self, loader: DataLoader[Batch], fleet: BatchOwner) -> None:
        self._loader = loader
        self._fleet = fleet
        self.epochs = 0
        self.is_whole = False
        self._number = 0
        self._plans: list[tuple[int, tuple[float, ...]]] = []
        self._sizes: dict[int, tuple[Rows, tuple[float, ...]]] = {}
        self._samples: dict[int, int] = {}
        self._ids: dict[int, list[object]] = {}
        self._following: Iterator[list[object]] | None = None
        self._current: tuple[int, Batch] | None = None
        self._reader: Iterator[Batch] = iter(())
        streams = isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None
        self._cuts = streams or (loader.collate_fn is not default_collate and _makes_rows(loader))
        self.is_keyed = not self._cuts and _draws(loader.dataset)
        self._inner: DataLoader[Batch] = loader if streams else self._own()
        self._ahead = loader.num_workers * (loader.prefetch_factor or 0)

    def _own(self) -> DataLoader[Batch]:
        loader = self._loader
        options = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
        dataset: Batch = _KeyedDataset(loader.dataset, self._fleet.seed) if self.is_keyed else loader.dataset
        return DataLoader(dataset, batch_sampler=_OwnParts(self, loader.batch_sampler), **options)

    def ids_from(self, batches: Sampler[list[object]]) -> Iterator[tuple[int, list[object]]]:
        """Yield the samples of each batch from the next one on that is to be handed out, with its number."""
        begin = self._number
        if self._following is None:
            self._following = iter(batches)
        for number in sorted(self._ids):
            if number >= begin:
                yield number, self._ids[number]
        begin = max([begin, *(number + 1 for number in self._ids)])
        for number, ids in enumerate(self._following, begin):
            self._ids[number] = list(ids)
            yield number, self._ids[number]

    def own_of(self, number: int, ids: list[object]) -> list[object]:
        """Return which samples of a batch this process reads."""
        if self._cuts:
            self._samples[number] = len(ids)
            return ids
        rows = self.rows_for(number, len(ids))
        return self.keyed(ids[rows.begin : rows.begin + rows.count] or ids[:1])

    def keyed(self, ids: list[object]) -> list[object]:
        """Return what the dataset is asked for to get these samples."""
        return [(self.epochs, each) for each in ids] if self.is_keyed else ids

    def __getattr__(self, name: str) -> Batch:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        if self.is_open:  # a loop that was left, and is not over
            self._end()
        self.epochs += 1
        self._fleet.begin_batches(self)
        self._number, self._plans, self._sizes, self._samples = 0, [(0, self._fleet.shares)], {}, {}
        self._ids, self._following = {}, None
        self.is_whole = self._fleet.is_alone
        reader = iter(self._inner)  # here, and not with the first batch: it draws, as torch's does
        if self.is_whole:
            return self._whole_batches(reader)
        self._reader = reader
        return self._own_batches(self.epochs)

    def _own_batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the own parts of the batches of an epoch."""
        try:
            while True:
                if self.epochs != epoch:
                    raise BadValueError(
                        "two loops read one prepared loader at once",
                        remedy="prepare a loader for each of them, over the same dataset",
                    )
                if not self._ahead:
                    self._fleet.begin_batch(self)
                batch = next(self._reader, _END)
                if batch is _END:
                    self._fleet.read_through()
                    return
                number, self._number = self._number, self._number + 1
                shares = self._fleet.shares
                if shares != self._plans[-1][1]:
                    self._plans.append((number + self._ahead + 1, shares))
                self._current = number, batch
                yield self._handed_out(number, batch)
                self._fleet.between_batches()
                self._ids.pop(number, None)
                self._samples.pop(number, None)
        finally:
            if self.epochs == epoch:
                self._end()

    def _end(self) -> None:
        self._current = None
        self._fleet.end_of_batches(self)

    def _whole_batches(self, reader: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch that begins when nobody else is left: as torch's loader, and nearly as fast."""
        shares = self._fleet.shares
        try:
            for batch in reader:
                samples = samples_in(batch) or 0
                self._fleet.hand_out(Rows(0, samples, samples), shares, self)
                yield self._fleet.place(batch)
                self._fleet.between_batches()
        finally:
            self._fleet.end_of_batches(self)

    def _handed_out(self, number: int, batch: Batch) -> Batch:
        """Hand out a batch that was read."""
        if self._cuts:
            batch = self._part(number, batch)
        rows, planned = self._sizes.pop(number)
        self._fleet.hand_out(rows, planned, self)
        if not rows.count and not torch.is_grad_enabled():  # nothing is to be counted twice
            batch = part_of(batch, Rows(0, 0, 1))
        return self._fleet.place(batch)

    @property
    def workers(self) -> list[object]:
        """The processes that read between epochs, too."""
        return list(getattr(self._inner._iterator, "_workers", ()))

    def leave_workers(self) -> None:
        """Go on in a process that was forked, with processes of its own that read; those that there are stay."""
        _of_others.append(self._inner._iterator)
        self._inner._iterator = None

    @property
    def is_open(self) -> bool:
        """Return whether an epoch is on its way."""
        return self._current is not None

    def read_again(self) -> None:
        """Read all batches from the next one on again, by other shares: a process that had rows of them is lost."""
        if self._current is None:
            return
        self._plans = [(begin, shares) for begin, shares in self._plans if begin < self._number]
        self._plans.append((self._number, self._fleet.shares))
        if not self._cuts:
            with generators_kept(), self._generator_kept():
                self._reader = iter(self._inner)

    def hand_out_again(self) -> Batch:
        """Return the own part of the batch that was handed out last, by other shares."""
        assert self._current is not None
        number, batch = self._current
        self._plans = [(begin, shares) for begin, shares in self._plans if begin < number]
        self._plans.append((number, self._fleet.shares))
        if not self._cuts:
            inner = self._inner
            with generators_kept():
                batch = inner.collate_fn([inner.dataset[each] for each in self.own_of(number, self._ids[number])])
        return self._handed_out(number, batch)

    @contextmanager
    def _generator_kept(self) -> Iterator[None]:
        """Yield the loader's own generator back as it was: a reader that begins draws from it."""
        own = self._loader.generator
        before = None if own is None else own.get_state()
        yield
        if own is not None:
            own.set_state(before)

    def _part(self, number: int, batch: Batch) -> Batch:
        """Return this process's part of a whole batch."""
        samples = self._samples.get(number)
        if samples is None or not _holds_rows(batch, samples):
            samples = samples_in(batch)
        if samples is None:
            raise BadValueError(
                f"a {type(batch).__name__} without a tensor cannot be cut into parts of a batch",
                remedy="let the loader give tensors whose first dimension is the samples",
            )
        if any(each.ndim > 1 and each.shape[1] == samples != each.shape[0] for each in tensors_in(batch)):
            self._fleet.note(
                "a tensor of a batch has as many entries in its second dimension as there are samples, and stays whole "
                "where others are cut: put the samples first (batch_first=True), or do not prepare the loader and cut "
                "its batches by fleet.split(x, dim=1)"
            )
        rows = self.rows_for(number, samples)
        return part_of(batch, rows if rows.count else Rows(0, 1, rows.whole)) if rows.whole > 1 else batch

    def rows_for(self, number: int, samples: int) -> Rows:
        """Return this process's rows of a batch, by the shares that count for it."""
        shares = self._plans[-1][1]
        if self._plans[-1][0] > number:
            shares = next(shares for begin, shares in reversed(self._plans) if begin <= number)
        rows = self._fleet.rows_for(shares, samples)
        self._sizes[number] = rows, shares
        return rows


def samples_in(batch: Batch, dim: int = 0) -> int | None:
    """Return how many samples a batch has: the rows of its first tensor or array, None where there is none.

    Examples
    --------
    >>> samples_in({"name": "a", "x": torch.zeros(3, 4)}), samples_in((torch.zeros(3, 4),), dim=1), samples_in([1, 2])
    (3, 4, None)
    """
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])
    if isinstance(batch, Mapping | list | tuple):
        parts = batch.values() if isinstance(batch, Mapping) else batch
        return next((found for part in parts if (found := samples_in(part, dim)) is not None), None)
    return int(batch.shape[dim]) if isinstance(batch, Tensor | np.ndarray) and batch.ndim > dim else None


def tensors_in(batch: Batch) -> list[Tensor]:
    """Return the tensors and arrays of a batch.

    Examples
    --------
    >>> len(tensors_in({"x": torch.zeros(3), "more": [torch.ones(2), "a"]}))
    2
    """
    if isinstance(batch, Mapping | list | tuple):
        parts = batch.values() if isinstance(batch, Mapping) else batch
        return [found for part in parts for found in tensors_in(part)]
    return [batch] if isinstance(batch, Tensor | np.ndarray) else []


def _makes_rows(loader: DataLoader[Batch]) -> bool:
    """Return whether a loader makes batches whose rows can be told apart; the generators stay as they were."""
    with generators_kept():
        try:
            one, other = loader.dataset[0], loader.dataset[1]
            both = loader.collate_fn([one, other])
            return _holds_rows(both, 2) and not _are_joined(loader.collate_fn([one]), loader.collate_fn([other]), both)
        except Exception:  # noqa: BLE001  the loop meets it, too
            return True


def _are_joined(one: Batch, other: Batch, both: Batch) -> bool:
    """Return whether a tensor of a batch of two has the rows of those of each, as the nodes of two graphs."""
    rows = [[each.shape[0] if each.ndim else 0 for each in tensors_in(batch)] for batch in (one, other, both)]
    return any(own + more == all_ != 2 for own, more, all_ in zip(*rows, strict=False))


def _draws(dataset: Batch) -> bool:
    """Return whether reading a sample moves a random generator; the generators stay as they were."""
    with generators_kept():
        before = _fingerprint()
        try:
            dataset[0]
        except Exception:  # noqa: BLE001  the loop meets it, too
            return False
        return _fingerprint() != before


def _fingerprint() -> tuple[object, ...]:
    numpys: Batch = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), numpys[1].tobytes(), numpys[2], random.getstate()
