"""The state of a training run as bytes: safetensors, with what is no tensor as JSON beside them.

In: a model, an optimizer, numbers. Out: bytes, and the same back. It must not pickle. Of a model that is trained in
part, as one with adapters, the frozen parameters are left out and known again by a checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from hetero.floor.errors import FileError, HeteroError
from hetero.floor.units import shown

__all__ = [
    "TrainingState",
    "frozen_word",
    "has_adapters",
    "in_one_order",
    "kept_state",
    "load_kept",
    "load_state",
    "pack",
    "renewed",
    "step_of",
    "unpack",
]

_FORMAT = "hetero training state 1"
_LENGTH_BYTES = 8

_words: WeakKeyDictionary[object, tuple[object, str]] = WeakKeyDictionary()


class TrainingState(NamedTuple):
    """What `pack` wrote.

    Attributes
    ----------
    model, optimizer
        Their states.
    numbers
        The step first.
    averages
        Of the weights, by parameter; empty where there are none.
    schedule
        Of the learning rate, None where there is none.
    """

    model: dict[str, torch.Tensor]
    optimizer: dict[str, object]
    numbers: list[float]
    averages: Mapping[str, torch.Tensor]
    schedule: Mapping[str, object] | None


def pack(
    model: object,
    optimizer: torch.optim.Optimizer,
    numbers: Sequence[float],
    averages: Mapping[str, torch.Tensor] | None = None,
    schedule: Mapping[str, object] | None = None,
) -> bytes:
    """Write the state of a model and its optimizer; of parameters that are not trained, a checksum.

    Parameters
    ----------
    numbers
        The step first, then whatever the caller needs.
    averages, schedule
        See `TrainingState`.

    Raises
    ------
    HeteroError
        The optimizer keeps something that is neither a tensor nor plain.
    """
    tensors = {f"model/{name}": tensor for name, tensor in kept_state(model).items()}
    tensors |= {f"average/{name}": tensor for name, tensor in (averages or {}).items()}
    kept = optimizer.state_dict()
    plain: dict[str, dict[str, object]] = {}
    for index, entries in kept["state"].items():
        for name, value in entries.items():
            if torch.is_tensor(value):
                tensors[f"optimizer/{index}/{name}"] = value
            else:
                plain.setdefault(str(index), {})[name] = value
    facts = {
        **{"numbers": list(numbers), "groups": kept["param_groups"], "plain": plain},
        **{"frozen": frozen_word(model), "optimizer": getattr(optimizer, "kind", type(optimizer).__name__)},
        **({} if schedule is None else {"schedule": schedule}),
    }
    try:
        text = json.dumps(facts)
    except TypeError as error:
        raise HeteroError(
            f"the state of {type(optimizer).__name__} cannot be kept: {error}", remedy="use an optimizer of torch's"
        ) from error
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return in_one_order(save(whole, {"format": _FORMAT, "facts": text}))


def in_one_order(data: bytes) -> bytes:
    """Return a safetensors file with its metadata sorted by name, so that equal contents are equal bytes.

    Notes
    -----
    safetensors writes metadata in the order of a hash table with a new seed for every file. Offsets in the header
    count from its end, and the header is padded with spaces to whole words, so tensors stay as they are.
    """
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = json.loads(data[_LENGTH_BYTES:begin])
    if "__metadata__" in header:
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text + data[begin:]


class _Settled:
    """An optimizer of which only the state is there."""

    def __init__(self, kept: dict[str, object], kind: str) -> None:
        self._kept = kept
        self.kind = kind

    def state_dict(self) -> dict[str, object]:
        """Return that state."""
        return self._kept


def renewed(data: bytes, model: object, optimizer: object) -> bytes:
    """Write a state anew with the model as it is now, and the optimizer where it is one; its numbers stay."""
    found = unpack(data)
    own = hasattr(optimizer, "state_dict")
    return pack(
        model,
        optimizer if own else _Settled(found.optimizer, _facts(data).get("optimizer", "")),
        *found[2:],
    )


def _facts(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    try:
        header = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
        facts: dict[str, object] = json.loads(header["__metadata__"]["facts"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"this is no training state: {error}", remedy="use another checkpoint") from error
    if not isinstance(facts, dict):
        raise FileError(f"this is no training state: its facts are {shown(facts)}", remedy="use another checkpoint")
    return facts


def step_of(data: bytes) -> int:
    """Return the number of steps that were done."""
    numbers = _facts(data).get("numbers")
    first = numbers[0] if isinstance(numbers, list) and numbers else None
    if isinstance(first, bool) or not isinstance(first, int | float) or not 0 <= first < 2**53:
        raise FileError(f"this is no training state: its step is {shown(first)}", remedy="use another checkpoint")
    return int(first)


def unpack(data: bytes, place: object = "cpu") -> TrainingState:
    """Read what `pack` wrote.

    Raises
    ------
    HeteroError
        The bytes are no state.
    """
    facts = _facts(data)
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise FileError(f"this is no training state: {error}", remedy="use another checkpoint") from error
    model: dict[str, torch.Tensor] = {}
    averages: dict[str, torch.Tensor] = {}
    try:
        state: dict[int, dict[str, object]] = {int(index): dict(entries) for index, entries in facts["plain"].items()}
        groups, numbers = facts["groups"], facts["numbers"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"this is no training state: {error}", remedy="use another checkpoint") from error
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        if part in ("model", "average"):
            (model if part == "model" else averages)[rest] = tensor.to(place)
        else:
            index, _, entry = rest.partition("/")
            state.setdefault(int(index), {})[entry] = tensor
    schedule = facts.get("schedule")
    if schedule is not None and not isinstance(schedule, dict):
        raise FileError(
            f"this is no training state: its schedule is {shown(schedule)}", remedy="use another checkpoint"
        )
    in_order = {index: state[index] for index in sorted(state)}
    return TrainingState(model, {"state": in_order, "param_groups": groups}, numbers, averages, schedule)


def load_state(data: bytes, model: object, optimizer: object, place: object = "cpu") -> TrainingState:
    """Load a state into a model and, where it is one, an optimizer; returns it.

    Raises
    ------
    HeteroError
        The state is of another model or optimizer.
    """
    found = unpack(data, place)
    _check_optimizer(_facts(data).get("optimizer", ""), found.optimizer, optimizer)
    try:
        load_kept(model, found.model, _facts(data).get("frozen", ""))
        if hasattr(optimizer, "load_state_dict"):
            _load_optimizer(optimizer, found.optimizer)
    except (RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())[:300]
        raise HeteroError(f"the state is of another model: {said}", remedy="give the model that was trained") from error
    return found


def _load_optimizer(optimizer: torch.optim.Optimizer, kept: dict[str, object]) -> None:
    """Load an optimizer's state into the groups that it has, which programs may hold; tuples stay tuples."""
    groups = optimizer.param_groups
    before = list(groups)
    optimizer.load_state_dict(kept)
    for group, loaded in zip(before, optimizer.param_groups, strict=True):
        values = {name: _as_before(value, group.get(name)) for name, value in loaded.items()}
        group.clear()
        group.update(values)
    groups[:] = before
    optimizer.param_groups = groups


