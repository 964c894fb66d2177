"""What a program hung onto its model, its loss or its optimizer: what travels to the devices, and what is refused.

In: objects as users made them. Out: one line that names what would be lost or not be summed, with the remedy.
It must not compute a step: `verifying` does that.
"""

from __future__ import annotations

import array
import functools
import inspect
import json
import pickle
import sys
import threading
import types
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize
from torch.optim import optimizer as torch_optimizer

from hetero.engines.shared.wire import cloud_pickler
from hetero.floor.contexts import transparent
from hetero.floor.errors import BadValueError

__all__ = [
    "changed_values",
    "check_closure",
    "check_loss",
    "check_model",
    "check_optimizer",
    "check_parameters",
    "class_values",
    "difference",
    "dtype_held",
    "fingerprint",
    "group_values",
    "in_process",
    "model_hooks",
    "own_methods",
    "process_settings",
    "seen",
    "set_values",
]

_OPTIMIZER_HOOKS = {
    "_optimizer_step_pre_hooks": "register_step_pre_hook",
    "_optimizer_step_post_hooks": "register_step_post_hook",
    "_optimizer_state_dict_pre_hooks": "register_state_dict_pre_hook",
    "_optimizer_state_dict_post_hooks": "register_state_dict_post_hook",
    "_optimizer_load_state_dict_pre_hooks": "register_load_state_dict_pre_hook",
    "_optimizer_load_state_dict_post_hooks": "register_load_state_dict_post_hook",
}
_OPTIMIZER_OWN = {
    *_OPTIMIZER_HOOKS,
    *("defaults", "state", "param_groups", "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured"),
    *("_opt_called", "step"),
}
_GLOBAL_HOOKS = {
    torch_module: tuple(f"_global_{kind}_hooks" for kind in ("forward_pre", "forward", "backward_pre", "backward")),
    torch_optimizer: ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"),
}
_MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_LIBRARIES = ("torch.", "peft.", "hetero.")
_MAKER = "give a function that makes the optimizer from parameters and registers its hooks: it runs beside each device"
_dtype_lock = threading.RLock()
_DTYPE_WAIT_S = 60.0
_MODULE_OWN = frozenset({"_parameters", "_buffers", "_modules", "training", "_is_full_backward_hook", "_version"})
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_MOST_DEEP = 6
_MOST_ENTRIES = 10_000
_MOST_MET = 200_000
_MOST_HELD_BYTES = 4 << 20
_MOST_READ_BYTES = 256 << 20
_REDUCTIONS = ("none", "mean", "sum", "batchmean")


# --- the optimizer -------------------------------------------------------------------------------------------


def check_optimizer(optimizer: object) -> None:
    """Refuse an optimizer of which something would not travel.

    Raises
    ------
    BadValueError
        It is several, needs a closure, or has hooks or attributes that would be lost.
    """
    if isinstance(optimizer, list | tuple | dict):
        raise BadValueError(
            f"the optimizer is a {type(optimizer).__name__} of {len(optimizer)}, and one steps in each training step",
            remedy="give one optimizer; parameters with settings of their own are groups of it",
        )
    _check_global_hooks()
    if not hasattr(optimizer, "param_groups"):
        return
    kind = type(optimizer).__name__
    check_closure(optimizer)
    for attribute, name in _OPTIMIZER_HOOKS.items():
        if getattr(optimizer, attribute, None):
            raise BadValueError(f"a hook of the {kind} ({name}) would not travel with it", remedy=_MAKER)
    fused = [group for group in optimizer.param_groups if group.get("fused")]
    if fused:
        raise BadValueError(
            f"{kind}(fused=True) keeps its state in a way of its own, which is not supported",
            remedy="give fused=False: the result is the same",
        )
    lost = _lost(optimizer)
    if lost:
        raise BadValueError(f"the {kind} has {', '.join(lost)}, which would not travel with it", remedy=_MAKER)
    tensors = [name for group in group_values(optimizer) for name, one in group.items() if torch.is_tensor(one)]
    if tensors:
        raise BadValueError(
            f"{tensors[0]} of the {kind} is a tensor, and settings of parameter groups travel as plain numbers",
            remedy=f"give a float, as in {tensors[0]}=0.01",
        )
    try:
        json.dumps(group_values(optimizer))
    except (TypeError, ValueError) as error:
        raise BadValueError(
            f"a setting of the {kind}'s parameter groups cannot be kept: {error}",
            remedy="give plain numbers, as in lr=0.1",
        ) from error


