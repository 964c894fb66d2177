"""The fleet as values: one-line fleets, what is chosen, what is handed out, what is said."""

from __future__ import annotations

import itertools

import pytest

from hetero.backends.base import Found
from hetero.floor.errors import BadValueError, ConfigError
from hetero.model.device import Device, DeviceType
from hetero.session import fleet
from hetero.session.fleet_build import Builder, DeviceEntry, Wanted, parse_spec, picked, refuse_absent
from hetero.session.fleet_speed import topology

WORDS = ("cpu", "torch-cpu", "cuda", "opencl", "null", "gpu")
CORES = (0, 1, 2, 3)


def cpu(index: int) -> Device:
    return Device(
        f"h0/cpu:{index}", "cpu", DeviceType("CPU"), "cpu", index, cpus=(index,), silicon=(f"h0/core{index}",)
    )


def card(label: str, index: int, kind: str = "", backend: str = "torch", silicon: str = "") -> Device:
    return Device(
        f"h0/{label}:{index}",
        kind or label,
        DeviceType("GPU"),
        backend,
        index,
        memory_node=f"h0/{label}:{index}",
        memory_bytes=8 * 10**9,
        silicon=(silicon or f"h0/{label}{index}",),
    )


TORCH_CPU = Device(
    "h0/torch-cpu:0",
    "cpu",
    DeviceType("CPU"),
    "torch",
    cpus=CORES,
    cores=4,
    silicon=tuple(f"h0/core{n}" for n in CORES),
)
FOUND = tuple(
    Found(device, device.backend)
    for device in (
        *(cpu(index) for index in CORES),
        card("cuda", 0, silicon="h0/pci:0000:01:00.0"),
        card("cuda", 1, silicon="h0/pci:0000:02:00.0"),
        TORCH_CPU,
        card("jax-cuda", 0, kind="cuda", backend="jax", silicon="h0/pci:0000:01:00.0"),
        Device("h0/null:0", "null", DeviceType("NULL"), "null", silicon=("h0/null0",), simulated=True),
    )
)


def made(spec: str) -> list[Device]:
    builder = Builder(FOUND, fleet.choose(FOUND)[0], CORES)
    found = picked([(wanted, builder) for wanted in builder.understood(parse_spec(spec, WORDS))[0]])
    assert not any(reason for _, reason in found), found
    return [device for devices, _ in found for device in devices]


def add(builder: Builder, wanted: Wanted, devices: list[Device]) -> str:
    found, reason = builder.pick(wanted, devices)
    devices += found
    return reason


def short(devices: list[Device]) -> list[str]:
    return [device.short for device in devices]


def test_cores_are_handed_out_in_turn_also_between_runtimes() -> None:
    devices = made("1xcpu,torch-cpu/2cores,1xcpu*0.5")
    assert [(device.short, device.cpus, device.throttle_frac) for device in devices] == [
        ("cpu:0", (0,), 1.0),
        ("torch-cpu:0", (1, 2), 1.0),
        ("cpu:1", (3,), 0.5),
    ]
    assert devices[1].silicon == ("h0/core1", "h0/core2")


def test_cores_overlap_only_when_they_run_out_and_a_remark_says_so() -> None:
    devices = made("cpu/4cores,1xcpu")
    assert devices[1].cpus == (0,)
    assert fleet.remarks(devices) == ("h0/cpu:0, h0/cpu:1 share h0/core0 and slow each other down",)
    assert fleet.remarks(made("cpu/2cores,cpu/2cores")) == ()


def test_a_number_counts_devices_where_the_kind_is_no_cpu() -> None:
    assert short(made("2xcuda*0.5")) == ["cuda:0", "cuda:1"]
    assert short(made("1xcuda,1xcuda*0.5")) == ["cuda:0", "cuda:1"]
    assert short(made("4xnull")) == ["null:0", "null:1", "null:2", "null:3"]


@pytest.mark.parametrize(
    ("spec", "ids"),
    [
        ("cpu:1", ["cpu:1"]),
        ("cpu:3*0.5,cpu:0", ["cpu:3", "cpu:0"]),
        ("cuda:1", ["cuda:1"]),
        ("h0/cuda:1,cuda:0", ["cuda:1", "cuda:0"]),
        ("null:0,null:1", ["null:0", "null:1"]),
        ("2xnull,null:2", ["null:0", "null:1", "null:2"]),
    ],
)
def test_an_index_names_a_device(spec: str, ids: list[str]) -> None:
    wanted = parse_spec(spec, WORDS)
    assert Builder(FOUND, fleet.choose(FOUND)[0], CORES).understood(wanted) == (list(wanted), [])
    assert short(made(spec)) == ids


