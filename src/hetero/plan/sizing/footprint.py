"""Memory that a workload takes of one device, by category, from first principles.

In: a workload, its sharding, and what a device has. Out: bytes and an answer. It must not look at a clock or a file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, fields
from math import ceil
from typing import Literal
from warnings import warn

from hetero.model.architecture import ModelSpec, Parameters
from hetero.model.quantisation import NumberFormat, number_format
from hetero.model.workload import ENGINES, OPTIMIZERS, Sharding, WorkloadSpec

__all__ = [
    "Answer",
    "Fit",
    "Footprint",
    "Room",
    "fit",
    "footprint",
    "fullest_stage",
    "kept_per_token",
    "loss_bytes",
    "pass_bytes",
    "weight_bytes",
]

Answer = Literal["fits", "tight", "does not fit"]

DOUBT_FRAC = 0.10
"""How far what is computed of activations, buffers and the reserve is trusted: declared, fitted on nothing."""

_LOGITS, _LOG_SOFTMAX, _ITS_GRADIENT, _LOGIT_GRADIENT = 2, 4, 4, 2


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes on the device that carries most.

    Attributes
    ----------
    weights
        As stored, adapters included.
    kv_cache
        Keys and values of every sequence.
    activations
        What a backward pass needs, or nothing.
    gradients, optimizer
        Of the trainable weights; master weights belong to the optimizer.
    buffers
        The largest that is needed for a moment: logits, one layer's work, unpacked or gathered weights.
    reserve
        What the driver and the libraries take.
    """

    weights: int = 0
    kv_cache: int = 0
    activations: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0
    reserve: int = 0

    @property
    def optimiser(self) -> int:
        """The optimizer, under the name of the last version."""
        warn("Footprint.optimiser is now Footprint.optimizer", DeprecationWarning, stacklevel=2)
        return self.optimizer

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.as_dict().values())

    @property
    def allocated(self) -> int:
        """What the program itself allocates: all but the reserve."""
        return self.total - self.reserve

    @property
    def cautious(self) -> int:
        """The total with what is doubtful of it made larger by `DOUBT_FRAC`."""
        return self.total + int(DOUBT_FRAC * (self.activations + self.buffers + self.reserve))

    def as_dict(self) -> dict[str, int]:
        """Return the categories by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True)
class Room:
    """What a device has for a program.

    Attributes
    ----------
    usable_bytes
        What programs may allocate.
    shared
        True where host and device use the same memory: nothing is saved by leaving a table on the host, and
        `usable_bytes` already leaves out what the system takes.
    """

    usable_bytes: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a workload fits.

    Attributes
    ----------
    answer
        'fits' also when what is doubtful is larger than computed; 'tight' only as computed.
    footprint
        On the device that carries most.
    usable_bytes
        Of each device.
    devices
        How many are used.
    """

    answer: Answer
    footprint: Footprint
    usable_bytes: int
    devices: int

    @property
    def spare_bytes(self) -> int:
        """What would be left, negative where it does not fit."""
        return self.usable_bytes - self.footprint.total


def weight_bytes(model: ModelSpec, form: NumberFormat, host_embedding: bool = False, packs_head: bool = False) -> int:
    """Return the bytes of a whole model's weights.

    Parameters
    ----------
    form
        Number format; where only linear layers are converted, the rest takes 2 bytes.
    host_embedding
        True to leave the input table out; where head and table are one it stays.
    packs_head
        True to convert the head too, where the format by itself leaves it alone.

    Examples
    --------
    >>> llama = ModelSpec("l", 32, 4096, 32, 8, 128, 14336, 128256)
    >>> weight_bytes(llama, number_format("bf16"))
    16060522496
    """
    count = model.parameters()
    keeps = form.keeps_head and not packs_head
    plain = count.embedding + count.other + (count.head if keeps else 0)
    packed = count.linear + (0 if keeps else count.head)
    size = packed * form.bytes_per_weight + plain * (form.bytes_per_weight if form.whole_model else 2)
    if host_embedding and count.head:
        size -= count.embedding * (form.bytes_per_weight if form.whole_model else 2)
    return ceil(size)


