"""What a model's weights take, read exactly from the headers of safetensors and GGUF files.

In: the path of a file or folder. Out: bytes by layer and by the rest, and the architecture where the file tells it. It
must not load a tensor.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hetero.floor.errors import BadValueError
from hetero.floor.units import shown
from hetero.model.architecture import ModelSpec

__all__ = ["WeightFiles", "is_weights", "read_weights"]

_LAYER = re.compile(r"^(?P<prefix>(?:.*\.)?(?:layers|h|blocks|block|blk|layer)\.)(?P<number>\d+)\.")
_MOST_HEADER = 100_000_000
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
    layers : bytes of each layer by its number
    embedding, head, other : bytes of the input table, of the output head, and of the rest
    prefix : what names of layers begin with, as in 'model.layers.'
    names : of the tensors outside of layers
    files : how many were read
    model : the architecture, None where the files do not tell it
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
    """Tell whether a path is a weight file, or a folder with some."""
    if path.is_dir():
        return any(path.glob("*.safetensors")) or any(path.glob("*.gguf"))
    return path.suffix in (".safetensors", ".gguf")


def read_weights(path: Path) -> WeightFiles:
    """Read the headers of a file, of all parts beside it, or of all files of a folder.

    Raises
    ------
    BadValueError
        A file cannot be read, is cut off, or has no layers.
    """
    folder = path if path.is_dir() else path.parent
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.gguf")) if path.is_dir() else _parts(path)
    if not files:
        raise BadValueError(f"{path} has no weights", remedy="give a .gguf or .safetensors file, or a folder with some")
    tensors: dict[str, int] = {}
    facts: dict[str, Any] = {}
    for file in files:
        if file.suffix == ".gguf":
            sizes, told = _gguf(file)
            facts = told | facts
        else:
            sizes = _safetensors(file)
        tensors |= sizes
    model = _architecture(facts, tensors, path) if facts else None
    if model is None and (folder / "config.json").is_file():
        from hetero.advise.fit import read_model

        model = read_model(folder / "config.json")
    return _sorted(tensors, len(files), path, model)


def _parts(file: Path) -> list[Path]:
    """Give all parts of a file that is one of several, as in 'x-00001-of-00003.gguf'."""
    split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})", file.stem)
    if split is None:
        return [file]
    wanted = [file.with_name(f"{split[1]}-{at:05}-of-{split[2]}{file.suffix}") for at in range(1, int(split[2]) + 1)]
    if absent := [part.name for part in wanted if not part.is_file()]:
        raise BadValueError(f"{file.name} is one of {split[2]} parts and {absent[0]} is absent", remedy="fetch it too")
    return wanted


def _sorted(tensors: Mapping[str, int], files: int, path: Path, model: ModelSpec | None) -> WeightFiles:
    matches = {name: _LAYER.match(name) for name in tensors}
    prefixes = Counter(found["prefix"] for found in matches.values() if found)
    if not prefixes:
        raise BadValueError(f"{path} has no tensors of layers", remedy="give the weights of a language model")
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


def _cut(file: Path) -> BadValueError:
    return BadValueError(f"{file} ends within its header", remedy="fetch it again: it is cut off or no weight file")


def _take(stream: BinaryIO, count: int, file: Path) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise _cut(file)
    return data


def _open(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        raise BadValueError(f"{file} cannot be read: {error.strerror}", remedy="give a weight file") from error


def _safetensors(file: Path) -> dict[str, int]:
    """Read the names and sizes of a safetensors file: 8 bytes of length, then JSON."""
    with _open(file) as stream:
        (length,) = struct.unpack("<Q", _take(stream, 8, file))
        if length > _MOST_HEADER:
            raise BadValueError(f"{file} is no safetensors file", remedy="give a .safetensors or .gguf file")
        text = _take(stream, length, file)
    try:
        header = json.loads(text)
        return {
            name: row["data_offsets"][1] - row["data_offsets"][0]
            for name, row in header.items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise BadValueError(f"{file} has a header that cannot be read", remedy="fetch it again") from error


def _gguf(file: Path) -> tuple[dict[str, int], dict[str, Any]]:
    """Read the names and sizes of a GGUF file, and its facts; long lists are passed over but for their length."""
    with _open(file) as stream:
        if _take(stream, 4, file) != b"GGUF":
            raise BadValueError(f"{file} is no GGUF file", remedy="give a .gguf or .safetensors file")
        version, tensors, facts = struct.unpack("<IQQ", _take(stream, 20, file))
        if version not in (2, 3) or max(tensors, facts) > 10**6:
            raise BadValueError(f"{file} is GGUF of version {version}", remedy="versions 2 and 3 can be read")
        known = dict(_facts(stream, facts, file))
        return dict(_tensors(stream, tensors, file)), known


def _text(stream: BinaryIO, file: Path) -> str:
    (length,) = struct.unpack("<Q", _take(stream, 8, file))
    if length > _MOST_HEADER:
        raise _cut(file)
    return _take(stream, length, file).decode("utf-8", errors="replace")


def _value(stream: BinaryIO, kind: int, file: Path) -> Any:
    if kind == _TEXT:
        return _text(stream, file)
    if kind == _LIST:
        inner, count = struct.unpack("<IQ", _take(stream, 12, file))
        if inner in _SCALARS:
            size = struct.calcsize(f"<{_SCALARS[inner]}")
            stream.seek(size * count, 1)
        else:
            for _ in range(count):
                _value(stream, inner, file)
        return range(count)
    if kind not in _SCALARS:
        raise BadValueError(f"{file} has a fact of the unknown type {kind}", remedy="fetch it again")
    form = f"<{_SCALARS[kind]}"
    return struct.unpack(form, _take(stream, struct.calcsize(form), file))[0]


def _facts(stream: BinaryIO, count: int, file: Path) -> Iterator[tuple[str, Any]]:
    for _ in range(count):
        name = _text(stream, file)
        (kind,) = struct.unpack("<I", _take(stream, 4, file))
        yield name, _value(stream, kind, file)


def _tensors(stream: BinaryIO, count: int, file: Path) -> Iterator[tuple[str, int]]:
    for _ in range(count):
        name = _text(stream, file)
        (dimensions,) = struct.unpack("<I", _take(stream, 4, file))
        if dimensions > 8:
            raise _cut(file)
        shape = struct.unpack(f"<{dimensions}Q", _take(stream, 8 * dimensions, file))
        kind, _ = struct.unpack("<IQ", _take(stream, 12, file))
        if kind not in _GGML:
            raise BadValueError(f"{file}: {name} has the unknown type {kind}", remedy="a newer hetero may know it")
        weights = 1
        for length in shape:
            weights *= length
        block, size = _GGML[kind]
        yield name, weights // block * size


def _architecture(facts: Mapping[str, Any], tensors: Mapping[str, int], file: Path) -> ModelSpec:
    """Give the architecture that a GGUF file's facts tell."""
    kind = facts.get("general.architecture")

    def fact(key: str, usual: Any = None) -> Any:
        found = facts.get(f"{kind}.{key}", usual)
        if found is None:
            raise BadValueError(f"{file} has no fact {shown(f'{kind}.{key}')}", remedy="give a language model")
        return found

    heads, hidden, inner = fact("attention.head_count"), fact("embedding_length"), fact("feed_forward_length", 0)
    if not isinstance(heads, int):
        raise BadValueError(f"{file} has layers with different heads", remedy="give a folder with a config.json")
    kv_heads = fact("attention.head_count_kv", heads)
    vocab = facts.get(f"{kind}.vocab_size") or len(facts.get("tokenizer.ggml.tokens", range(1)))
    experts = fact("expert_count", 0)
    return ModelSpec(
        str(facts.get("general.name", file.stem)),
        fact("block_count"),
        hidden,
        heads,
        kv_heads if isinstance(kv_heads, int) else heads,
        fact("attention.key_length", hidden // heads),
        inner if isinstance(inner, int) else 4 * hidden,
        int(vocab),
        tied="output.weight" not in tensors,
        experts=experts,
        experts_per_token=fact("expert_used_count", 0),
        expert_intermediate=fact("expert_feed_forward_length", inner) if experts else 0,
        context=fact("context_length", 0),
    )
