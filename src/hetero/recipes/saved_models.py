"""Models that `hetero train` saved: their answers for pictures, and smaller copies of them.

In: a model file, picture files. Out: an answer per picture, in order; a compressed model file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.floor.documents import read_array
from hetero.floor.errors import BadValueError, MissingPackageError
from hetero.floor.text import single_line
from hetero.recipes.mnist import load_digits, load_mnist, read_idx, scaled

if TYPE_CHECKING:
    from hetero.compression.compress import Compressed

__all__ = ["Classification", "compress_file", "infer", "read_pictures"]

_SIDE = 28


class Classification(NamedTuple):
    """What the model says of one picture: the class with the highest score, and its probability."""

    image: str
    label: int
    confidence: float


def infer(
    model: Path | str, images: Sequence[Path | str], *, devices: str | None = None, set: Sequence[str] = ()
) -> list[Classification]:
    """Run a model that `hetero train` saved on pictures, over the devices of this host.

    Parameters
    ----------
    devices, set
        As for `hetero.Context`.

    Raises
    ------
    HeteroError
        The model or a picture cannot be read.
    """
    import torch

    from hetero.compression.files import load_parameters
    from hetero.recipes.run import make_model
    from hetero.session.options import ContextOptions
    from hetero.train.saving import read_model
    from hetero.train.trainer import Trainer

    word = read_model(model)[1].get("hetero.model")
    if word is None:
        raise BadValueError(f"{model} does not say which model it is of", remedy="give a file that hetero train saved")
    network = make_model(word)
    load_parameters(network, model)
    read = [read_pictures(image) for image in images]
    names = [name for image, found in zip(images, read, strict=True) for name in _names(image, len(found))]
    pictures = np.concatenate(read)
    no_targets = np.zeros(len(pictures), dtype=np.int64)
    optimizer = torch.optim.SGD(network.parameters())
    data, loss = (pictures, no_targets), torch.nn.CrossEntropyLoss()
    with Trainer(
        network, loss, optimizer, data, global_batch=1, devices=devices, context=ContextOptions(set=set)
    ) as trainer:
        odds = torch.softmax(trainer.predict(pictures), 1)
    best = odds.max(1)
    return [
        Classification(name, int(label), float(odd))
        for name, label, odd in zip(names, best.indices, best.values, strict=True)
    ]


def _names(image: Path | str, count: int) -> list[str]:
    return [str(image)] if count == 1 else [f"{image}[{index}]" for index in range(count)]


def read_pictures(path: Path | str) -> NDArray[np.float32]:
    """Read one file of pictures as the network takes them, shape (n, 1, 28, 28).

    Raises
    ------
    BadValueError
        It cannot be read as pictures.
    """
    path = Path(path)
    if not path.is_file():
        why = "is no file" if path.exists() else "does not exist"
        raise BadValueError(f"{single_line(path)} {why}", remedy="give a picture")
    if path.suffix == ".npy":
        return _scaled(read_array(path, BadValueError), path)
    if "idx" in path.name:
        return _scaled(read_idx(path), path)
    return _scaled(_decoded(path), path)


def _scaled(pixels: NDArray[Any], path: Path) -> NDArray[np.float32]:
    pixels = pixels[None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[1:] != (_SIDE, _SIDE):
        raise BadValueError(f"{path} has shape {pixels.shape}", remedy="give pictures of 28 × 28, from 0 to 255")
    if pixels.dtype.kind not in "buif" or not ((pixels >= 0) & (pixels <= 255)).all():
        raise BadValueError(f"{path} holds values that are no grey", remedy="give numbers from 0 to 255")
    return scaled(pixels)


def _decoded(path: Path) -> NDArray[np.uint8]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingPackageError(
            f"{path} needs Pillow to be read", remedy="pip install 'hetero-core[train]', or give .npy or idx files"
        ) from error
    try:
        with Image.open(path) as picture:
            grey = picture.convert("L")
            return np.asarray(grey if grey.size == (_SIDE, _SIDE) else grey.resize((_SIDE, _SIDE)))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadValueError(f"{path} is no picture: {error}", remedy="give PNG, JPEG, .npy or idx files") from error


def compress_file(
    path: Path | str,
    output: Path | str,
    *,
    data_path: Path | str | None = None,
    devices: str | None = None,
    **options: Any,
) -> Compressed:
    """Compress a model that `hetero train` saved, and write the result.

    Parameters
    ----------
    output
        File to write, which `hetero infer` reads as it reads the other.
    data_path
        Folder of MNIST's files; scikit-learn's digits where none is given.
    options
        Keywords of `compress`.

    Raises
    ------
    HeteroError
        The file is no model of ours, or is compressed already; or whatever `compress` raises.
    """
    from hetero.compression.compress import compress
    from hetero.compression.files import COMPRESSED, load_parameters
    from hetero.recipes.run import make_model
    from hetero.train.saving import read_model

    facts = read_model(path)[1]
    word = facts.get("hetero.model")
    if word is None:
        raise BadValueError(f"{path} does not say which model it is of", remedy="give a file that hetero train saved")
    if COMPRESSED in facts:
        raise BadValueError(f"{path} is compressed already", remedy="give the file that hetero train saved")
    model = make_model(word)
    load_parameters(model, path)
    digits = load_digits() if data_path is None else load_mnist(data_path)
    made = compress(model, test=digits.test, data=digits.train, devices=devices, **options)
    made.save(output, {"hetero.model": word})
    return made
