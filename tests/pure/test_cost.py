from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.model.device import Device, DeviceType
from hetero.plan.performance.cost_model import KEPT, CostModel, Sample

SIG = "f@1|float64[8]"


def device(name: str, index: int = 0, **more: object) -> Device:
    kind = "cpu" if name.startswith("cpu") else "cuda"
    return Device(f"h0/{name}:{index}", kind, DeviceType(kind.upper()), kind, index=index, name=name, **more)  # type: ignore[arg-type]


CPU, TWIN, GPU = device("cpu"), device("cpu", 1), device("gpu")


def fed(model: CostModel, signature: str, where: Device, *seconds: float, size: float = 64.0) -> CostModel:
    for value in seconds:
        model.observe(signature, size, where, value)
    return model


def told(model: CostModel, signature: str, where: Device, size: float = 64.0) -> float:
    return model.estimate(signature, size, where).seconds


def test_nothing_known_gives_a_wide_guess() -> None:
    found = CostModel().estimate(SIG, 64.0, CPU)
    assert (found.origin, found.samples) == ("unknown", 0)
    assert found.high_s > 1000 * found.low_s


def test_the_first_run_is_set_aside_once_a_second_was_faster() -> None:
    assert told(fed(CostModel(), SIG, CPU, 10.0), SIG, CPU) == 10.0
    assert told(fed(CostModel(), SIG, CPU, 10.0, 0.1), SIG, CPU) == 0.1
    assert told(fed(CostModel(), SIG, CPU, 10.0, 0.1, 0.12, 0.11), SIG, CPU) == 0.11


def test_one_spike_moves_nothing() -> None:
    model = fed(CostModel(), SIG, CPU, *[0.1] * 20)
    assert not model.observe(SIG, 64.0, CPU, 50.0)
    assert told(model, SIG, CPU) == 0.1
    assert model.estimate(SIG, 64.0, CPU).high_s < 0.2


@given(st.floats(1.0, 100.0), st.integers(3, 60), st.integers(0, 60))
def test_a_lone_spike_anywhere_leaves_the_median(spike: float, count: int, at: int) -> None:
    values = [0.1] * count
    values.insert(min(at, count), 0.1 * spike)
    assert told(fed(CostModel(), SIG, CPU, *values), SIG, CPU) == 0.1


@pytest.mark.parametrize("ratio", [3.0, 1 / 3.0, 10.0])
def test_a_device_that_becomes_three_times_slower_or_faster_is_believed_after_two_tasks(ratio: float) -> None:
    model = fed(CostModel(), SIG, CPU, *[0.1, 0.11, 0.1, 0.09] * 10)
    fed(model, SIG, CPU, 0.1 * ratio, 0.101 * ratio)
    assert told(model, SIG, CPU) == pytest.approx(0.1 * ratio)


def test_a_device_that_becomes_half_as_slow_again_is_believed_after_three_tasks() -> None:
    model = fed(CostModel(), SIG, CPU, *[0.1] * 40, 0.15, 0.15)
    assert told(model, SIG, CPU) == 0.1
    assert told(fed(model, SIG, CPU, 0.15), SIG, CPU) == 0.15


def test_a_slow_down_is_believed_for_every_signature_of_the_device_and_of_no_other() -> None:
    model = CostModel([CPU, TWIN])
    for where in (CPU, TWIN):
        fed(model, SIG, where, *[0.1] * 10)
        fed(model, "g@1|", where, *[0.2] * 10)
    before = model.epoch
    fed(model, SIG, CPU, 0.3, 0.3)
    assert model.epoch == before + 1
    assert told(model, "g@1|", CPU) == pytest.approx(0.6)
    assert told(model, "g@1|", TWIN) == 0.2
    assert told(model, SIG, TWIN) == 0.1


def test_the_first_sample_of_another_signature_confirms_a_slow_down() -> None:
    model = fed(fed(CostModel(), SIG, CPU, *[0.1] * 10), "g@1|", CPU, *[0.2] * 10)
    fed(model, SIG, CPU, 0.3, 0.3)
    fed(model, "g@1|", CPU, 0.58)
    assert told(model, "g@1|", CPU) == pytest.approx(0.6, rel=0.05)


