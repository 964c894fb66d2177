"""Any config.json of Hugging Face is read, or refused with the place and the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetero.advise.fit import read_model
from hetero.floor.errors import BadValueError
from hetero.model.architecture import ModelSpec

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
FALCON = {
    "model_type": "falcon",
    "num_hidden_layers": 32,
    "hidden_size": 4544,
    "num_attention_heads": 71,
    "vocab_size": 65024,
    "multi_query": True,
    "new_decoder_architecture": False,
}


def _with(**changed: Any) -> dict[str, Any]:
    return {key: value for key, value in {**LLAMA, **changed}.items() if value is not ...}


@pytest.mark.parametrize(
    ("document", "parameters"),
    [
        (LLAMA, 8_030_261_248),
        (_with(num_key_value_heads=..., vocab_size=32000, intermediate_size=11008), 6_738_415_616),
    ],
)
def test_a_llama_is_counted_to_the_last_parameter(document: dict[str, Any], parameters: int) -> None:
    assert ModelSpec.from_config(document).parameters().total == parameters


def test_older_families_are_read_by_their_own_keys() -> None:
    gpt2 = ModelSpec.from_config({**GPT2, "attention_bias": True})
    assert gpt2.parameters().total == pytest.approx(124_439_808, rel=0.001)
    falcon = ModelSpec.from_config(FALCON)
    assert (falcon.kv_heads, falcon.gated, falcon.tied) == (1, False, True)
    assert falcon.parameters().total == pytest.approx(6.92e9, rel=0.01)


def test_what_lies_in_text_config_is_read() -> None:
    inner = ModelSpec.from_config({"model_type": "gemma3", "text_config": {**LLAMA, "model_type": "gemma3_text"}})
    assert (inner.layers, inner.norms, inner.qk_norm) == (32, 4, "head")


def test_windows_are_counted_by_the_kinds_of_layers() -> None:
    kinds = ["sliding_attention", "full_attention"] * 16
    spec = ModelSpec.from_config(_with(sliding_window=128, layer_types=kinds))
    assert (spec.window, spec.windowed_layers) == (128, 16)
    assert ModelSpec.from_config(_with(sliding_window=4096, use_sliding_window=False)).windowed_layers == 0
    assert ModelSpec.from_config(_with(sliding_window=4096)).windowed_layers == 32


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            _with(num_attention_heads=...),
            "config.json has no 'num_attention_heads' (or n_head, n_heads, decoder_attention_heads);"
            " take the config.json that lies beside the weights, or add the key",
        ),
        (
            _with(hidden_size="4096"),
            "config.json: hidden_size is '4096', not a whole number from 0 to 1,000,000,000; correct the file",
        ),
        (_with(num_attention_heads=0), "config.json: num_attention_heads is 0; it must be above 0"),
        (_with(num_local_experts=8), "config.json has no 'num_experts_per_tok' (or experts_per_token"),
        (_with(kv_lora_rank=512), "config.json has no 'qk_rope_head_dim'"),
        (_with(hybrid_override_pattern="M-M*"), "layers that are not plain attention (hybrid_override_pattern)"),
        (_with(layer_types=["linear_attention"]), "layers that are not plain attention (linear_attention)"),
        ([], "config.json is not an object but []"),
    ],
)
def test_a_config_that_cannot_be_used_names_the_place_and_the_remedy(document: Any, message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        ModelSpec.from_config(document)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_and_its_folder_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_model(tmp_path) == read_model(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(BadValueError, match=r"config\.json:1:2: this is not JSON"):
        read_model(tmp_path)
    with pytest.raises(BadValueError, match="cannot be read"):
        read_model(tmp_path / "absent.json")
