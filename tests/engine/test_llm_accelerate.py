"""The device map that is printed for accelerate, loaded by accelerate itself: two tiny models of random weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import need

PROGRAM = """
import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hetero.advise.fleet import read_fleet
from hetero.advise.llm import place_layers, read_target

for tied in (False, True):
    folder = f"{sys.argv[1]}/{tied}"
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=256, tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    placed = place_layers(read_target(folder), read_fleet("1xRTX-4090,1xT4"), "accelerate", context=2048)
    scope = {}
    exec(next(line for line in placed.settings()["run"].splitlines() if line.startswith("device_map =")), scope)
    here = {name: "cpu" for name in scope["device_map"]} | {"model.layers.2": "disk"}
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    spread = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", device_map=here, offload_folder=f"{folder}/off")
    tokens = torch.arange(8)[None]
    assert torch.equal(plain(tokens).logits, spread(tokens).logits)
    print(tied, spread.hf_device_map == here)
"""


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.timeout(300)
def test_the_printed_map_loads_a_model_over_two_places_and_changes_no_logit(tmp_path: Path) -> None:
    need("accelerate")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout.splitlines() == ["False True", "True True"], done.stderr[-2000:]
