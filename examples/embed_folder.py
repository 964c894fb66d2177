"""Text files as vectors: what `hetero batch examples/embed_folder.yaml` runs over the files beside this one."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(os.environ.get("EMBED_FOLDER", Path(__file__).parent))
WIDTH = 64


def texts() -> Iterator[str]:
    """Give each text file of the folder, by name."""
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in (".py", ".md", ".yaml", ".txt"):
            yield path.read_text(encoding="utf-8")


def embed(batch: list[str]) -> NDArray[np.float32]:
    """Give a vector of length 1 for each text: its words, counted under hashed places."""
    vectors = np.zeros((len(batch), WIDTH), dtype=np.float32)
    for row, text in zip(vectors, batch, strict=True):
        for word in re.findall(r"\w+", text.lower()):
            row[zlib.crc32(word.encode()) % WIDTH] += 1.0
        row /= max(float(np.linalg.norm(row)), 1.0)
    return vectors


if __name__ == "__main__":
    import hetero

    outcome = hetero.map_batches(embed, texts, cost=len, devices="cpu:1,cpu:1*0.5")
    print(outcome)
    print(f"{outcome.value.shape[0]} texts as vectors of {outcome.value.shape[1]}")
