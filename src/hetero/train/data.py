"""Data as samples with ids: arrays, datasets and loaders, read by id, with what is random keyed by sample.

In: what users hand to a Trainer. Out: batches for a list of ids, in that order, as tensors.
It must not choose who reads what.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from hetero.floor.contexts import transparent
from hetero.floor.errors import BadValueError
from hetero.floor.units import shown
from hetero.train.compatibility import class_values, own_methods
from hetero.train.keyed_random import sample_seed, sample_seeds

if TYPE_CHECKING:
    from hetero.train.values import TrainOptions

__all__ = [
    "Batches",
    "Draw",
    "Samples",
    "as_array",
    "as_samples",
    "generators_kept",
    "order",
    "pad_samples",
    "prepared",
    "what_decides",
]


class Batches(Protocol):
    """What gives the batches of steps."""

    def batch(self, ids: Sequence[int], seed: int, step: int) -> object:
        """Return some samples of a step, in this order."""
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """Which samples an epoch has, as the sampler of a DataLoader says.

    Attributes
    ----------
    shuffle
        True for a new order every epoch.
    samples
        Of an epoch, 0 for each sample once.
    replacement
        True where a sample may come again before all others came.
    drop_last
        True to leave out the last batch of an epoch where it is smaller than the others.
    """

    shuffle: bool = True
    samples: int = 0
    replacement: bool = False
    drop_last: bool = False


@dataclass(slots=True)
class Samples:
    """Samples that are read by id.

    Attributes
    ----------
    arrays
        Inputs and targets, first dimension the samples; None where a dataset is read.
    dataset
        Has `len` and `[id]`; None where arrays are read.
    collate
        Makes a batch of a list of samples, None for torch's own way.
    augment
        Changes the inputs of one sample whenever it is trained on, None to leave them.
    readers
        Processes that read ahead for each device, None where that is decided by what reading takes.
    draw
        Which samples an epoch has.
    """

    arrays: tuple[Any, ...] | None = None
    dataset: Any = None
    collate: Callable[[list[object]], object] | None = None
    augment: Callable[[Any], object] | None = None
    readers: int | None = None
    draw: Draw = Draw()

    def __len__(self) -> int:
        return len(self.dataset) if self.arrays is None else len(self.arrays[0])

    def an_epoch(self, batch: int) -> int:
        """Return the samples of an epoch of batches of this size.

        Examples
        --------
        >>> samples = Samples(arrays=([1, 2, 3, 4, 5], [0, 0, 0, 0, 0]), draw=Draw(drop_last=True))
        >>> samples.an_epoch(2), replace(samples, draw=Draw(samples=9)).an_epoch(2)
        (4, 9)
        """
        drawn = self.draw.samples or len(self)
        return drawn - drawn % batch if self.draw.drop_last else drawn

    def order(self, options: TrainOptions, epoch: int) -> list[int]:
        """Return the ids of an epoch in the order in which they are trained on."""
        shuffle = self.draw.shuffle if options.shuffle is None else options.shuffle
        return order(
            *(len(self), options.seed, epoch, shuffle),
            *(self.an_epoch(options.global_batch), self.draw.replacement),
        )

    @property
    def one_by_one(self) -> bool:
        """Return whether samples are read one by one, by code of the user's."""
        return self.arrays is None or self.augment is not None

    def batch(self, ids: Sequence[int], seed: int, step: int) -> Any:
        """Read some samples; what is drawn while one is read and augmented is keyed by the sample."""
        if not self.one_by_one:
            assert self.arrays is not None
            index = torch.as_tensor(ids, dtype=torch.int64)
            return tuple(_tensor(array)[index] for array in self.arrays)
        collate = self.collate or _collated
        with generators_kept():
            seeds = sample_seeds(seed, step, ids)
            return collate([self._one(int(each), own) for each, own in zip(ids, seeds, strict=True)])

    def _one(self, sample: int, seed: int) -> object:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        found = self.dataset[sample] if self.arrays is None else tuple(_tensor(array)[sample] for array in self.arrays)
        return found if self.augment is None else (self.augment(found[0]), *found[1:])


