"""Settings of engines in their own words: command lines, environment, Python, and how to verify them.

In: placed layers. Out: lines of text. It must not choose anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from hetero.advise.llm import LayerPlacement, NumberedDevice
from hetero.floor.units import format_bytes, format_seconds

__all__ = ["explain", "settings"]

_FORMULA = {
    "latency": "Σ layers × s/layer + hops: one request passes the devices in turn",
    "throughput": "max of layers × s/layer: many requests, the slowest device decides",
}


def settings(placed: LayerPlacement) -> dict[str, Any]:
    """Return the settings of an engine: 'environment', 'run', 'verify', and for accelerate 'device_map'."""
    if placed.engine == "llama.cpp":
        return _llama(placed)
    return _vllm(placed) if placed.engine == "vllm" else _accelerate(placed)


def _llama(placed: LayerPlacement) -> dict[str, Any]:
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


def _vllm(placed: LayerPlacement) -> dict[str, Any]:
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


def _accelerate(placed: LayerPlacement) -> dict[str, Any]:
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


def explain(placed: LayerPlacement) -> str:
    """Return settings, inputs, formula and what is left out, in lines."""
    made = settings(placed)
    work, source = placed.work, "headers of the weight files" if placed.target.files else "the architecture"
    lines = [
        f"{placed.engine}: {placed.target.model.name} in {work.weights}, {placed.layers.count} layers of"
        f" {format_bytes(placed.layers.layer_bytes)} with their cache (from {source})",
        *made["run"].splitlines(),
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
