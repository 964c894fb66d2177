"""Which source and which sink a value stands for: arrays, lists, generators, paths, URLs, functions.

In: what the user gave. Out: a `Source`, a `Sink`. It must not import a format's packages: rows name their home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hetero.batch.base import Sink, Source
from hetero.batch.files import IMAGES
from hetero.batch.records import is_records
from hetero.batch.sinks import CallSink, CollectSink
from hetero.batch.sources import (
    ArraySource,
    DatasetSource,
    GeneratorSource,
    ReaderSource,
    SequenceSource,
    is_dataset,
    is_reader,
)
from hetero.batch.storage import find, is_folder, suffix_of
from hetero.batch.tables import FORMATS as TABLES
from hetero.batch.tables import OURS
from hetero.floor.errors import BadValueError, did_you_mean

__all__ = ["KINDS", "SINKS", "SOURCES", "kind_of_source", "sink_of", "source_of"]

_TABLES, _IMAGES, _FILES = "hetero.batch.tables:Tables", "hetero.batch.files:Images", "hetero.batch.files:Files"

SOURCES: dict[str, str] = {
    ".npy": "hetero.batch.sources:NpySource",
    **dict.fromkeys(TABLES, _TABLES),
    **dict.fromkeys(IMAGES, _IMAGES),
}
"""Which class reads a file of a suffix; it is called with the path or URL."""

KINDS: dict[str, str] = {"tables": _TABLES, "images": _IMAGES, "files": _FILES}
"""Which class reads what a job's file says in words, as {'images': 'photos', 'size': [28, 28]}."""

SINKS: dict[str, str] = {
    "jsonl": "hetero.batch.sinks:JsonLinesSink",
    "npy": "hetero.batch.sinks:NpySink",
    "parquet": "hetero.batch.sinks:ParquetSink",
}
"""Which class writes a format; it is called with the folder."""


def source_of(given: Any) -> Source:
    """Return the source that a value stands for.

    Raises
    ------
    BadValueError
        It stands for none, or the file is absent or of no known kind.

    Examples
    --------
    >>> source_of([1, 2, 3]).length, source_of(x for x in "ab").length
    (3, None)
    """
    if isinstance(given, Source):
        return given
    if isinstance(given, str | Path):
        return _of_path(given)
    if is_dataset(given):
        return DatasetSource(given)
    if is_reader(given):
        return ReaderSource(given)
    if not isinstance(given, list | tuple | range) and is_records(given):
        return ArraySource(given)
    if isinstance(given, Sequence) or _is_indexed(given):
        return SequenceSource(given)
    if callable(given) or (isinstance(given, Iterable) and not isinstance(given, Mapping)):
        return GeneratorSource(given)
    raise BadValueError(
        f"a {type(given).__name__} gives no records",
        remedy="give a list, an array, a dict of arrays, a data set, a generator, a path or a hetero.batch.base.Source",
    )


def _is_indexed(value: object) -> bool:
    """Return whether a value gives its records by their numbers, as the data sets of torch and Hugging Face do."""
    indexed = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return indexed and not isinstance(value, Mapping | type)


def _of_path(path: str | Path) -> Source:
    if is_folder(path):
        return _of_folder(path)
    suffix = suffix_of(path)
    if suffix not in SOURCES:
        raise BadValueError(
            f"{path} is of no kind that can be read{did_you_mean(suffix, SOURCES)}",
            remedy=f"known: {', '.join(sorted(SOURCES))}; hetero.batch.Files takes any",
        )
    found: Source = _home(SOURCES[suffix])(path)
    return found


def _of_folder(path: str | Path) -> Source:
    """Return the tables or the images of a folder where it holds nothing else, and its files otherwise."""
    suffixes = {suffix_of(blob.path) for blob in find(path, without=OURS)}
    kind = "tables" if suffixes <= TABLES.keys() else "images" if suffixes <= set(IMAGES) else "files"
    return kind_of_source(kind)(path)


def kind_of_source(word: str) -> Callable[..., Source]:
    """Return the class that reads a kind of `KINDS`."""
    found: Callable[..., Source] = _home(KINDS[word])
    return found


def sink_of(given: object, form: str | None = None) -> Sink:
    """Return the sink that a value stands for.

    Parameters
    ----------
    given
        None to collect in memory, a function, a folder, or a sink.
    form
        Of the files in a folder, one of `SINKS`; 'jsonl' where nothing says another.

    Raises
    ------
    BadValueError
        It stands for none, or the format is unknown.
    """
    if isinstance(given, Sink):
        return given
    if given is None:
        return CollectSink()
    if callable(given):
        return CallSink(given)
    if not isinstance(given, str | Path):
        raise BadValueError(f"output={given!r} takes no results", remedy="give a folder, a function or nothing")
    form = form or "jsonl"
    if form not in SINKS:
        raise BadValueError(
            f"{form!r} is no format of results{did_you_mean(form, SINKS)}", remedy=f"known: {', '.join(sorted(SINKS))}"
        )
    found: Sink = _home(SINKS[form])(given)
    return found


def _home(word: str) -> Any:
    module, _, name = word.partition(":")
    return getattr(import_module(module), name)