@transparent
def generators_kept() -> Iterator[None]:
    """Yield the generators of this process back as they were: torch's, NumPy's and Python's."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def _collated(samples: list[object]) -> object:
    """Make a batch as torch does; say what helps where samples differ in shape."""
    try:
        return torch.utils.data.default_collate(samples)
    except RuntimeError as error:
        if "equal size" not in str(error):
            raise
        raise BadValueError(
            f"the samples differ in shape: {' '.join(str(error).split())}",
            remedy="give a DataLoader with collate_fn=hetero.train.pad_samples, or a function of your own",
        ) from error


def pad_samples(samples: Sequence[tuple[object, object]]) -> tuple[tuple[object, object], object]:
    """Create a batch of (sequence, target) pairs whose sequences differ in length: a `collate_fn` for a DataLoader.

    Parameters
    ----------
    samples
        Sequences with their steps as the first dimension.

    Returns
    -------
    tuple
        ((sequences, lengths), targets): sequences padded with zeros to the longest of this pass, samples first;
        lengths as int64. The model is called with sequences and lengths, and must not let the padding count.

    Examples
    --------
    >>> (sequences, lengths), targets = pad_samples([([1.0, 2.0], 0), ([3.0], 1)])
    >>> sequences.tolist(), lengths.tolist(), targets.tolist()
    ([[1.0, 2.0], [3.0, 0.0]], [2, 1], [0, 1])
    """
    rows = [torch.as_tensor(row) for row, _ in samples]
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    targets = torch.utils.data.default_collate([target for _, target in samples])
    return (torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths), targets


def _tensor(array: object) -> torch.Tensor:
    return array if torch.is_tensor(array) else torch.from_numpy(array)


@functools.lru_cache(maxsize=2)
def order(
    samples: int, seed: int, epoch: int, shuffle: bool, drawn: int | None = None, replacement: bool = False
) -> list[int]:
    """Return the ids of an epoch in the order in which they are trained on; the same everywhere.

    Parameters
    ----------
    drawn
        So many ids, where they are not as many as the samples: in whole rounds, and a part of one.
    replacement
        True to draw each id from all samples.

    Examples
    --------
    >>> order(4, 0, 0, False, 3), sorted(order(4, 0, 0, True, 8))
    ([0, 1, 2], [0, 0, 1, 1, 2, 2, 3, 3])
    """
    drawn = samples if drawn is None else drawn
    if not shuffle:
        return list(range(drawn))
    generator = torch.Generator().manual_seed(sample_seed(seed, epoch, -1))
    if replacement:
        chosen: list[int] = torch.randint(samples, (drawn,), generator=generator).tolist()
        return chosen
    rounds = [torch.randperm(samples, generator=generator) for _ in range(-(-drawn // samples))]
    ids: list[int] = torch.cat(rounds)[:drawn].tolist()
    return ids


def as_samples(data: object, what: str = "data") -> Samples:
    """Take what users have: (inputs, targets), a dataset, or a DataLoader.

    Raises
    ------
    BadValueError
        It is none of these, is empty, or its samples cannot be read by id.
    """
    samples = _taken(data, what)
    if not len(samples):
        raise BadValueError(f"{what} has no sample", remedy="give at least one")
    if what != "data" and (samples.draw.samples or samples.draw.replacement):
        raise BadValueError(f"{what}: the loader's sampler leaves samples out", remedy="give its dataset")
    return samples


def _taken(data: object, what: str) -> Samples:
    if isinstance(data, Samples):
        return data
    if isinstance(data, torch.utils.data.DataLoader):
        return _of_loader(data, what)
    if isinstance(data, torch.utils.data.IterableDataset):
        raise BadValueError(f"{what}: an IterableDataset cannot be read by id", remedy="give a dataset with [i]")
    if isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(part, "shape") for part in data):
        return _of_arrays(data, what)
    if (tensors := _tensors(data)) is not None and len(tensors) == 2:
        return _of_arrays(tensors, what)
    _refuse_several_at_once(data, what)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, str | bytes | dict):
        return Samples(dataset=data)
    raise BadValueError(
        f"{what}: {type(data).__name__} cannot be read by sample",
        remedy="give (inputs, targets), a dataset with len() and [i], or a DataLoader of one",
    )


def _tensors(data: object) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors of torch's TensorDataset, None for others: a subclass may do more in [i]."""
    return data.tensors if type(data) is torch.utils.data.TensorDataset else None  # type: ignore[attr-defined]


