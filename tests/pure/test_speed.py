"""Amounts of ideal work follow from the architecture, and what is learned follows the measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hetero
from hetero.advise.estimate import Workload, compare_speeds, estimate
from hetero.advise.known_efficiency import MINI, Timed, kept_entries, known_of, prior_of
from hetero.advise.rates import rates_of
from hetero.catalog.load import devices, find, find_model
from hetero.catalog.values import DeviceSpec
from hetero.floor.errors import BadValueError
from hetero.model.figure import Figure
from hetero.model.workload import ENGINES, Sharding
from hetero.plan.sizing import ideal_work
from hetero.plan.sizing.efficiency import SPEC, MeasuredRun, learn
from hetero.plan.sizing.ideal_work import TERMS, DeviceRates
from hetero.plan.training.speed import model_flop, training_amounts, training_time

RATES = DeviceRates(1e14, 1e12, 1e11)
LLAMA = find_model("Llama-3.1-8B")
WORK = Workload(LLAMA, framework="vllm", prompt=512, context=1024)


def _term(amounts: np.ndarray, name: str) -> float:
    return float(amounts[TERMS.index(name)])


def test_a_decode_step_reads_every_weight_but_the_input_table_once_whatever_the_batch() -> None:
    count = LLAMA.parameters()
    one, eight = (ideal_work.step_amounts(WORK, Sharding(), RATES, batch, 600) for batch in (1, 8))
    moved = _term(eight, "weights") - _term(one, "weights")
    assert _term(one, "weights") == pytest.approx(2 * (count.total - count.embedding) / RATES.bytes_per_s, rel=0.002)
    assert moved < 0.01 * _term(one, "weights")
    assert _term(eight, "arithmetic") == pytest.approx(8 * _term(one, "arithmetic"))


def test_the_cache_that_a_step_reads_is_that_of_the_tokens_kept() -> None:
    amounts = ideal_work.step_amounts(WORK, Sharding(), RATES, 4, 600)
    assert _term(amounts, "cache") == pytest.approx(4 * LLAMA.kv_values(600) * 2 / RATES.bytes_per_s)


def test_a_prompt_takes_two_operations_a_parameter_and_token() -> None:
    count = LLAMA.parameters()
    flop = _term(ideal_work.prompt_amounts(WORK, Sharding(), RATES, 1), "prompt") * RATES.flop_per_s
    attention = 2 * 512**2 * LLAMA.query_width * LLAMA.layers
    assert flop == pytest.approx(2 * (count.active - count.head) * 512 + attention)


def test_tensor_parallel_devices_share_the_work_and_pay_with_messages() -> None:
    one, four = (ideal_work.step_amounts(WORK, Sharding(tensor=tensor), RATES, 8, 600) for tensor in (1, 4))
    assert _term(four, "weights") == pytest.approx(_term(one, "weights") / 4)
    assert _term(one, "reduce") == _term(one, "link") == 0
    assert _term(four, "reduce") == 2 * LLAMA.layers * 2
    assert _term(four, "link") == pytest.approx(2 * 3 / 4 * 2 * LLAMA.layers * 8 * LLAMA.hidden * 2 / 1e11)


def test_stages_take_turns_at_an_answer_and_share_a_prompt_of_many_passes() -> None:
    work = Workload(LLAMA, framework="llama.cpp", prompt=4096, context=4224)
    one, four = (Sharding(pipeline=count) for count in (1, 4))
    assert _term(ideal_work.step_amounts(work, four, RATES, 1, 600), "weights") == _term(
        ideal_work.step_amounts(work, one, RATES, 1, 600), "weights"
    )
    share = _term(ideal_work.prompt_amounts(work, four, RATES, 1), "prompt") / _term(
        ideal_work.prompt_amounts(work, one, RATES, 1), "prompt"
    )
    assert share == pytest.approx((8 + 3) / (8 * 4))


UNKNOWN_MATRIX_RATE = ("Arc-A770", "Arc-B580", "Jetson-AGX-Thor", "RX-9070-XT")
"""Devices with matrix units the rate of which no opened source prints."""


def _multiplied_per_s(device: DeviceSpec, engine: str, weights: str) -> tuple[float, float]:
    """Return the operations a second of a long prompt, and the share of the bandwidth that a decode step reaches."""
    work = Workload("Llama-3.1-70B", framework=engine, weights=weights, prompt=2048, context=2176)
    found = estimate(work, device)
    assert found.prefill_s is not None
    assert found.step_s is not None
    assert device.bandwidth_bytes_per_s is not None
    flop = 2 * work.model.parameters().active * work.prompt_tokens
    read = 2 * work.model.parameters().active if weights == "bf16" else 41e9
    return flop / found.prefill_s.value, read / found.step_s.value / device.bandwidth_bytes_per_s


@pytest.mark.parametrize(("engine", "weights"), [("vllm", "bf16"), ("llama.cpp", "Q4_K_M")])
def test_no_device_is_estimated_out_of_line_with_its_arithmetic_or_its_bandwidth(engine: str, weights: str) -> None:
    """No device does less than its FP32 units alone, nor more than its matrix units with sums of 32 bits."""
    odd, judged = [], 0
    for spec in devices().values():
        rates = {key: rate for key, rate in spec.flop_per_s.items() if rate}
        most = max((rates[key] for key in ("bf16", "fp16", "fp32") if key in rates), default=0.0)
        if spec.name in UNKNOWN_MATRIX_RATE or not most or not spec.bandwidth_bytes_per_s or not spec.usable_bytes:
            continue
        judged += 1
        per_s, read_frac = _multiplied_per_s(spec, engine, weights)
        least = 0.25 * max(rates.get("fp32", 0.0), 0.5 * most)
        ceiling = 1.05 * most if engine == "vllm" else 1.05 * max(most, rates.get("fp16_acc16", 0.0))
        huge = spec.bandwidth_bytes_per_s > 1e13
        if not least <= per_s <= ceiling or not (huge or 0.3 <= read_frac <= 1.0):
            odd.append(f"{spec.name}: {per_s / 1e12:.1f} of {most / 1e12:.1f} TFLOP/s, {read_frac:.0%} of bandwidth")
    assert odd == []
    assert judged >= 70


@pytest.mark.parametrize(
    ("device", "engine", "weights", "flop_per_s"),
    [
        ("P40", "vllm", "fp16", 11.76e12),
        ("P40", "llama.cpp", "Q4_K_M", 11.76e12),
        ("RTX-3090", "vllm", "bf16", 71e12),
        ("RTX-3090", "llama.cpp", "Q4_K_M", 142e12),
        ("RTX-A6000", "vllm", "bf16", 155e12),
        ("RTX-4080", "vllm", "fp8", 195e12),
        ("RTX-4090", "vllm", "fp8", 330.3e12),
        ("A100-SXM-80GB", "vllm", "fp8", 312e12),
        ("A100-SXM-80GB", "vllm", "int8", 624e12),
        ("B300", "vllm", "int8", 2250e12),
        ("H100-SXM", "vllm", "nvfp4", 989e12),
        ("RTX-5090", "vllm", "nvfp4", 419e12),
        ("Gaudi3", "vllm", "fp16", 1677e12),
        ("RTX-3090", "vllm", "fp32", 35.6e12),
    ],
)
def test_weights_are_multiplied_in_the_quickest_way_that_an_engine_has(
    device: str, engine: str, weights: str, flop_per_s: float
) -> None:
    work = Workload(LLAMA, framework=engine, weights=weights)
    assert rates_of(find(device), work).flop_per_s == pytest.approx(flop_per_s, rel=0.01)


def test_a_vector_rate_never_stands_in_for_that_of_matrix_units_anywhere_in_the_catalog() -> None:
    work, unknown = Workload(LLAMA, framework="vllm", weights="bf16"), set()
    for spec in devices().values():
        units = {"tensor_cores", "matrix_cores"} & set(spec.capabilities) or "fp16_vector" in spec.flop_per_s
        matrix = [rate for key, rate in spec.flop_per_s.items() if rate and key in ("fp16", "bf16")]
        if units and not matrix:
            unknown.add(spec.name)
            with pytest.raises(BadValueError, match=f"no source for the matrix units of {spec.name}"):
                rates_of(spec, work)
        elif units and spec.bandwidth_bytes_per_s:
            assert rates_of(spec, work).flop_per_s == pytest.approx(max(matrix), rel=0.01), spec.name
    assert unknown == set(UNKNOWN_MATRIX_RATE)
    known = replace(find("Arc-B580"), flop_per_s={**find("Arc-B580").flop_per_s, "fp16": 1e14})
    assert rates_of(known, work).flop_per_s == 1e14


def test_a_rate_with_sums_of_16_bits_alone_counts_half_where_an_engine_adds_up_in_32() -> None:
    card = replace(find("RTX-3090"), flop_per_s={"fp32": 35.6e12, "fp16_acc16": 142e12})
    assert rates_of(card, WORK).flop_per_s == 71e12


def test_a_head_that_is_the_input_table_is_multiplied_with_all_the_same() -> None:
    tied = Workload("Qwen2.5-1.5B", framework="vllm")
    count = tied.model.parameters()
    assert count.head == 0
    flop = _term(ideal_work.step_amounts(tied, Sharding(), RATES, 1, 100), "arithmetic") * RATES.flop_per_s
    assert flop == pytest.approx(2 * (count.active + tied.model.vocab * tied.model.hidden))


def test_a_mixture_reads_the_experts_that_its_batch_touches() -> None:
    mixtral = find_model("Mixtral-8x7B")
    work = Workload(mixtral, framework="vllm")
    read = [_term(ideal_work.step_amounts(work, Sharding(), RATES, batch, 100), "weights") for batch in (1, 64)]
    assert read[0] == pytest.approx(2 * mixtral.parameters().active / 1e12, rel=0.01)
    assert read[1] == pytest.approx(2 * mixtral.parameters().total / 1e12, rel=0.02)


def test_sequences_that_do_not_fit_at_once_are_answered_in_turns() -> None:
    assert ideal_work.in_turns(replace(WORK, batch=64), 19) == (4, 16.0)
    one, two = (ideal_work.run_amounts(replace(WORK, batch=64), Sharding(), RATES, most) for most in (64, 32))
    assert _term(two, "request") == 2 * _term(one, "request")
    assert _term(two, "layer") > 1.9 * _term(one, "layer")


@settings(max_examples=60, deadline=None)
@given(
    engine=st.sampled_from(list(ENGINES)),
    batch=st.integers(1, 512),
    context=st.integers(2, 8192),
    count=st.sampled_from([1, 2, 4, 8]),
    model=st.sampled_from(["Llama-3.1-8B", "Mixtral-8x7B", "DeepSeek-V2-Lite", "Gemma-2-9B"]),
)
def test_no_amount_is_negative_and_more_tokens_never_take_less(
    engine: str, batch: int, context: int, count: int, model: str
) -> None:
    spread = Sharding(pipeline=count) if engine == "llama.cpp" else Sharding(tensor=count)
    work = Workload(model, framework=engine, batch=batch, context=context)
    less = ideal_work.run_amounts(work, spread, RATES, 0)
    more = ideal_work.run_amounts(replace(work, context=context + 64), spread, RATES, 0)
    assert (less >= 0).all()
    assert SPEC.seconds(more) >= SPEC.seconds(less) * 0.99


def _samples(cost: np.ndarray, noise: float, count: int) -> list[MeasuredRun]:
    chance = np.random.default_rng(0)
    found = []
    for number in range(count):
        prompt = int(chance.choice([128, 512, 2048]))
        work = Workload(
            LLAMA, framework="vllm", batch=int(chance.choice([1, 8, 64])), prompt=prompt, context=2 * prompt
        )
        spread = Sharding(tensor=1 + number % 2)
        amounts = ideal_work.run_amounts(work, spread, RATES, 0)
        seconds = float(np.exp(cost) @ amounts * np.exp(chance.normal(0, noise)))
        found.append(MeasuredRun(amounts, seconds, ideal_work.place_of(work, spread)))
    return found


def test_a_dozen_measurements_show_the_times_of_others() -> None:
    truth = SPEC.log_cost + np.linspace(-0.6, 0.6, len(TERMS))
    samples = _samples(truth, 0.02, 60)
    known = learn(SPEC, samples[:12], "measured", "")
    wrong = [abs(np.log(known.seconds(each.amounts, each.place) / each.seconds)) for each in samples[12:]]
    before = [abs(np.log(SPEC.seconds(each.amounts) / each.seconds)) for each in samples[12:]]
    assert np.median(wrong) < 0.06 < np.median(before)
    assert known.spread(samples[20].amounts) < SPEC.spread(samples[20].amounts)


def test_one_wild_measurement_among_a_dozen_does_not_poison_the_rest() -> None:
    samples = _samples(SPEC.log_cost, 0.02, 60)
    wild = [replace(samples[0], seconds=50 * samples[0].seconds, place=None), *samples[1:12]]
    known = learn(SPEC, wild, "measured", "")
    assert np.median([abs(np.log(known.seconds(each.amounts) / each.seconds)) for each in samples[12:]]) < 0.15


def test_no_measurement_leaves_the_prior() -> None:
    assert learn(SPEC, [], "measured", "") is SPEC


def test_what_is_said_comes_from_the_nearest_that_was_measured() -> None:
    def origin(device: str, engine: str) -> str:
        return prior_of(find(device), engine).origin

    assert origin("RTX-4090", "llama.cpp") == "prior"
    assert origin("RTX-4070", "llama.cpp") == "borrowed"
    assert origin("MI300X", "tensorrt-llm") == "borrowed"
    assert origin("H100-SXM", "vllm") == "spec"


def test_the_farther_the_measured_device_is_the_wider_is_the_interval() -> None:
    amounts = ideal_work.step_amounts(WORK, Sharding(), RATES, 1, 600)
    widths = [prior_of(find(name), "tensorrt-llm").spread(amounts) for name in ("H200", "A100-PCIe-40GB", "MI300X")]
    assert widths == sorted(widths)
    assert widths[0] < widths[2]


def test_an_estimate_carries_an_interval_and_an_origin_for_every_figure() -> None:
    told = hetero.plan.estimate(
        hetero.plan.Workload("Llama-3.1-8B", framework="llama.cpp", weights="Q4_K_M"), "RTX-4090"
    )
    assert {"latency_s", "prefill_s", "step_s", "decode_tokens_per_s", "most_tokens_per_s"} <= set(told.figures)
    assert all(figure.low < figure.value < figure.high for figure in told.figures.values())
    assert {figure.origin for figure in told.figures.values()} == {"prior"}
    assert told.memory.answer == "fits"
    assert "80 %" in told.explain()
    assert told.as_dict()["latency_s"]["origin"] == "prior"


def test_devices_whose_intervals_overlap_are_a_tie_and_others_are_ranked() -> None:
    work = Workload("Llama-3.1-8B", framework="llama.cpp", weights="Q4_K_M")
    told = compare_speeds([estimate(work, name) for name in ("M1-Max-64GB", "RTX-4080", "RTX-4090")])
    assert told.splitlines() == ["1. RTX-4090, RTX-4080: a tie, their intervals overlap", "3. M1-Max-64GB"]


def test_a_model_that_is_only_read_has_no_answer_figures() -> None:
    told = estimate(Workload("BERT-base", "embedding", batch=8, context=256), "RTX-4090")
    assert told.step_s is None
    assert told.throughput_tokens_per_s.value == pytest.approx(8 * 256 / told.latency_s.value)


def test_a_training_step_takes_six_operations_a_parameter_and_token() -> None:
    work = Workload("Llama-3.1-8B", "pretrain", context=4096)
    assert model_flop(work) == pytest.approx(6 * LLAMA.parameters().active * 4096)
    told = estimate(work, "B200", 8)
    assert told.mfu_frac is not None
    assert 0.1 < told.mfu_frac.value < 0.7


def test_recomputing_costs_a_third_more_and_sharded_weights_travel() -> None:
    work = Workload("Llama-3.1-8B", "pretrain", context=4096)
    plain, again = (training_amounts(each, Sharding(), RATES) for each in (work, replace(work, checkpointing=True)))
    assert _term(again, "prompt") == pytest.approx(4 / 3 * _term(plain, "prompt"))
    ring, sharded = (_term(training_amounts(work, Sharding(data=8, zero=zero), RATES), "link") for zero in (0, 3))
    assert 1.4 < sharded / ring < 1.6


def test_a_training_of_thirty_minutes_takes_ten_with_three_such_nodes() -> None:
    node = 100 / (30 * 60)
    assert training_time(100, [node], global_batch=30).total_s == pytest.approx(30 * 60)
    assert training_time(100, [node] * 3, global_batch=30).total_s == pytest.approx(10 * 60)
    unequal = training_time(100, [node, node, node / 2, node / 2], global_batch=30)
    assert unequal.plan.shares == (10, 10, 5, 5)
    assert unequal.speedup == pytest.approx(3.0)


def test_a_node_that_would_make_the_training_longer_is_left_out_and_told() -> None:
    told = training_time(100, [1.0, 1.0, 1e-4], global_batch=10)
    assert told.plan.shares == (5, 5, 0)
    assert "node 2 is left out" in told.explain()
    alone = training_time(100, [1.0, 1.0], global_batch=10, exchanged_bytes=1e9, link_bytes_per_s=1e6)
    assert alone.speedup == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: estimate("Llama-3.1-8B", "RTX-4090", 0), "count is 0"),
        (lambda: estimate("Llama-3.1-8B", "T4", 10**24), "count is 1000000000000000000000000.*from 1 to 1,000,000"),
        (lambda: estimate("Llama-3.1-8B", "T4", 999_999), "cannot be spread over 999999 devices"),
        (lambda: estimate("Llama-3.1-8B", "Arc-B580"), "no source for the matrix units of Arc-B580"),
        (lambda: estimate("Llama-3.1-8B", "WSE-2"), "no source for the arithmetic of WSE-2"),
        (lambda: estimate("Llama-3.1-8B", "H100"), "needs its SKU"),
        (lambda: Workload("Llama-3.1-8B", engine="vlmm"), "did you mean 'vllm'"),
        (lambda: training_time(100, [1.0, 0.0], global_batch=8), "each must be above 0"),
        (lambda: training_time(0, [1.0], global_batch=8), "0 samples"),
        (lambda: training_time(9, [1.0], global_batch=8, exchanged_bytes=-1), "-1 bytes"),
    ],
)
def test_a_mistake_is_told_in_one_line(call: object, said: str) -> None:
    with pytest.raises(BadValueError, match=said) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_an_interval_turns_around_with_its_figure() -> None:
    each = Figure(2.0, 1.0, 4.0, "prior").over(8.0)
    assert (each.value, each.low, each.high) == (4.0, 2.0, 8.0)


def test_what_was_timed_here_narrows_what_is_said_of_torch(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from hetero.advise.known_efficiency import keep_timed

    monkeypatch.setenv("HETERO_HOME", str(tmp_path))
    here = DeviceSpec("a processor", "", "cpu", bandwidth_bytes_per_s=2e10, flop_per_s={"fp32": 1e11})
    assert known_of(here, "torch").origin == "spec"
    work = Workload(MINI, weights="fp32", prompt=256, context=257)
    slow_s = 3 * SPEC.seconds(ideal_work.prompt_amounts(work, Sharding(), rates_of(here, work), 1))
    keep_timed(Timed("a processor", 1e11, 2e10, weights="fp32", prompt_s={"256": slow_s}, step_s={"256": 0.05}))
    assert list(kept_entries()) == ["here a processor"]
    told = known_of(here, "torch")
    assert told.origin == "measured"
    amounts = ideal_work.prompt_amounts(work, Sharding(), rates_of(here, work), 1)
    assert SPEC.seconds(amounts) < told.seconds(amounts) < 1.5 * slow_s
    assert known_of(here, "vllm").origin == "spec"
