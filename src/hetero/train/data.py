"""Data as samples with ids: arrays, datasets and loaders, read by id, with what is random keyed by sample.

In: what users hand to a Trainer. Out: batches for a list of ids, in that order, as tensors.
It must not choose who reads what.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from hetero.floor.errors import BadValueError
from hetero.train.keyed import sample_seed, sample_seeds

__all__ = ["Batches", "Samples", "as_array", "as_samples", "order", "pad_samples", "prepared"]


class Batches(Protocol):
    """What gives the batches of steps."""

    def batch(self, ids: Sequence[int], seed: int, step: int) -> Any:
        """Give some samples of a step, in this order."""
        ...


@dataclass(slots=True)
class Samples:
    """Samples that are read by id.

    Attributes
    ----------
    arrays : inputs and targets, first dimension the samples; None where a dataset is read
    dataset : has `len` and `[id]`; None where arrays are read
    collate : makes a batch of a list of samples, None for torch's own way
    augment : changes the inputs of one sample whenever it is trained on, None to leave them
    readers : processes that read ahead for each device, None where that is decided by what reading takes
    """

    arrays: tuple[Any, ...] | None = None
    dataset: Any = None
    collate: Callable[[list[Any]], Any] | None = None
    augment: Callable[[Any], Any] | None = None
    readers: int | None = None

    def __len__(self) -> int:
        return len(self.dataset) if self.arrays is None else len(self.arrays[0])

    @property
    def one_by_one(self) -> bool:
        """Whether samples are read one by one, by code of the user's."""
        return self.arrays is None or self.augment is not None

    def batch(self, ids: Sequence[int], seed: int, step: int) -> Any:
        """Read some samples; what is drawn while one is read and augmented is keyed by the sample."""
        if not self.one_by_one:
            assert self.arrays is not None
            index = torch.as_tensor(ids, dtype=torch.int64)
            return tuple(_tensor(array)[index] for array in self.arrays)
        collate = self.collate or _collated
        with _generators_kept():
            seeds = sample_seeds(seed, step, ids)
            return collate([self._one(int(each), own) for each, own in zip(ids, seeds, strict=True)])

    def _one(self, sample: int, seed: int) -> Any:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        found = self.dataset[sample] if self.arrays is None else tuple(_tensor(array)[sample] for array in self.arrays)
        return found if self.augment is None else (self.augment(found[0]), *found[1:])


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Give the generators of this process back as they were: torch's, NumPy's and Python's."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def _collated(samples: list[Any]) -> Any:
    """Make a batch as torch does; say what helps where samples differ in shape."""
    try:
        return torch.utils.data.default_collate(samples)
    except RuntimeError as error:
        if "equal size" not in str(error):
            raise
        raise BadValueError(
            f"the samples differ in shape: {' '.join(str(error).split())}",
            remedy="give a DataLoader with collate_fn=hetero.pad_samples, or a function of your own",
        ) from error


def pad_samples(samples: Sequence[tuple[Any, Any]]) -> tuple[tuple[Any, Any], Any]:
    """Make a batch of (sequence, target) pairs whose sequences differ in length: a `collate_fn` for a DataLoader.

    Parameters
    ----------
    samples : sequences with their steps as the first dimension

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


def _tensor(array: Any) -> Any:
    return array if torch.is_tensor(array) else torch.from_numpy(array)


@functools.lru_cache(maxsize=2)
def order(samples: int, seed: int, epoch: int, shuffle: bool) -> list[int]:
    """Give the ids of an epoch in the order in which they are trained on; the same everywhere."""
    if not shuffle:
        return list(range(samples))
    generator = torch.Generator().manual_seed(sample_seed(seed, epoch, -1))
    ids: list[int] = torch.randperm(samples, generator=generator).tolist()
    return ids


def as_samples(data: Any, what: str = "data") -> Samples:
    """Take what users have: (inputs, targets), a dataset, or a DataLoader.

    Raises
    ------
    BadValueError
        It is none of these, is empty, or its samples cannot be read by id.
    """
    samples = _taken(data, what)
    if not len(samples):
        raise BadValueError(f"{what} has no sample", remedy="give at least one")
    return samples


def _taken(data: Any, what: str) -> Samples:
    if isinstance(data, Samples):
        return data
    if isinstance(data, torch.utils.data.DataLoader):
        return _of_loader(data, what)
    if isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(part, "shape") for part in data):
        return _of_arrays(data, what)
    if isinstance(data, torch.utils.data.TensorDataset) and len(data.tensors) == 2:
        return _of_arrays(data.tensors, what)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, str | bytes | dict):
        return Samples(dataset=data)
    raise BadValueError(
        f"{what}: {type(data).__name__} cannot be read by sample",
        remedy="give (inputs, targets), a dataset with len() and [i], or a DataLoader of one",
    )


def _of_arrays(pair: Sequence[Any], what: str) -> Samples:
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


def _of_loader(loader: Any, what: str) -> Samples:
    known = (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler)
    if loader.batch_sampler is None or not isinstance(loader.sampler, known):
        raise BadValueError(
            f"{what}: the loader's {type(loader.sampler).__name__} chooses samples itself",
            remedy="give its dataset, and let the Trainer choose the order",
        )
    found = _taken(loader.dataset, what)
    if loader.collate_fn is not torch.utils.data.default_collate:
        found = Samples(dataset=loader.dataset, collate=loader.collate_fn)
    found.readers = loader.num_workers or None
    return found


def prepared(samples: Samples, augment: Any, readers: int | None) -> Samples:
    """Add to samples how they are changed for training, and who reads them.

    Raises
    ------
    BadValueError
        One of the two is not allowed.
    """
    if augment is not None and not callable(augment):
        raise BadValueError(f"augment={augment!r} is no function", remedy="give a function of one sample's inputs")
    if readers is not None and (isinstance(readers, bool) or not isinstance(readers, int) or readers < 0):
        raise BadValueError(f"readers={readers!r} is not allowed", remedy="give a whole number, 0 or more, or None")
    return replace(samples, augment=augment, readers=samples.readers if readers is None else readers)
