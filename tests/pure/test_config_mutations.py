"""Whatever a configuration file holds, it is read or refused in words."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.floor.errors import ConfigError
from hetero.session.config import load, parse
from hetero.session.config_yaml import read_yaml

SEEDS = (
    b"""devices:
- type: GPU
  id: 0
  memory_limit: 8GB
- type: CPU
  cores: 8
communication:
  protocol: RDMA
  buffer_size: 64MB
""",
    b"""engine: local
policy: eft
isolation: thread
memory_pool_size: 2GB
trace: run.jsonl
name: night-1
timeout: 5min
devices:
- &one {type: cpu, cores: 1, throttle: 0.25, optional: true}
- *one
- {type: cuda, id: "h0/cuda:1", isolation: process, python: /opt/x/bin/python, backend: torch}
- type: null
  link:
    bandwidth: 8Gb/s
    latency: 1ms
""",
)
TOKENS = (
    b":",
    b"- ",
    b"\t",
    b"\n",
    b" ",
    b"[",
    b"]",
    b"{",
    b"}",
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!int ",
    b"!x ",
    b"? ",
    b"| ",
)
TOKENS += (
    b">",
    b"%",
    b"@",
    b"`",
    b"'",
    b'"',
    b"#",
    b"---\n",
    b"...",
    b"null",
    b"~",
    b".nan",
    b"-.inf",
    b"1e999",
    b"0o7",
)
TOKENS += (
    b"2001-99-99",
    b"1:2:3",
    b"\x00",
    b"\xff",
    b"\xc3\xa9",
    b"\xe2\x80\xa8",
    b"\\x",
    b"=",
    b"9" * 30,
    b"yes",
    b"GB",
)


def mutated(chance: random.Random) -> bytes:
    data = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[at:at] = chance.choice(TOKENS)
            case 1:
                del data[at : at + chance.randint(1, 12)]
            case 2:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                lines = bytes(data).split(b"\n")
                chance.shuffle(lines)
                data[:] = b"\n".join(lines)
            case 4:
                data[at : at + chance.randint(1, 8)] = chance.choice(TOKENS)
            case _:
                data[at:at] = data[: chance.randint(1, 60)]
    return bytes(data)


def refusal(call: Callable[[], object]) -> str:
    """Return what ConfigError said, '' when there was none; nothing else is caught."""
    try:
        call()
    except ConfigError as error:
        return str(error) or "nothing was said"
    return ""


def count_refused(seed: int, mutations: int) -> int:
    chance = random.Random(seed)
    texts = (mutated(chance).decode(errors="replace") for _ in range(mutations))
    said = [refusal(lambda text=text: parse(read_yaml(text, "a.yaml"))) for text in texts]
    assert all(line.startswith("a.yaml") for message in said for line in message.splitlines())
    return sum(bool(message) for message in said)


@pytest.mark.parametrize("mutations", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_configurations_are_read_or_refused_in_words(mutations: int) -> None:
    assert mutations * 0.4 < count_refused(seed=mutations, mutations=mutations) < mutations


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.dates(), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)
KEYS = st.sampled_from(["devices", "communication", "engine", "policy", "timeout", "memory_pool_size", "trace", "name"])


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_whatever_dict_is_given_it_is_read_or_refused_in_words(given_dict: dict[str, object]) -> None:
    assert refusal(lambda: load(given_dict)) != "nothing was said"


@given(st.text(alphabet=st.sampled_from("devics.=0[]{}:-&*!'\"\t\n 9x")), st.text())
def test_whatever_setting_is_given_it_is_read_or_refused_in_words(path: str, value: str) -> None:
    for setting in (path, f"{path}={value}", f"devices.0.type={value}", f"engine={value}"):
        said = refusal(lambda setting=setting: load({"devices": [{"type": "cpu"}]}, set=[setting]))
        assert said != "nothing was said"
