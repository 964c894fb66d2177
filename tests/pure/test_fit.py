"""Memory by category is what arithmetic says it is, and never shrinks where more is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.catalog.load import find_model
from hetero.floor.errors import BadValueError
from hetero.model.architecture import ModelSpec
from hetero.model.quantisation import FORMATS, number_format
from hetero.model.workload import ENGINES, JOBS, OPTIMIZERS, Lora, Sharding, WorkloadSpec
from hetero.plan.sizing.footprint import Room, fit, footprint, fullest_stage, weight_bytes

LLAMA = find_model("Llama-3.1-8B")
PARAMETERS = 8_030_261_248
GIB = 2**30


@pytest.mark.parametrize(("form", "size"), [("bf16", 2), ("fp32", 4), ("fp16", 2)])
def test_plain_weights_are_parameters_times_bytes(form: str, size: int) -> None:
    assert weight_bytes(LLAMA, number_format(form)) == PARAMETERS * size


@pytest.mark.parametrize(
    ("model", "form", "printed_gib"),
    [
        ("Llama-3.1-8B", "Q4_K_M", 4.58),
        ("Llama-3.1-8B", "Q8_0", 7.95),
        ("Llama-3.1-8B", "F16", 14.96),
        ("Llama-3.1-70B", "Q4_K_M", 43.1e9 / GIB),
    ],
)
def test_gguf_files_are_as_large_as_llama_cpp_prints(model: str, form: str, printed_gib: float) -> None:
    assert weight_bytes(find_model(model), number_format(form)) / GIB == pytest.approx(printed_gib, rel=0.01)


def test_bitsandbytes_packs_linear_layers_alone_and_leaves_tables_and_head_in_16_bits() -> None:
    count = LLAMA.parameters()
    rest = 2 * (count.total - count.linear)
    assert weight_bytes(LLAMA, number_format("nf4")) == pytest.approx(count.linear * 4.5 / 8 + rest, abs=1)


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        ("Llama-3.1-8B", 2 * 32 * 2 * 8 * 128),
        ("Llama-2-7B", 2 * 32 * 2 * 32 * 128),
        ("Falcon-7B", 2 * 32 * 2 * 1 * 64),
        ("DeepSeek-V3", 2 * 61 * (512 + 64)),
    ],
    ids=["grouped", "every head", "one head", "latent"],
)
def test_the_kv_cache_holds_what_the_attention_keeps(model: str, bytes_per_token: int) -> None:
    work = WorkloadSpec(find_model(model), batch=3, context=500)
    assert footprint(work).kv_cache == 3 * 500 * bytes_per_token
    assert footprint(replace(work, kv="fp8")).kv_cache == 3 * 500 * bytes_per_token // 2


def test_a_sliding_window_bounds_the_cache_of_its_layers_alone() -> None:
    gemma = find_model("Gemma-2-9B")
    a_layer = 2 * 2 * gemma.kv_heads * gemma.head_dim
    assert footprint(WorkloadSpec(gemma, context=8192)).kv_cache == a_layer * (21 * 4096 + 21 * 8192)
    assert footprint(WorkloadSpec(gemma, context=1000)).kv_cache == a_layer * 42 * 1000


def test_training_and_embedding_keep_no_cache_and_inference_no_activations() -> None:
    for job in JOBS:
        need = footprint(WorkloadSpec(LLAMA, job=job))
        training = job in ("finetune", "lora", "pretrain")
        assert (need.kv_cache > 0) == (job == "inference")
        assert (need.activations > 0, need.gradients > 0, need.optimizer > 0) == (training,) * 3


def test_sixteen_bytes_a_parameter_is_what_mixed_precision_with_adam_comes_to() -> None:
    mixed = WorkloadSpec(LLAMA, job="pretrain", optimizer="adamw-fp32", master_weights=True)
    need = footprint(mixed)
    assert need.weights + need.gradients + need.optimizer == 16 * PARAMETERS
    pure = footprint(WorkloadSpec(LLAMA, job="finetune"))
    assert pure.weights + pure.gradients + pure.optimizer == 8 * PARAMETERS


@pytest.mark.parametrize(("optimizer", "bytes_each"), [("sgd", 0), ("lion", 2), ("adamw", 4), ("adamw-fp32", 8)])
def test_an_optimizer_keeps_its_moments(optimizer: str, bytes_each: int) -> None:
    assert footprint(WorkloadSpec(LLAMA, job="finetune", optimizer=optimizer)).optimizer == bytes_each * PARAMETERS


def test_adapters_learn_and_the_rest_does_not() -> None:
    everywhere = WorkloadSpec(LLAMA, job="lora", lora=Lora(16, ("q", "k", "v", "o", "mlp")))
    adapters = 41_943_040 * 2
    need, plain = footprint(everywhere), footprint(WorkloadSpec(LLAMA))
    assert need.weights - plain.weights == 2 * adapters // 2
    assert need.gradients == 2 * adapters // 2
    assert need.optimizer == 2 * adapters


def test_checkpointing_keeps_the_inputs_of_the_layers() -> None:
    kept = footprint(WorkloadSpec(LLAMA, job="finetune", batch=2, context=1024))
    again = footprint(WorkloadSpec(LLAMA, job="finetune", batch=2, context=1024, checkpointing=True))
    assert again.activations == 2 * 1024 * LLAMA.layers * 2 * LLAMA.hidden
    assert again.activations < kept.activations / 10
    assert again.buffers == kept.buffers + kept.activations // LLAMA.layers


def test_attention_that_is_not_fused_keeps_its_scores() -> None:
    fused = WorkloadSpec(LLAMA, job="finetune", context=4096)
    more = footprint(replace(fused, flash=False)).activations - footprint(fused).activations
    assert more == 4096 * LLAMA.layers * 5 * LLAMA.heads * 4096


@pytest.mark.parametrize(
    ("zero", "split"), [(0, ()), (1, ("optimizer",)), (2, ("optimizer", "gradients")), (3, ("optimizer", "gradients"))]
)
def test_zero_splits_optimizer_then_gradients_then_weights(zero: int, split: tuple[str, ...]) -> None:
    work = WorkloadSpec(LLAMA, job="finetune")
    alone, spread = footprint(work), footprint(work, Sharding(data=8, zero=zero))
    for name in ("optimizer", "gradients"):
        assert getattr(spread, name) == getattr(alone, name) // (8 if name in split else 1)
    assert spread.weights == alone.weights // (8 if zero == 3 else 1)
    assert (spread.buffers > alone.buffers) == (zero == 3)


def test_gradients_that_are_not_synchronised_are_whole_on_every_replica() -> None:
    work = WorkloadSpec(LLAMA, job="lora")
    apart = footprint(work, Sharding(data=4, zero=3, mixed_units=True, synced=False))
    assert apart.gradients == 2 * PARAMETERS
    assert footprint(work, Sharding(data=4, zero=3)).gradients < 2 * PARAMETERS / 100


def test_tensor_parallel_devices_share_matrices_and_kv_heads() -> None:
    work = WorkloadSpec(LLAMA, context=4096)
    alone, eight, sixteen = (footprint(work, Sharding(tensor=count)) for count in (1, 8, 16))
    assert (eight.weights, eight.kv_cache) == (alone.weights // 8, alone.kv_cache // 8)
    assert sixteen.kv_cache == eight.kv_cache, "eight KV heads cannot be split over sixteen"


def test_a_pipeline_spreads_whole_layers() -> None:
    work = WorkloadSpec(LLAMA)
    count = LLAMA.parameters()
    spread = footprint(work, Sharding(pipeline=2))
    layer = (count.total - count.embedding - count.head) / 32
    assert spread.weights == pytest.approx(2 * (16 * layer + count.head), rel=0.001)
    assert spread.kv_cache == footprint(work).kv_cache // 2


@given(
    layers=st.integers(1, 90),
    stages=st.integers(1, 12),
    layer=st.integers(1, 50),
    ends=st.tuples(st.integers(0, 90), st.integers(0, 90)),
)
def test_the_fullest_stage_is_no_lighter_than_its_share_and_no_heavier_than_all(
    layers: int, stages: int, layer: int, ends: tuple[int, int]
) -> None:
    size = fullest_stage(layers, layer, (float(ends[0]), float(ends[1])), stages)
    everything = layers * layer + sum(ends)
    assert everything / stages <= size <= everything
    assert size <= everything / stages + layer + max(ends)


def test_the_host_keeps_an_input_table_only_where_memories_are_apart() -> None:
    work = WorkloadSpec(LLAMA, weights="F16", framework="llama.cpp")
    table = 128256 * 4096 * 16.0005 / 8
    apart, together = footprint(work), footprint(work, shared=True)
    assert together.weights - apart.weights == pytest.approx(table, abs=2)
    assert (apart.reserve, together.reserve) == (ENGINES["llama.cpp"].reserve_bytes, 0)


def test_tight_lies_between_what_is_computed_and_what_is_cautious() -> None:
    need = footprint(WorkloadSpec(LLAMA))
    assert need.total < need.cautious
    said = [fit(WorkloadSpec(LLAMA), Room(size)).answer for size in (need.total - 1, need.total, need.cautious)]
    assert said == ["does not fit", "tight", "fits"]
    assert fit(WorkloadSpec(LLAMA), Room(need.total - 5)).spare_bytes == -5


WORKLOADS = st.builds(
    WorkloadSpec,
    model=st.sampled_from([LLAMA, *map(find_model, ("Mixtral-8x7B", "Gemma-2-9B", "DeepSeek-V2", "Phi-3-mini"))]),
    job=st.sampled_from(JOBS),
    weights=st.sampled_from([name for name, form in FORMATS.items() if form.trainable]),
    batch=st.integers(1, 64),
    context=st.integers(1, 16384),
    framework=st.sampled_from(list(ENGINES)),
    optimizer=st.sampled_from(list(OPTIMIZERS)),
    master_weights=st.booleans(),
    checkpointing=st.booleans(),
    flash=st.booleans(),
)
SPREADS = st.builds(
    Sharding,
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.integers(1, 8),
    data=st.integers(1, 8),
    zero=st.integers(0, 3),
)


@given(work=WORKLOADS, spread=SPREADS, more=st.integers(1, 100))
def test_more_sequences_and_longer_ones_never_take_less(work: WorkloadSpec, spread: Sharding, more: int) -> None:
    need = footprint(work, spread)
    for asked in (replace(work, batch=work.batch + more), replace(work, context=work.context + more)):
        larger = footprint(asked, spread)
        assert all(larger.as_dict()[name] >= size for name, size in need.as_dict().items())


@given(work=WORKLOADS, spread=SPREADS)
def test_every_category_is_a_whole_number_of_bytes_and_none_is_negative(work: WorkloadSpec, spread: Sharding) -> None:
    need = footprint(work, spread)
    assert all(isinstance(size, int) and size >= 0 for size in need.as_dict().values())
    assert need.allocated + need.reserve == need.total == sum(need.as_dict().values())


@given(work=WORKLOADS, spread=SPREADS)
def test_a_device_of_many_never_carries_more_weights_than_a_device_alone(work: WorkloadSpec, spread: Sharding) -> None:
    assert footprint(work, spread).weights <= footprint(work).weights + 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be a whole number ≥ 1"),
        ({"batch": -4}, "batch is -4"),
        ({"batch": True}, "batch is True"),
        ({"context": 1.5}, "context is 1.5"),
        ({"prompt": -1}, "prompt is -1"),
        ({"job": "finetun"}, "'finetun' is no job; did you mean 'finetune'?"),
        ({"framework": "lama.cpp"}, "did you mean 'llama.cpp'?"),
        ({"optimizer": "adamz"}, "'adamz' is no optimizer"),
        ({"weights": "Q4_K_X"}, "no number format is named 'Q4_K_X'"),
        ({"kv": "none"}, "no number format is named 'none'"),
        ({"job": "finetune", "weights": "nf4"}, "weights in nf4 cannot be trained; use bf16, or a 'lora' job"),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        WorkloadSpec(LLAMA, **how)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sharding(tensor=0), "tensor is 0"),
        (lambda: Sharding(zero=4), "4 is no ZeRO stage; allowed: 0, 1, 2, 3"),
        (lambda: Lora(rank=0), "rank is 0"),
        (lambda: Lora(targets=("x",)), "'x' is no LoRA target"),
        (lambda: ModelSpec("m", 0, 8, 1, 1, 8, 8, 8), "layers"),
    ],
)
def test_a_spread_or_adapter_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize("job", ["inference", "lora"])
def test_a_prompt_that_is_longer_than_its_context_is_refused(job: Any) -> None:
    with pytest.raises(BadValueError, match=r"a prompt of 4,096 tokens is longer than a context of 100; .*--context"):
        WorkloadSpec(find_model("Llama-3.1-8B"), job=job, prompt=4096, context=100)
    assert WorkloadSpec(find_model("Llama-3.1-8B"), prompt=100, context=100).answer_tokens == 0