def _refuse_several_at_once(data: object, what: str) -> None:
    """Refuse a dataset that reads several samples at once, as loaders ask it to, and not as it reads each of them."""
    several = getattr(type(data), "__getitems__", None)
    if several is None or f"{several.__module__}.".startswith(("torch.", "datasets.")) or not len(data):  # type: ignore[arg-type]
        return
    ids = [0, len(data) - 1]  # type: ignore[arg-type]
    with generators_kept():
        torch.default_generator.manual_seed(0)
        one_by_one = [data[each] for each in ids]  # type: ignore[index]
        torch.default_generator.manual_seed(0)
        at_once = list(several(data, ids))
    if not _equal(one_by_one, at_once):
        raise BadValueError(
            f"{what}: __getitems__ of {type(data).__name__} gives other samples than [i], by which they are read here",
            remedy="do all that makes a sample in [i], and leave __getitems__ out",
        )


def _equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
    return one is other or type(one) is not type(other) or _may_be_equal(one, other)


def _may_be_equal(one: object, other: object) -> bool:
    """Return whether two values of one type say that they are equal, or cannot say."""
    if type(one).__eq__ is object.__eq__:
        return True
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  a user's value may raise anything
        return True


def what_decides(data: object, name: str) -> dict[str, object]:
    """Return what the samples of users' data come from, by the names of the parts."""
    if isinstance(data, torch.utils.data.DataLoader):
        samplers = {"sampler": data.sampler, "batch sampler": data.batch_sampler}
        chosen = {
            f"{key} of the {what} of {name}": value
            for what, sampler in samplers.items()
            for key, value in getattr(sampler, "__dict__", {}).items()
            if key not in ("data_source", "generator", "sampler")
        }
        used = {f"something that collate_fn of {name} uses": data.collate_fn}
        return {**what_decides(data.dataset, name), **chosen, **used}
    if isinstance(data, Samples):
        return what_decides(data.dataset if data.arrays is None else data.arrays, name)
    data = data if (tensors := _tensors(data)) is None else tensors
    if isinstance(data, tuple | list) and len(data) == 2:
        return {f"the inputs of {name}": data[0], f"the targets of {name}": data[1]}
    held = {**class_values(type(data)), **getattr(data, "__dict__", {})}
    parts: dict[str, object] = {f"{key} of {name}": value for key, value in held.items()}
    code = [*own_methods(type(data)).values(), type(data)]
    return {**parts, name: data if not parts else None, f"something that the code of {name} uses": code}


def _of_arrays(pair: Sequence[object], what: str) -> Samples:
    if any(getattr(part, "requires_grad", False) for part in pair):
        raise BadValueError(
            f"{what} requires a gradient, which nobody would see",
            remedy="detach it, or make what is trained a parameter of the model",
        )
    arrays = tuple(as_array(part) for part in pair)
    counts = [len(array) for array in arrays]
    if counts[0] != counts[1]:
        raise BadValueError(f"{what} has {counts[0]} inputs and {counts[1]} targets", remedy="give one target an input")
    return Samples(arrays=arrays)


def as_array(part: Any) -> Any:
    """Keep what NumPy knows as NumPy arrays, which travel to workers without a copy each."""
    if not torch.is_tensor(part):
        return np.ascontiguousarray(part)
    plain = part.detach().cpu().contiguous()
    return plain if plain.dtype == torch.bfloat16 else plain.numpy()


_LIBRARIES = ("builtins.", "collections.", "numpy.", "torch.", "torchvision.", "datasets.")
_LOADER = {
    *("__init__", "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__parameters__"),
    *("__orig_bases__", "__firstlineno__", "__static_attributes__", "__slots__"),
}
_SAMPLERS = {
    "SubsetRandomSampler": "give torch.utils.data.Subset(dataset, indices)",
    "WeightedRandomSampler": "weight the loss of each sample, or give a dataset that has samples as often as wanted",
    "DistributedSampler": "give its dataset: the Trainer shares each batch between the devices itself",
}


_SETTINGS: dict[str, tuple[tuple[object, ...], str]] = {
    "timeout": (
        (0,),
        "leave it out: a process that reads and does not answer is ended, and the device reads by itself",
    ),
    "prefetch_factor": ((None, 2), "give num_workers= as many steps as are to be read ahead"),
    "multiprocessing_context": ((None,), "leave it out: processes that read are started anew"),
    "in_order": ((True,), "leave it out: batches come in order"),
    "pin_memory_device": (("",), "leave it out: each device reads what it trains on"),
}
"""Settings of a DataLoader that have no effect here: what they may be, and the remedy elsewhere."""