def _adapters(work: WorkloadSpec) -> int:
    model, lora = work.model, work.lora
    kv = model.kv_heads * model.head_dim
    shapes = {
        "q": (model.hidden, model.query_width),
        "k": (model.hidden, kv),
        "v": (model.hidden, kv),
        "o": (model.value_width, model.hidden),
        "mlp": (model.hidden * (3 if model.gated else 2), model.intermediate * (3 if model.gated else 2)),
        "head": (model.hidden, model.vocab),
    }
    each = sum(lora.rank * sum(shapes[name]) for name in lora.targets if name != "head")
    return model.layers * each + (lora.rank * sum(shapes["head"]) if "head" in lora.targets else 0)


def _trainable(work: WorkloadSpec, count: Parameters) -> int:
    if not work.training:
        return 0
    return _adapters(work) if work.job == "lora" else count.total


def fullest_stage(layers: int, layer_bytes: float, ends: tuple[float, float], stages: int) -> float:
    """Return the bytes of the fullest stage when whole layers are spread as evenly as they can be.

    Parameters
    ----------
    layers, layer_bytes
        How many layers, and what each weighs.
    ends
        What the first and the last stage carry beside layers.
    stages
        > 0; one stage carries everything.

    Examples
    --------
    >>> fullest_stage(80, 1.0, (0.0, 2.0), 6), fullest_stage(4, 1.0, (0.0, 0.5), 1)
    (14.0, 4.5)
    """
    if stages == 1 or layer_bytes <= 0:
        return layers * layer_bytes + sum(ends)
    extras = Counter((*ends, *(0.0 for _ in range(stages - 2))))
    least = max(max(extras), (sum(ends) + layers * layer_bytes) / stages * (1 - 1e-9))
    sizes = sorted({extra + count * layer_bytes for extra in extras for count in range(layers + 1)})
    for size in sizes[bisect_left(sizes, least) :]:
        if sum(many * int((size - extra) / layer_bytes + 1e-9) for extra, many in extras.items()) >= layers:
            return size
    raise AssertionError("the largest size holds every layer")


def _weights(work: WorkloadSpec, spread: Sharding, shared: bool) -> tuple[float, float]:
    """Return the bytes of the weights on one device, and of what is gathered for a moment beside them."""
    model, form = work.model, number_format(work.weights)
    count = model.parameters()
    engine = ENGINES[work.framework]
    host = engine.host_embedding and not shared
    whole = weight_bytes(model, form, host_embedding=host, packs_head=engine.packs_head)
    table = 0.0 if host and count.head else count.embedding * (form.bytes_per_weight if form.whole_model else 2)
    head = count.head * (2 if form.keeps_head and not engine.packs_head else form.bytes_per_weight)
    each = (whole - table - head) / model.layers
    here = fullest_stage(model.layers, each, (table, head), spread.pipeline) / spread.tensor
    unpacked = form.unpacked_copies * 2 * count.largest_matrix / spread.tensor
    if spread.zero < 3 or spread.data == 1:
        return here, unpacked
    block = count.linear * form.bytes_per_weight / max(1, model.layers) / spread.tensor
    root = (count.head or count.embedding) * 2 / spread.tensor
    return here / spread.data, unpacked + 2 * block + root


def _learning(work: WorkloadSpec, spread: Sharding) -> tuple[float, float, float]:
    """Return the bytes of adapters, gradients and optimizer on one device."""
    if not work.training:
        return 0.0, 0.0, 0.0
    count = work.model.parameters()
    own = 2.0 if work.job == "lora" else number_format(work.weights).bytes_per_weight
    trainable = _trainable(work, count) / spread.tensor / spread.pipeline
    with_gradient = trainable
    if work.job == "lora" and spread.mixed_units and spread.zero >= 2:
        with_gradient = count.total / spread.tensor / spread.pipeline
    replicas = spread.data
    kept = with_gradient / (replicas if spread.zero >= 2 and spread.synced else 1)
    rule = OPTIMIZERS[work.optimizer]
    state = rule.moments * (rule.moment_bytes or own) + (4.0 if work.master_weights else 0.0)
    adapters = trainable * own if work.job == "lora" else 0.0
    return (
        adapters / (replicas if spread.zero == 3 else 1),
        kept * (work.gradient_bytes or own),
        trainable * state / (replicas if spread.zero >= 1 else 1),
    )


def _kv(work: WorkloadSpec, spread: Sharding) -> float:
    if work.training or work.job == "embedding":
        return 0.0
    model = work.model
    values = work.batch * model.kv_values(work.context) * number_format(work.kv).bytes_per_weight
    heads = 1 if model.latent else max(1, min(spread.tensor, model.kv_heads))
    return values / heads * ceil(model.layers / spread.pipeline) / model.layers


