"""Pictures of digits: the MNIST files as people have them, and scikit-learn's digits where there are none.

In: a folder of idx files, gzipped or not. Out: pictures of 28 × 28 as float32, scaled, and their classes.
It must not reach for the network unless the user said so.
"""

from __future__ import annotations

import hashlib
import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.floor.documents import read_bytes
from hetero.floor.errors import BadValueError, FileError, HeteroError, MissingPackageError
from hetero.floor.files import atomic_write, output_folder
from hetero.floor.text import single_line

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Digits", "download", "load_digits", "load_mnist", "network", "read_idx", "scaled"]

SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FILES = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
_MEAN, _DEVIATION = 0.1307, 0.3081
_SIDE = 28
_HELD_BACK = 5
_MOST_BYTES = 4_000_000_000
_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}

Pair = tuple[NDArray[np.float32], NDArray[np.int64]]


class Digits(NamedTuple):
    """Pictures to train on and pictures held back, with where they came from."""

    train: Pair
    test: Pair
    origin: str


def read_idx(path: Path | str) -> NDArray[np.uint8]:
    """Read one idx file, gzipped or not.

    Raises
    ------
    BadValueError
        There is no such file, it is no idx file, or it is shorter than it says.
    """
    content = read_bytes(path, most=_MOST_BYTES)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _DTYPES:
        raise FileError(f"{path} is no idx file: it begins with {content[:4]!r}", remedy="give MNIST's own files")
    head = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:head]) if len(content) >= head else (-1,)
    dtype = np.dtype(_DTYPES[content[2]])
    wanted = math.prod(shape) * dtype.itemsize
    if len(content) - head != wanted:
        raise FileError(
            f"{path} holds {max(0, len(content) - head)} bytes of data and says {wanted}", remedy="fetch it again"
        )
    return np.frombuffer(content, dtype, offset=head).reshape(shape)


def load_mnist(folder: Path | str) -> Digits:
    """Read MNIST's files from a folder.

    Returns
    -------
    Digits
        The training pictures and the test pictures; where the folder has no training pictures, the first four
        fifths of the test pictures and the rest.

    Raises
    ------
    BadValueError
        Files are absent, damaged or do not belong together.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise BadValueError(
            f"data.path: {single_line(folder)} is no folder", remedy="give the folder that holds the idx files"
        )
    test = _pair(folder, "t10k")
    if test is None:
        raise BadValueError(
            f"data.path: {single_line(folder)} has no t10k-images-idx3-ubyte(.gz)",
            remedy="put MNIST's files there, or set data.download=true to fetch them",
        )
    train = _pair(folder, "train")
    if train is not None:
        return Digits(train, test, f"MNIST in {folder}")
    kept = len(test[0]) - len(test[0]) // _HELD_BACK
    parts = (test[0][:kept], test[1][:kept]), (test[0][kept:], test[1][kept:])
    return Digits(*parts, f"MNIST's test pictures in {folder}, {len(test[0]) - kept} of them held back")


def _pair(folder: Path, which: str) -> Pair | None:
    images, labels = _find(folder, f"{which}-images-idx3-ubyte"), _find(folder, f"{which}-labels-idx1-ubyte")
    if images is None:
        return None
    if labels is None:
        raise BadValueError(f"{folder} has {images.name} and not its labels", remedy="put both files there")
    pictures, classes = read_idx(images), read_idx(labels)
    if pictures.ndim != 3 or len(pictures) != len(classes):
        raise BadValueError(
            f"{images.name} has shape {pictures.shape} and {labels.name} {classes.shape}",
            remedy="give files that belong together",
        )
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) <= 9:
        raise BadValueError(f"{labels.name} has the label {int(classes.max())}", remedy="labels go from 0 to 9")
    return scaled(pictures), classes.astype(np.int64)


def _find(folder: Path, name: str) -> Path | None:
    names = (f"{name}.gz", name, f"{name.replace('-idx', '.idx')}.gz", name.replace("-idx", ".idx"))
    return next((folder / each for each in names if (folder / each).is_file()), None)


def scaled(pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pictures of bytes as the network takes them: shape (n, 1, 28, 28), mean 0 and deviation 1 over MNIST."""
    if pictures.shape[1:] != (_SIDE, _SIDE):
        raise BadValueError(f"pictures of {pictures.shape[1:]} are not 28 × 28", remedy="scale them")
    numbers = (pictures.astype(np.float32) / np.float32(255) - np.float32(_MEAN)) / np.float32(_DEVIATION)
    return numbers[:, None]


def load_digits() -> Digits:
    """Return scikit-learn's 1,797 digits of 8 × 8, each enlarged to 28 × 28, a fifth of them held back.

    Raises
    ------
    HeteroError
        scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingPackageError(
            "without data.path the digits of scikit-learn are used, and it is not installed",
            remedy="pip install 'hetero-core[train]', or give data.path",
        ) from error
    found = datasets.load_digits()
    enlarged = np.kron(found.images, np.ones((3, 3))) * (255 / 16)
    pictures = scaled(np.pad(enlarged, ((0, 0), (2, 2), (2, 2))))
    classes = found.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(classes))
    held = len(order) // _HELD_BACK
    train, test = order[held:], order[:held]
    return Digits((pictures[train], classes[train]), (pictures[test], classes[test]), "scikit-learn's digits")


def download(folder: Path | str, source: str = SOURCE) -> Path:
    """Fetch MNIST's four files into a folder, those that are not there, and check what came.

    Raises
    ------
    HeteroError
        The network does not give them, or gives something else.
    """
    from urllib.request import urlopen

    folder = output_folder(folder, "data.path")
    for name, checksum in _FILES.items():
        path = folder / f"{name}.gz"
        if path.exists():
            continue
        try:
            with urlopen(f"{source}{path.name}", timeout=60) as answer:
                content = answer.read()
        except OSError as error:
            raise HeteroError(
                f"{source}{path.name} cannot be fetched: {error}", remedy="fetch it elsewhere and give data.path"
            ) from error
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != checksum:
            raise HeteroError(f"{source}{path.name} is not the file that was expected", remedy="give another source")
        atomic_write(path, content)
    return folder


def network() -> nn.Module:
    """Make the network of the MNIST tutorials: two convolutions, two linear layers, dropout between these."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