@pytest.mark.parametrize(
    ("entries", "ids"),
    [
        (("cpu:1", "1xcpu"), {"cpu:1", "cpu:0"}),
        (("cpu:0", "1xcpu*0.5"), {"cpu:0", "cpu:1"}),
        (("cpu:2*0.5", "2xcpu", "cpu"), {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}),
        (("cpu", "cpu:0*0.5"), {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}),
        (("1xcpu*0.25", "cpu"), {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}),
        (("1xcuda", "cuda:0"), {"cuda:0", "cuda:1"}),
        (("gpu", "cuda:1*0.5"), {"cuda:0", "cuda:1"}),
        (("null:2", "2xnull"), {"null:0", "null:1", "null:2"}),
    ],
)
def test_an_entry_means_the_same_wherever_it_stands(entries: tuple[str, ...], ids: set[str]) -> None:
    orders = [made(",".join(order)) for order in itertools.permutations(entries)]
    assert {device.short for device in orders[0]} == ids
    assert all(sorted(order, key=str) == sorted(orders[0], key=str) for order in orders)


def test_entries_of_a_configuration_mean_the_same_wherever_they_stand() -> None:
    entries = (DeviceEntry("CPU", cores=1, throttle_frac=0.5), DeviceEntry("CPU", id=0))
    one, other = ([device.short for device in fleet.build(order)] for order in (entries, entries[::-1]))
    assert one == other[::-1] == ["cpu:1", "cpu:0"]


@pytest.mark.parametrize(
    ("spec", "read"),
    [
        ("cpu:1,cpu:1*0.25", ["1xcpu", "1xcpu*0.25"]),
        ("cpu:4", ["cpu/4cores"]),
        ("torch-cpu:2", ["torch-cpu/2cores"]),
        ("cuda:2", ["2xcuda"]),
        ("cuda:1,cuda:1*0.5", ["1xcuda", "1xcuda*0.5"]),
        ("null:8", ["8xnull"]),
        ("null:1,cpu:1", ["1xnull", "cpu:1"]),
        ("null:3,null:1", ["3xnull", "1xnull"]),
    ],
)
def test_the_old_form_of_a_number_is_read_with_a_warning_where_it_can_be_no_index(spec: str, read: list[str]) -> None:
    builder = Builder(FOUND, fleet.choose(FOUND)[0], CORES)
    wanted, warnings = builder.understood(parse_spec(spec, WORDS))
    assert [one.text for one in wanted] == read
    assert len(warnings) == len([word for word in read if ":" not in word])
    asked = [one for one in spec.split(",") if one not in read]
    assert warnings == [
        f"{old!r} is taken as a number of devices or cores, as in earlier versions: write {new!r}; the next version "
        f"reads {old!r} as the device with index {old.partition(':')[2].partition('*')[0]}"
        for old, new in zip(asked, [one for one in read if ":" not in one], strict=True)
    ]
    assert short(made(spec)) == short(made(",".join(read)))


@pytest.mark.parametrize("spec", ["cpu:9", "cuda:3", "cpu:0,cpu:0", "cuda:0,cuda:0,cuda:1"])
def test_an_index_that_nothing_has_is_never_guessed_to_be_a_number(spec: str) -> None:
    builder = Builder(FOUND, fleet.choose(FOUND)[0], CORES)
    wanted, warnings = builder.understood(parse_spec(spec, WORDS))
    devices: list[Device] = []
    assert any(add(builder, one, devices) for one in wanted)
    assert not warnings


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("tpu:1", "tpu:1 is broken: no answer; this host has tpu:0, tpu:3"),
        ("tpu:1,tpu:1*0.5", "tpu:1 is broken: no answer; this host has tpu:0, tpu:3"),
        ("tpu:2,tpu:1", "tpu:1 is broken: no answer; this host has tpu:0, tpu:3"),
        ("cpu:4", "cpu:4 is broken: too hot; this host has cpu:0, cpu:1, cpu:2, cpu:3"),
    ],
)
def test_who_names_a_broken_device_learns_why_and_gets_no_other(spec: str, reason: str) -> None:
    sound = [Found(card("tpu", index), "torch") for index in (0, 3)]
    broken = [Found(card("tpu", 1), "torch", "no answer"), Found(cpu(4), "cpu", "too hot")]
    found = (*FOUND, *sound, *broken)
    builder = Builder(found, fleet.choose(found)[0], CORES)
    wanted = parse_spec(spec, (*WORDS, "tpu"))
    assert builder.understood(wanted) == (list(wanted), [])
    devices: list[Device] = []
    reasons = [add(builder, one, devices) for one in wanted]
    assert (reason in reasons, devices) == (True, [])


