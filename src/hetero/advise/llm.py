"""How to start a language model on unequal devices: layers a device for llama.cpp, vLLM and accelerate.

In: a model by name or weight files, and a fleet. Out: settings with their inputs, formula and a command to verify them.
It must not start anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hetero.advise.estimate import estimate
from hetero.advise.fit import read_model, room_of
from hetero.advise.fleet import Kind, group_of
from hetero.advise.weight_files import WeightFiles, is_weights, read_weights
from hetero.catalog.values import DeviceSpec
from hetero.floor.errors import BadValueError, NothingFitsError, did_you_mean
from hetero.model.architecture import ModelSpec
from hetero.model.quantisation import FORMATS, number_format
from hetero.model.workload import Sharding, WorkloadSpec
from hetero.plan.sizing.footprint import footprint
from hetero.plan.sizing.layer_assignment import (
    Aim,
    LayerHost,
    Layers,
    LayerSplit,
    best_split,
    memory_split,
    split_seconds,
)

__all__ = ["ENGINES", "LayerPlacement", "NumberedDevice", "Target", "place", "read_target"]

Engine = Literal["llama.cpp", "vllm", "accelerate"]

ENGINES: tuple[Engine, ...] = ("llama.cpp", "vllm", "accelerate")
"""Engines whose settings are given."""

_WORKS_AS = {"llama.cpp": "llama.cpp", "vllm": "vllm", "accelerate": "torch"}
_KINDS: dict[Engine, tuple[str, ...]] = {
    "llama.cpp": ("cuda", "rocm", "xpu", "mps", "cpu"),
    "vllm": ("cuda", "rocm"),
    "accelerate": ("cuda", "rocm", "cpu"),
}
"""Kinds of devices that the settings of an engine are for. vLLM: those whose devices CUDA_VISIBLE_DEVICES numbers; on
TPUs and on Apple's chips other packages serve. accelerate: a device_map of numbers means CUDA or ROCm devices."""

_VLLM_CAPABILITY = (7, 0)
_VLLM_ROCM = ("MI2", "MI3", "RX-79", "Radeon-PRO-W7900", "RX-90")
"""What vLLM names (source vllm-gpu of the catalog): compute capability 7.0 and above, 7.5 in its newest version; MI200,
MI300 and MI350, and the RX 7900 and 9000 series, the first of which has the chip of the PRO W7900."""

_HOP_S = 200e-6
"""What one more device costs each token: a copy of one vector, and waiting for it; declared."""

_MOST_DEVICES = 32


@dataclass(frozen=True, slots=True)
class Target:
    """A model and what is known of its weights.

    Attributes
    ----------
    named : as the user wrote it
    model : its architecture
    files : what the headers of its weight files tell, None where there are none
    weights : number format
    """

    named: str
    model: ModelSpec
    files: WeightFiles | None
    weights: str

    def layers(self, work: WorkloadSpec) -> Layers:
        """Return what is to be placed, the KV cache of all sequences with the layers."""
        need = footprint(work)
        cache = need.kv_cache / self.model.layers
        if self.files is not None:
            sizes = list(self.files.layers.values())
            mean = sum(sizes) / len(sizes)
            tied = self.files.head or self.files.embedding
            first = 0 if work.framework == "llama.cpp" else self.files.embedding
            ends = self.files.head + self.files.other
            return Layers(len(sizes), max(sizes) + cache, first, _head(work, ends, tied), tied / mean)
        form, count = number_format(work.weights), self.model.parameters()
        keeps = 2 if form.keeps_head else form.bytes_per_weight
        head = (count.head or count.embedding) * keeps
        table = 0.0 if work.framework == "llama.cpp" else count.embedding * keeps
        mean = (count.linear + count.other) * form.bytes_per_weight / self.model.layers
        return Layers(self.model.layers, mean + cache, table, _head(work, count.head * keeps, head), head / mean)


def _head(work: WorkloadSpec, own: float, shared: float) -> float:
    """Return the bytes of the output head: llama.cpp puts a shared table on the last device a second time."""
    return own if own or work.framework != "llama.cpp" else shared


def read_target(named: str, weights: str | None = None) -> Target:
    """Read a model: a name of the catalog, a config.json, a .gguf or .safetensors file, or a folder with such.

    Parameters
    ----------
    weights : number format; default: that of the files, else Q4_K_M for llama.cpp and bf16 for others

    Raises
    ------
    BadValueError
        There is no such model, or its files tell no architecture.
    """
    path = Path(named)
    if os.path.exists(path) and is_weights(path):
        files = read_weights(path)
        if files.model is None:
            raise BadValueError(f"{named} has no config.json", remedy="put the model's config.json beside its weights")
        return Target(named, files.model, files, weights or _format_of(files, files.model))
    if path.suffix in (".gguf", ".safetensors"):
        raise BadValueError(f"{named} does not exist", remedy="give a weight file, or a model of the catalog")
    return Target(named, read_model(named), None, weights or "")