def test_the_first_sample_that_denies_a_slow_down_puts_all_others_back_but_not_the_one_that_changed() -> None:
    model = CostModel()
    for signature in (SIG, "g@1|", "h@1|"):
        fed(model, signature, CPU, *[0.1] * 10)
    fed(model, SIG, CPU, 0.5, 0.5)
    assert told(model, "h@1|", CPU) == pytest.approx(0.5)
    fed(model, "g@1|", CPU, 0.1)
    assert [told(model, name, CPU) for name in (SIG, "g@1|", "h@1|")] == [0.5, 0.1, 0.1]


def test_a_device_that_slows_and_recovers_is_back_at_its_old_estimates_for_what_it_did_not_run() -> None:
    model = fed(fed(CostModel(), SIG, CPU, *[0.1] * 10), "g@1|", CPU, *[0.2] * 10)
    fed(model, SIG, CPU, 0.3, 0.3, 0.3, 0.3, 0.1, 0.1)
    assert told(model, "g@1|", CPU) == pytest.approx(0.2)


def test_microseconds_of_jitter_say_nothing_of_a_device() -> None:
    model = fed(fed(CostModel(), "noop|", CPU, *[4e-6] * 40), SIG, CPU, *[0.1] * 10)
    fed(model, "noop|", CPU, *[15e-6] * 40)
    assert (told(model, SIG, CPU), model.epoch) == (0.1, 0)


def test_an_identical_device_knows_what_its_twin_learned() -> None:
    found = fed(CostModel([CPU, TWIN]), SIG, CPU, 9.0, 0.1, 0.1).estimate(SIG, 64.0, TWIN)
    assert (found.seconds, found.origin) == (0.1, "history")


def test_a_twins_poisoned_first_run_is_not_believed() -> None:
    model = fed(CostModel([CPU, TWIN]), SIG, CPU, 9.0, 0.1, 0.1)
    fed(model, SIG, TWIN, 8.0)
    assert told(model, SIG, TWIN) == 0.1


def test_three_sizes_of_a_function_predict_a_fourth() -> None:
    model = CostModel()
    for side in (100, 200, 400):
        fed(model, f"mm@1|[{side}]", CPU, *[1e-9 * side**3] * 3, size=8.0 * side * side)
    found = model.estimate("mm@1|[800]", 8.0 * 800 * 800, CPU)
    assert found.origin == "regression"
    assert found.seconds == pytest.approx(0.512, rel=0.01)


def test_one_signature_with_numbers_of_many_sizes_is_predicted_by_size() -> None:
    model = CostModel()
    for turn in range(8):
        for size in (1e4, 3e4, 1e5, 1e6):
            model.observe("loop@1|int", size + turn, CPU, 1e-6 * size)
    assert told(model, "loop@1|int", CPU, 5e5) == pytest.approx(0.5, rel=0.05)


def test_a_known_time_elsewhere_is_scaled_by_flop_per_s() -> None:
    cpu, gpu = device("cpu", flop_per_s=1e11), device("gpu", flop_per_s=1e13)
    found = fed(CostModel([cpu, gpu]), SIG, cpu, 1.0, 1.0).estimate(SIG, 64.0, gpu)
    assert (found.origin, found.seconds) == ("relative", pytest.approx(0.01))


def test_a_signature_bound_by_data_is_scaled_by_bytes_per_s() -> None:
    cpu = device("cpu", flop_per_s=1e11, bytes_per_s=1e10)
    gpu = device("gpu", flop_per_s=1e13, bytes_per_s=4e10)
    model = fed(CostModel([cpu, gpu]), SIG, cpu, 0.12, 0.12, size=1e9)
    assert model.bound(SIG) == "data"
    assert told(model, SIG, gpu, 1e9) == pytest.approx(0.03)