def _as_before(value: object, before: object) -> object:
    return tuple(value) if isinstance(value, list) and isinstance(before, tuple) else value


def _check_optimizer(kind: str, kept: dict[str, Any], optimizer: object) -> None:
    """Refuse the state of an optimizer that lacks settings which this one needs."""
    mine = type(optimizer).__name__
    needed = set(getattr(optimizer, "defaults", ()))
    lacks = [sorted(needed - set(group)) for group in kept["param_groups"] if needed - set(group)]
    if lacks and kind != mine:
        raise HeteroError(
            f"the state was kept of {kind or 'another optimizer'}, and this run has {mine}: there is no {lacks[0][0]}",
            remedy=f"give the optimizer that was used, or another folder to begin anew with {mine}",
        )


def has_adapters(model: object) -> bool:
    """Return whether a model has adapters of `peft`."""
    return hasattr(model, "peft_config")


def _frozen(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter for name, parameter in named if not parameter.requires_grad}


def kept_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the state of a model without its frozen parameters.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    >>> _ = model[0].requires_grad_(False)
    >>> list(kept_state(model))
    ['1.weight', '1.bias']
    """
    frozen = _frozen(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def frozen_word(model: object) -> str:
    """Return a checksum of the frozen parameters, '' where there are none; computed once while they are unchanged."""
    frozen = _frozen(model)
    if not frozen:
        return ""
    seen = tuple((tensor.data_ptr(), tensor._version) for tensor in frozen.values())
    if _words.get(model, (None, ""))[0] != seen:
        digest = hashlib.sha256()
        for name, tensor in frozen.items():
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(plain.view(torch.uint8).numpy().data)
        _words[model] = seen, digest.hexdigest()
    return _words[model][1]


def load_kept(model: torch.nn.Module, state: Mapping[str, torch.Tensor], word: str) -> None:
    """Load what `kept_state` gave into a model with the same frozen parameters.

    Parameters
    ----------
    word
        What `frozen_word` gave of the model that the state is of.

    Raises
    ------
    RuntimeError
        The state does not match the model, as torch words it.
    HeteroError
        The frozen parameters are others.
    """
    if word != frozen_word(model):
        raise HeteroError(
            "the parameters that are not trained are not those of the model that this was kept of",
            remedy="give the same base model",
        )
    missing, unexpected = model.load_state_dict(state, strict=False)
    wrong = [*sorted(set(missing) - set(_frozen(model))), *unexpected]
    if wrong:
        raise RuntimeError(f"missing or unexpected: {', '.join(wrong)}")
