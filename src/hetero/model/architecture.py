"""Architecture of a language model, as a value: its layers, and what they weigh.

In: layers, widths, heads, experts, or what Hugging Face's `config.json` says of them. Out: parameters by place and
values of the KV cache. It must not read files, nor guess a fact that memory rests on: absent means an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from hetero.floor.errors import BadValueError
from hetero.floor.units import shown

__all__ = ["ModelSpec", "Parameters"]


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many parameters lie where.

    Attributes
    ----------
    embedding
        Input and position tables.
    head
        The output matrix, 0 where it is the embedding's.
    linear
        Matrices of the layers, every expert counted.
    other
        Norms and biases.
    largest_matrix
        Of the linear layers and the head.
    active
        That one token passes through.
    """

    embedding: int
    head: int
    linear: int
    other: int
    largest_matrix: int
    active: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.head + self.linear + self.other


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of an architecture from which memory follows.

    Attributes
    ----------
    name
        As users know it.
    kind
        'decoder', 'encoder' or 'encoder-decoder'.
    layers, hidden, heads, kv_heads, head_dim, intermediate, vocab
        Widths and counts.
    gated
        True for a gate beside the up-projection (SwiGLU, GeGLU).
    norms
        Norms of the hidden width a layer.
    norm_kind
        'rms' or 'layer'.
    qk_norm
        '' or 'head' (over one head's width) or 'full' (over all heads).
    attention_bias
        Biases on 'qkv', on 'all' four, or '' none; `mlp_bias` likewise for the other matrices.
    tied
        True where the head is the embedding.
    positions
        Rows of a learned position table, 0 for rotary ones.
    experts, experts_per_token, expert_intermediate, shared_experts
        Of a mixture, else 0.
    dense_layers
        Layers without experts in a mixture.
    expert_bias
        True where experts and router have biases.
    window
        Tokens that a sliding-window layer sees, 0 without.
    windowed_layers
        Layers with the window.
    q_rank, kv_rank, rope_dim, nope_dim, value_dim
        Of multi-head latent attention, else 0.
    encoder_layers
        Layers of the encoder in an encoder-decoder.
    encoder_positions, mel_bins
        Rows of the encoder's own positions, bins of its audio input.
    context
        The longest context that it was made for, 0 where unknown.
    published
        Published number of parameters, 0 where no source was opened.
    source, published_source
        Ids of sources.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    kind: Literal["decoder", "encoder", "encoder-decoder"] = "decoder"
    gated: bool = True
    norms: int = 2
    norm_kind: Literal["rms", "layer"] = "rms"
    qk_norm: Literal["", "head", "full"] = ""
    attention_bias: Literal["", "qkv", "all"] = ""
    mlp_bias: bool = False
    tied: bool = False
    positions: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    expert_bias: bool = False
    window: int = 0
    windowed_layers: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    value_dim: int = 0
    encoder_layers: int = 0
    encoder_positions: int = 0
    mel_bins: int = 0
    context: int = 0
    published: int = 0
    source: str = ""
    published_source: str = ""

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "kv_heads", "vocab"):
            if getattr(self, field) < 1:
                raise BadValueError(f"{self.name}: {field} is {getattr(self, field)}", remedy="it must be above 0")

    @classmethod
    def from_config(cls, document: Mapping[str, object], name: str = "", where: str = "config.json") -> ModelSpec:
        """Read the `config.json` of a Hugging Face model.

        Parameters
        ----------
        document
            The parsed file.
        name
            What to call the model; default: what the file says.
        where
            How messages name the file.

        Raises
        ------
        BadValueError
            A fact is absent or has a wrong type; the message names the key and the remedy.

        Examples
        --------
        >>> config = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "vocab_size": 10}
        >>> ModelSpec.from_config(config)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        hetero.floor.errors.BadValueError: config.json has no 'num_attention_heads' (or n_head, ...
        """
        return _of_config(document, name=name, where=where)

    @property
    def latent(self) -> bool:
        """Return whether attention is multi-head latent attention."""
        return self.kv_rank > 0

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * (self.nope_dim + self.rope_dim if self.latent else self.head_dim)

    @property
    def value_width(self) -> int:
        """Width of what attention hands to its output projection."""
        return self.heads * (self.value_dim if self.latent else self.head_dim)

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def mlp_width_per_token(self) -> int:
        """Inner width of the MLP that one token passes, summed over its experts, in the widest kind of layer."""
        mixture = (self.experts_per_token + self.shared_experts) * self.expert_intermediate
        return max(mixture, self.intermediate) if self.expert_layers < self.layers else mixture

    def attention_linear(self) -> int:
        """Count the weights of one layer's attention matrices.

        Notes
        -----
        Grouped-query: hidden·(q + 2·kv) + q·hidden. Latent (DeepSeek-V2, 2024, section 2.1): down- and
        up-projections of queries and of keys with values, and the output.
        """
        if not self.latent:
            kv = self.kv_heads * self.head_dim
            return self.hidden * (self.query_width + 2 * kv) + self.value_width * self.hidden
        down = self.hidden * (self.kv_rank + self.rope_dim)
        up = self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        query = self.hidden * self.query_width
        if self.q_rank:
            query = self.q_rank * (self.hidden + self.query_width)
        return query + down + up + self.value_width * self.hidden

    def _mlp_linear(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden * width

    def parameters(self) -> Parameters:
        """Count the parameters.

        Examples
        --------
        >>> llama = ModelSpec("l", 32, 4096, 32, 32, 128, 11008, 32000)
        >>> llama.parameters().total
        6738415616
        """
        return _counted(self)

    def _count(self) -> Parameters:
        attention = self.attention_linear()
        expert = self._mlp_linear(self.expert_intermediate)
        experts = (self.experts + self.shared_experts) * expert + self.hidden * self.experts
        mixed, dense = self.expert_layers, self.layers - self.expert_layers
        linear = self.layers * attention + mixed * experts + dense * self._mlp_linear(self.intermediate)
        idle = mixed * (self.experts - self.experts_per_token) * expert
        encoder = self._encoder_linear()
        head = 0 if self.tied else self.vocab * self.hidden
        embedding = (self.vocab + self.positions + self.encoder_positions) * self.hidden
        other = self._other()
        widest = max(self.intermediate if dense else 0, self.expert_intermediate, self.query_width)
        return Parameters(
            embedding=embedding,
            head=head,
            linear=linear + encoder,
            other=other,
            largest_matrix=max(self.hidden * widest, head),
            active=linear - idle + encoder + head + other,
        )

    def _encoder_linear(self) -> int:
        if not self.encoder_layers:
            pooler = self.hidden * (self.hidden + 1)
            return pooler if self.kind == "encoder" and self.positions else 0
        block = self.attention_linear() + self._mlp_linear(self.intermediate)
        convolutions = 3 * self.hidden * (self.mel_bins + self.hidden) if self.mel_bins else 0
        return self.encoder_layers * block + self.layers * self.attention_linear() + convolutions

    def _other(self) -> int:
        per_norm = self.hidden * (2 if self.norm_kind == "layer" else 1)
        kv = self.kv_heads * self.head_dim
        per_layer = self.norms * per_norm
        per_layer += {"": 0, "head": 2 * self.head_dim, "full": self.query_width + kv}[self.qk_norm]
        biases = {"": 0, "qkv": self.query_width + 2 * kv, "all": self.query_width + 2 * kv + self.hidden}
        per_layer += biases[self.attention_bias]
        per_layer += self.q_rank + self.kv_rank
        if self.mlp_bias:
            per_layer += self.intermediate * (2 if self.gated else 1) + self.hidden
        biased = self.experts * (2 * self.expert_intermediate + self.hidden + 1) if self.expert_bias else 0
        encoder = self.encoder_layers * per_layer + (self.layers * (per_layer // 2) if self.encoder_layers else 0)
        return self.layers * per_layer + self.expert_layers * biased + encoder + per_norm

    def kv_values(self, tokens: int) -> int:
        """Count the numbers that the KV cache of one sequence holds.

        Parameters
        ----------
        tokens
            Length of the sequence.

        Notes
        -----
        Grouped-query: 2·kv_heads·head_dim a token and layer. Latent: kv_rank + rope_dim a token and layer, keys and
        values together. A layer with a sliding window keeps no more than the window.

        Examples
        --------
        >>> ModelSpec("l", 32, 4096, 32, 8, 128, 14336, 128256).kv_values(1)
        65536
        """
        if self.kind == "encoder":
            return 0
        width = self.kv_rank + self.rope_dim if self.latent else 2 * self.kv_heads * self.head_dim
        windowed = self.windowed_layers if self.window else 0
        seen = (self.layers - windowed) * tokens + windowed * min(tokens, self.window or tokens)
        return width * (seen + (self.layers * self.encoder_positions if self.encoder_layers else 0))


@lru_cache(maxsize=256)
def _counted(model: ModelSpec) -> Parameters:
    return model._count()


_KEYS = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "decoder_ffn_dim"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "experts_per_token", "moe_top_k", "top_k_experts"),
}

_PLAIN_MLP = frozenset(
    ("bert", "roberta", "xlm-roberta", "gpt2", "gpt_neox", "falcon", "RefinedWeb", "RefinedWebModel", "phi", "whisper")
) | frozenset(("bloom", "opt", "gptj", "gpt_bigcode", "starcoder2", "mpnet"))
_ENCODERS = frozenset(("bert", "roberta", "xlm-roberta", "mpnet", "modernbert", "nomic_bert"))
_TIED = frozenset(("gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "falcon", "whisper", "cohere")) | _ENCODERS
_GEMMAS = frozenset(("gemma2", "gemma3", "gemma3_text", "gemma4_text"))
_QK_NORM = {"qwen3": "head", "qwen3_moe": "head", "gemma3": "head", "gemma3_text": "head", "olmo2": "full"}
_NOT_ATTENTION = ("hybrid_override_pattern", "mamba_num_heads", "ssm_state_size", "state_size", "linear_num_key_heads")
_UNLIKE = frozenset(("deepseek_v4", "deepseek_ref", "nemotron-nas", "mamba", "mamba2", "rwkv", "t5"))
_REMEDY = "take the config.json that lies beside the weights, or add the key"


_MOST = 10**9
"""No width, count or length of a model is as large."""


class _ConfigReader:
    def __init__(self, document: Mapping[str, object], where: str) -> None:
        self.document = document
        self.where = where

    def number(self, key: str, default: int | None = None) -> int:
        """Return a whole number from the first key of a group that is there."""
        names = _KEYS.get(key, (key,))
        for name in names:
            value = self.document.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
                problem = f"{self.where}: {name} is {shown(value)}, not a whole number from 0 to {_MOST:,}"
                raise BadValueError(problem, remedy="correct the file")
            return value
        if default is None:
            others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            raise BadValueError(f"{self.where} has no {names[0]!r}{others}", remedy=_REMEDY)
        return default

    def positive(self, key: str) -> int:
        """Return a whole number above zero."""
        value = self.number(key)
        if value == 0:
            raise BadValueError(f"{self.where}: {key} is 0", remedy="it must be above 0")
        return value


def _refuse_what_is_not_covered(facts: Mapping[str, object], where: str) -> None:
    family = str(facts.get("model_type", ""))
    odd = next((key for key in (*_NOT_ATTENTION, "block_configs") if facts.get(key)), "")
    kinds = facts.get("layer_types")
    if not odd and isinstance(kinds, list):
        odd = next((str(kind) for kind in kinds if not str(kind).endswith("attention") or "linear" in str(kind)), "")
    if odd or family in _UNLIKE:
        raise BadValueError(
            f"{where} describes layers that are not plain attention ({odd or family})",
            remedy="measure such a model instead: its memory is not computed from these facts",
        )


def _kv_heads(reader: _ConfigReader, heads: int, family: str) -> int:
    if family in ("falcon", "RefinedWeb", "RefinedWebModel") and not reader.document.get("new_decoder_architecture"):
        if reader.document.get("multi_query", family != "RefinedWeb"):
            return 1
        return reader.number("n_head_kv", heads)
    if reader.document.get("multi_query") is True and "num_key_value_heads" not in reader.document:
        return reader.number("num_kv_heads", 1)
    for name in ("num_key_value_heads", "n_head_kv", "num_kv_heads"):
        if reader.document.get(name) is not None:
            return reader.number(name)
    return heads


def _windowed_layers(reader: _ConfigReader, layers: int, family: str) -> int:
    document = reader.document
    kinds = document.get("layer_types")
    if isinstance(kinds, list):
        return sum("sliding" in str(kind) for kind in kinds)
    if document.get("use_sliding_window") is False or not document.get("sliding_window"):
        return 0
    usual = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}.get(family, 0)
    pattern = reader.number("sliding_window_pattern", 0) or usual
    return layers - layers // pattern if pattern else layers


def _attention_bias(document: Mapping[str, object], family: str) -> str:
    if family in ("qwen2", "qwen2_moe"):
        return "qkv"
    everywhere = family in ("gpt_oss", "phi", "gpt2", "gpt_neox", "whisper", "opt", "bloom", *_ENCODERS)
    bias = document.get("attention_bias", document.get("bias", False))
    return "all" if bias is True or (everywhere and bias is not False) or family in _ENCODERS else ""


def _dense_layers(reader: _ConfigReader, layers: int) -> int:
    first = reader.number("first_k_dense_replace", 0) or reader.number("num_dense_layers", 0)
    step = reader.number("decoder_sparse_step", 0) or reader.number("interleave_moe_layer_step", 0) or 1
    only = reader.document.get("mlp_only_layers")
    return max(first, layers - layers // step, len(only) if isinstance(only, list) else 0)


def _mixture(reader: _ConfigReader, layers: int, family: str, intermediate: int) -> dict[str, Any]:
    experts = reader.number("experts", 0)
    if not experts:
        return {}
    width = reader.number("moe_intermediate_size", 0) or reader.number("intermediate_size", intermediate)
    shared = reader.number("n_shared_experts", 0)
    if wide := reader.number("shared_expert_intermediate_size", 0):
        shared = max(1, wide // width)
    return {
        "experts": experts,
        "experts_per_token": reader.positive("experts_per_token"),
        "expert_intermediate": width,
        "shared_experts": shared or (1 if family == "llama4_text" else 0),
        "dense_layers": _dense_layers(reader, layers),
        "expert_bias": family == "gpt_oss",
    }


def _latent(reader: _ConfigReader) -> dict[str, Any]:
    if not reader.number("kv_lora_rank", 0):
        return {}
    return {
        "kv_rank": reader.positive("kv_lora_rank"),
        "q_rank": reader.number("q_lora_rank", 0),
        "rope_dim": reader.positive("qk_rope_head_dim"),
        "nope_dim": reader.positive("qk_nope_head_dim"),
        "value_dim": reader.positive("v_head_dim"),
    }


def _encoder(reader: _ConfigReader, family: str) -> dict[str, Any]:
    if family != "whisper":
        return {"kind": "encoder"} if family in _ENCODERS else {}
    return {
        "kind": "encoder-decoder",
        "encoder_layers": reader.positive("encoder_layers"),
        "encoder_positions": reader.number("max_source_positions", 1500),
        "mel_bins": reader.number("num_mel_bins", 80),
    }


def _of_config(document: Mapping[str, object], name: str = "", where: str = "config.json") -> ModelSpec:
    """Return the architecture that a `config.json` describes; see `ModelSpec.from_config`."""
    if not isinstance(document, Mapping):
        raise BadValueError(f"{where} is not an object but {shown(document)}", remedy=_REMEDY)
    inner = document.get("text_config")
    reader = _ConfigReader({**document, **inner} if isinstance(inner, Mapping) else document, where)
    facts = reader.document
    _refuse_what_is_not_covered(facts, where)
    family = str(facts.get("model_type", ""))
    layers, hidden, heads = (
        reader.positive(key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    head_dim = reader.number("head_dim", 0) or hidden // heads
    plain = family in _PLAIN_MLP
    fallback = 4 * hidden if plain else reader.number("moe_intermediate_size", 0) or None
    intermediate = reader.number("intermediate_size_mlp", 0) or reader.number("intermediate_size", fallback)
    learned = family in ("bert", "roberta", "xlm-roberta", "gpt2", "opt", "whisper", "mpnet")
    table = reader.number("max_position_embeddings", reader.number("n_positions", 0)) if learned else 0
    if family == "whisper":
        table = reader.number("max_target_positions", 448)
    return ModelSpec(
        name=name or str(facts.get("_name_or_path") or family or "model"),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(reader, heads, family),
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=reader.positive("vocab_size"),
        gated=not plain,
        norms=4 if family in _GEMMAS else 2,
        norm_kind="layer" if plain or family == "modernbert" else "rms",
        qk_norm=_QK_NORM.get(family, ""),  # type: ignore[arg-type]
        attention_bias=_attention_bias(facts, family),  # type: ignore[arg-type]
        mlp_bias=bool(facts.get("mlp_bias")) or (plain and family not in ("falcon", "RefinedWeb", "RefinedWebModel")),
        tied=bool(facts.get("tie_word_embeddings", family in _TIED)),
        positions=table + (reader.number("type_vocab_size", 0) if family in _ENCODERS else 0),
        window=reader.number("sliding_window", 0),
        windowed_layers=_windowed_layers(reader, layers, family),
        context=reader.number("max_position_embeddings", 0),
        **_mixture(reader, layers, family, intermediate),
        **_latent(reader),
        **_encoder(reader, family),
    )