def test_throttles_alone_scale_between_devices_that_differ_in_nothing_else() -> None:
    slow = device("cpu", 2, throttle_frac=0.25)
    found = fed(CostModel([CPU, slow]), SIG, CPU, 0.1, 0.1).estimate(SIG, 64.0, slow)
    assert (found.origin, found.seconds) == ("relative", pytest.approx(0.4))


def test_a_ratio_learned_from_other_tasks_beats_the_catalogue() -> None:
    cpu, gpu = device("cpu", flop_per_s=1e11), device("gpu", flop_per_s=1e13)
    model = CostModel([cpu, gpu])
    for name in ("a@1|", "b@1|", "c@1|"):
        fed(fed(model, name, cpu, 1.0, 1.0), name, gpu, 0.2, 0.2)
    fed(model, SIG, cpu, 2.0, 2.0)
    assert told(model, SIG, gpu) == pytest.approx(0.4)


def test_bytes_over_bytes_per_s_is_the_last_resort_before_a_guess() -> None:
    found = CostModel().estimate(SIG, 1e10, device("gpu", bytes_per_s=1e11))
    assert (found.origin, found.seconds) == ("roofline", pytest.approx(0.1))


def test_compute_and_data_are_told_apart_by_how_times_differ_between_devices() -> None:
    cpu = device("cpu", flop_per_s=1e11, bytes_per_s=1e10)
    gpu = device("gpu", flop_per_s=1e13, bytes_per_s=4e10)
    model = CostModel([cpu, gpu])
    fed(fed(model, "mm@1|", cpu, 1.0, 1.0), "mm@1|", gpu, 0.011, 0.011)
    fed(fed(model, "copy@1|", cpu, 1.0, 1.0), "copy@1|", gpu, 0.24, 0.24)
    assert (model.bound("mm@1|"), model.bound("copy@1|"), model.bound("unseen@1|")) == ("compute", "data", None)


def test_a_function_that_grows_faster_than_its_bytes_is_bound_by_compute() -> None:
    model = CostModel()
    for side in (100, 200, 400):
        fed(model, f"mm@1|[{side}]", CPU, *[1e-9 * side**3] * 3, size=8.0 * side * side)
    assert model.bound("mm@1|[100]") == "compute"


def test_a_poisoned_first_run_does_not_rule_out_a_device_whose_speed_is_known() -> None:
    cpu, gpu = device("cpu", flop_per_s=1e11), device("gpu", flop_per_s=1e13)
    model = fed(fed(CostModel([cpu, gpu]), SIG, gpu, 30.0), SIG, cpu, 1.0, 1.0)
    assert told(model, SIG, gpu) == pytest.approx(0.01)


def test_a_slow_first_run_is_believed_where_nothing_else_is_known_of_the_device() -> None:
    model = fed(fed(CostModel([CPU, GPU]), SIG, GPU, 30.0), SIG, CPU, 1.0, 1.0)
    assert told(model, SIG, GPU) == 30.0


def test_what_was_learned_survives_a_run() -> None:
    first = fed(CostModel([CPU, GPU]), SIG, CPU, 9.0, *[0.1] * 40)
    samples = first.new_samples()
    assert len(samples) == KEPT
    assert first.new_samples() == ()
    second = CostModel([CPU, GPU])
    second.load(samples)
    assert told(second, SIG, CPU) == 0.1
    assert second.estimate(SIG, 64.0, CPU).origin == "history"
    assert second.new_samples() == ()


def test_a_history_that_is_no_longer_true_is_unlearned_after_four_tasks() -> None:
    model = CostModel([CPU])
    model.load([Sample(SIG, CPU.model_key, 64.0, 0.1)] * 16)
    fed(model, SIG, CPU, 5.0)
    assert told(model, SIG, CPU) == 0.1
    assert told(fed(model, SIG, CPU, 0.3, 0.3, 0.3), SIG, CPU) == 0.3


def test_a_first_run_is_not_kept_until_a_second_confirms_it() -> None:
    model = fed(CostModel([CPU]), SIG, CPU, 9.0)
    assert model.new_samples() == ()
    assert [sample.seconds for sample in fed(model, SIG, CPU, 0.1).new_samples()] == [0.1]


