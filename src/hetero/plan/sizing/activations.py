"""Activations: the tensors that a backward pass keeps, counted layer by layer, and the buffers of one pass.

In: an architecture and how it is trained. Out: bytes a token. It must not measure, and no factor here is fitted.
"""

from __future__ import annotations

from hetero.model.architecture import ModelSpec
from hetero.model.quantisation import number_format
from hetero.model.workload import ENGINES, Workload

__all__ = ["kept_per_token", "loss_bytes", "pass_bytes"]

_LOGITS, _LOG_SOFTMAX, _ITS_GRADIENT, _LOGIT_GRADIENT = 2, 4, 4, 2


def _norms(model: ModelSpec, trained: bool) -> int:
    """Return the bytes that the norms of a layer keep.

    An RMS norm computes in 32 bits and keeps that copy of its input; one that is trained also keeps the normed value.
    torch's layer norm keeps its 16-bit input alone.
    """
    each = (4 + (4 if trained else 0)) if model.norm_kind == "rms" else 2
    return model.norms * each * model.hidden


def _attention(model: ModelSpec, flash: bool, context: int) -> int:
    """Return the bytes that attention keeps: the fused projection (V is a view of it), rotated Q and K, the output."""
    kv = model.heads * model.value_dim if model.latent else model.kv_heads * model.head_dim
    key = model.query_width if model.latent else kv
    projected = model.query_width + key + kv
    kept = 2 * (projected + model.query_width + key + model.value_width)
    return kept + (0 if flash else 5 * model.heads * context)


def _mlp(model: ModelSpec) -> int:
    """Return the bytes that the MLP keeps: gate, its activation and the up-projection; or the activation's input."""
    return (6 if model.gated else 2) * model.mlp_width_per_token


def _inputs(model: ModelSpec) -> int:
    """Return the bytes of the inputs of a layer's matrices, where these are kept: QKV, output, MLP in and out."""
    return 2 * (model.hidden + model.value_width + model.hidden + model.mlp_width_per_token)


def _adapter_inputs(work: Workload) -> int:
    """Return the bytes of the adapters' inputs: with dropout a 16-bit copy and a mask of one byte."""
    model = work.model
    each = 3 if work.lora.dropout else 2
    targets = set(work.lora.targets)
    width = model.hidden if targets & {"q", "k", "v"} else 0
    width += model.value_width if "o" in targets else 0
    width += model.hidden + model.mlp_width_per_token if "mlp" in targets else 0
    return each * width


def kept_per_token(work: Workload) -> tuple[int, int]:
    """Return the bytes a token and layer that stay until the backward pass, and those of one layer computed again.

    Notes
    -----
    Activations are in 16 bits (32 where the weights are). A frozen matrix keeps no input: its gradient is not wanted,
    and that of its input needs the matrix alone; packed 4- and 8-bit layers keep it all the same. With checkpointing a
    layer keeps its input, and the rest exists for one layer at a time.

    Examples
    --------
    >>> llama = ModelSpec("l", 32, 4096, 32, 32, 128, 11008, 32000)
    >>> kept_per_token(Workload(llama, job="lora"))
    (160256, 0)
    >>> kept_per_token(Workload(llama, job="lora", checkpointing=True))
    (8192, 160256)
    """
    model = work.model
    form = number_format(work.weights)
    adapters = work.job == "lora"
    kept = _norms(model, trained=not adapters) + _attention(model, work.flash, work.context) + _mlp(model)
    kept += _adapter_inputs(work) if adapters else 0
    kept += _inputs(model) if not adapters or form.keeps_inputs else 0
    scale = 2 if form.name in ("fp32", "tf32") else 1
    return (2 * scale * model.hidden, scale * kept) if work.checkpointing else (scale * kept, 0)


def loss_bytes(model: ModelSpec, tensor: int = 1) -> float:
    """Return the loss's bytes a token: logits in 16 bits, log-softmax and its gradient in 32, the logits' gradient.

    Examples
    --------
    >>> loss_bytes(ModelSpec("l", 32, 4096, 32, 32, 128, 11008, 32000))
    384000.0
    """
    if model.kind == "encoder":
        return 0.0
    return (_LOGITS + _LOG_SOFTMAX + _ITS_GRADIENT + _LOGIT_GRADIENT) * model.vocab / tensor


def pass_bytes(work: Workload, tensor: int = 1) -> float:
    """Return the bytes of the buffers of one forward pass without a backward one.

    Notes
    -----
    One layer's widest moment (the MLP's inner values twice beside the residual and the normed input) for the tokens of
    the pass, or the logits, whichever is larger; logits follow the last layer.
    """
    model, engine = work.model, ENGINES[work.engine]
    prompt = min(work.prompt or work.context, work.context)
    tokens = work.batch * prompt
    if engine.step_tokens:
        tokens = min(tokens, engine.step_tokens)
    size = 4 if engine.name == "llama.cpp" else 2
    inner = (2 if model.gated else 1) * model.mlp_width_per_token
    layer = tokens * size * (max(inner, 2 * model.query_width) / tensor + 2 * model.hidden)
    if not work.flash:
        layer += tokens * size * model.heads * prompt / tensor
    if work.job == "embedding" or model.kind == "encoder":
        return layer
    asked = tokens if engine.logits == "step" else work.batch
    return max(layer, asked * engine.logit_bytes * model.vocab / tensor)