def test_counted_cpu_devices_have_a_core_each_unless_they_say_how_many() -> None:
    assert [device.cpus for device in made("2xcpu")] == [(0,), (1,)]
    assert [device.cpus for device in made("2xcpu/2cores*0.5")] == [(0, 1), (2, 3)]
    assert short(made("2xcpu")) == ["cpu:0", "cpu:1"]


def test_a_word_without_a_number_means_every_one() -> None:
    assert short(made("cpu,cuda")) == ["cpu:0", "cpu:1", "cpu:2", "cpu:3", "cuda:0", "cuda:1"]


def test_a_type_means_the_preferred_runtime_of_each_card() -> None:
    assert short(made("gpu")) == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "empty fleet"),
        (" , ", "empty fleet"),
        ("1xcup", "did you mean 'cpu'"),
        ("0xcpu", "whole number above zero"),
        ("-1xcpu", "whole number above zero"),
        ("1.5xcpu", "whole number above zero"),
        ("1" * 5000 + "xcpu", "whole number above zero"),
        ("cpu/0cores", "whole number above zero"),
        ("cpu:-1", "is no index"),
        ("cpu:one", "is no index"),
        ("2xcpu:1", "both how many and which one"),
        ("1xcpu*0", "above 0 and at most 1"),
        ("1xcpu*-0.5", "above 0 and at most 1"),
        ("1xcpu*1.01", "above 0 and at most 1"),
        ("1xcpu*nan", "above 0 and at most 1"),
        ("1xcpu*x", "above 0 and at most 1"),
        ("1xcpu,,1xcpu", "is no entry"),
        ("cpu 1", "is no entry"),
    ],
)
def test_a_fleet_that_cannot_be_read_says_what_to_write(spec: str, words: str) -> None:
    with pytest.raises(BadValueError, match=words):
        parse_spec(spec, WORDS)


def test_words_are_read_in_any_case_and_with_spaces() -> None:
    assert short(made(" 1 x CPU * 0.5 , Cuda:1")) == ["cpu:0", "cuda:1"]


def test_more_than_there_is_is_absent_with_what_there_is() -> None:
    builder = Builder(FOUND, fleet.choose(FOUND)[0], CORES)
    devices: list[Device] = []
    for text, reason in (
        ("cpu/9cores", "it asks for 9 cores and this host has 4"),
        ("33xcpu", "it asks for 33 devices on 4 cores, which take 32 at most"),
        ("cpu:9", "this host has cpu:0, cpu:1, cpu:2, cpu:3"),
        ("3xcuda", "this host has cuda:0, cuda:1"),
        ("cuda:3", "this host has cuda:0, cuda:1"),
        ("1xopencl", "this host has none"),
    ):
        assert add(builder, parse_spec(text, WORDS)[0], devices) == reason
    assert devices == []


def test_a_device_is_chosen_once_and_the_native_runtime_wins() -> None:
    chosen, left_out = fleet.choose(FOUND)
    assert short(list(chosen)) == ["cpu:0", "cpu:1", "cpu:2", "cpu:3", "cuda:0", "cuda:1"]
    assert {device.short: why for device, why in left_out} == {
        "torch-cpu:0": "same silicon as h0/cpu:0, h0/cpu:1 and 2 more",
        "jax-cuda:0": "same silicon as h0/cuda:0",
        "null:0": "it computes nothing, and is used when it is named",
    }


def test_a_broken_device_is_never_chosen() -> None:
    broken = Found(card("cuda", 0), "torch", "it enumerates and cannot compute", "new driver")
    assert fleet.choose([broken]) == ((), ())


def test_simulated_and_throttled_devices_are_remarked() -> None:
    assert fleet.remarks(made("1xcpu*0.25,5xnull")) == (
        "h0/cpu:0 is throttled to 0.25",
        "nothing is computed on h0/null:0, h0/null:1 and 3 more: results are None and times mean nothing",
    )


def test_an_id_names_one_device_and_naming_it_twice_is_refused() -> None:
    builder = Builder(FOUND, fleet.choose(FOUND)[0], CORES)
    devices: list[Device] = []
    for given in (1, "cuda:0"):
        assert add(builder, Wanted.of(DeviceEntry("GPU", id=given)), devices) == ""
    assert short(devices) == ["cuda:1", "cuda:0"]
    assert add(builder, Wanted.of(DeviceEntry("cuda", id=0)), devices) == "h0/cuda:0 is named twice"
    assert add(builder, Wanted.of(DeviceEntry("GPU", id=7)), devices) == "this host has cuda:0, cuda:1"