def footprint(work: WorkloadSpec, spread: Sharding | None = None, shared: bool = False) -> Footprint:
    """Return the bytes that a workload takes of the device that carries most.

    Parameters
    ----------
    work
        The model and what it is to do.
    spread
        Over how many devices; default: one.
    shared
        True where host and device use the same memory.

    Notes
    -----
    weights + kv_cache + activations + gradients + optimizer + max(buffers) + reserve. Weights are counted from the
    architecture. Activations are the tensors that autograd keeps (see `fit_activations`). Under pipelining a stage
    keeps the activations of as many micro-batches as there are stages (one forward, one backward). Under ZeRO-3 the
    weights of two layers and of the root are gathered for a moment.

    References
    ----------
    Rajbhandari and others 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 3.
    Korthikanti and others 2022, "Reducing Activation Recomputation in Large Transformer Models", equation 2.
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1 (latent KV cache).

    Examples
    --------
    >>> llama = ModelSpec("l", 32, 4096, 32, 8, 128, 14336, 128256)
    >>> footprint(WorkloadSpec(llama, context=1024)).kv_cache
    134217728
    """
    spread = spread or Sharding()
    weights, unpacked = _weights(work, spread, shared)
    adapters, gradients, optimizer = _learning(work, spread)
    tokens = work.batch * work.context
    kept = moment = 0.0
    if work.training:
        layers = ceil(work.model.layers / spread.pipeline) * spread.pipeline
        per_token, again = kept_per_token(work)
        kept = tokens * per_token * layers / spread.tensor
        moment = tokens * (again + loss_bytes(work.model, spread.tensor))
    else:
        moment = pass_bytes(work, spread.tensor)
    engine = ENGINES[work.framework]
    return Footprint(
        weights=ceil(weights + adapters),
        kv_cache=ceil(_kv(work, spread)),
        activations=ceil(kept),
        gradients=ceil(gradients),
        optimizer=ceil(optimizer),
        buffers=ceil(moment + unpacked),
        reserve=0 if shared else engine.reserve_bytes,
    )


def fit(work: WorkloadSpec, room: Room, spread: Sharding | None = None) -> Fit:
    """Return whether a workload fits on devices that have this room each.

    Examples
    --------
    >>> llama = ModelSpec("l", 32, 4096, 32, 8, 128, 14336, 128256)
    >>> fit(WorkloadSpec(llama), Room(24 * 2**30)).answer, fit(WorkloadSpec(llama), Room(12 * 2**30)).answer
    ('fits', 'does not fit')
    """
    spread = spread or Sharding()
    need = footprint(work, spread, room.shared)
    answer: Answer = "fits" if need.cautious <= room.usable_bytes else "tight"
    if need.total > room.usable_bytes:
        answer = "does not fit"
    return Fit(answer, need, room.usable_bytes, spread.devices)


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


def _adapter_inputs(work: WorkloadSpec) -> int:
    """Return the bytes of the adapters' inputs: with dropout a 16-bit copy and a mask of one byte."""
    model = work.model
    each = 3 if work.lora.dropout else 2
    targets = set(work.lora.targets)
    width = model.hidden if targets & {"q", "k", "v"} else 0
    width += model.value_width if "o" in targets else 0
    width += model.hidden + model.mlp_width_per_token if "mlp" in targets else 0
    return each * width


def kept_per_token(work: WorkloadSpec) -> tuple[int, int]:
    """Return the bytes a token and layer that stay until the backward pass, and those of one layer computed again.

    Notes
    -----
    Activations are in 16 bits (32 where the weights are). A frozen matrix keeps no input: its gradient is not wanted,
    and that of its input needs the matrix alone; packed 4- and 8-bit layers keep it all the same. With checkpointing a
    layer keeps its input, and the rest exists for one layer at a time.

    Examples
    --------
    >>> llama = ModelSpec("l", 32, 4096, 32, 32, 128, 11008, 32000)
    >>> kept_per_token(WorkloadSpec(llama, job="lora"))
    (160256, 0)
    >>> kept_per_token(WorkloadSpec(llama, job="lora", checkpointing=True))
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


def pass_bytes(work: WorkloadSpec, tensor: int = 1) -> float:
    """Return the bytes of the buffers of one forward pass without a backward one.

    Notes
    -----
    One layer's widest moment (the MLP's inner values twice beside the residual and the normed input) for the tokens of
    the pass, or the logits, whichever is larger; logits follow the last layer.
    """
    model, engine = work.model, ENGINES[work.framework]
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