def check_closure(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose step computes the loss anew, such as LBFGS."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise BadValueError(
            f"{type(optimizer).__name__} computes the loss several times a step by a closure, which is not supported",
            remedy="use an optimizer that steps once with the gradients, such as Adam or SGD",
        )


def _lost(optimizer: torch.optim.Optimizer) -> list[str]:
    """Name the attributes that pickling leaves out: torch's optimizers keep three of them."""
    if type(optimizer).__getstate__ is not torch.optim.Optimizer.__getstate__:
        return []
    attributes = vars(optimizer)
    lost = sorted(set(attributes) - _OPTIMIZER_OWN)
    replaced = "step" in attributes and not hasattr(optimizer.step, "_wrapped_by_lr_sched")
    return [*lost, *(["a step that was replaced"] if replaced else [])]


def _check_global_hooks() -> None:
    for place, names in _GLOBAL_HOOKS.items():
        found = next((name for name in names if getattr(place, name, None)), "")
        if found:
            raise BadValueError(
                f"a hook for all objects of this process ({found.removeprefix('_global_')}) would not run in training",
                remedy="remove it, or register hooks on the model's own modules",
            )


def group_values(optimizer: object) -> list[dict[str, object]]:
    """Return the settings of each parameter group, without its parameters; none for a function."""
    groups = getattr(optimizer, "param_groups", ())
    return [{name: value for name, value in group.items() if name != "params"} for group in groups]


def changed_values(
    before: Sequence[Mapping[str, object]], after: Sequence[Mapping[str, object]]
) -> dict[int, dict[str, object]]:
    """Return the settings that changed, by group.

    Examples
    --------
    >>> changed_values([{"lr": 0.1, "betas": (0.9, 0.99)}], [{"lr": 0.05, "betas": (0.9, 0.99)}])
    {0: {'lr': 0.05}}

    Raises
    ------
    BadValueError
        There are more or fewer groups than before.
    """
    if len(before) != len(after):
        raise BadValueError(
            f"a callback changed the number of parameter groups from {len(before)} to {len(after)}",
            remedy="add groups between two calls of fit",
        )
    pairs = enumerate(zip(before, after, strict=True))
    changes = {i: {name: new[name] for name in new if new[name] != old.get(name)} for i, (old, new) in pairs}
    return {index: values for index, values in changes.items() if values}


def set_values(optimizer: torch.optim.Optimizer, changes: Mapping[int, Mapping[str, object]]) -> None:
    """Apply the settings that `changed_values` found to the parameter groups."""
    for index, values in changes.items():
        optimizer.param_groups[index].update(values)


# --- settings of the process ---------------------------------------------------------------------------------


