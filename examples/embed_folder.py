"""Files as vectors: what `hetero batch examples/embed_folder.yaml` runs over the files beside this one.

Texts become their words, counted under hashed places; pictures become their pixels, 8 × 8.
"""

from __future__ import annotations

import io
import re
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hetero
from hetero.batch import BatchOptions

SIDE = 8
WIDTH = SIDE * SIDE


def embed(batch: list[hetero.batch.File]) -> NDArray[np.float32]:
    """Return a vector of length 1 for each file."""
    vectors = np.stack([pixels(file) if file.path.endswith(".png") else words(file) for file in batch])
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)


def words(file: hetero.batch.File) -> NDArray[np.float32]:
    """Count the words of a text under hashed places."""
    vector = np.zeros(WIDTH, dtype=np.float32)
    for word in re.findall(r"\w+", file.text.lower()):
        vector[zlib.crc32(word.encode()) % WIDTH] += 1.0
    return vector


def pixels(file: hetero.batch.File) -> NDArray[np.float32]:
    """Return the grey values of a picture that was made small."""
    from PIL import Image

    with Image.open(io.BytesIO(file.data)) as image:
        return np.asarray(image.convert("L").resize((SIDE, SIDE)), dtype=np.float32).reshape(-1)


if __name__ == "__main__":
    texts = hetero.batch.Files(Path(__file__).parent, pattern=["*.py", "*.md", "*.yaml"])
    outcome = hetero.batch.map_batches(embed, texts, options=BatchOptions(cost=len), devices="1xcpu,1xcpu*0.5")
    print(outcome)
    print(f"{outcome.value.shape[0]} files as vectors of {outcome.value.shape[1]}")
