"""Seconds of a model's passes over its devices, as amounts of ideal work: arithmetic, bytes read, launches, messages.

In: a workload, its sharding, a data sheet's rates. Out: amounts by term, which `efficiency` turns into seconds. It
must not know how fast any software is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hetero.model.architecture import ModelSpec
from hetero.model.quantisation import number_format
from hetero.model.workload import ENGINES, Sharding, WorkloadSpec
from hetero.plan.sizing.footprint import Room, footprint, weight_bytes

__all__ = [
    "FEW_TOKENS",
    "TERMS",
    "DeviceRates",
    "Vector",
    "answers_amounts",
    "in_turns",
    "multiplied",
    "pass_amounts",
    "place_of",
    "prompt_amounts",
    "run_amounts",
    "sequences_at_once",
    "step_amounts",
    "touched_frac",
]

Vector = npt.NDArray[np.float64]

TERMS = ("prompt", "arithmetic", "weights", "attention", "cache", "layer", "pass", "reduce", "link", "hop", "request")
"""What a pass is made of. In seconds at the data sheet's rates: 'prompt' arithmetic of many tokens at once,
'arithmetic' of a few, 'weights' and activations read, 'attention' arithmetic over kept tokens, 'cache' read, 'link'
bytes of all-reduces. As counts: 'layer' passed, 'pass', 'reduce' messages, 'hop' between stages, 'request'."""

FEW_TOKENS = 128
"""Up to so many tokens a pass multiplies as a decode step does, above as a prompt."""

_MULTIPLIED_AS_STORED = ("fp8", "int8", "nvfp4")
"""Packed formats that matrix units take as they are; others are unpacked for a long pass."""

_LOGIT_COPIES = 2
"""What a server keeps of the logits of each sequence: them and their sorted copy."""

_CACHE_FRAC = 0.9
"""Of the memory that is left, what a server gives to its cache: the usual default of servers."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What a device's data sheet promises.

    Attributes
    ----------
    flop_per_s
        Dense, in the precision that the engine multiplies in.
    bytes_per_s
        Of its memory.
    link_bytes_per_s
        To its neighbours, one direction.
    """

    flop_per_s: float
    bytes_per_s: float
    link_bytes_per_s: float


def touched_frac(model: ModelSpec, tokens: float) -> float:
    """Return the share of a mixture's experts that at least one of these tokens passes.

    Notes
    -----
    1 − (1 − k/E)^tokens, for E experts of which each token takes k as if by chance.

    Examples
    --------
    >>> mixture = ModelSpec("m", 32, 4096, 32, 8, 128, 0, 32000, experts=8, experts_per_token=2, expert_intermediate=9)
    >>> touched_frac(mixture, 1), round(touched_frac(mixture, 16), 2)
    (0.25, 0.99)
    """
    if not model.experts:
        return 1.0
    return float(1 - (1 - model.experts_per_token / model.experts) ** tokens)


def multiplied(model: ModelSpec) -> tuple[int, int]:
    """Return the weights a token is multiplied with in the layers, and for the logits; a long prompt has few logits.

    Examples
    --------
    >>> multiplied(ModelSpec("l", 32, 4096, 32, 32, 128, 11008, 32000))
    (6476271616, 131072000)
    """
    count = model.parameters()
    return count.active - count.head, 0 if model.kind == "encoder" else model.vocab * model.hidden


def _moved_bytes(work: WorkloadSpec, tokens: float, kept: float) -> float:
    """Return the bytes of activations that a pass writes and reads again, and of weights unpacked for a long one.

    A token and layer: the residual four times, queries, keys, values, attention's output, the MLP's inner values. A
    packed matrix that meets many tokens is unpacked to 16 bits first: 2 bytes a weight written, 2 read. Attention that
    keeps its scores writes and reads them, and their softmax.
    """
    model, form = work.model, number_format(work.weights)
    width = 4 * model.hidden + model.query_width + model.value_width + 2 * model.kv_heads * model.head_dim
    width += (3 if model.gated else 2) * model.mlp_width_per_token
    size = 4 if work.framework == "llama.cpp" else 2
    packed = form.bits < 16 and form.name not in _MULTIPLIED_AS_STORED and tokens > FEW_TOKENS
    unpacked = 4.0 * multiplied(model)[0] if packed else 0.0
    scores = 0.0 if work.flash else 2.0 * model.heads * kept
    return 2.0 * size * (width * tokens + scores) * model.layers + unpacked


def _weights_read(work: WorkloadSpec, tokens: float) -> float:
    """Return the bytes of the weights that a pass of so many tokens reads; of the input table only the tokens' rows."""
    model, form = work.model, number_format(work.weights)
    whole = weight_bytes(model, form, host_embedding=True, packs_head=ENGINES[work.framework].packs_head)
    each = (3 if model.gated else 2) * model.hidden * model.expert_intermediate
    routed = model.expert_layers * model.experts * each * form.bytes_per_weight
    return whole - routed * (1 - touched_frac(model, tokens))


