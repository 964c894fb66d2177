"""Workloads: what a model is to do, and over how many devices, as values.

In: a model's architecture, a job, a precision, a batch, a context. Out: a checked frozen value. It must not compute
memory or time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from warnings import warn

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.units import shown
from hetero.model.architecture import ModelSpec
from hetero.model.quantisation import number_format

__all__ = ["ENGINES", "JOBS", "OPTIMIZERS", "Job", "Lora", "Optimizer", "ServingEngine", "Sharding", "WorkloadSpec"]

Job = Literal["inference", "finetune", "lora", "pretrain", "embedding"]

JOBS: tuple[Job, ...] = ("inference", "finetune", "lora", "pretrain", "embedding")
"""What a model may be asked to do: answer, learn all weights, learn adapters, learn from scratch, embed."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What an optimizer keeps.

    Attributes
    ----------
    name
        As users write it.
    moments
        Numbers a trainable weight beside the weight itself.
    moment_bytes
        Bytes each; 0 for those of the weights' own format.
    """

    name: str
    moments: int
    moment_bytes: float = 0.0


OPTIMIZERS = {
    row.name: row
    for row in (
        Optimizer("adamw", 2),
        Optimizer("adam", 2),
        Optimizer("adamw-fp32", 2, 4.0),
        Optimizer("adamw-8bit", 2, 1.0 + 4 / 256),
        Optimizer("lion", 1),
        Optimizer("sgd", 0),
        Optimizer("sgd-momentum", 1),
    )
}
"""Optimisers by name; 'adamw-8bit' keeps a 4-byte scale for 256 numbers."""


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """What the software that runs a model takes for itself.

    Attributes
    ----------
    name
        As users write it.
    reserve_bytes
        A device, for the driver's context and the libraries.
    host_embedding
        True where the input table stays in the host's memory.
    step_tokens
        Most tokens that one forward pass takes, 0 for the whole prompt.
    logits
        'last' token of each sequence, 'step' all tokens of the pass.
    logit_bytes
        Bytes a logit.
    packs_head
        True where packed formats convert the output head too.
    most_sequences
        That a server takes at once, 0 where there is no such limit.
    """

    name: str
    reserve_bytes: int
    host_embedding: bool = False
    step_tokens: int = 0
    logits: Literal["last", "step"] = "last"
    logit_bytes: int = 2
    packs_head: bool = False
    most_sequences: int = 0


CONTEXT_BYTES = 600_000_000
"""What a driver's context, the kernels of BLAS and their workspaces take of a device: declared, not measured here."""

