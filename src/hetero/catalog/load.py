"""The catalog's rows: devices, models, sources and published speeds, found by the names that people use.

In: devices.yaml, models.yaml, sources.yaml, published.yaml beside this file. Out: typed values, read when first asked
for. It must not fill an empty figure, and an unknown or ambiguous name is an error, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from hetero.catalog.values import CatalogSource, DeviceSpec, Pod, Price, Slice
from hetero.floor.documents import JsonObject
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.model.architecture import ModelSpec

__all__ = ["completeness", "devices", "find", "find_model", "models", "published_rows", "sources"]

_NOISE = re.compile(r"\b(nvidia|geforce|tesla|amd|instinct|radeon|intel|apple|google|cloud|aws|rtx|generation)\b")
_PLAIN = ("vendor", "kind", "form", "unit", "link", "host_link", "note", "explains")
_WORDS = ("aliases", "capabilities", "uses")
_FIGURES = (
    "year",
    "memory_bytes",
    "memory_usable_bytes",
    "bandwidth_bytes_per_s",
    "link_bytes_per_s",
    "host_bytes_per_s",
    "power_w",
    "cuda_cores",
    "tensor_cores",
    "compute_capability",
    "processors",
)


@cache
def _document(name: str) -> Mapping[str, JsonObject]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files("hetero.catalog").joinpath(name).read_text(encoding="utf-8")
    read: dict[str, JsonObject] = yaml.load(text, Loader=loader)
    return read


@cache
def sources() -> Mapping[str, CatalogSource]:
    """Return every source by id."""
    found = {}
    for key, row in _document("sources.yaml").items():
        found[key] = CatalogSource(key, row["title"], row["address"], str(row["opened"]), row["printed"])
    return found


@cache
def devices() -> Mapping[str, DeviceSpec]:
    """Return every device by name, in the file's order."""
    return {name: _device(name, row) for name, row in _document("devices.yaml").items()}


@cache
def models() -> Mapping[str, ModelSpec]:
    """Return every model by name, in the file's order."""
    return {name: _model(name, row) for name, row in _document("models.yaml").items()}


@cache
def _model_aliases() -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(row.get("aliases", ())) for name, row in _document("models.yaml").items()}


def _device(name: str, row: JsonObject) -> DeviceSpec:
    cited: dict[str, str] = {}

    def figure(key: str, cell: Any) -> Any:
        if cell is None:
            return None
        cited[key] = cell[1]
        return cell[0]

    figures = {key: figure(key, row.get(key)) for key in _FIGURES}
    rates = {key: figure(f"flop_per_s.{key}", cell) for key, cell in row["flop_per_s"].items()}
    prices = tuple(
        Price(figure(f"price.{key}", cell), key == "usd_per_hour", cell[2], cell[1])
        for key, cell in (row.get("price") or {}).items()
    )
    pod = row.get("pod")
    words: JsonObject = {key: row.get(key, "") for key in _PLAIN}
    words |= {key: tuple(row.get(key, ())) for key in _WORDS}
    return DeviceSpec(
        name=name,
        **words,
        **figures,
        flop_per_s=rates,
        accumulate=row.get("accumulate", {}),
        prices=prices,
        pod=_pod(pod, figure("pod.chips", pod["chips"])) if pod else None,
        sources=cited,
    )


def _pod(row: JsonObject, chips: int | None) -> Pod:
    slices = tuple(Slice(part["shape"], part["chips"], part["hosts"]) for part in row["slices"])
    return Pod(chips, row["shape"], row["connection"], row["chips_per_host"], slices)


def _model(name: str, row: JsonObject) -> ModelSpec:
    published, by = row.get("published") or (0, "")
    names = {item.name for item in fields(ModelSpec)} - {"published"}
    facts = {key: value for key, value in row.items() if key in names}
    return ModelSpec(name=name, published=published, published_source=by, **facts)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", _NOISE.sub(" ", name.casefold().replace("‑", "-").replace("_", "-")))


_TUNED = re.compile(r"-(?:instruct|chat|it|hf|base|pt|preview|thinking|deduped)(?=-|$)", re.IGNORECASE)
"""Words of a model's name that say how it was trained, not how it is built."""

_PACKED = re.compile(
    r"-(?:gguf|awq|gptq|exl2|mlx|fp8|bf16|nvfp4|w\d+a\d+|int[48]|(?:bnb-)?[348]bit)(?=-|$)", re.IGNORECASE
)
"""Words that say how weights are packed, which is asked for apart from the model."""

_DATED = re.compile(r"-(?:v\d+(?:\.\d+)*|\d{4}|\d{6}|\d{8})$", re.IGNORECASE)
"""A version or a date at the end of a model's name."""