def process_settings() -> dict[str, object]:
    """Return the settings of torch's that hold for this process and change what is computed.

    Raises
    ------
    BadValueError
        Autocast is on, which would not reach the devices.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise BadValueError(
            "torch.autocast is on around the Trainer, and would not reach the devices",
            remedy="leave it out and give precision='bf16' or 'fp16'",
        )
    return {
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
    }


@transparent
def in_process(given: Mapping[str, object]) -> Iterator[None]:
    """Apply the settings that `process_settings` returned, and make new tensors on the host, as the program does.

    A worker makes new tensors on its device. That is right for the model's code, see `replica.made_on`; the code of
    datasets, `collate_fn` and the loop is written for the host, whose random generator cannot fill a device's tensor.
    """
    on_host = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    with on_host:  # a mode costs every call of torch some microseconds: none where nothing changes by it
        if not given:
            yield
            return
        with dtype_held():
            before = process_settings()
            changes = before != given  # what is as it was is not set back: a thread of this process may end late
            if changes:
                _set_process(given)
        try:
            yield
        finally:
            if changes:
                with dtype_held():
                    _set_process(before)


@transparent
def dtype_held() -> Iterator[None]:
    """Keep the other threads of this process from switching torch's default dtype, which is one for all of them."""
    came = _dtype_lock.acquire(timeout=_DTYPE_WAIT_S)
    try:
        yield
    finally:
        if came:
            _dtype_lock.release()


def _set_process(given: Mapping[str, Any]) -> None:
    torch.set_default_dtype(getattr(torch, given["dtype"]))
    torch.set_float32_matmul_precision(given["matmul"])
    enabled, warn_only = given["deterministic"]
    now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if (enabled, warn_only) != now:  # for which torch loads its compiler, in a second
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


# --- parameters ----------------------------------------------------------------------------------------------


def check_parameters(model: torch.nn.Module, optimizer: object) -> None:
    """Refuse parameters whose gradients would be changed before they are summed, or not be summed at all.

    Raises
    ------
    BadValueError
        One has a hook, is complex, is not made yet, shares its memory with another, or is none of the model's.
    """
    places: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise BadValueError(f"{name} has no shape yet", remedy="call the model once on a batch before training")
        if parameter.is_complex():
            raise BadValueError(
                f"{name} is complex, and gradients are summed as real numbers",
                remedy="keep its two parts in a real Parameter, and use torch.view_as_complex in forward",
            )
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise BadValueError(
                f"{name} has a hook on its gradient, which would see a part of the batch, or nothing",
                remedy="change gradients in a step pre-hook of the optimizer, which sees their sum; " + _MAKER,
            )
        first = places.setdefault(parameter.data_ptr(), name) if parameter.numel() else name
        if first != name and parameter.device.type != "meta":
            raise BadValueError(
                f"{name} and {first} share memory without being one Parameter, and would no longer where they train",
                remedy="tie them by assigning the Parameter itself, not its data",
            )
    _check_are_of(model, optimizer)


def _check_are_of(model: torch.nn.Module, optimizer: object) -> None:
    mine = {id(parameter) for parameter in model.parameters()}
    groups: Iterable[dict[str, list[torch.nn.Parameter]]] = getattr(optimizer, "param_groups", ())
    strange = [tuple(p.shape) for group in groups for p in group["params"] if id(p) not in mine]
    if strange:
        raise BadValueError(
            f"the optimizer has {len(strange)} parameters that the model has not, the first of shape {strange[0]}",
            remedy="make what is trained a part of the model, or leave it out of the optimizer",
        )


# --- the model and the loss ----------------------------------------------------------------------------------


def check_model(model: torch.nn.Module) -> None:
    """Refuse a model of which something cannot travel.

    Raises
    ------
    BadValueError
        It has parametrizations, is a script, or keeps something in its state that is no tensor.
    """
    for name, part in model.named_modules():
        if parametrize.is_parametrized(part):
            raise BadValueError(
                f"{name or 'the model'} has a parametrization, and torch cannot send such modules to another process",
                remedy="compute the weight in forward, or use torch.nn.utils.weight_norm or spectral_norm",
            )
        if type(part).__name__ == "OptimizedModule":
            raise BadValueError(
                f"{name or 'the model'} was compiled, and compiled modules cannot be trained here yet",
                remedy="give the module that torch.compile was given",
            )
        if any(kind.__name__ == "ScriptModule" for kind in type(part).__mro__):
            raise BadValueError(
                f"{name or 'the model'} is a TorchScript module, which cannot be sent to another process",
                remedy="give the module that it was made of",
            )
    strange = [name for name, value in model.state_dict().items() if not torch.is_tensor(value)]
    if strange:
        raise BadValueError(
            f"the model's state has {strange[0]}, which is no tensor", remedy="register what it keeps as a buffer"
        )