def _format_of(files: WeightFiles, model: ModelSpec) -> str:
    """Return the format whose bits a weight are nearest to those of the files."""
    bits = 8 * files.total / model.parameters().total
    names = [name for name in FORMATS if name.startswith(("Q", "IQ", "F")) or name in ("bf16", "fp8")]
    plain = {"F16": "bf16", "BF16": "bf16"}
    nearest = min(names, key=lambda name: abs(FORMATS[name].bits - bits))
    gguf = files.prefix.startswith("blk.")
    return nearest if gguf else plain.get(nearest, nearest)


@dataclass(frozen=True, slots=True)
class NumberedDevice:
    """One device of the fleet, by the place that programs number it with.

    Attributes
    ----------
    spec : what is known of it
    index : among the accelerators, in the order of the fleet; -1 for a processor
    """

    spec: DeviceSpec
    index: int

    @property
    def name(self) -> str:
        """Its name with its place, for people."""
        return f"{self.spec.name} (cpu)" if self.index < 0 else f"{self.spec.name} ({self.index})"


Together = tuple[tuple[NumberedDevice, ...], float]


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """Layers of one engine on the fleet.

    Attributes
    ----------
    engine, target, work, aim : what was asked
    devices, hosts : the fleet; rooms and seconds of a layer
    layers : what was placed
    split : layers a device
    by_memory : layers in proportion to memory, and its seconds; None where that does not fit
    without : for each device left out, the seconds with it in, None where it cannot hold a layer
    together : equal devices that share every matrix, and their seconds, where an engine can do that; else None
    """

    engine: Engine
    target: Target
    work: WorkloadSpec
    aim: Aim
    devices: tuple[NumberedDevice, ...]
    hosts: tuple[LayerHost, ...]
    layers: Layers
    split: LayerSplit
    by_memory: tuple[tuple[int, ...], float] | None
    without: tuple[tuple[NumberedDevice, float | None], ...]
    together: Together | None = None

    @property
    def shared(self) -> tuple[NumberedDevice, ...]:
        """The equal devices that share every matrix where that is quicker than layers in turn; else none."""
        quicker = self.together is not None and self.together[1] < self.split.seconds
        return self.together[0] if quicker and self.together else ()

    @property
    def seconds(self) -> float:
        """The seconds of the quicker way."""
        return self.together[1] if self.together and self.shared else self.split.seconds

    @property
    def used(self) -> tuple[tuple[NumberedDevice, int], ...]:
        """The devices that take layers, the one with the output head last, processors first."""
        pairs = list(zip(self.devices, self.split.counts, strict=True))
        last = self.devices[self.split.last]
        order = sorted(pairs, key=lambda pair: (pair[0] == last, pair[0].index))
        return tuple((device, count) for device, count in order if count)

    def as_dict(self) -> dict[str, Any]:
        """Return what a program would read."""
        return {
            "framework": self.engine,
            "layers": {} if self.shared else {device.name: count for device, count in self.used},
            "tensor_parallel": [device.name for device in self.shared],
            "seconds": self.seconds,
            "seconds_by_memory_alone": self.by_memory[1] if self.by_memory else None,
            "left_out": {device.name: seconds for device, seconds in self.without},
            "inputs": [
                {"device": host.name, "room_bytes": host.room_bytes, "layer_s": host.layer_s, "bytes": host.fixed_bytes}
                for host in self.hosts
            ],
            "layer_bytes": self.layers.layer_bytes,
        }


def _devices(kinds: Sequence[Kind]) -> tuple[NumberedDevice, ...]:
    found: list[NumberedDevice] = []
    for kind in kinds:
        if kind.count is None:
            raise BadValueError(
                "the whole catalog is no fleet to start a model on", remedy="name the devices: --devices"
            )
    many = sum(1 if kind.spec.is_host else kind.count or 0 for kind in kinds)
    if many > _MOST_DEVICES:
        raise BadValueError(f"{many:,} devices are many", remedy=f"give at most {_MOST_DEVICES}")
    for kind in kinds:
        cpu = kind.spec.is_host
        for _ in range(1 if cpu else kind.count or 0):
            found.append(NumberedDevice(kind.spec, -1 if cpu else sum(one.index >= 0 for one in found)))
    return tuple(found)