def _built_as(name: str) -> str:
    """Return the row that a tuned or dated model is built as, '' where the catalog has none.

    A version is left out only where the catalog tells the rows of a model apart without one.

    Examples
    --------
    >>> _built_as("Mixtral-8x7B-Instruct-v0.1"), _built_as("DeepSeek-V3-0324"), _built_as("Mistral-7B-Instruct-v0.2")
    ('Mixtral-8x7B', 'DeepSeek-V3', '')
    """
    spelt = {_plain(word): row for row, words in _model_aliases().items() for word in (row, *words)}
    plain = name
    while True:
        untuned = _TUNED.sub("", plain)
        for wanted in (_plain(plain), _plain(untuned)):
            other = re.compile(rf"{re.escape(wanted)}(?:v\d[\d.]*|\d{{4}})")
            if wanted in spelt and (plain == name or not any(map(other.fullmatch, spelt))):
                return spelt[wanted]
        shorter = _DATED.sub("", untuned)
        if shorter == untuned:
            return ""
        plain = shorter


def _chosen(given: str, names: Mapping[str, Iterable[str]], what: str, listed: str, bare: str = "") -> str:
    """Return the name that was meant, from names with their aliases; `bare` is what a hint goes by."""
    wanted = _plain(given)
    spellings = {name: (_plain(name), *map(_plain, aliases)) for name, aliases in names.items()}
    exact = [name for name, spelt in spellings.items() if wanted in spelt]
    near = exact or [name for name, spelt in spellings.items() if wanted and any(s.startswith(wanted) for s in spelt)]
    if len(near) == 1:
        return near[0]
    if near:
        raise BadValueError(f"{given} needs its {what}: {', '.join(near)}", remedy=f"run '{listed}'")
    words = [word for name, aliases in names.items() for word in (name, *aliases)]
    folded = {word.casefold(): word for word in words}
    hint = did_you_mean((bare or given).casefold(), folded)
    close = folded[hint.split("'")[1]] if "'" in hint else ""
    meant = next((name for name, aliases in names.items() if close in (name, *aliases)), "") if close else ""
    remedy = f"did you mean {meant!r}?" if meant else f"run '{listed}'"
    raise BadValueError(f"the catalog has no {given!r}", remedy=remedy)


@cache
def find(name: str) -> DeviceSpec:
    """Return the device of that name.

    Raises
    ------
    BadValueError
        No device has that name, or several have.

    Examples
    --------
    >>> find("NVIDIA GeForce RTX 4090").name, find("h100 sxm").name
    ('RTX-4090', 'H100-SXM')
    >>> find("H100")
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: H100 needs its SKU: H100-PCIe, H100-SXM, H100-NVL; run 'hetero catalog list'
    """
    names = {spec.name: spec.aliases for spec in devices().values()}
    return devices()[_chosen(name, names, "SKU", "hetero catalog list")]


@cache
def find_model(name: str) -> ModelSpec:
    """Return the model of that name: of the catalog, or as its owner calls it, tuned and dated ones included.

    Raises
    ------
    BadValueError
        No model has that name, or several have.

    Examples
    --------
    >>> find_model("meta-llama/Llama-3.1-8B-Instruct").layers, find_model("deepseek-ai/DeepSeek-V3-0324").name
    (32, 'DeepSeek-V3')
    """
    plain = name.rstrip("/").rpartition("/")[2]
    listed, bare = "hetero catalog list --models", _TUNED.sub("", _PACKED.sub("", plain))
    chosen = _built_as(plain) or _chosen(plain, _model_aliases(), "size", listed, bare)
    return replace(models()[chosen], name=chosen)


def completeness() -> dict[str, object]:
    """Count the cells that the devices' rows have, and those that are empty.

    Returns
    -------
    dict
        'cells', 'empty', 'empty_frac', and 'by_key' with the empty share of each key.
    """
    keys: dict[str, list[bool]] = {}
    for spec in devices().values():
        for key, value in spec.cells().items():
            keys.setdefault(key, []).append(value is None)
    empty = sum(map(sum, keys.values()))
    cells = sum(map(len, keys.values()))
    shares = {key: round(sum(flags) / len(flags), 3) for key, flags in keys.items()}
    return {"cells": cells, "empty": empty, "empty_frac": round(empty / cells, 4), "by_key": shares}


_PUBLISHED_KEYS = (
    "device",
    "count",
    "framework",
    "model",
    "precision",
    "kind",
    "batch",
    "input_len",
    "output_len",
    "value",
    "unit",
)


@cache
def published_rows() -> tuple[Mapping[str, str], ...]:
    """Return every published row, in the file's order.

    Examples
    --------
    >>> published_rows()[0]["device"], published_rows()[0]["kind"]
    ('RTX-4090', 'prefill')
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files("hetero.catalog").joinpath("published.yaml").read_text(encoding="utf-8")
    found = []
    for page in yaml.load(text, Loader=loader):
        for row in page["rows"]:
            cells = dict(zip(_PUBLISHED_KEYS, map(str, row), strict=True))
            found.append({**cells, "source": page["address"], "oom": "0"})
    return tuple(found)