ENGINES = {
    row.name: row
    for row in (
        ServingEngine("torch", CONTEXT_BYTES, logits="last", logit_bytes=4),
        ServingEngine("litgpt", CONTEXT_BYTES, logit_bytes=4, packs_head=True),
        ServingEngine("llama.cpp", CONTEXT_BYTES, host_embedding=True, step_tokens=512, logits="step", logit_bytes=4),
        ServingEngine("vllm", 2 * CONTEXT_BYTES, step_tokens=8192, logit_bytes=4, most_sequences=256),
        ServingEngine("tensorrt-llm", 2 * CONTEXT_BYTES, step_tokens=8192, logit_bytes=4, most_sequences=2048),
        ServingEngine("deepspeed", 2 * CONTEXT_BYTES, step_tokens=8192, logit_bytes=4),
    )
}
"""Engines by name."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters.

    Attributes
    ----------
    rank
        > 0.
    targets
        Of 'q', 'k', 'v', 'o', 'mlp', 'head'.
    dropout
        True where the adapters' inputs pass a dropout.
    """

    rank: int = 8
    targets: tuple[str, ...] = ("q", "v")
    dropout: bool = True

    def __post_init__(self) -> None:
        _at_least("rank", self.rank, 1)
        for target in self.targets:
            _one_of("LoRA target", target, ("q", "k", "v", "o", "mlp", "head"))


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a model is spread over devices.

    Attributes
    ----------
    tensor
        Devices that share each matrix.
    pipeline
        Devices that hold consecutive layers.
    data
        Replicas.
    zero
        0 none; 1 optimizer, 2 also gradients, 3 also weights are split over the replicas.
    mixed_units
        True where frozen and trainable weights share a unit of FSDP: gradients exist as if none was frozen.
    synced
        False where gradients are accumulated without synchronising: each replica keeps all of them.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    zero: int = 0
    mixed_units: bool = False
    synced: bool = True

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data"):
            _at_least(name, getattr(self, name), 1)
        _one_of("ZeRO stage", self.zero, (0, 1, 2, 3))

    @property
    def devices(self) -> int:
        """How many devices it takes."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """A model and what it is to do.

    Attributes
    ----------
    model
        Its architecture.
    job
        One of `JOBS`.
    weights
        Number format of the weights.
    kv
        Number format of the KV cache.
    batch
        Sequences at once on a replica; a micro-batch in training.
    context
        Tokens a sequence, prompt and answer together.
    prompt
        Tokens that are read at once, at most the context, 0 for all of it; speed is then that of half read, half
        answered.
    chunk
        Tokens of the prompts that are read in one pass, 0 for as many as the engine takes.
    framework
        What runs it, one of `ENGINES`.
    optimizer
        One of `OPTIMIZERS`.
    master_weights
        True for a copy of the weights in 32 bits.
    gradient_bytes
        Bytes a gradient, 0 for the weights' own format.
    checkpointing
        True where only the layers' inputs are kept and the rest is computed again.
    flash
        False where attention keeps its scores.
    lora
        Adapters of a 'lora' job.

    Examples
    --------
    >>> llama = ModelSpec("l", 32, 4096, 32, 8, 128, 14336, 128256)
    >>> WorkloadSpec(llama, job="chat")
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: 'chat' is no job; allowed: inference, finetune, lora, pretrain, embedding
    """

    model: ModelSpec
    job: Job = "inference"
    weights: str = "bf16"
    kv: str = "fp16"
    batch: int = 1
    context: int = 2048
    prompt: int = 0
    chunk: int = 0
    framework: str = "torch"
    optimizer: str = "adamw"
    master_weights: bool = False
    gradient_bytes: float = 0.0
    checkpointing: bool = False
    flash: bool = True
    lora: Lora = field(default_factory=Lora)

    def __post_init__(self) -> None:
        _one_of("job", self.job, JOBS)
        _one_of("framework", self.framework, tuple(ENGINES))
        _one_of("optimizer", self.optimizer, tuple(OPTIMIZERS))
        number_format(self.kv)
        _at_least("batch", self.batch, 1)
        _at_least("context", self.context, 1)
        _at_least("prompt", self.prompt, 0)
        _at_least("chunk", self.chunk, 0)
        if self.prompt > self.context:
            raise BadValueError(
                f"a prompt of {self.prompt:,} tokens is longer than a context of {self.context:,}",
                remedy="the context counts prompt and answer together: raise it (--context), or shorten the prompt",
            )
        form = number_format(self.weights)
        if self.job in ("finetune", "pretrain") and not form.trainable:
            raise BadValueError(
                f"weights in {form.name} cannot be trained", remedy="use bf16, or a 'lora' job on top of them"
            )

    @property
    def engine(self) -> str:
        """The framework, under the name of the last version."""
        warn("Workload.engine is now Workload.framework", DeprecationWarning, stacklevel=2)
        return self.framework

    @property
    def optimiser(self) -> str:
        """The optimizer, under the name of the last version."""
        warn("Workload.optimiser is now Workload.optimizer", DeprecationWarning, stacklevel=2)
        return self.optimizer

    @property
    def training(self) -> bool:
        """Return whether a backward pass is made."""
        return self.job in ("finetune", "pretrain", "lora")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a sequence that are read."""
        if self.training or self.job == "embedding":
            return self.context
        return self.prompt or (self.context + 1) // 2

    @property
    def answer_tokens(self) -> int:
        """Tokens of a sequence that are answered."""
        return self.context - self.prompt_tokens


_MOST = 10**12
"""Sequences or tokens at once; what is computed of more has no meaning."""


def _one_of(what: str, given: object, allowed: tuple[object, ...]) -> None:
    if given not in allowed:
        words = [str(word) for word in allowed]
        remedy = did_you_mean(given, words).removeprefix("; ") or f"allowed: {', '.join(words)}"
        raise BadValueError(f"{shown(given)} is no {what}", remedy=remedy)


def _at_least(what: str, given: int, least: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise BadValueError(f"{what} is {shown(given)}", remedy=f"it must be a whole number ≥ {least}")
    if given > _MOST:
        raise BadValueError(f"{what} is {shown(given)}", remedy=f"it must be at most {_MOST:,}")