def pass_amounts(
    work: WorkloadSpec, spread: Sharding, rates: DeviceRates, tokens: float, kept: float, read: float
) -> Vector:
    """Return the work of a pass of `tokens`, over `kept` pairs of a token and an earlier one, `read` bytes of cache."""
    model = work.model
    few = tokens <= FEW_TOKENS
    body, outputs = multiplied(model)
    flop = 2.0 * (body + (outputs if few else 0)) * tokens / rates.flop_per_s / spread.tensor
    pairs = 4.0 * kept * model.query_width * model.layers / rates.flop_per_s / spread.tensor
    found = dict.fromkeys(TERMS, 0.0)
    found["arithmetic" if few else "prompt"] = flop + (0.0 if few else pairs)
    found["attention"] = pairs if few else 0.0
    read_bytes = _weights_read(work, tokens) + _moved_bytes(work, tokens, kept)
    found["weights"] = read_bytes / rates.bytes_per_s / spread.tensor
    found["cache"] = read / rates.bytes_per_s / (1 if model.latent else min(spread.tensor, model.kv_heads))
    found["layer"], found["pass"] = float(model.layers), 1.0
    if spread.tensor > 1:
        size = 2.0 * model.layers * tokens * model.hidden * 2
        found["reduce"] = 2.0 * model.layers * np.log2(spread.tensor)
        found["link"] = 2 * (spread.tensor - 1) / spread.tensor * size / rates.link_bytes_per_s
    found["hop"] = spread.pipeline - 1.0
    return np.array([found[name] for name in TERMS])


def step_amounts(work: WorkloadSpec, spread: Sharding, rates: DeviceRates, batch: float, kept: float) -> Vector:
    """Return the amounts of one decode step: a token for each of `batch` sequences that have `kept` tokens each.

    Notes
    -----
    A step reads every weight once whatever the batch is, and the KV cache of every sequence: its time is that of
    bytes / bandwidth as long as the batch is small. Stages of a pipeline take turns, so they do not divide it.
    """
    values = work.model.kv_values(max(1, round(kept))) * number_format(work.kv).bytes_per_weight
    return pass_amounts(work, spread, rates, batch, batch * kept, batch * values)


def prompt_amounts(work: WorkloadSpec, spread: Sharding, rates: DeviceRates, batch: float) -> Vector:
    """Return the amounts of reading the prompts of `batch` sequences, in passes of as many tokens as the engine takes.

    Notes
    -----
    2 · active parameters · tokens + 2 · tokens² · query width · layers operations (causal). The passes follow one
    another through the stages of a pipeline: (passes + stages − 1) / (passes · stages) of the time of one device.
    """
    prompt = work.prompt_tokens
    tokens = batch * prompt
    chunk = min(work.chunk or ENGINES[work.framework].step_tokens or tokens, tokens)
    passes = max(1.0, tokens / chunk)
    values = work.model.kv_values(max(1, prompt // 2)) * number_format(work.kv).bytes_per_weight
    read = values * max(1.0, chunk / prompt) if chunk <= FEW_TOKENS else 0.0
    one = pass_amounts(work, spread, rates, chunk, chunk * prompt / 2, read)
    turns = (passes + spread.pipeline - 1) / spread.pipeline
    found = one * turns
    found[TERMS.index("request")] = 1.0
    return found


def answers_amounts(work: WorkloadSpec, spread: Sharding, rates: DeviceRates, batch: float) -> Vector:
    """Return the amounts of all decode steps of `batch` sequences in one batch; the prompt gives the first token."""
    steps = max(0, work.answer_tokens - 1)
    return steps * step_amounts(work, spread, rates, batch, work.prompt_tokens + work.answer_tokens / 2)


def sequences_at_once(work: WorkloadSpec, room: Room, spread: Sharding, steady: bool = False) -> int:
    """Return how many sequences' caches fit beside the weights, 0 where not even one does.

    Parameters
    ----------
    steady
        True for a server under full load: it keeps logits and their sorted copy for the most sequences that it takes,
        and a part of the memory free.

    Notes
    -----
    Each sequence is given the room of its whole length, so that none must be evicted.
    """
    engine = ENGINES[work.framework]
    one = footprint(replace(work, batch=1), spread, room.shared)
    free = room.usable_bytes - (one.total - one.kv_cache)
    if not one.kv_cache:
        return work.batch if free >= 0 else 0
    if not engine.most_sequences:
        return max(0, int(free / one.kv_cache))
    if steady:
        free -= _LOGIT_COPIES * engine.most_sequences * work.model.vocab * engine.logit_bytes
    return max(0, min(engine.most_sequences, int(_CACHE_FRAC * free / one.kv_cache)))


def in_turns(work: WorkloadSpec, most: int) -> tuple[int, float]:
    """Return in how many turns the sequences are answered where `most` fit at once, and how many a turn.

    Examples
    --------
    >>> in_turns(WorkloadSpec(ModelSpec("l", 32, 4096, 32, 32, 128, 11008, 32000), batch=64), 19)
    (4, 16.0)
    """
    turns = -(-work.batch // most) if most else 1
    return turns, work.batch / turns


def run_amounts(work: WorkloadSpec, spread: Sharding, rates: DeviceRates, most: int) -> Vector:
    """Return the amounts of reading and answering all sequences, in turns where not all fit at once."""
    turns, batch = in_turns(work, most)
    return turns * (prompt_amounts(work, spread, rates, batch) + answers_amounts(work, spread, rates, batch))


def place_of(work: WorkloadSpec, spread: Sharding) -> Vector:
    """Return where a whole run lies among others: sequences (or tokens a pass), tokens, devices, in powers of two."""
    return np.log2([work.chunk or work.batch, work.context, spread.devices]) * (0.5, 0.5, 1.0)