def model_hooks(model: torch.nn.Module) -> list[str]:
    """Name the modules with hooks of the program's own, which run beside the devices."""
    return [
        name or "the model"
        for name, module in model.named_modules()
        if any(_is_own(hook) for kind in _MODULE_HOOKS for hook in getattr(module, kind, {}).values())
    ]


def _is_own(hook: object) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return not f"{home}.".startswith(_LIBRARIES)


def check_loss(loss: object) -> None:
    """Refuse a loss that has parameters to train, or whose reduction nobody knows.

    Raises
    ------
    BadValueError
        It has either.
    """
    if not isinstance(loss, torch.nn.Module):
        return
    kind = type(loss).__name__
    if any(parameter.requires_grad for parameter in loss.parameters()):
        raise BadValueError(
            f"the loss {kind} has parameters, which would not be trained", remedy="make them a part of the model"
        )
    reduction = getattr(loss, "reduction", "mean")
    if reduction not in _REDUCTIONS:
        raise BadValueError(
            f"reduction={reduction!r} of the loss {kind} is not known", remedy=f"give one of {', '.join(_REDUCTIONS)}"
        )


# --- what a program changes while nobody looks ----------------------------------------------------------------


def seen(model: object, loss: object, optimizer: object = None) -> dict[str, object]:
    """Return what the devices were sent of a model, a loss and an optimizer, by name, to compare with `difference`."""
    found: dict[str, object] = dict(_state_of(model, optimizer))
    for what, whole in (("", model), ("of the loss", loss)):
        if not isinstance(whole, torch.nn.Module):
            found[f"something {what} that it uses".strip()] = fingerprint(whole)
            continue
        for name, module in whole.named_modules():
            of = f" {what}" if what else ""
            dot = f"{name}." if name else ""
            for key, tensor in module._parameters.items():
                found[f"{dot}{key}{of}, a weight,"] = _held(tensor)
                found[f"requires_grad of {dot}{key}{of}"] = tensor is not None and tensor.requires_grad
            for key, tensor in module._buffers.items():
                found[f"{dot}{key}{of}, a buffer,"] = _held(tensor)
            for key, value in vars(module).items():
                if key not in _MODULE_OWN and not key.endswith("_hooks"):
                    found[f"{dot}{key}{of}"] = fingerprint(value)
        found[f"something {what} that its code uses".replace("  ", " ")] = fingerprint(_code_of(whole))
        modes = {name: module.training for name, module in whole.named_modules()}
        found[f"the training mode {what}".strip()] = modes if len({*modes.values()}) > 1 else None
    return found


def _code_of(whole: torch.nn.Module) -> list[object]:
    """Return the functions of the classes of modules that are the program's own, and no installed package's."""
    kinds = dict.fromkeys(kind for module in whole.modules() for kind in _own_kinds(type(module)))
    return [each for kind in kinds for each in (*own_methods(kind).values(), class_values(kind), kind)]


def _own_kinds(kind: type) -> list[type]:
    """Return a class and those that it inherits from which are the program's own, and no installed package's."""
    return [each for each in kind.__mro__ if not _is_installed(each.__module__)]


def class_values(kind: type) -> dict[str, object]:
    """Return the values that the program's own classes hold for all of their objects.

    Examples
    --------
    >>> class Scaled:
    ...     __module__ = "program"
    ...     factor = 0.5
    ...
    ...     def scale(self, value: float) -> float:
    ...         return self.factor * value
    >>> class_values(Scaled)
    {'factor': 0.5}
    """
    return {
        name: value
        for each in reversed(_own_kinds(kind))
        for name, value in vars(each).items()
        if not (name.startswith(("__", "_abc_")) or hasattr(type(value), "__get__"))
    }


