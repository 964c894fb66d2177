"""Number formats: how many bits a weight takes, by the names that people use.

In: a name such as 'bf16', 'nf4-dq' or 'Q4_K_M'. Out: bits a weight. It must not guess: an unknown name is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero.floor.errors import BadValueError, did_you_mean

__all__ = ["FORMATS", "NumberFormat", "number_format"]


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How weights (or the KV cache) are stored.

    Attributes
    ----------
    name
        As users write it.
    bits
        Bits a weight, scales and zero points included; of a GGUF mixture the mean over a whole model.
    whole_model
        True where `bits` counts every tensor (GGUF), False where only linear layers are converted and embeddings and
        norms stay in 16 bits.
    keeps_head
        True where the output head stays in 16 bits too, unless the engine packs it.
    unpacked_copies
        Copies in 16 bits of the largest matrix that exist while it is multiplied.
    keeps_inputs
        True where a frozen layer keeps its input for the backward pass.
    trainable
        True where gradients of these weights exist.
    """

    name: str
    bits: float
    whole_model: bool = True
    keeps_head: bool = False
    unpacked_copies: int = 0
    keeps_inputs: bool = False
    trainable: bool = False

    @property
    def bytes_per_weight(self) -> float:
        """Bytes a weight."""
        return self.bits / 8


_PLAIN = {"fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16}

_GGUF = {
    "IQ1_S": 2.0042,
    "IQ1_M": 2.1460,
    "IQ2_XXS": 2.3824,
    "IQ2_XS": 2.5882,
    "IQ2_S": 2.7403,
    "IQ2_M": 2.9294,
    "IQ3_XXS": 3.2548,
    "IQ3_XS": 3.4977,
    "IQ3_S": 3.6606,
    "IQ3_M": 3.7628,
    "IQ4_XS": 4.4597,
    "IQ4_NL": 4.6818,
    "Q2_K_S": 2.9697,
    "Q2_K": 3.1593,
    "Q3_K_S": 3.6429,
    "Q3_K_L": 4.2979,
    "Q4_K_S": 4.6672,
    "Q4_K_M": 4.8944,
    "Q5_K_S": 5.5704,
    "Q5_K_M": 5.7036,
    "Q6_K": 6.5633,
    "Q8_0": 8.5008,
    "F16": 16.0005,
    "BF16": 16.0005,
    "F32": 32.0,
}
"""Measured by llama.cpp on Llama-3.1-8B: ggml-org/llama.cpp at 311c2c9f, tools/quantize/README.md."""

_BLOCKS = {"Q4_0": (32, 4, 16), "Q4_1": (32, 4, 32), "Q5_0": (32, 5, 16), "Q5_1": (32, 5, 32), "MXFP4": (32, 4, 8)}
"""Block formats: weights a block, bits a weight, bits of scales a block."""

_PACKED = (
    NumberFormat("fp8", 8.0, whole_model=False, keeps_head=True),
    NumberFormat("int8", 8.0, whole_model=False, keeps_head=True, unpacked_copies=0, keeps_inputs=True),
    NumberFormat("nf4", 4 + 32 / 64, whole_model=False, keeps_head=True, unpacked_copies=2, keeps_inputs=True),
    NumberFormat(
        "nf4-dq", 4 + 8 / 64 + 32 / 16384, whole_model=False, keeps_head=True, unpacked_copies=2, keeps_inputs=True
    ),
    NumberFormat("fp4", 4 + 32 / 64, whole_model=False, keeps_head=True, unpacked_copies=2, keeps_inputs=True),
    NumberFormat(
        "fp4-dq", 4 + 8 / 64 + 32 / 16384, whole_model=False, keeps_head=True, unpacked_copies=2, keeps_inputs=True
    ),
    NumberFormat("nvfp4", 4 + 8 / 16, whole_model=False, keeps_head=True),
    NumberFormat("gptq-int4", 4 + (16 + 4) / 128, whole_model=False, keeps_head=True),
    NumberFormat("awq-int4", 4 + (16 + 4) / 128, whole_model=False, keeps_head=True),
)

FORMATS: dict[str, NumberFormat] = {
    **{name: NumberFormat(name, bits, trainable=True) for name, bits in _PLAIN.items()},
    **{form.name: form for form in _PACKED},
    **{name: NumberFormat(name, bits) for name, bits in _GGUF.items()},
    **{name: NumberFormat(name, bits + scale / size) for name, (size, bits, scale) in _BLOCKS.items()},
}
"""Every format that is known, by name."""

_OTHER_NAMES = {
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "bf16-true": "bf16",
    "16-true": "fp16",
    "32-true": "fp32",
    "bnb-nf4": "nf4",
    "bnb.nf4": "nf4",
    "bnb.nf4-dq": "nf4-dq",
    "bnb.fp4": "fp4",
    "bnb.fp4-dq": "fp4-dq",
    "bnb.int8": "int8",
    "4bit": "nf4",
    "8bit": "int8",
    "int4": "gptq-int4",
    "awq": "awq-int4",
    "gptq": "gptq-int4",
    "q4_k": "Q4_K_M",
    "q5_k": "Q5_K_M",
}


def number_format(name: str) -> NumberFormat:
    """Return the format of that name; case does not matter.

    Parameters
    ----------
    name
        'bf16', 'nf4-dq', 'Q4_K_M', …; 'F16' and 'BF16' in capitals are GGUF's, 'fp16' and 'bf16' torch's.

    Raises
    ------
    BadValueError
        Nobody knows that name.

    Examples
    --------
    >>> number_format("q4_k_m").bits, number_format("bfloat16").name
    (4.8944, 'bf16')
    >>> number_format("Q4_K_X")
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: no number format is named 'Q4_K_X'; did you mean 'Q4_K_S'?
    """
    if name in FORMATS:
        return FORMATS[name]
    folded = name.casefold()
    known = {key.casefold(): key for key in reversed(FORMATS)} | {"bf16": "bf16"} | _OTHER_NAMES
    if folded in known:
        return FORMATS[known[folded]]
    hint = did_you_mean(name.upper(), FORMATS) or did_you_mean(name, FORMATS)
    remedy = hint.removeprefix("; ") if hint else f"known: {', '.join(FORMATS)}"
    raise BadValueError(f"no number format is named {name!r}", remedy=remedy)
