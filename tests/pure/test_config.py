"""Configurations: what they may say, and what is told of those that are wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hetero.floor.errors import ConfigError
from hetero.session.config import Communication, load
from hetero.session.fleet import available_protocols, choose_protocol

PRINTED = """\
devices:
- type: GPU
  id: 0
  memory_limit: 8GB
- type: CPU
  cores: 8
communication:
  protocol: RDMA
  buffer_size: 64MB
"""


@pytest.fixture(autouse=True)
def _no_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HETERO_CONFIG", "HETERO_SET", "HETERO_ENGINE", "HETERO_DEVICES", "HETERO_TRACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> str:
        path = tmp_path / "a.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def message(source: Any, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, **more)
    return str(caught.value)


def test_the_printed_configuration_is_read_as_written(file: Any) -> None:
    config = load(file(PRINTED))
    assert config.communication == Communication("rdma", 64_000_000)
    gpu, cpu = config.devices or ()
    assert (gpu.type, gpu.id, gpu.memory_limit_bytes) == ("gpu", 0, 8_000_000_000)
    assert (cpu.type, cpu.cores) == ("cpu", 8)


def test_every_key_of_a_device_reaches_its_entry() -> None:
    keys = {
        "type": "Torch-CPU",
        "id": 1,
        "memory_limit": "1GiB",
        "cores": 2,
        "optional": True,
        "throttle": 0.25,
        "isolation": "Thread",
        "python": "/opt/x/bin/python",
        "link": {"bandwidth": "8Gb/s", "latency": "1ms"},
        "backend": "torch",
    }
    (entry,) = load({"devices": [keys]}).devices or ()
    assert (entry.type, entry.id, entry.memory_limit_bytes, entry.cores) == ("torch-cpu", 1, 2**30, 2)
    assert (entry.optional, entry.throttle_frac, entry.isolation) == (True, 0.25, "thread")
    assert (entry.python, entry.backend) == ("/opt/x/bin/python", "torch")
    assert (entry.link_bytes_per_s, entry.link_latency_s) == (1e9, 0.001)


def test_every_other_key_reaches_the_configuration(file: Any) -> None:
    text = "engine: Inline\npolicy: round-robin\nisolation: PROCESS\nmemory_pool_size: 2GB\ntrace: t.jsonl\n"
    config = load(file(text + "name: night-1\ntimeout: 5min\n"))
    assert (config.engine, config.policy, config.isolation) == ("inline", "round_robin", "process")
    assert (config.memory_pool_size_bytes, config.trace) == (2_000_000_000, Path("t.jsonl"))
    assert (config.name, config.timeout_s) == ("night-1", 300.0)


def test_an_empty_file_is_all_defaults(file: Any) -> None:
    config = load(file("# nothing\n"))
    assert (config.devices, config.engine, config.communication) == (None, None, Communication())


def test_a_key_left_blank_is_a_key_not_given(file: Any) -> None:
    assert load(file("engine:\ndevices:\n")).devices is None


@pytest.mark.parametrize("word", ["null", "NULL", "Null"])
def test_the_null_device_may_be_named_without_quotes(word: str, file: Any) -> None:
    assert (load(file(f"devices:\n- type: {word}\n")).devices or ())[0].type == "null"
    assert (load({}, set=[f"devices.0.type={word}"]).devices or ())[0].type == "null"


def test_all_mistakes_are_told_at_once_in_the_order_of_the_lines(file: Any) -> None:
    path = file("engine: locl\ndevices:\n- type: GPUU\n  memory: 8GB\n- cores: 0\ncommunication: fast\npolicie: eft\n")
    places = [line.split(": ")[:2] for line in message(path).splitlines()]
    assert places == [
        [f"{path}:1", "engine"],
        [f"{path}:3", "devices.0.type"],
        [f"{path}:4", "devices.0.memory"],
        [f"{path}:5", "devices.1.cores"],
        [f"{path}:5", "devices.1.type"],
        [f"{path}:6", "communication"],
        [f"{path}:7", "policie"],
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "communication: {buffer_size: 8GBB}",
            "a.yaml:1: communication.buffer_size: '8GBB' has no known unit; did you mean",
        ),
        ("memory_limit: 8GB", "did you mean 'memory_pool_size'"),
        ("policy: round_robbin", "'round_robbin' is not a policy; did you mean 'round_robin'?; allowed: eft,"),
        ("devices: [{type: cpu, throttle: -1}]", "devices.0.throttle: -1 is not a share of a device's speed"),
        ("devices: [{type: cpu, optional: maybe}]", "'maybe' is neither true nor false; write true or false"),
        ("devices: []", "an empty fleet runs nothing; name a device, or leave the key out"),
        ("devices: {type: cpu}", "is no fleet; begin each entry with '- ', as in '- type: cpu', or write 'devices: 2"),
        ("engine: local\nengine: inline", "a.yaml:2: the key 'engine' is here twice, first in line 1"),
        ("devices:\n\t- type: CPU", "a.yaml:2: this is not YAML: found character '\\t'"),
        ("- a\n- b", "a.yaml:1: ['a', 'b'] is not a mapping of keys to values"),
        ("just text", "a.yaml:1: 'just text' is not a mapping"),
        ("a: [1, 2", "a.yaml:1: this is not YAML"),
        ("engine: local\n---\nengine: inline", "keep one document in a file"),
        ("engine: !!python/object:os.system x", "the tag 'tag:yaml.org,2002:python/object:os.system' is not allowed"),
        ("timeout: !!int abc", "'abc' is not a value of the kind int"),
        ("? [a, b]\n: 1", "a key must be a word"),
        ("name: ../../etc", "'../../etc' cannot name a run"),
        ("timeout: 0", "0 is too little"),
        ("engine: {{}}", "a key must be a word"),
        (b"\xff\xfe\x00\x01\x02", "a.yaml:1: this is UTF-16, not UTF-8 text; save it as UTF-8"),
        (b"engine: local\n\x00\x01", "a.yaml:2: this is not text: it holds a NUL"),
    ],
)
def test_a_mistake_names_its_place_the_value_and_the_remedy(text: str, words: str, file: Any) -> None:
    said = message(file(text))
    assert words in said
    assert len(said.splitlines()) == 1


def test_a_bomb_of_aliases_is_refused_before_it_explodes(file: Any) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "aliases make this more than 50000 values" in message(file("\n".join(lines)))


def test_a_value_that_contains_itself_is_refused(file: Any) -> None:
    assert "nested deeper than 16 levels" in message(file("devices: &a [*a]"))


@pytest.mark.parametrize(
    "text", ["[" * 50_000, "{a: " * 20_000, "- " * 50_000, "a:\n" + "".join(" " * n + "a:\n" for n in range(1, 200))]
)
def test_a_tower_of_brackets_is_refused(text: str, file: Any) -> None:
    assert "nested deeper than 16 levels" in message(file(text))


def test_a_huge_file_is_refused_by_its_size(file: Any) -> None:
    assert "are too many; a YAML file has at most" in message(file("# " + "x" * 300_000))


def test_a_missing_file_a_folder_and_an_impossible_name_are_told(tmp_path: Path) -> None:
    assert "No such file or directory; check the path" in message(str(tmp_path / "none.yaml"))
    assert "Is a directory" in message(tmp_path)
    assert "cannot name a file" in message("a\0b")


def test_a_setting_wins_over_the_file_and_a_keyword_over_the_setting(file: Any) -> None:
    path = file("engine: local\npolicy: eft\nname: a\n")
    config = load(path, set=["engine=inline", "policy=least_loaded"], policy="round_robin")
    assert (config.engine, config.policy, config.name) == ("inline", "round_robin", "a")


def test_settings_reach_into_lists_and_append(file: Any) -> None:
    config = load(file(PRINTED), set=["devices.1.cores=2", "devices.2.type=null", "communication.protocol=tcp"])
    assert [entry.type for entry in config.devices or ()] == ["gpu", "cpu", "null"]
    assert (config.devices or ())[1].cores == 2


def test_settings_may_be_given_as_a_mapping() -> None:
    assert (
        load({}, set={"communication.buffer_size": "1MB", "devices.0.type": "cpu"}).communication.buffer_size_bytes
        == 10**6
    )


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("engine", "--set 'engine' is not of the form key.path=value; write it like devices.0.cores=2"),
        ("=1", "is not of the form"),
        ("a..b=1", "is not of the form"),
        (
            "devices.7.cores=2",
            "--set devices.7.cores=2: devices has no entry '7'; it has 2, counted from 0; 2 adds one",
        ),
        ("devices.x.cores=2", "devices has no entry 'x'"),
        ("communication.protocol.x=1", "communication.protocol is 'RDMA', and has no part 'x'"),
        ("devices.1.cores=two", "--set devices.1.cores=two: 'two' is not a number of cores"),
        ("engine=[", "--set engine=[: this is not YAML"),
        ("enigne=local", "there is no such key; did you mean 'engine'?"),
    ],
)
def test_a_wrong_setting_is_told_with_the_setting(setting: str, words: str, file: Any) -> None:
    assert words in message(file(PRINTED), set=[setting])


def test_a_wrong_keyword_is_told_as_the_call_was_written() -> None:
    assert message(None, memory_pool_size="2GBB").startswith(
        "Context(memory_pool_size='2GBB'): '2GBB' has no known unit"
    )
    assert message({"engine": "x"}).startswith("Context(config={...}): engine: 'x' is not an engine")
    assert "7 is not a configuration; give the path of a YAML file" in message(7)


def test_an_address_is_local_auto_or_a_host_with_a_port() -> None:
    for address in ("local", "auto", "10.0.0.1:6379", "head.example:1"):
        assert load({"engine": "ray", "address": address}).address == address
    for address in ("nowhere", ":6379", "host:", "host:0", "host:65536"):
        assert f"address: {address!r} is no address of a Ray cluster" in message({"engine": "ray", "address": address})


def test_a_switch_is_the_default_and_no_more(monkeypatch: pytest.MonkeyPatch, file: Any) -> None:
    monkeypatch.setenv("HETERO_ENGINE", "inline")
    assert load().engine == "inline"
    assert load({"engine": "local"}).engine == "local"
    monkeypatch.setenv("HETERO_ENGINE", "inlin")
    assert message(None).startswith("HETERO_ENGINE: engine: 'inlin' is not an engine; did you mean 'inline'?")


def test_the_file_that_a_switch_names_is_the_default(monkeypatch: pytest.MonkeyPatch, file: Any) -> None:
    monkeypatch.setenv("HETERO_CONFIG", file("policy: eft"))
    monkeypatch.setenv("HETERO_SET", "name=x communication.protocol='shared memory'")
    config = load()
    assert (config.policy, config.name, config.communication.protocol) == ("eft", "x", "shared_memory")


def test_a_checked_configuration_passes_as_it_is() -> None:
    config = load({"engine": "inline"})
    assert load(config) is config
    assert "takes no further settings" in message(config, engine="inline")


def test_a_dict_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["devices"] = [loop]
    assert "nested deeper than 16 levels" in message(loop)


def test_auto_and_the_protocols_of_every_host_are_available() -> None:
    assert available_protocols()[:2] == ("shared_memory", "tcp")
    assert (choose_protocol("auto"), choose_protocol("tcp")) == ("shared_memory", "tcp")


def test_rdma_without_an_adapter_says_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero.session.fleet._INFINIBAND", tmp_path)
    with pytest.raises(ConfigError, match="'rdma' is not available: this host has no RDMA adapter") as caught:
        choose_protocol("rdma", "a.yaml")
    assert str(caught.value).startswith("a.yaml: communication.protocol:")
    assert "available here: auto, shared_memory, tcp" in str(caught.value)


def test_rdma_with_an_adapter_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr("hetero.session.fleet._INFINIBAND", tmp_path)
    assert choose_protocol("rdma") == "rdma"


def test_only_a_configuration_that_is_read_imports_pydantic() -> None:
    code = "import sys, hetero, hetero.session.config, hetero.cli.main; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout == "False\n"


def test_mistakes_in_a_fleet_of_one_line_are_told_with_the_others(file: Any) -> None:
    path = file("devices: 1xcpu,2xcup\nengine: locl\n")
    first, second = message(path).splitlines()
    assert first.startswith(f"{path}:1: devices: 'cup' is no kind of device; did you mean 'cpu'?")
    assert second.startswith(f"{path}:2: engine:")
    assert load(file("devices: 1xcpu,2xnull\n")).spec == "1xcpu,2xnull"


def test_a_fleet_may_be_a_list_of_kinds_in_words(file: Any) -> None:
    assert load({"devices": ["1xcpu", "1xcpu*0.5"]}).spec == "1xcpu,1xcpu*0.5"
    path = file("devices:\n- 1xcpu\n- 2xcup\n")
    assert message(path).startswith(f"{path}:1: devices: 'cup' is no kind of device; did you mean 'cpu'?")


def test_the_isolation_of_a_device_goes_before_that_of_the_fleet() -> None:
    devices = [{"type": "cpu"}, {"type": "cpu", "isolation": "process"}]
    entries = load({"isolation": "thread", "devices": devices}).devices or ()
    assert [entry.isolation for entry in entries] == ["thread", "process"]


def test_nccl_without_a_driver_is_refused_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero.session.fleet._NVIDIA", Path("/none"))
    with pytest.raises(ConfigError, match="'nccl' is not available: this host has no NVIDIA driver"):
        choose_protocol("nccl")
