"""The activations that are computed are those that autograd keeps, on one block of a transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetero.model.architecture import ModelSpec
from hetero.model.workload import Job, WorkloadSpec
from hetero.plan.sizing.footprint import kept_per_token

torch = pytest.importorskip("torch")
TOKENS = 256
WIDTHS = {
    "every head": ModelSpec("every head", 1, 1024, 8, 8, 128, 2752, 32000),
    "grouped": ModelSpec("grouped", 1, 1024, 8, 2, 128, 3584, 32000),
    "layer norm": ModelSpec("layer norm", 1, 1024, 16, 16, 64, 4096, 32000, gated=False, norm_kind="layer"),
}


def _rms_norm(x: Any, weight: Any) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def _rotated(x: Any) -> Any:
    angles = torch.ones(x.shape[-2:], dtype=x.dtype)
    left, right = x.chunk(2, -1)
    return x * angles + torch.cat((-right, left), -1) * angles


def _block(model: ModelSpec, job: Job) -> tuple[Callable[[Any], Any], list[Any]]:
    """Return one block in bfloat16 and its weights: norm, fused QKV, rotation, fused attention, MLP."""
    functional = torch.nn.functional
    lora, parts = job == "lora", (model.query_width, *[model.kv_heads * model.head_dim] * 2)

    def weight(*shape: int, trained: bool = not lora) -> Any:
        return torch.randn(*shape, dtype=torch.bfloat16, requires_grad=trained)

    norms = [weight(model.hidden) for _ in range(2)]
    biases = [weight(model.hidden) for _ in range(2)]
    fused, output = weight(sum(parts), model.hidden), weight(model.hidden, model.query_width)
    inner = [weight(model.intermediate, model.hidden) for _ in range(2 if model.gated else 1)]
    outer = weight(model.hidden, model.intermediate)
    adapters = [weight(16, model.hidden, trained=True), weight(sum(parts), 16, trained=True)]

    def norm(x: Any, which: int) -> Any:
        if model.norm_kind == "rms":
            return _rms_norm(x, norms[which])
        return functional.layer_norm(x, (model.hidden,), norms[which], biases[which])

    def attention(x: Any) -> Any:
        y = functional.linear(x, fused)
        if lora:
            down = functional.linear(functional.dropout(x, 0.05), adapters[0])
            y = y + functional.linear(down, adapters[1]) * 2.0
        q, k, v = (part.view(1, TOKENS, -1, model.head_dim).transpose(1, 2) for part in y.split(parts, -1))
        mixed = functional.scaled_dot_product_attention(
            _rotated(q), _rotated(k), v, is_causal=True, enable_gqa=model.kv_heads != model.heads
        )
        return functional.linear(mixed.transpose(1, 2).reshape(1, TOKENS, -1), output)

    def mlp(x: Any) -> Any:
        if not model.gated:
            return functional.linear(functional.gelu(functional.linear(x, inner[0])), outer)
        gate, up = (functional.linear(x, one) for one in inner)
        return functional.linear(functional.silu(gate) * up, outer)

    def run(x: Any) -> Any:
        x = x + attention(norm(x, 0))
        return x + mlp(norm(x, 1))

    return run, [*norms, *biases, fused, output, *inner, outer, *adapters]


def _kept_bytes(run: Callable[[Any], Any], weights: list[Any], hidden: int) -> int:
    own = {one.untyped_storage().data_ptr() for one in weights}
    seen: dict[int, tuple[int, Any]] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    x = torch.randn(1, TOKENS, hidden, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(x)
    return sum(size for size, _ in seen.values())


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("job", ["lora", "finetune"])
def test_a_block_keeps_what_is_computed(name: str, job: Job) -> None:
    model = WIDTHS[name]
    run, weights = _block(model, job)
    kept = _kept_bytes(run, weights, model.hidden) / TOKENS
    computed = kept_per_token(WorkloadSpec(model, job=job))[0]
    assert -0.06 <= computed / kept - 1 <= 0.12
