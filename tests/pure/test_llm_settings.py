"""Layers of a language model on unequal devices: as good as all splits, and settings that say the same."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.advise.fleet import read_fleet
from hetero.advise.llm import LayerPlacement, place_layers, read_target
from hetero.advise.weight_files import read_weights
from hetero.catalog.load import devices, find
from hetero.floor.errors import BadValueError, HeteroError, NothingFitsError
from hetero.plan.sizing.layer_assignment import Aim, LayerHost, Layers, best_split, memory_split, split_seconds


def _all_splits(count: int, devices: int) -> Iterator[tuple[int, ...]]:
    for counts in product(range(count + 1), repeat=devices):
        if sum(counts) == count:
            yield counts


def _brute_force(layers: Layers, hosts: tuple[LayerHost, ...], hop_s: float, aim: Aim) -> float | None:
    """Try every split with every place of the first and the last part."""
    best = None
    for counts in _all_splits(layers.count, len(hosts)):
        used = [at for at, count in enumerate(counts) if count]
        for first, last in product(used, used):
            ends = [layers.first_bytes * (at == first) + layers.last_bytes * (at == last) for at in range(len(hosts))]
            need = [count * layers.layer_bytes + end for count, end in zip(counts, ends, strict=True)]
            fits = all(need[at] + hosts[at].fixed_bytes <= hosts[at].room_bytes for at in used)
            if fits:
                seconds = split_seconds(layers, hosts, counts, last, hop_s, aim)
                best = seconds if best is None else min(best, seconds)
    return best


@pytest.mark.parametrize("aim", ["latency", "throughput"])
@pytest.mark.parametrize("seed", range(15))
def test_a_split_is_as_quick_as_the_quickest_of_all_splits(seed: int, aim: Aim) -> None:
    draw = np.random.default_rng(seed)
    hosts = tuple(
        LayerHost(f"d{at}", float(draw.integers(2, 9)), float(draw.uniform(0.1, 1.0)), float(draw.uniform(0.0, 1.0)))
        for at in range(int(draw.integers(1, 4)))
    )
    layers = Layers(int(draw.integers(2, 8)), 1.0, float(draw.uniform(0, 1)), float(draw.uniform(0, 1)), 0.3)
    hop_s = float(draw.uniform(0.0, 0.3))
    best = _brute_force(layers, hosts, hop_s, aim)
    if best is None:
        with pytest.raises(NothingFitsError):
            best_split(layers, hosts, hop_s, aim)
    else:
        assert best_split(layers, hosts, hop_s, aim).seconds == pytest.approx(best)


def test_a_slow_device_is_left_out_where_the_others_hold_the_model() -> None:
    hosts = (LayerHost("fast", 9.0, 0.1), LayerHost("slow", 9.0, 1.0))
    assert best_split(Layers(8, 1.0), hosts).counts == (8, 0)
    assert best_split(Layers(8, 1.0), hosts, must="slow").counts == (7, 1)


def test_for_many_requests_layers_follow_speed_and_for_one_they_follow_the_fastest() -> None:
    hosts = (LayerHost("fast", 99.0, 0.1), LayerHost("slow", 99.0, 0.3))
    assert best_split(Layers(8, 1.0), hosts, aim="throughput").counts == (6, 2)
    assert best_split(Layers(8, 1.0), hosts, aim="latency").counts == (8, 0)


def test_a_split_by_memory_alone_gives_every_layer_once() -> None:
    hosts = tuple(LayerHost(f"d{at}", room, 1.0) for at, room in enumerate((7.0, 5.0, 11.0)))
    assert sum(memory_split(Layers(32, 1.0), hosts)) == 32


def test_devices_that_hold_too_little_are_told_how_much_they_hold() -> None:
    with pytest.raises(NothingFitsError, match="at most 5 of 8 layers"):
        best_split(Layers(8, 1.0), (LayerHost("a", 3.5, 1.0, 0.5), LayerHost("b", 2.0, 1.0)))


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "head_dim": 16,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def safetensors_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of four layers in two files, written by the library itself."""
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("model")
    shapes = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64)}
    parts: list[dict[str, np.ndarray]] = [{}, {}]
    for layer in range(4):
        for name, shape in shapes.items():
            tensor = np.zeros(shape, dtype=np.float16)
            parts[layer // 2][f"model.layers.{layer}.self_attn.{name}.weight"] = tensor
        for name, shape in {"gate_proj": (128, 64), "up_proj": (128, 64), "down_proj": (64, 128)}.items():
            parts[layer // 2][f"model.layers.{layer}.mlp.{name}.weight"] = np.zeros(shape, dtype=np.float16)
    parts[0]["model.embed_tokens.weight"] = np.zeros((256, 64), dtype=np.float16)
    parts[1]["model.norm.weight"] = np.zeros(64, dtype=np.float16)
    parts[1]["lm_head.weight"] = np.zeros((256, 64), dtype=np.float16)
    for at, part in enumerate(parts, start=1):
        save_file(part, folder / f"model-{at:05}-of-00002.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def _text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def _gguf(path: Path, layers: int = 3) -> None:
    """Write a GGUF file of version 3: facts, names of tensors with their types, and their bytes."""
    facts = {
        "general.architecture": (8, _text("llama")),
        "general.name": (8, _text("Tiny")),
        "tokenizer.ggml.tokens": (9, struct.pack("<IQ", 8, 256) + b"".join(_text(f"t{at}") for at in range(256))),
        "tokenizer.ggml.scores": (9, struct.pack("<IQ", 6, 256) + bytes(1024)),
    }
    numbers = {"block_count": layers, "embedding_length": 256, "feed_forward_length": 512, "context_length": 4096}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    facts |= {f"llama.{name}": (4, struct.pack("<I", value)) for name, value in numbers.items()}
    tensors = {"token_embd.weight": (256, 256, 14, 256 * 210), "output_norm.weight": (256, 1, 0, 1024)}
    for layer in range(layers):
        tensors[f"blk.{layer}.attn_q.weight"] = (256, 256, 12, 256 * 144)
        tensors[f"blk.{layer}.ffn_down.weight"] = (512, 256, 8, 512 * 256 // 32 * 34)
    offset, infos = 0, b""
    for name, (wide, high, kind, size) in tensors.items():
        infos += _text(name) + struct.pack("<IQQIQ", 2, wide, high, kind, offset)
        offset += size
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
    body = b"".join(_text(name) + struct.pack("<I", kind) + value for name, (kind, value) in facts.items())
    path.write_bytes(head + body + infos + bytes(offset))


def test_safetensors_headers_give_every_byte(safetensors_folder: Path) -> None:
    found = read_weights(safetensors_folder)
    each = 2 * (64 * 64 * 2 + 32 * 64 * 2 + 3 * 128 * 64)
    assert found.layers == dict.fromkeys(range(4), each)
    assert (found.embedding, found.head, found.other) == (2 * 256 * 64, 2 * 256 * 64, 128)
    assert found.files == 2
    assert found.model is not None
    assert found.model.layers == 4


def test_one_of_several_files_stands_for_all(safetensors_folder: Path, tmp_path: Path) -> None:
    one = safetensors_folder / "model-00001-of-00002.safetensors"
    assert read_weights(one).total == read_weights(safetensors_folder).total
    alone = tmp_path / one.name
    alone.write_bytes(one.read_bytes())
    with pytest.raises(BadValueError, match=r"model-00002-of-00002.safetensors is absent"):
        read_weights(alone)


def test_gguf_headers_give_bytes_and_architecture(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    _gguf(file)
    found = read_weights(file)
    assert found.layers == dict.fromkeys(range(3), 256 * 144 + 512 * 256 // 32 * 34)
    assert (found.embedding, found.head, found.other) == (256 * 210, 0, 1024)
    assert found.model is not None
    assert (found.model.layers, found.model.vocab, found.model.kv_heads, found.model.tied) == (3, 256, 2, True)


@pytest.mark.parametrize("keep", [0, 3, 20, 60, 400])
def test_a_file_that_is_cut_off_is_told_in_one_line(tmp_path: Path, keep: int) -> None:
    whole, cut = tmp_path / "tiny.gguf", tmp_path / "cut.gguf"
    _gguf(whole)
    cut.write_bytes(whole.read_bytes()[:keep])
    with pytest.raises(BadValueError, match="fetch it again"):
        read_weights(cut)


@pytest.mark.parametrize("data", [b"\xff" * 64, b"\x05\0\0\0\0\0\0\0hello", b"\x02\0\0\0\0\0\0\0[]"])
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(data)
    with pytest.raises(BadValueError):
        read_weights(file)


def _llama(fleet: str, **how: object) -> LayerPlacement:
    return place_layers(read_target("Llama-3.1-70B"), read_fleet(fleet), "llama.cpp", prompt=512, context=2048, **how)


def test_the_tensor_split_counts_all_layers_and_the_output_once() -> None:
    placed = _llama("1xRTX-4090,1xRTX-3090")
    run = placed.settings()["run"]
    parts = run.partition("--tensor-split ")[2].split()[0].split(",")
    assert sum(map(int, parts)) == 81
    assert "--n-gpu-layers 81" in run
    assert sum(count for _, count in placed.used) == 80


def test_llama_cpp_gets_the_context_of_all_its_slots_and_cards_numbered_by_bus() -> None:
    placed = place_layers(
        read_target("Llama-3.1-8B"), read_fleet("1xRTX-4090,1xRTX-3090"), "llama.cpp", batch=4, prompt=512, context=2048
    )
    made = placed.settings()
    assert made["environment"] == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    for key in ("run", "verify"):
        assert made[key].startswith("CUDA_DEVICE_ORDER=PCI_BUS_ID llama-")
        assert " --ctx-size 8192" in made[key]
    assert made["run"].endswith(" --parallel 4")
    assert made["verify"].endswith(" -npp 512 -ntg 1536 -npl 4")
    assert _llama("1xRTX-4090,1xRTX-3090").settings()["run"].endswith(" --ctx-size 2048 --parallel 1")


def test_llama_cpps_back_ends_number_their_own_devices() -> None:
    placed = _llama("1xRTX-4090,2xRadeon-PRO-W7900")
    names = placed.settings()["run"].partition("--device ")[2].split()[0]
    assert set(names.split(",")) == {"CUDA0", "ROCm0", "ROCm1"} & set(names.split(","))
    assert "ROCm0" in names
    alone = place_layers(read_target("Llama-3.1-8B"), read_fleet("1xM2-Ultra-192GB"), "llama.cpp", prompt=512)
    assert "--device" not in alone.settings()["run"]
    assert not alone.settings()["environment"]
    with pytest.raises(NothingFitsError, match=r"llama\.cpp does not run on TPU-v5e"):
        place_layers(read_target("Llama-3.1-8B"), read_fleet("1xTPU-v5e"), "llama.cpp", prompt=512, context=1024)


def test_accelerates_code_numbers_cards_by_bus_before_torch_is_imported() -> None:
    placed = place_layers(read_target("Llama-3.1-8B"), read_fleet("1xRTX-4090,1xT4"), "accelerate", prompt=512)
    lines = placed.settings()["run"].splitlines()
    assert lines.index("import torch") > next(n for n, line in enumerate(lines) if "PCI_BUS_ID" in line)


def test_the_split_is_not_slower_than_that_by_memory_alone() -> None:
    placed = _llama("1xRTX-4090,2xRTX-3090,1xT4")
    assert placed.by_memory is not None
    assert placed.split.seconds <= placed.by_memory[1]
    told = placed.explain()
    assert "left out, with it" in told
    assert "a split by memory alone" in told
    assert "verify: CUDA_DEVICE_ORDER=PCI_BUS_ID llama-batched-bench" in told


def test_layers_that_no_card_holds_stay_on_the_processor() -> None:
    target = read_target("Llama-3.1-70B")
    kinds = read_fleet("1xRTX-4090")
    slow = replace(find("L4"), name="LayerHost", kind="cpu", memory_bytes=256 * 2**30, memory_usable_bytes=None)
    placed = place_layers(target, (*kinds, replace(kinds[0], spec=slow)), "llama.cpp", prompt=512)
    on_card = {device.index: count for device, count in placed.used}[0]
    assert 0 < on_card < 80
    assert f"--n-gpu-layers {on_card + 1} " in placed.settings()["run"] + " "


@pytest.mark.parametrize(
    ("engine", "fleet", "said"),
    [
        ("vllm", "2xTPU-v5e", r"vllm does not run on TPU-v5e \(tpu\)"),
        ("vllm", "1xM2-Ultra-192GB", "vllm does not run on M2-Ultra-192GB"),
        ("vllm", "1xRTX-4090,1xGaudi3", "vllm does not run on Gaudi3"),
        ("vllm", "2xP40", r"not known to run on P40: its compute capability is 6\.1, and 7\.0 is the least"),
        ("vllm", "1xJetson-AGX-Thor", "its compute capability is not known"),
        ("vllm", "1xRTX-4090,1xMI300X", "one vllm runs on cuda or on rocm, not on both"),
        ("accelerate", "1xRTX-4090,1xMI300X", "one accelerate runs on cuda or on rocm, not on both"),
        ("accelerate", "2xTPU-v5e", "accelerate does not run on TPU-v5e"),
        ("accelerate", "1xM2-Ultra-192GB", "accelerate does not run on M2-Ultra-192GB"),
        ("llama.cpp", "1xTrainium2", "llama.cpp does not run on Trainium2"),
    ],
)
def test_a_device_on_which_an_engine_does_not_run_is_refused_by_name(engine: Any, fleet: str, said: str) -> None:
    with pytest.raises(NothingFitsError, match=said):
        place_layers(read_target("Llama-3.1-8B"), read_fleet(fleet), engine, prompt=512, context=1024)


def test_each_device_that_vllm_names_gets_its_settings() -> None:
    runs = set()
    for spec in devices().values():
        try:
            place_layers(read_target("Qwen2.5-0.5B"), read_fleet(spec.name), "vllm", prompt=64, context=128)
        except HeteroError:
            continue
        runs.add(spec.name)
    assert {"T4", "V100-SXM-16GB", "H100-SXM", "RTX-3090", "MI250", "MI300X", "MI355X", "RX-7900-XTX"} <= runs
    assert {find(name).kind for name in runs} == {"cuda", "rocm"}
    assert not {"P40", "P100-SXM"} & runs


@pytest.mark.parametrize("fleet", ["99999999xT4", "2000000xT4", "33xT4"])
def test_more_devices_than_anybody_starts_a_model_on_are_refused_at_once(fleet: str) -> None:
    with pytest.raises(BadValueError, match="at most"):
        place_layers(read_target("Llama-3.1-8B"), read_fleet(fleet), "llama.cpp", prompt=512, context=1024)


def test_vllm_shares_matrices_over_equal_cards_where_that_is_quicker() -> None:
    placed = place_layers(read_target("Llama-3.1-8B"), read_fleet("2xH100-SXM,1xRTX-4090"), "vllm", prompt=512)
    made = placed.settings()
    assert [device.index for device in placed.shared] == [0, 1]
    assert "--tensor-parallel-size 2 --pipeline-parallel-size 1" in made["run"]
    assert placed.seconds < placed.split.seconds


def test_vllm_is_told_how_many_layers_each_unequal_card_takes() -> None:
    placed = place_layers(read_target("Qwen2.5-14B"), read_fleet("1xRTX-4090,1xT4"), "vllm", context=2048)
    environment = placed.settings()["environment"]
    layers = [int(part) for part in environment["VLLM_PP_LAYER_PARTITION"].split(",")]
    assert sum(layers) == placed.layers.count
    assert len(environment["CUDA_VISIBLE_DEVICES"].split(",")) == len(layers)


def test_accelerates_map_has_every_module_of_the_files_once(safetensors_folder: Path) -> None:
    target = read_target(str(safetensors_folder))
    assert target.weights == "bf16"
    placed = place_layers(target, read_fleet("1xRTX-4090,1xT4"), "accelerate", context=2048)
    made = placed.settings()
    layers = {f"model.layers.{at}" for at in range(4)}
    assert set(made["device_map"]) == {*layers, "model.embed_tokens", "model.norm", "lm_head"}
    scope: dict[str, object] = {}
    exec(next(line for line in made["run"].splitlines() if line.startswith("device_map")), scope)
    assert scope["device_map"] == made["device_map"]


def test_a_gguf_file_is_named_in_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    _gguf(file)
    placed = place_layers(read_target(str(file)), read_fleet("1xRTX-4090"), "llama.cpp", prompt=16, context=64)
    assert f"--model {file}" in placed.settings()["run"]
    assert "headers of the weight files" in placed.explain()


@pytest.mark.parametrize("named", ["absent.gguf", "Llama-3.1-9000B"])
def test_a_model_that_is_not_there_is_refused(named: str) -> None:
    with pytest.raises(BadValueError):
        read_target(named)


def test_the_whole_catalog_is_no_fleet_to_start_on() -> None:
    with pytest.raises(BadValueError, match="name the devices"):
        place_layers(read_target("Llama-3.1-8B"), read_fleet("catalog"))
    with pytest.raises(BadValueError, match="did you mean 'vllm'"):
        place_layers(read_target("Llama-3.1-8B"), read_fleet("1xL4"), "vlm")  # type: ignore[arg-type]
