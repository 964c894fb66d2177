"""What a model's weights take, read exactly from the headers of safetensors and GGUF files.

In: the path of a file or folder. Out: bytes by layer and by the rest, and the architecture where the file tells it. It
must not load a tensor.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetero.floor.documents import blamed_on, parse_json
from hetero.floor.errors import FileError
from hetero.floor.units import shown
from hetero.model.architecture import ModelSpec

__all__ = ["WeightFiles", "is_weights", "read_weights"]

_LAYER = re.compile(r"^(?P<prefix>(?:.*\.)?(?:layers|h|blocks|block|blk|layer)\.)(?P<number>\d+)\.")
_MOST_HEADER = 100_000_000
_FAR = 2**60
_EMBEDDINGS = ("embed_tokens", "token_embd", "wte", "word_embeddings", "embed_in")
_HEADS = ("lm_head", "output", "embed_out")

_GGML = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
"""Weights a block, and bytes a block, by GGML's number of the type (the type table of ggml.c)."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Bytes of weights.

    Attributes
    ----------
    layers
        Bytes of each layer by its number.
    embedding, head, other
        Bytes of the input table, of the output head, and of the rest.
    prefix
        What names of layers begin with, as in 'model.layers.'.
    names
        Of the tensors outside of layers.
    files
        How many were read.
    model
        The architecture, None where the files do not tell it.
    """

    layers: Mapping[int, int]
    embedding: int
    head: int
    other: int
    prefix: str = ""
    names: tuple[str, ...] = ()
    files: int = 1
    model: ModelSpec | None = field(default=None, compare=False)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.layers.values()) + self.embedding + self.head + self.other


def is_weights(path: Path) -> bool:
    """Return whether a path is a weight file, or a folder with some."""
    if path.is_dir():
        return any(path.glob("*.safetensors")) or any(path.glob("*.gguf"))
    return path.suffix in (".safetensors", ".gguf")


def read_weights(path: Path) -> WeightFiles:
    """Read the headers of a file, of all parts beside it, or of all files of a folder.

    Raises
    ------
    FileError
        A file cannot be read, is cut off, or has no layers.
    """
    folder = path if path.is_dir() else path.parent
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.gguf")) if path.is_dir() else _parts(path)
    if not files:
        raise FileError(f"{path} has no weights", remedy="give a .gguf or .safetensors file, or a folder with some")
    tensors: dict[str, int] = {}
    facts: dict[str, object] = {}
    for file in files:
        if file.suffix == ".gguf":
            sizes, told = _gguf(file)
            facts = told | facts
        else:
            sizes = _safetensors(file)
        tensors |= sizes
    with blamed_on(path):
        model = _architecture(facts, tensors, path) if facts else None
    if model is None and (folder / "config.json").is_file():
        from hetero.advise.fit import read_model

        model = read_model(folder / "config.json")
    return _sorted(tensors, len(files), path, model)


def _parts(file: Path) -> list[Path]:
    """Return all parts of a file that is one of several, as in 'x-00001-of-00003.gguf'."""
    split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})", file.stem)
    if split is None:
        return [file]
    wanted = [file.with_name(f"{split[1]}-{at:05}-of-{split[2]}{file.suffix}") for at in range(1, int(split[2]) + 1)]
    if absent := [part.name for part in wanted if not part.is_file()]:
        raise FileError(f"{file.name} is one of {split[2]} parts and {absent[0]} is absent", remedy="fetch it too")
    return wanted


def _sorted(tensors: Mapping[str, int], files: int, path: Path, model: ModelSpec | None) -> WeightFiles:
    matches = {name: _LAYER.match(name) for name in tensors}
    prefixes = Counter(found["prefix"] for found in matches.values() if found)
    if not prefixes:
        raise FileError(f"{path} has no tensors of layers", remedy="give the weights of a language model")
    prefix = prefixes.most_common(1)[0][0]
    layers: Counter[int] = Counter()
    rest: dict[str, int] = {}
    for name, size in tensors.items():
        found = matches[name]
        if found and found["prefix"] == prefix:
            layers[int(found["number"])] += size
        else:
            rest[name] = size
    kinds = {name: _kind(name) for name in rest}
    sums = {kind: sum(size for name, size in rest.items() if kinds[name] == kind) for kind in ("embedding", "head", "")}
    return WeightFiles(
        dict(sorted(layers.items())), sums["embedding"], sums["head"], sums[""], prefix, tuple(rest), files, model
    )


def _kind(name: str) -> str:
    words = name.split(".")
    if any(word in _EMBEDDINGS for word in words):
        return "embedding"
    return "head" if any(word in _HEADS for word in words) else ""


def _cut(file: Path) -> FileError:
    return FileError(f"{file} ends within its header", remedy="fetch it again: it is cut off or no weight file")


class _Header:
    """The header of a weight file, read in steps; no length in it is believed beyond the file's own."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self._stream = file.open("rb")
            self.left = min(os.fstat(self._stream.fileno()).st_size, _MOST_HEADER)
        except OSError as error:
            raise FileError(f"{file} cannot be read: {error.strerror}", remedy="give a weight file") from error

    def __enter__(self) -> _Header:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stream.close()

    def take(self, count: int) -> bytes:
        """Read so many bytes."""
        if count > self.left:
            raise _cut(self.file)
        self.left -= count
        data = self._stream.read(count)
        if len(data) != count:
            raise _cut(self.file)
        return data

    def numbers(self, form: str) -> tuple[Any, ...]:
        """Read little-endian numbers, as `struct` names them."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))

    def skip(self, count: int) -> None:
        """Pass over so many bytes."""
        if count > self.left:
            raise _cut(self.file)
        self.left -= count
        self._stream.seek(count, os.SEEK_CUR)

    def text(self) -> str:
        """Read a text with its length before it."""
        return self.take(self.numbers("Q")[0]).decode("utf-8", errors="replace")


def _safetensors(file: Path) -> dict[str, int]:
    """Read the names and sizes of a safetensors file: 8 bytes of length, then JSON."""
    with _Header(file) as head:
        text = head.take(head.numbers("Q")[0])
    try:
        header = parse_json(text.decode("utf-8"), str(file))
    except UnicodeDecodeError as error:
        raise FileError(f"{file} has a header that is no text", remedy="give a .safetensors or .gguf file") from error
    if not isinstance(header, dict):
        raise FileError(f"{file} has a header that is {shown(header)}", remedy="fetch it again")
    return {name: _extent(name, row, file) for name, row in header.items() if name != "__metadata__"}


def _extent(name: str, row: object, file: Path) -> int:
    """Return the bytes of a tensor in a safetensors file."""
    given = row.get("data_offsets") if isinstance(row, dict) else None
    if (
        not isinstance(given, list)
        or [type(end) for end in given] != [int, int]
        or not 0 <= given[0] <= given[1] < _FAR
    ):
        raise FileError(f"{file}: {shown(name)} has the data_offsets {shown(given)}", remedy="fetch it again")
    return int(given[1] - given[0])


def _gguf(file: Path) -> tuple[dict[str, int], dict[str, object]]:
    """Read the names and sizes of a GGUF file, and its facts; long lists are passed over but for their length."""
    with _Header(file) as head:
        if head.take(4) != b"GGUF":
            raise FileError(f"{file} is no GGUF file", remedy="give a .gguf or .safetensors file")
        version, tensors, facts = head.numbers("IQQ")
        if version not in (2, 3):
            raise FileError(f"{file} is GGUF of version {version}", remedy="versions 2 and 3 can be read")
        known = dict(_facts(head, facts))
        return dict(_tensors(head, tensors)), known


def _value(head: _Header, kind: int, inside: bool = False) -> object:
    if kind == _TEXT:
        return head.text()
    if kind == _LIST and not inside:
        inner, count = head.numbers("IQ")
        if inner in _SCALARS:
            head.skip(struct.calcsize(f"<{_SCALARS[inner]}") * count)
        else:
            for _ in range(count):
                _value(head, inner, inside=True)
        return range(count)
    if kind not in _SCALARS:
        raise FileError(f"{head.file} has a fact of the unknown type {kind}", remedy="fetch it again")
    return head.numbers(_SCALARS[kind])[0]


def _facts(head: _Header, count: int) -> Iterator[tuple[str, object]]:
    for _ in range(count):
        name = head.text()
        yield name, _value(head, head.numbers("I")[0])


def _tensors(head: _Header, count: int) -> Iterator[tuple[str, int]]:
    for _ in range(count):
        name = head.text()
        (dimensions,) = head.numbers("I")
        if dimensions > 8:
            raise _cut(head.file)
        weights = math.prod(head.numbers(f"{dimensions}Q"))
        kind, _ = head.numbers("IQ")
        if kind not in _GGML:
            problem = f"{head.file}: {shown(name)} has the unknown type {kind}"
            raise FileError(problem, remedy="a newer hetero may know it")
        block, size = _GGML[kind]
        if weights >= _FAR:
            raise FileError(f"{head.file}: {shown(name)} has {weights:.3g} weights", remedy="fetch it again")
        yield name, weights // block * size


def _architecture(facts: Mapping[str, object], tensors: Mapping[str, int], file: Path) -> ModelSpec:
    """Return the architecture that a GGUF file's facts tell."""
    kind = facts.get("general.architecture")

    def fact(key: str, usual: int | None = None) -> int:
        found = facts.get(f"{kind}.{key}", usual)
        if isinstance(found, range):
            raise FileError(f"{file} has layers with different {key}", remedy="give a folder with a config.json")
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 2**40:
            what = f"the fact {shown(f'{kind}.{key}')}"
            told = f"no {what[4:]}" if found is None else f"{shown(found)} as {what}"
            raise FileError(f"{file} has {told}", remedy="give a language model")
        return found

    def positive(key: str, usual: int | None = None) -> int:
        return fact(key, usual) or fact(f"{key}, which is 0")

    heads, hidden = positive("attention.head_count"), positive("embedding_length")
    varied = isinstance(facts.get(f"{kind}.feed_forward_length"), range)
    inner = 4 * hidden if varied else fact("feed_forward_length", 0)
    kv_varied = isinstance(facts.get(f"{kind}.attention.head_count_kv"), range)
    tokens = facts.get("tokenizer.ggml.tokens", range(1))
    experts = fact("expert_count", 0)
    return ModelSpec(
        str(facts.get("general.name", file.stem)),
        positive("block_count"),
        hidden,
        heads,
        heads if kv_varied else fact("attention.head_count_kv", heads),
        fact("attention.key_length", hidden // heads),
        inner,
        fact("vocab_size", 0) or (len(tokens) if isinstance(tokens, range) else 1),
        tied="output.weight" not in tensors,
        experts=experts,
        experts_per_token=fact("expert_used_count", 0),
        expert_intermediate=fact("expert_feed_forward_length", inner) if experts else 0,
        context=fact("context_length", 0),
    )
