"""How to start a language model on unequal devices: layers a device for llama.cpp, vLLM and accelerate.

In: a model by name or weight files, and a fleet. Out: settings with their inputs, formula and a command to verify them.
It must not start anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

from hetero.advise.estimate import estimate
from hetero.advise.fit import read_model, room_of
from hetero.advise.fleet import Kind, group_of
from hetero.advise.weight_files import WeightFiles, is_weights, read_weights
from hetero.catalog.values import DeviceSpec
from hetero.floor.errors import BadValueError, NothingFitsError, did_you_mean
from hetero.floor.units import format_bytes, format_seconds
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

__all__ = ["ENGINES", "LayerPlacement", "NumberedDevice", "Target", "place_layers", "read_target"]

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
    named
        As the user wrote it.
    model
        Its architecture.
    files
        What the headers of its weight files tell, None where there are none.
    weights
        Number format.
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
    weights
        Number format; default: that of the files, else Q4_K_M for llama.cpp and bf16 for others.

    Raises
    ------
    BadValueError
        There is no such model, or its files tell no architecture.

    Examples
    --------
    >>> import hetero
    >>> hetero.plan.read_target("Llama-3.1-8B").model.layers
    32
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
    spec
        What is known of it.
    index
        Among the accelerators, in the order of the fleet; -1 for a processor.
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
    engine, target, work, aim
        What was asked.
    devices, hosts
        The fleet; rooms and seconds of a layer.
    layers
        What was placed.
    split
        Layers a device.
    by_memory
        Layers in proportion to memory, and its seconds; None where that does not fit.
    without
        For each device left out, the seconds with it in, None where it cannot hold a layer.
    together
        Equal devices that share every matrix, and their seconds, where an engine can do that; else None.
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

    def settings(self) -> dict[str, object]:
        """Return the settings of the engine: 'environment', 'run', 'verify', and for accelerate 'device_map'."""
        return _settings(self)

    def explain(self) -> str:
        """Return in words why the layers lie as they do."""
        return _explain(self)

    def as_dict(self) -> dict[str, object]:
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


def place_layers(
    target: Target,
    kinds: Sequence[Kind],
    engine: Engine = "llama.cpp",
    aim: Aim = "latency",
    *,
    batch: int = 1,
    context: int = 2048,
    prompt: int = 0,
    kv: str = "fp16",
) -> LayerPlacement:
    """Place the layers of a model for an engine.

    Parameters
    ----------
    kinds
        The fleet, in the order in which programs number its devices.
    aim
        'latency' of one request, or 'throughput' of many.
    batch, context, prompt, kv
        Of the workload, as of `hetero.plan.Workload`.

    Raises
    ------
    NothingFitsError
        The devices have not the room, or the engine does not run on one of them.

    Notes
    -----
    A layer's seconds on a device are its share, by bytes read, of the whole workload's estimated seconds there. Layers
    are placed by `hetero.plan.sizing.layer_assignment.best_split`.

    Examples
    --------
    >>> import hetero
    >>> fleet = hetero.plan.read_fleet("2xRTX-4090")
    >>> placed = hetero.plan.place_layers(hetero.plan.read_target("Llama-3.1-8B"), fleet, "llama.cpp", prompt=512)
    >>> sum(count for _, count in placed.used)
    32
    """
    if engine not in ENGINES:
        hint = did_you_mean(engine, ENGINES).removeprefix("; ")
        raise BadValueError(f"no settings are known for {engine!r}", remedy=hint or f"allowed: {', '.join(ENGINES)}")
    weights = target.weights or ("Q4_K_M" if engine == "llama.cpp" else "bf16")
    work = WorkloadSpec(
        target.model,
        weights=weights,
        framework=_WORKS_AS[engine],
        batch=batch,
        context=context,
        prompt=prompt,
        kv=kv,
    )
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


# --- settings of engines in their own words ---------------------------------------------------------------------------

_FORMULA = {
    "latency": "Σ layers × s/layer + hops: one request passes the devices in turn",
    "throughput": "max of layers × s/layer: many requests, the slowest device decides",
}


def _settings(placed: LayerPlacement) -> dict[str, object]:
    """Return the settings of an engine: 'environment', 'run', 'verify', and for accelerate 'device_map'."""
    if placed.engine == "llama.cpp":
        return _llama(placed)
    return _vllm(placed) if placed.engine == "vllm" else _accelerate(placed)


def _llama(placed: LayerPlacement) -> dict[str, object]:
    """Return llama.cpp's: layers on accelerators count with the output head, which goes with the last."""
    cards = [(device, count) for device, count in placed.used if device.index >= 0]
    offloaded = sum(count for _, count in cards)
    whole = bool(cards) and cards[-1][0] == placed.devices[placed.split.last]
    on_cards = offloaded + whole
    parts = [count + (whole and at == len(cards) - 1) for at, (_, count) in enumerate(cards)]
    model = placed.target.named if placed.target.files else f"{placed.target.model.name}-{placed.work.weights}.gguf"
    work, environment = placed.work, _numbered_by_bus(device for device, _ in cards)
    words = ["--model", model, "--n-gpu-layers", str(on_cards)]
    if names := _llama_names(placed, [device for device, _ in cards]):
        words += ["--device", ",".join(names), "--split-mode", "layer"]
    if len(cards) > 1:
        words += ["--tensor-split", ",".join(map(str, parts))]
    # llama.cpp cuts the context that it is told into equal parts, one a slot.
    words += ["--ctx-size", str(work.context * work.batch)]
    prefix = [f"{key}={value}" for key, value in environment.items()]
    lengths = ["-npp", str(work.prompt_tokens), "-ntg", str(work.answer_tokens), "-npl", str(work.batch)]
    return {
        "environment": environment,
        "run": " ".join([*prefix, "llama-server", *words, "--parallel", str(work.batch)]),
        "verify": " ".join([*prefix, "llama-batched-bench", *words, *lengths]),
    }