def _attributes(value: object) -> dict[str, object]:
    """Return what an object holds, in slots of the program's own classes too, and what these hold for all of them."""
    slots = [each for kind in _own_kinds(type(value)) for each in vars(kind).items()]
    names = [name for name, slot in slots if isinstance(slot, types.MemberDescriptorType)]
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**class_values(type(value)), **held, **getattr(value, "__dict__", {})}


@functools.cache
def _is_installed(module: str) -> bool:
    if f"{module}.".startswith(_LIBRARIES) or module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return any(part in file for part in ("site-packages", "dist-packages"))


def _state_of(model: torch.nn.Module, optimizer: object) -> Iterator[tuple[str, object]]:
    """Yield what an optimizer keeps of each parameter; a function that makes one keeps nothing here."""
    kept: Mapping[torch.nn.Parameter, dict[str, object]] = getattr(optimizer, "state", {})
    for name, parameter in model.named_parameters():
        for key, value in kept[parameter].items() if parameter in kept else ():
            yield f"{key} of {name}, the optimizer's state,", _held(value) if torch.is_tensor(value) else repr(value)


def difference(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Name the first thing that `seen` found otherwise before, '' where all is the same."""
    names = dict.fromkeys([*before, *after])
    modes = {name for name in names if name.startswith("the training mode") and after.get(name) is None}
    return next((name for name in names if name not in modes and before.get(name) != after.get(name)), "")


def _held(tensor: torch.Tensor) -> object:
    """Return the version of a tensor, and of small ones a checksum: writing through `.data` leaves the version."""
    if tensor is None:
        return None
    small = tensor.device.type == "cpu" and tensor.nbytes <= _MOST_HELD_BYTES
    return _version(tensor), _content(tensor) if small else 0


def _version(tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]]:
    place = tensor.data_ptr() if tensor.layout == torch.strided else id(tensor)
    return place, tensor._version, tuple(tensor.shape)


def fingerprint(value: object) -> object:
    """Return something small that differs when a value was changed in place: of tables, objects and arrays in them.

    Notes
    -----
    What would travel to a worker is compared as bytes. Of arrays of more than 256 MiB only some parts are read. Where a
    value cannot travel, lists of more than 10,000 entries count by their length.

    Examples
    --------
    >>> table = {"beta": [0.1, 0.2]}
    >>> before = fingerprint(table)
    >>> table["beta"][0] = 0.5
    >>> before == fingerprint(table)
    False
    """
    return _print(value, 0, set()), _travelling(value)


def _travelling(value: object) -> object:
    """Return a checksum of what would travel of a value to a worker, without large buffers; None where it cannot."""
    file = _Checksum()
    try:
        _checksum_pickler()(file, 5, buffer_callback=file.buffer).dump(value)
    except Exception:  # noqa: BLE001  pickling runs the program's own code
        return None
    return file.found


class _Checksum:
    """A file that keeps no more than a checksum of what is written."""

    def __init__(self) -> None:
        self.found = 0

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes to the checksum."""
        self.found = zlib.crc32(data, self.found)

    def buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Add a buffer of an array, a large one by its size: who knows the array compares it."""
        raw = buffer.raw()
        self.write(raw if raw.nbytes <= _MOST_HELD_BYTES else str(raw.nbytes).encode())
        return False


@functools.cache
def _checksum_pickler() -> type[pickle.Pickler]:
    class ChecksumPickler(cloud_pickler()):  # type: ignore[misc]
        def reducer_override(self, value: object) -> object:
            if isinstance(value, types.MethodType):  # of its object it may read a part
                return getattr, (type(value.__self__), value.__name__)
            return super().reducer_override(value)

    return ChecksumPickler


def _print(value: Any, depth: int, met: set[int]) -> object:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value).__name__, repr(value)
    if depth > _MOST_DEEP or id(value) in met or len(met) > _MOST_MET:
        return id(value)
    met.add(id(value))
    if torch.is_tensor(value):
        return (*_version(value), _content(value)) if value.device.type == "cpu" else _version(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, _content(value)
    if isinstance(value, type | types.ModuleType):
        return id(value)
    if isinstance(value, bytearray | memoryview | array.array):
        return id(value), zlib.crc32(value)
    if hasattr(type(value), "__array__"):
        held = np.asarray(value)  # what it has made of objects, it has made anew
        return id(value), 0 if held.dtype.hasobject else _content(held)
    if isinstance(value, _CONTAINERS):
        further = () if type(value) in _CONTAINERS else _entries(_attributes(value), depth, met)
        return type(value).__name__, _entries(value, depth, met), further
    if isinstance(value, types.FunctionType | types.MethodType):
        return id(getattr(value, "__func__", value)), _of_function(value, depth, met)
    inside = [getattr(value, name) for name in ("func", "args", "keywords") if isinstance(value, functools.partial)]
    return id(value), _entries(_attributes(value), depth, met), tuple([_print(one, depth + 1, met) for one in inside])


def _entries(value: Any, depth: int, met: set[int]) -> Any:
    if len(value) > _MOST_ENTRIES:
        return id(value), len(value)
    if isinstance(value, dict):
        return tuple((str(name), _print(entry, depth + 1, met)) for name, entry in value.items())
    found = [_print(entry, depth + 1, met) for entry in value]
    return tuple(sorted(found, key=repr) if isinstance(value, set | frozenset) else found)


def _of_function(function: Any, depth: int, met: set[int]) -> object:
    """Return the fingerprints of what a function reads: of the object of a method, the attributes that it names."""
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, types.FunctionType):
        return ()
    names = _names_in(plain.__code__)
    owner = {} if plain is function else {**own_methods(type(function.__self__)), **_attributes(function.__self__)}
    reads = [owner[name] for name in names if name in owner]
    reads += [plain.__globals__[name] for name in names if name in plain.__globals__]
    modules = [each for each in reads if isinstance(each, types.ModuleType) and not _is_installed(each.__name__)]
    reads += [vars(module)[name] for module in modules for name in names if name in vars(module)]
    for cell in plain.__closure__ or ():
        try:
            reads.append(cell.cell_contents)
        except ValueError:  # it is empty yet
            continue
    further = [*reads, plain.__defaults__, plain.__kwdefaults__, vars(plain)]
    return tuple(_print(one, depth + 1, met) for one in further)


def _names_in(code: types.CodeType) -> list[str]:
    """Return the names that code reads, and the functions and comprehensions in it."""
    inner = [name for each in code.co_consts if isinstance(each, types.CodeType) for name in _names_in(each)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def own_methods(kind: type) -> dict[str, types.FunctionType]:
    """Return the functions of the program's own classes, static ones and class methods too."""
    held = {name: each for one in reversed(_own_kinds(kind)) for name, each in vars(one).items()}
    found = {name: getattr(each, "__func__", each) for name, each in held.items()}
    return {name: each for name, each in found.items() if isinstance(each, types.FunctionType)}


def _content(array: Any) -> int:
    """Return a checksum of an array's numbers."""
    if torch.is_tensor(array):
        if array.layout != torch.strided or array.numel() == 0:
            return 0
        try:
            array = array.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        except (RuntimeError, TypeError):  # it is of a kind of its own
            return 0
    if array.dtype.hasobject:
        return id(array)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if flat.nbytes <= _MOST_READ_BYTES:
        return zlib.crc32(flat.data)
    parts, each = 64, _MOST_READ_BYTES // 64
    checksum = 0
    for number in range(parts):
        begin = (flat.nbytes - each) * number // (parts - 1)
        checksum = zlib.crc32(flat[begin : begin + each].data, checksum)
    return checksum