def test_a_null_device_has_the_index_that_an_entry_gives_it() -> None:
    builder = Builder(FOUND, fleet.choose(FOUND)[0], CORES)
    devices: list[Device] = []
    for given in (3, "null:1", "h0/null:0"):
        assert add(builder, Wanted.of(DeviceEntry("null", id=given)), devices) == ""
    assert short(devices) == ["null:3", "null:1", "null:0"]
    assert add(builder, Wanted.of(DeviceEntry("null", id=3)), devices) == "null:3 is named twice"


def test_an_index_and_another_number_of_cores_than_it_has_are_refused() -> None:
    builder = Builder(FOUND, fleet.choose(FOUND)[0], CORES)
    assert add(builder, Wanted.of(DeviceEntry("CPU", id=1, cores=2)), []).startswith("cpu:1 has 1 cores; leave")


def test_a_back_end_can_be_named_beside_a_type() -> None:
    builder = Builder(FOUND, fleet.choose(FOUND)[0], CORES)
    devices: list[Device] = []
    assert add(builder, Wanted.of(DeviceEntry("GPU", backend="jax")), devices) == ""
    assert add(builder, Wanted.of(DeviceEntry("CPU", backend="torch", cores=2)), devices) == ""
    assert short(devices) == ["jax-cuda:0", "torch-cpu:0"]


def test_every_absent_device_is_in_one_error_with_a_file_that_works_here() -> None:
    entries = [
        DeviceEntry("GPU", id=0, where="fleet.yaml:2"),
        DeviceEntry("CPU", cores=64, where="fleet.yaml:5"),
        DeviceEntry("null"),
    ]
    with pytest.raises(ConfigError) as caught:
        refuse_absent([(entries[0], "this host has none"), (entries[1], "it asks for 64 cores")], entries)
    text = str(caught.value)
    assert "2 configured devices are absent" in text
    assert "fleet.yaml:2: GPU 0: this host has none" in text
    assert "fleet.yaml:5: CPU with 64 cores" in text
    assert text.partition("devices:\n")[2].startswith("- type: 'null'\n- type: CPU\n  cores: ")


def test_the_file_that_works_here_is_read_and_built_here() -> None:
    from hetero.session.config import parse
    from hetero.session.config_yaml import read_yaml

    with pytest.raises(ConfigError) as caught:
        fleet.build([DeviceEntry("CPU", cores=10_000), DeviceEntry("null", throttle_frac=0.5)])
    text = "devices:\n" + str(caught.value).partition("devices:\n")[2]
    devices = fleet.build(parse(read_yaml(text, "advice"))[0].devices or ())
    assert [device.short for device in devices] == ["null:0", "cpu:0"]


def test_optional_devices_are_left_out_with_a_note() -> None:
    notes: list[str] = []
    devices = fleet.build([DeviceEntry("CPU", cores=1), DeviceEntry("CPU", cores=10_000, optional=True)], notes)
    assert short(list(devices)) == ["cpu:0"]
    assert len(notes) == 1
    assert notes[0].startswith("CPU with 10000 cores is left out: it asks for 10000 cores")


def test_an_emulated_link_gives_a_device_a_memory_node_of_its_own() -> None:
    entry = DeviceEntry("CPU", cores=1, link_bytes_per_s=1e6, link_latency_s=0.01, memory_limit_bytes=5000)
    (device,) = fleet.build([entry])
    assert device.memory_node == "h0/cpu:0.mem"
    found = topology([device])
    assert [(node.id, node.capacity_bytes) for node in found.nodes][1:] == [("h0/cpu:0.mem", 5000)]
    assert {(link.src, link.dst, link.kind) for link in found.links} == {
        ("h0/ram", "h0/cpu:0.mem", "emulated"),
        ("h0/cpu:0.mem", "h0/ram", "emulated"),
    }
    assert found.seconds(1_000_000, "h0/ram", "h0/cpu:0.mem") == pytest.approx(1.01)


def test_an_unknown_link_is_marked_as_assumed_and_an_unknown_size_is_no_limit() -> None:
    found = topology(
        [Device("h0/xpu:0", "xpu", DeviceType("GPU"), "torch", memory_node="h0/xpu:0", silicon=("h0/xpu0",))]
    )
    assert {(link.kind, link.bandwidth_bytes_per_s) for link in found.links} == {("assumed", 12e9)}
    assert found.nodes[1].capacity_bytes > 10**15


@pytest.mark.slow
def test_null_devices_are_threads_and_no_live_run_takes_more_than_a_thousand_or_so() -> None:
    assert {device.isolation for device in fleet.from_spec("3xnull")} == {"thread"}
    with pytest.raises(BadValueError, match="1024 null devices at most"):
        fleet.from_spec("100000xnull")


def test_a_python_that_is_not_there_is_told_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="'/no/such/python' is no program"):
        fleet.build([DeviceEntry("CPU", cores=1, python="/no/such/python")])