_LLAMA_WORDS = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "SYCL"}
"""How llama.cpp's back ends begin the names of their devices; each numbers its own."""


def _llama_names(placed: LayerPlacement, cards: Sequence[NumberedDevice]) -> list[str]:
    """Return llama.cpp's names of devices, none where there is only the one that it takes by itself."""
    names = []
    for card in cards:
        kind = card.spec.kind
        if kind in _LLAMA_WORDS:
            alike = [device.index for device in placed.devices if device.index >= 0 and device.spec.kind == kind]
            names.append(f"{_LLAMA_WORDS[kind]}{alike.index(card.index)}")
    return names


def _numbered_by_bus(devices: Iterable[NumberedDevice]) -> dict[str, str]:
    """Return what makes CUDA number devices as `nvidia-smi` does: by itself it puts the fastest first."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if any(device.spec.kind == "cuda" for device in devices) else {}


def _vllm(placed: LayerPlacement) -> dict[str, object]:
    """Return vLLM's: it cuts layers evenly unless its environment says how, and takes the same share of each memory."""
    shared = [device.index for device in placed.shared]
    counts = [] if shared else [count for _, count in placed.used]
    order = ",".join(map(str, shared or [device.index for device, _ in placed.used]))
    environment = {**_numbered_by_bus(placed.devices), "CUDA_VISIBLE_DEVICES": order}
    if len(counts) > 1:
        environment["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, counts))
    prefix = " ".join(f"{key}={value}" for key, value in environment.items())
    parallel = f" --tensor-parallel-size {max(1, len(shared))} --pipeline-parallel-size {max(1, len(counts))}"
    named, work = placed.target.named, placed.work
    lengths = f"--input-len {work.prompt_tokens} --output-len {work.answer_tokens} --batch-size {work.batch}"
    return {
        "environment": environment,
        "run": f"{prefix} vllm serve {named}{parallel} --max-model-len {work.context}",
        "verify": f"{prefix} vllm bench latency --model {named}{parallel} {lengths}",
    }


def _accelerate(placed: LayerPlacement) -> dict[str, object]:
    """Return accelerate's: a device for every module, and the most memory of each device."""
    places = [_place(device.index) for device, _ in placed.used]
    ends = list(accumulate((count for _, count in placed.used), initial=0))
    files = placed.target.files
    prefix = files.prefix if files else "model.layers."
    model = prefix.rpartition("layers.")[0]
    first = _place(placed.devices[placed.split.first].index)
    names = [name.rpartition(".")[0] for name in files.names] if files else [f"{model}embed_tokens", f"{model}norm"]
    table: dict[str, int | str] = {name: first if "embed" in name or "wte" in name else places[-1] for name in names}
    table.setdefault("lm_head", first if placed.target.model.tied else places[-1])
    for place, (begin, end) in zip(places, pairwise(ends), strict=True):
        table |= {f"{prefix}{layer}": place for layer in range(begin, end)}
    rooms = zip(placed.devices, placed.hosts, strict=True)
    most = {_place(device.index): f"{int(host.room_bytes - host.fixed_bytes) // 2**20}MiB" for device, host in rooms}
    parts = [f'"{name}": {place!r}' for name, place in table.items() if not name.startswith(prefix)]
    parts += [
        f'**{{f"{prefix}{{n}}": {place!r} for n in range({begin}, {end})}}'
        for place, (begin, end) in zip(places, pairwise(ends), strict=True)
    ]
    environment = _numbered_by_bus(device for device, _ in placed.used)
    code = [
        *(["from os import environ", f"environ |= {environment}  # before torch is imported"] if environment else []),
        "import torch",
        "from transformers import AutoModelForCausalLM",
        f"device_map = {{{', '.join(parts)}}}",
        f'model = AutoModelForCausalLM.from_pretrained("{placed.target.named}", device_map=device_map, dtype="auto")',
        f"# or, cut by accelerate itself: device_map='sequential', max_memory={most}",
    ]
    where = 'getattr(model, "hf_device_map", model.device)'
    verify = f"print({where}, [torch.cuda.memory_allocated(n) for n in range(torch.cuda.device_count())])"
    return {
        "environment": environment,
        "device_map": table,
        "max_memory": most,
        "run": "\n".join(code),
        "verify": verify,
    }


def _place(index: int) -> int | str:
    return "cpu" if index < 0 else index


def _explain(placed: LayerPlacement) -> str:
    """Return settings, inputs, formula and what is left out, in lines."""
    made = _settings(placed)
    work, source = placed.work, "headers of the weight files" if placed.target.files else "the architecture"
    lines = [
        f"{placed.engine}: {placed.target.model.name} in {work.weights}, {placed.layers.count} layers of"
        f" {format_bytes(placed.layers.layer_bytes)} with their cache (from {source})",
        *str(made["run"]).splitlines(),
    ]
    if placed.shared:
        names = ", ".join(device.name for device in placed.shared)
        lines.append(
            f"  every matrix shared by {names}: quicker than layers in turn ({format_seconds(placed.split.seconds)})"
        )
    for device, count in () if placed.shared else placed.used:
        host = placed.hosts[placed.devices.index(device)]
        each, free = format_seconds(host.layer_s), format_bytes(host.room_bytes - host.fixed_bytes)
        lines.append(f"  {count:3} layers on {host.name}: {each} a layer, room for {free}")
    for device, seconds in () if placed.shared else placed.without:
        why = "it holds not one layer" if seconds is None else f"with it {format_seconds(seconds)}"
        lines.append(f"    0 layers on {device.name}: left out, {why}")
    lines.append(f"expected {format_seconds(placed.seconds)} for {_asked(placed)}: {_formula(placed)}")
    if placed.by_memory is None:
        lines.append("a split by memory alone does not fit")
    else:
        lines.append(f"a split by memory alone: {format_seconds(placed.by_memory[1])}, {placed.by_memory[0]}")
    return "\n".join([*lines, f"verify: {made['verify']}"])


def _formula(placed: LayerPlacement) -> str:
    return "the estimate of tensor parallelism, messages included" if placed.shared else _FORMULA[placed.aim]


def _asked(placed: LayerPlacement) -> str:
    work = placed.work
    return f"{work.batch} × {work.prompt_tokens} tokens read and {work.answer_tokens} answered"
