"""Measures the devices of this host: a matrix product, copies, transfers, and a few tokens of a small model.

In: the devices. Out: what each was seen to do. It must not keep or judge anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hetero.advise.known_efficiency import MINI, Timed
from hetero.floor.clock import monotonic_s
from hetero.floor.extras import version_of
from hetero.model.architecture import ModelSpec
from hetero.model.device import HOST_NODE, Device

if TYPE_CHECKING:
    import torch

__all__ = ["Decoder", "MeasuredExchange", "measure_device", "measure_exchange", "targets"]

PROMPTS = (64, 256)
KEPT = (64, 256)
"""Lengths at which the small model is timed."""

_ROUNDS = 5
_FEW_S = 3.0
"""Rounds of a pass, and after how many seconds no further one begins."""

_LIBRARIES = ("torch", "numpy", "hetero-core")


def targets() -> list[Device]:
    """Return one device of each sort of this host that computes; simulated and throttled ones are left out."""
    from hetero.session.fleet import choose, survey

    found: dict[tuple[str, str], Device] = {}
    for device in choose(survey())[0]:
        if not device.simulated and device.throttle_frac == 1.0:
            found.setdefault((device.kind, device.name), device)
    return list(found.values())


def measure_device(device: Device) -> Timed:
    """Measure one device; about ten seconds on a processor, less on an accelerator."""
    from hetero.backends.registry import kind_of
    from hetero.session.fleet_speed import measure, topology

    fast = measure([device], refresh=True)[0]
    links = {
        link.src == HOST_NODE: link.bandwidth_bytes_per_s for link in topology([device]).links if link.kind != "assumed"
    }
    place = kind_of(device).torch_place(device.index)
    runs = place != "" and version_of("torch") != ""
    weights, prompt_s, step_s = _tokens(place) if runs else ("", {}, {})
    return Timed(
        device=device.name,
        flop_per_s=fast.flop_per_s or 0.0,
        bytes_per_s=fast.bytes_per_s or 0.0,
        in_bytes_per_s=links.get(True),
        out_bytes_per_s=links.get(False),
        weights=weights,
        prompt_s=prompt_s,
        step_s=step_s,
        versions={"driver": device.driver, **{name: found for name in _LIBRARIES if (found := version_of(name))}},
        day=datetime.now(UTC).date().isoformat(),
    )


def _tokens(place: str) -> tuple[str, dict[str, float], dict[str, float]]:
    """Time prompts and decode steps of the small model; return the format, seconds by tokens and by kept tokens."""
    import torch

    half = place != "cpu"
    model = Decoder(MINI, place, torch.float16 if half else torch.float32)
    wait = getattr(torch, torch.device(place).type).synchronize if half else (lambda: None)
    with torch.no_grad():
        prompts = {str(tokens): _best_s(model.prompt(tokens), wait) for tokens in PROMPTS}
        steps = {str(kept): _best_s(model.step(kept), wait) for kept in KEPT}
    return ("fp16" if half else "fp32"), prompts, steps


def _best_s(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the shortest of a few calls after one that warms up: what else runs on the host only makes them longer."""
    call()
    wait()
    best_s, begun_s = float("inf"), monotonic_s()
    for _ in range(_ROUNDS):
        start_s = monotonic_s()
        call()
        wait()
        end_s = monotonic_s()
        best_s = min(best_s, end_s - start_s)
        if end_s - begun_s > _FEW_S:
            break
    return best_s


@dataclass(frozen=True, slots=True)
class MeasuredExchange:
    """How long members on several devices took to add up arrays.

    Attributes
    ----------
    devices
        Their ids.
    seconds
        By bytes of the array.
    """

    devices: tuple[str, ...]
    seconds: dict[str, float]


EXCHANGED_BYTES = (4_000, 4_000_000)


