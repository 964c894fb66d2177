"""Hugging Face's `config.json` as an architecture.

In: the parsed document. Out: a `ModelSpec`. It must not guess a fact that memory rests on: absent means an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero.floor.errors import BadValueError
from hetero.floor.units import shown
from hetero.model.architecture import ModelSpec

__all__ = ["read"]

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


def read(document: Mapping[str, object], name: str = "", where: str = "config.json") -> ModelSpec:
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