def test_observe_says_so_only_when_an_estimate_moved_by_more_than_a_tenth() -> None:
    model = CostModel()
    assert model.observe(SIG, 64.0, CPU, 0.1)
    moves = [model.observe(SIG, 64.0, CPU, 0.1 * value) for value in (1.01, 0.99, 1.02, 0.98, 1.0, 1.03)]
    assert not any(moves)
    assert [model.observe(SIG, 64.0, CPU, 0.5) for _ in range(2)] == [False, True]


def test_a_device_that_came_back_as_another_kind_starts_anew() -> None:
    model = fed(CostModel([CPU]), SIG, CPU, 0.1, 0.1)
    assert model.estimate(SIG, 64.0, device("cpu", cores=4)).origin == "relative"


def test_a_hundred_thousand_signatures_are_not_all_remembered() -> None:
    model = CostModel([CPU])
    for index in range(20_000):
        model.observe(f"f@{index}|", 1.0, CPU, 0.1)
    state = model._states[CPU.id]
    assert len(state.windows) <= 4096
    assert len(state.model.functions) <= 4096


runs = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.floats(0.0, 1e9), st.floats(0.0, 1e4)), min_size=1, max_size=120
)


@given(runs)
def test_estimates_are_finite_ordered_and_repeatable(story: list[tuple[int, int, float, float]]) -> None:
    devices = (CPU, TWIN, device("gpu", flop_per_s=1e12, bytes_per_s=1e11))

    def live() -> list[object]:
        model, said = CostModel(devices), []
        for function, where, size, taken in story:
            model.observe(f"f{function % 2}|{function}", size, devices[where], taken)
            found = model.estimate(f"f{function % 2}|{function}", size, devices[where])
            assert 0.0 < found.low_s <= found.seconds <= found.high_s < float("inf")
            said.append(found)
        said += [model.estimate("f0|new", 1e3, where) for where in devices]
        return [*said, model.new_samples(), model.bound("f0|0"), model.epoch]

    assert live() == live()


def test_answers_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from tests.pure.test_cost import *\n"
        "model = CostModel([CPU, TWIN, GPU])\n"
        "for i in range(400): model.observe(f'f{i % 7}|{i % 13}', i % 13, (CPU, TWIN, GPU)[i % 3], 0.1 + i % 5 / 9)\n"
        "print([model.estimate(f'f{i % 7}|{i}', i, GPU) for i in range(20)], model.new_samples())\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=250,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(said) == 1


def test_before_anything_ran_a_slow_device_is_guessed_to_be_slow() -> None:
    cpu = DeviceType("CPU")
    fast = Device("h0/cpu:0", "cpu", cpu, "cpu")
    slow = Device("h0/cpu:1", "cpu", cpu, "cpu", 1, throttle_frac=0.02)
    cost = CostModel([fast, slow])
    assert cost.estimate("f|", 0.0, slow).seconds == pytest.approx(50 * cost.estimate("f|", 0.0, fast).seconds)
    rated = [replace(fast, flop_per_s=1e12), replace(slow, name="old", flop_per_s=1e11, throttle_frac=1.0)]
    cost = CostModel(rated)
    assert cost.estimate("f|8", 8.0, rated[1]).seconds == pytest.approx(
        10 * cost.estimate("f|8", 8.0, rated[0]).seconds
    )


def test_tasks_too_short_to_tell_do_not_say_how_two_devices_compare() -> None:
    cpu = DeviceType("CPU")
    fast = Device("h0/cpu:0", "cpu", cpu, "cpu")
    slow = Device("h0/cpu:1", "cpu", cpu, "cpu", 1, throttle_frac=0.02)
    cost = CostModel([fast, slow])
    for where in (fast, slow):
        fed(cost, "nop|", where, *[2e-6] * 8)
    fed(cost, "work|", fast, *[0.02] * 4)
    assert told(cost, "work|", slow) == pytest.approx(1.0)
