"""The catalog: every number has a source, lies where such numbers lie, and is found by the names people use."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from hetero.catalog import load
from hetero.catalog.values import DeviceSpec, Price
from hetero.cli.main import app
from hetero.floor.errors import BadValueError
from tests.catalog_checks import device_problems, model_problems, source_problems
from tests.needs import data_folder

LISTED = (
    "A100-PCIe-40GB A100-SXM-40GB A100-PCIe-80GB A100-SXM-80GB H100-PCIe H100-SXM H100-NVL H200 B200 B300 GB200 "
    "GB300 L4 L40S A30 A40 T4 V100-SXM-16GB V100-SXM-32GB P100-PCIe-16GB RTX-3090 RTX-4090 RTX-5090 RTX-PRO-6000 "
    "Jetson-AGX-Orin-64GB Jetson-AGX-Thor TPU-v4 TPU-v5e TPU-v5p TPU-v6e TPU-7x Gaudi2 Gaudi3 Trainium1 Trainium2 "
    "Trainium3 Inferentia2 MI250 MI300X MI325X MI355X WSE-2 WSE-3 Groq-LPU SN40L Ascend-910B Ascend-910C M1-16GB "
    "M1-Max-64GB M2-Ultra-192GB M4-Max-128GB Max-1550 Arc-Pro-B60 Hailo-8 Alveo-U280 EPYC-9654"
)
"""What was promised to be there, at the least."""

AIC = {
    "a100_pcie": "A100-PCIe-80GB",
    "a100_sxm": "A100-SXM-80GB",
    "a30": "A30",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "b60": "Arc-Pro-B60",
    "gb200": "GB200",
    "gb300": "GB300",
    "h100_pcie": "H100-PCIe",
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200",
    "l4": "L4",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX-PRO-6000",
}


def _h100(**changed: Any) -> DeviceSpec:
    return replace(load.find("H100-SXM"), **changed)


def test_every_number_of_a_device_has_a_source_that_prints_it_and_is_in_range() -> None:
    assert list(device_problems(load.devices().values(), load.sources())) == []


def test_every_source_has_an_address_a_date_and_a_figure() -> None:
    assert list(source_problems(load.sources())) == []


def test_parameters_counted_from_the_architecture_are_the_published_ones_within_one_percent() -> None:
    assert list(model_problems(load.models().values(), load.sources())) == []
    assert sum(spec.published > 0 for spec in load.models().values()) >= 30


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (lambda: _h100(sources={}), "H100-SXM.memory_bytes has no source"),
        (lambda: _h100(sources={**load.find("H100-SXM").sources, "year": "gguf"}), "does not say how the figure"),
        (lambda: _h100(bandwidth_bytes_per_s=3.35e9), "outside of"),
        (lambda: _h100(memory_bytes=80), "outside of"),
        (lambda: _h100(memory_usable_bytes=10**11), "more memory is usable"),
        (lambda: _h100(flop_per_s={"bf16": 989e12, "fp8": 2 * 3958e12}), "with sparsity"),
        (lambda: _h100(flop_per_s={"bf16": 165e12, "fp8": 661e12}), "fp8 is 4.01 × 16 bits"),
        (lambda: _h100(flop_per_s={"bf16": 142e12, "fp16_acc16": 142e12}), "sums of 16 bits"),
        (lambda: _h100(flop_per_s={"fp32": 11.8e12, "fp16": 0.18e12}), "fp16 is 0.02 × fp32"),
        (lambda: _h100(flop_per_s={"fp32": 35.6e12, "fp16_acc16": 142e12}), "tensor cores, and no rate in 16 bits"),
        (lambda: _h100(flop_per_s={"fp16": 989e12, "bf16": 495e12}), "fp16 is 2.00 × bf16"),
        (lambda: _h100(flop_per_s={"bf16": 2500e12}), "operations in 16 bits a byte"),
        (lambda: _h100(kind="gpu"), "no device kind"),
        (lambda: _h100(prices=(Price(0, True, "2026-05", "cloud-prices"),)), "not above zero"),
    ],
)
def test_a_number_without_a_source_or_out_of_range_is_refused(spec: Any, problem: str) -> None:
    assert any(problem in line for line in device_problems([spec()], load.sources()))


def test_a_model_that_counts_other_than_published_is_refused() -> None:
    wrong = replace(load.find_model("Llama-3.1-8B"), layers=33)
    assert any("published" in line for line in model_problems([wrong], load.sources()))


def test_every_device_that_was_promised_has_a_row() -> None:
    assert sorted(set(LISTED.split()) - set(load.devices())) == []


def test_the_share_of_empty_figures_is_reported() -> None:
    listed = CliRunner().invoke(app, ["catalog", "list", "--json"])
    told = json.loads(listed.stdout)["completeness"]
    print(f"{told['empty']} of {told['cells']} figures are empty ({told['empty_frac']:.1%})")
    assert told == load.completeness()
    assert told["empty"] == sum(value is None for spec in load.devices().values() for value in spec.cells().values())
    assert told["empty_frac"] < 0.25


@pytest.mark.parametrize(("file", "name"), AIC.items())
def test_the_rows_agree_with_the_makers_specifications_within_two_percent_or_explain(file: str, name: str) -> None:
    document = yaml.safe_load((data_folder() / "planner" / "aic_systems" / f"{file}.yaml").read_text(encoding="utf-8"))
    gpu, spec = document["gpu"], load.find(name)
    ours = {
        "mem_bw": spec.bandwidth_bytes_per_s,
        "mem_capacity": spec.memory_usable_bytes or spec.memory_bytes,
        "power": spec.power_w,
        "bfloat16_tc_flops": spec.flop_per_s.get("bf16"),
        "int8_tc_flops": spec.flop_per_s.get("int8"),
        "fp8_tc_flops": spec.flop_per_s.get("fp8"),
        "fp4_tc_flops": spec.flop_per_s.get("fp4"),
    }
    far = {key: (value, gpu[key]) for key, value in ours.items() if key in gpu and value is not None}
    far = {key: pair for key, pair in far.items() if abs(pair[0] / pair[1] - 1) > 0.02}
    assert not far or spec.explains, far


def test_the_known_traps_are_avoided() -> None:
    groq, trainium, wse, rtx = (load.find(name) for name in ("Groq-LPU", "Trainium2", "WSE-2", "RTX-4090"))
    assert groq.memory_bytes == 230_000_000
    assert (trainium.flop_per_s["bf16"], trainium.bandwidth_bytes_per_s) == (667e12, 2.9e12)
    assert (wse.rate("bf16", "fp16") or 1e17) > 2e15
    assert (rtx.flop_per_s["bf16"], rtx.accumulate["bf16"]) == (165e12, "fp32")
    assert (rtx.flop_per_s["fp16_acc16"], rtx.accumulate["fp16_acc16"]) == (330e12, "fp16")


def test_pods_have_slices_whose_chips_are_the_product_of_their_shape() -> None:
    slices = [part for spec in load.devices().values() if spec.pod for part in spec.pod.slices]
    assert len(slices) > 30
    for part in slices:
        chips = 1
        for side in part.shape.split("x"):
            chips *= int(side)
        assert chips == part.chips
        assert part.hosts <= part.chips


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("nvidia a100-sxm4-80gb", "A100-SXM-80GB"),
        ("Tesla T4", "T4"),
        ("geforce rtx 4090", "RTX-4090"),
        ("3090", "RTX-3090"),
        ("tpu v5e", "TPU-v5e"),
        ("MI300X", "MI300X"),
    ],
)
def test_a_device_is_found_by_what_drivers_and_people_call_it(given: str, name: str) -> None:
    assert load.find(given).name == name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("H100", "H100 needs its SKU: H100-PCIe, H100-SXM, H100-NVL; run 'hetero catalog list'"),
        ("H100-SMX", "the catalog has no 'H100-SMX'; did you mean 'H100-SXM'?"),
        ("", "the catalog has no ''; run 'hetero catalog list'"),
        ("abacus", "the catalog has no 'abacus'; run 'hetero catalog list'"),
    ],
)
def test_an_unknown_or_ambiguous_device_is_told_in_one_line(given: str, message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        load.find(given)
    assert str(caught.value) == message


def test_an_ambiguous_model_names_its_sizes() -> None:
    with pytest.raises(BadValueError, match=r"Qwen3 needs its size: Qwen3-0\.6B"):
        load.find_model("Qwen3")


def test_every_device_and_every_alias_is_found_by_its_own_name() -> None:
    for spec in load.devices().values():
        for word in (spec.name, *spec.aliases):
            assert load.find(word) == spec, word


def test_the_usable_memory_is_never_more_than_the_memory() -> None:
    for spec in load.devices().values():
        if spec.memory_bytes is not None and spec.usable_bytes is not None:
            assert 0.6 * spec.memory_bytes < spec.usable_bytes <= spec.memory_bytes


def test_importing_the_catalog_reads_no_file_and_no_yaml() -> None:
    heavy = "{'yaml', 'numpy', 'torch'}"
    code = f"import sys, hetero.catalog.load, hetero.advise.fit; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("named", "row"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", "Mixtral-8x7B"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "Mixtral-8x22B"),
        ("mistralai/Mistral-7B-Instruct-v0.1", "Mistral-7B-v0.1"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3"),
        ("mistralai/Mistral-Large-Instruct-2411", "Mistral-Large-2407"),
        ("Qwen/Qwen2.5-72B-Instruct", "Qwen2.5-72B"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen2.5-7B"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen3-30B-A3B"),
        ("deepseek-ai/DeepSeek-V3-0324", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek-R1"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "Llama-3.1-8B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct", "Llama-3.1-405B"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "Llama-4-Scout"),
        ("google/gemma-2-9b-it", "Gemma-2-9B"),
        ("google/gemma-3-27b-it", "Gemma-3-27B"),
        ("tiiuae/falcon-180B-chat", "Falcon-180B"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "TinyLlama-1.1B"),
        ("EleutherAI/pythia-6.9b-deduped", "Pythia-6.9B"),
        ("allenai/OLMo-2-1124-13B-Instruct", "OLMo-2-13B"),
        ("google-bert/bert-base-uncased", "BERT-base"),
        ("openai/gpt-oss-20b", "GPT-OSS-20B"),
    ],
)
def test_models_are_known_by_the_names_of_their_owners(named: str, row: str) -> None:
    assert load.find_model(named).name == row
    assert load.find_model(named.upper()).name == row


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("mistralai/Mistral-7B-Instruct-v0.2", "no 'Mistral-7B-Instruct-v0.2'; did you mean 'Mistral-7B-v0.3'"),
        ("TheBloke/Qwen2.5-72B-Instruct-AWQ", "did you mean 'Qwen2.5-72B'"),
        ("unsloth/Llama-3.2-3B-Instruct-bnb-4bit", "did you mean 'Llama-3.2-3B'"),
        ("Instruct", "hetero catalog list --models"),
        ("-v0.1", "hetero catalog list --models"),
        ("", "hetero catalog list --models"),
        ("Llama-3.1", "needs its size"),
    ],
)
def test_a_name_that_stands_for_no_row_is_no_guess(named: str, told: str) -> None:
    """Version 0.2 has neither the window of 0.1 nor the vocabulary of 0.3; how weights are packed is an option."""
    with pytest.raises(BadValueError, match=told):
        load.find_model(named)


def test_every_row_and_every_alias_finds_its_own_row() -> None:
    for name, words in load._model_aliases().items():
        assert {load.find_model(word).name for word in (name, *words)} == {name}
        if not name.endswith("-base"):
            assert load.find_model(f"owner/{name}-Instruct").name == name