def place(
    target: Target, kinds: Sequence[Kind], engine: Engine = "llama.cpp", aim: Aim = "latency", **how: Any
) -> LayerPlacement:
    """Place the layers of a model for an engine.

    Parameters
    ----------
    kinds : the fleet, in the order in which programs number its devices
    aim : 'latency' of one request, or 'throughput' of many
    how : batch, context, prompt and kv of the workload

    Raises
    ------
    NothingFitsError
        The devices have not the room, or the engine does not run on one of them.

    Notes
    -----
    A layer's seconds on a device are its share, by bytes read, of the whole workload's estimated seconds there. Layers
    are placed by `hetero.plan.sizing.layer_assignment.best_split`.
    """
    if engine not in ENGINES:
        hint = did_you_mean(engine, ENGINES).removeprefix("; ")
        raise BadValueError(f"no settings are known for {engine!r}", remedy=hint or f"allowed: {', '.join(ENGINES)}")
    weights = target.weights or ("Q4_K_M" if engine == "llama.cpp" else "bf16")
    work = WorkloadSpec(target.model, weights=weights, framework=_WORKS_AS[engine], **how)
    devices = _devices(kinds)
    if engine == "vllm":
        devices = tuple(device for device in devices if device.index >= 0)
    for device in devices:
        _refuse_strange(engine, device.spec)
    cards = sorted({device.spec.kind for device in devices if device.index >= 0})
    if len(cards) > 1 and engine != "llama.cpp":
        raise NothingFitsError(f"one {engine} runs on {' or on '.join(cards)}, not on both", remedy="use llama.cpp")
    if not devices:
        raise NothingFitsError("vLLM is planned for accelerators, and the fleet has none", remedy="use llama.cpp")
    layers = target.layers(work)
    hosts = tuple(_host(work, device, layers) for device in devices)
    hop_s = _HOP_S * (work.answer_tokens + 1)
    split = best_split(layers, hosts, hop_s, aim)
    return LayerPlacement(
        engine, target, work, aim, devices, hosts, layers, split,
        _by_memory(layers, hosts, hop_s, aim), tuple(_left_out(layers, hosts, devices, split, hop_s, aim)),
        _together(work, kinds, devices) if engine == "vllm" else None,
    )  # fmt: skip


def _refuse_strange(engine: Engine, spec: DeviceSpec) -> None:
    """Refuse a device that the engine's settings are not for.

    Raises
    ------
    NothingFitsError
        The engine does not run there, or is not known to.
    """
    kinds = ", ".join(_KINDS[engine])
    if spec.kind not in _KINDS[engine]:
        raise NothingFitsError(
            f"{engine} does not run on {spec.name} ({spec.kind}) by these settings",
            remedy=f"leave it out of the fleet; settings of {engine} are for {kinds}",
        )
    why = _unknown_to_vllm(spec) if engine == "vllm" else ""
    if why:
        raise NothingFitsError(
            f"vllm is not known to run on {spec.name}: {why}", remedy="leave it out of the fleet, or use llama.cpp"
        )


def _unknown_to_vllm(spec: DeviceSpec) -> str:
    """Return why vLLM is not known to run on a device, '' where it is."""
    if spec.kind == "rocm":
        known = spec.name.startswith(_VLLM_ROCM)
        return "" if known else "of AMD's it names MI200, MI300, MI350, and the RX 7900 and 9000 series"
    if spec.compute_capability is None:
        return "its compute capability is not known, and 7.0 is the least"
    has = tuple(int(part) for part in spec.compute_capability.split("."))
    return (
        f"its compute capability is {spec.compute_capability}, and 7.0 is the least" if has < _VLLM_CAPABILITY else ""
    )


def _together(
    work: WorkloadSpec, kinds: Sequence[Kind], devices: Sequence[NumberedDevice]
) -> tuple[tuple[NumberedDevice, ...], float] | None:
    """Return the equal devices that answer soonest if they share every matrix, among numbers that divide the heads."""
    best: Together | None = None
    for kind in kinds:
        equal = [device for device in devices if device.spec == kind.spec]
        for count in range(2, len(equal) + 1):
            if work.model.heads % count:
                continue
            spec, _ = group_of(kind, count)
            found = estimate(work, spec, count, Sharding(tensor=count))
            if found.memory.answer == "fits" and (best is None or found.latency_s.value < best[1]):
                best = tuple(equal[:count]), found.latency_s.value
    return best


def _host(work: WorkloadSpec, device: NumberedDevice, layers: Layers) -> LayerHost:
    room = room_of(device.spec)
    need = footprint(work, shared=room.shared)
    whole_s = estimate(work, device.spec).latency_s.value
    each = whole_s / (layers.count + layers.last_frac)
    return LayerHost(device.name, float(room.usable_bytes), each, float(need.reserve + need.buffers))


def _by_memory(
    layers: Layers, hosts: Sequence[LayerHost], hop_s: float, aim: Aim
) -> tuple[tuple[int, ...], float] | None:
    """Return what a split by memory alone would take, over accelerators where there are some."""
    counts = memory_split(layers, hosts)
    last = max(at for at, count in enumerate(counts) if count)
    ends = [layers.first_bytes if at == 0 else 0.0 for at in range(len(hosts))]
    ends[last] += layers.last_bytes
    for host, count, end in zip(hosts, counts, ends, strict=True):
        if count and count * layers.layer_bytes + end + host.fixed_bytes > host.room_bytes:
            return None
    return counts, split_seconds(layers, hosts, counts, last, hop_s, aim)


def _left_out(
    layers: Layers,
    hosts: Sequence[LayerHost],
    devices: Sequence[NumberedDevice],
    split: LayerSplit,
    hop_s: float,
    aim: Aim,
) -> list[tuple[NumberedDevice, float | None]]:
    """Return the devices without layers, with the seconds that taking each in would make."""
    found: list[tuple[NumberedDevice, float | None]] = []
    for device, host, count in zip(devices, hosts, split.counts, strict=True):
        if not count:
            try:
                found.append((device, best_split(layers, hosts, hop_s, aim, must=host.name).seconds))
            except NothingFitsError:
                found.append((device, None))
    return found