def measure_exchange(devices: int) -> MeasuredExchange:
    """Time an all-reduce between workers on so many devices of this host."""
    import numpy as np

    from hetero.session.collectives import all_reduce
    from hetero.session.context import Context
    from hetero.session.tasks import task

    def timed(sizes: tuple[int, ...]) -> dict[str, float]:
        def one(values: object) -> Callable[[], object]:
            return lambda: all_reduce(values)

        arrays = {size: np.ones(size // 4, np.float32) for size in sizes}
        return {str(size): _best_s(one(values), lambda: None) for size, values in arrays.items()}

    with Context(devices=f"{devices}xcpu") as ctx:
        seconds = ctx.run(task(devices=devices)(timed), EXCHANGED_BYTES)
        return MeasuredExchange(tuple(device.id for device in ctx.devices), seconds)


class Decoder:
    """Random weights of a model on a device of torch.

    Parameters
    ----------
    spec
        Its shape; grouped-query attention, gated MLP, no mixture.
    place
        Of torch, as in 'cuda:1'.
    dtype
        Of the weights.
    """

    def __init__(self, spec: ModelSpec, place: str, dtype: object) -> None:
        import torch

        def matrix(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device=place, dtype=torch.float32).mul_(columns**-0.5).to(dtype)

        kv = spec.kv_heads * spec.head_dim
        self.spec = spec
        self.table = matrix(spec.vocab, spec.hidden)
        self.head = matrix(spec.vocab, spec.hidden)
        self.layers = [
            {
                "q": matrix(spec.query_width, spec.hidden),
                "k": matrix(kv, spec.hidden),
                "v": matrix(kv, spec.hidden),
                "o": matrix(spec.hidden, spec.query_width),
                "gate": matrix(spec.intermediate, spec.hidden),
                "up": matrix(spec.intermediate, spec.hidden),
                "down": matrix(spec.hidden, spec.intermediate),
            }
            for _ in range(spec.layers)
        ]

    def _heads(self, x: torch.Tensor, count: int) -> torch.Tensor:
        return x.view(x.shape[0], count, self.spec.head_dim).transpose(0, 1)

    def _pass(self, tokens: object, cache: list[tuple[torch.Tensor, torch.Tensor]] | None) -> torch.Tensor:
        """Compute the logits of the last token; with a cache, of one token after those that it holds."""
        import torch
        from torch.nn import functional

        spec = self.spec
        x = self.table[tokens]
        for index, layer in enumerate(self.layers):
            normed = functional.rms_norm(x, (spec.hidden,))
            q = self._heads(normed @ layer["q"].T, spec.heads)
            k = self._heads(normed @ layer["k"].T, spec.kv_heads)
            v = self._heads(normed @ layer["v"].T, spec.kv_heads)
            if cache is not None:
                k, v = torch.cat([cache[index][0], k], 1), torch.cat([cache[index][1], v], 1)
            share = spec.heads // spec.kv_heads
            k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
            x = x + seen.transpose(0, 1).reshape(x.shape[0], spec.query_width) @ layer["o"].T
            normed = functional.rms_norm(x, (spec.hidden,))
            x = x + (functional.silu(normed @ layer["gate"].T) * (normed @ layer["up"].T)) @ layer["down"].T
        return functional.rms_norm(x[-1:], (spec.hidden,)) @ self.head.T

    def prompt(self, tokens: int) -> Callable[[], object]:
        """Return the call that reads a prompt of so many tokens."""
        import torch

        given = torch.arange(tokens, device=self.table.device) % self.spec.vocab
        return lambda: self._pass(given, None)

    def step(self, kept: int) -> Callable[[], object]:
        """Return the call that answers one token after so many."""
        import torch

        shape = (self.spec.kv_heads, kept, self.spec.head_dim)
        cache = [(self.table.new_zeros(shape), self.table.new_zeros(shape)) for _ in self.layers]
        given = torch.zeros(1, dtype=torch.long, device=self.table.device)
        return lambda: self._pass(given, cache)