def _refuse_own_loader(loader: torch.utils.data.DataLoader, what: str) -> None:
    """Refuse a loader whose class does something of its own with batches: they are formed here."""
    base = torch.utils.data.DataLoader
    for kind in type(loader).__mro__[: type(loader).__mro__.index(base)]:
        own = [name for name in vars(kind) if name not in _LOADER and hasattr(base, name)]
        own += [
            name for name in ("dataset", "collate_fn", "sampler", "batch_sampler", "batch_size") if name in vars(kind)
        ]
        if own:
            raise BadValueError(
                f"{what}: the loader's class {kind.__name__} has {own[0]} of its own, which would not be used",
                remedy="do it in the dataset or in collate_fn, and give a plain DataLoader or the dataset",
            )


def _of_loader(loader: torch.utils.data.DataLoader, what: str) -> Samples:
    _refuse_own_loader(loader, what)
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        raise BadValueError(f"{what}: an IterableDataset cannot be read by id", remedy="give a dataset with [i]")
    if type(loader.batch_sampler) is not torch.utils.data.BatchSampler:
        given = "batch_size=None" if loader.batch_sampler is None else f"a {type(loader.batch_sampler).__name__}"
        raise BadValueError(
            f"{what}: the loader has {given}, and the Trainer forms batches itself",
            remedy="give its dataset and global_batch=, with cost= where samples differ in size",
        )
    kind = type(loader.sampler)
    if kind not in (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler):
        raise BadValueError(
            f"{what}: the loader's {kind.__name__} chooses samples itself",
            remedy=_SAMPLERS.get(kind.__name__, "give its dataset, and let the Trainer choose the order"),
        )
    base = getattr(loader.sampler, "data_source", loader.dataset)
    if len(base) != len(loader.dataset):
        raise BadValueError(
            f"{what}: the loader's {kind.__name__} is of {len(base)} samples, its dataset has {len(loader.dataset)}",
            remedy="give torch.utils.data.Subset(dataset, indices), and let the loader make its sampler",
        )
    if loader.generator is not None or getattr(loader.sampler, "generator", None) is not None:
        raise BadValueError(
            f"{what}: the loader's generator would not be used", remedy="leave it out and give the Trainer seed="
        )
    if loader.worker_init_fn is not None:
        raise BadValueError(
            f"{what}: the loader's worker_init_fn would not be called",
            remedy="do its work in the dataset, when a sample is read first",
        )
    for name, (usual, remedy) in _SETTINGS.items():
        value: object = getattr(loader, name) if hasattr(loader, name) else usual[0]
        if value not in usual:
            raise BadValueError(f"{what}: the loader's {name}={shown(value)} would have no effect", remedy=remedy)
    found = _taken(loader.dataset, what)
    if loader.collate_fn is not torch.utils.data.default_collate:
        found = Samples(dataset=loader.dataset, collate=loader.collate_fn)
    return replace(found, readers=loader.num_workers or None, draw=_drawn(loader, found, what))


def _drawn(loader: torch.utils.data.DataLoader, found: Samples, what: str) -> Draw:
    """Return which samples an epoch of a loader has; of what is tested, all that its batches have."""
    sampler, drop_last = loader.sampler, bool(loader.drop_last)
    if type(sampler) is torch.utils.data.SequentialSampler:
        draw = Draw(shuffle=False, drop_last=drop_last)
    else:
        drawn = 0 if sampler.num_samples == len(found) else int(sampler.num_samples)
        draw = Draw(True, drawn, bool(sampler.replacement), drop_last)
    if what != "data" and drop_last and len(found) % loader.batch_size:
        raise BadValueError(
            f"{what}: drop_last would leave {len(found) % loader.batch_size} samples untested", remedy="leave it out"
        )
    return draw


def prepared(samples: Samples, augment: Callable[[object], object] | None, readers: int | None) -> Samples:
    """Add to samples how they are changed for training, and who reads them."""
    return replace(samples, augment=augment, readers=samples.readers if readers is None else readers)
