"""Files as records: whole files with their bytes, and images as arrays; opened on the worker that uses them.

In: folders, patterns and URLs. Out: pieces of one file each, and what a worker makes of them.
It must not read a file before its batch is on a device.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hetero.batch.base import Piece, Source
from hetero.batch.storage import find, read_blob
from hetero.floor.errors import BadValueError, HeteroError
from hetero.stores.urls import Storage, storage_of

__all__ = ["IMAGES", "File", "FileRef", "Files", "Images"]

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
"""Suffixes of images."""


@dataclass(frozen=True, slots=True)
class File:
    """One file, as the function gets it; its length is that of its content.

    Attributes
    ----------
    path
        Or URL.
    data
        Its content.

    Examples
    --------
    >>> file = File("a.txt", b"one")
    >>> len(file), file.text
    (3, 'one')
    """

    path: str
    data: bytes

    def __len__(self) -> int:
        return len(self.data)

    @property
    def text(self) -> str:
        """Its content as text in UTF-8."""
        return self.data.decode()


@dataclass(frozen=True, slots=True)
class FileRef:
    """One file, as it travels: where it is, how long it is, and what marks its content."""

    path: str
    nbytes: int
    mark: str

    def __len__(self) -> int:
        return self.nbytes


@dataclass(frozen=True, slots=True)
class _Reads:
    """Reads files on the worker."""

    storage: Storage

    def __call__(self, files: Sequence[FileRef]) -> list[File]:
        return [File(file.path, _content(file, self.storage)) for file in files]


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Reads and decodes images on the worker."""

    storage: Storage
    size: tuple[int, int] | None
    mode: str

    def __call__(self, files: Sequence[FileRef]) -> object:
        images = [self._image(file) for file in files]
        return images if self.size is None else np.stack(images)

    def _image(self, file: FileRef) -> NDArray[np.generic]:
        from PIL import Image

        data = _content(file, self.storage)
        try:
            with Image.open(io.BytesIO(data)) as image:
                plain = image.convert(self.mode)
            return np.asarray(plain if self.size is None else plain.resize(self.size[::-1]))
        except Exception as error:
            raise HeteroError(
                f"{file.path} is no image that can be read", remedy="remove it, or allow errors"
            ) from error


class Files(Source):
    """Whole files as records; the function gets a list of `File`, each with its path and its bytes.

    Parameters
    ----------
    path
        Of a folder with all below it, a pattern, a file, or a URL of one; or several of these.
    pattern
        Of the names of files in folders, one or several, as '*.txt'.
    storage
        Options of an object store, as for `Tables`.

    Raises
    ------
    BadValueError
        There is no such file.

    Examples
    --------
    >>> import hetero, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("one"), (folder / "b.txt").write_text("three")
    >>> source = hetero.batch.Files(folder, pattern="*.txt")
    >>> hetero.batch.map_batches(lambda batch: [len(file) for file in batch], source, devices="1xcpu").value
    [3, 5]
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        pattern: str | Sequence[str] = "*",
        storage: Mapping[str, object] | None = None,
    ) -> None:
        self._storage = storage_of(storage)
        self._files = find(path, self._storage, [pattern] if isinstance(pattern, str) else pattern)
        self.load = _Reads(self._storage)

    @property
    def length(self) -> int:
        """How many files there are."""
        return len(self._files)

    def identity(self) -> str:
        """Name the files by path, size and mark.

        Examples
        --------
        >>> import hetero, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("one"), (folder / "b.txt").write_text("three")
        >>> source = hetero.batch.Files(folder)
        >>> source.identity() == hetero.batch.Files(folder).identity()
        True
        """
        words = repr([*map(tuple, self._files), self.load])
        return f"{len(self._files)} files, {hashlib.blake2b(words.encode(), digest_size=8).hexdigest()}"

    def read(self, begin: int = 0) -> Iterator[Piece]:
        """Yield the files from one on, by name.

        Examples
        --------
        >>> import hetero, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("one"), (folder / "b.txt").write_text("three")
        >>> [pathlib.Path(piece.file).name for piece in hetero.batch.Files(folder).read(1)]
        ['b.txt']
        """
        for file in self._files[begin:]:
            yield Piece([FileRef(*file)], file.path, 0)


class Images(Files):
    """Images as records; the function gets arrays of uint8.

    Parameters
    ----------
    path, storage
        As for `Files`; in folders, files with the suffix of an image count.
    size
        (height, width) to which each is brought, so that a batch is one array; None gives a list of arrays.
    mode
        Of Pillow, 'RGB' for arrays of height × width × 3, 'L' for height × width.

    Raises
    ------
    BadValueError
        There is no such file, or size or mode is wrong.

    Examples
    --------
    >>> import hetero, pathlib, tempfile
    >>> from PIL import Image
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> Image.new("RGB", (4, 2), "white").save(folder / "white.png")
    >>> source = hetero.batch.Images(folder, size=(2, 4))
    >>> hetero.batch.map_batches(lambda batch: batch.mean((1, 2, 3)), source, devices="1xcpu").value
    array([255.])
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        size: Sequence[int] | None = None,
        mode: str = "RGB",
        storage: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(
            path, [*(f"*{suffix}" for suffix in IMAGES), *(f"*{suffix.upper()}" for suffix in IMAGES)], storage
        )
        self.load = _Decodes(self._storage, _checked_size(size), _checked_mode(mode))


def _content(file: FileRef, storage: Storage) -> bytes:
    data = read_blob(file.path, storage)
    if len(data) != file.nbytes:
        raise HeteroError(f"{file.path} had {file.nbytes} bytes and now has {len(data)}", remedy="begin anew")
    return data


def _checked_size(size: Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    found = tuple(size) if isinstance(size, list | tuple) else ()
    if len(found) != 2 or not all(isinstance(edge, int) and edge > 0 for edge in found):
        raise BadValueError(f"size={size!r} is not allowed", remedy="give (height, width), as in (224, 224)")
    return found[0], found[1]


def _checked_mode(mode: str) -> str:
    allowed = ("1", "L", "RGB", "RGBA", "F", "I")
    if mode not in allowed:
        raise BadValueError(f"mode={mode!r} is not allowed", remedy=f"allowed: {', '.join(allowed)}")
    return mode
