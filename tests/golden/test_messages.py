"""The commonest messages, really provoked, and compared with messages.txt: they must read well."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hetero
from hetero.floor import settings
from hetero.floor.errors import HeteroError
from hetero.floor.units import parse_bandwidth, parse_bytes, parse_seconds
from hetero.session.config import load

FILE = "hetero_config.yaml"
Provocation = Callable[[], object]


def written(text: str) -> Provocation:
    """Load this text as a configuration file."""

    def provoke() -> object:
        Path(FILE).write_text(text)
        return load(FILE)

    return provoke


def command(*words: str) -> Provocation:
    """Run the command line in this process, and raise what it says on standard error."""

    def provoke() -> object:
        from hetero.cli import main

        said = io.StringIO()
        sys.argv = ["hetero", *words]
        with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
            main.entry()
        raise HeteroError(f"{said.getvalue().strip()}  [exit {ended.value.code}]")

    return provoke


def switched(name: str, text: str, read: Callable[[], object]) -> Provocation:
    """Read a switch that is set to this text."""

    def provoke() -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, text)
            return read()

    return provoke


MESSAGES: dict[str, Provocation] = {
    "an unknown key": written("devices:\n- type: CPU\n  core: 2\n"),
    "an unknown key at the top": written("device:\n- type: CPU\n"),
    "a wrong unit": written("devices:\n- type: CPU\n  memory_limit: 8GBB\n"),
    "a unit that is missing": written("devices:\n- type: CPU\n  link: {bandwidth: 25}\n"),
    "a device type that does not exist": written("devices:\n- type: CUDAA\n"),
    "a device without a type": written("devices:\n- cores: 2\n"),
    "a negative throttle": written("devices:\n- type: CPU\n  throttle: -0.5\n"),
    "a number of cores that is none": written("devices:\n- type: CPU\n  cores: all\n"),
    "an empty fleet": written("devices: []\n"),
    "a list that is none": written("devices:\n  type: CPU\n"),
    "an engine that does not exist": written("engine: dask\n"),
    "a policy that does not exist": written("policy: round_robbin\n"),
    "a protocol that does not exist": written("communication:\n  protocol: infiniband\n"),
    "a pool that is too small": written("memory_pool_size: 64KB\n"),
    "a name that cannot name a run": written("name: night/1\n"),
    "a key given twice": written("engine: local\npolicy: eft\nengine: inline\n"),
    "a tab": written("devices:\n\t- type: CPU\n"),
    "a bracket that stays open": written("devices: [{type: CPU}\n"),
    "text that is no mapping": written("CPU, GPU\n"),
    "a bomb of aliases": written(
        "a: &a [x, x]\n" + "".join(f"{c}: &{c} [{f'*{b}, ' * 40}]\n" for b, c in zip("abcd", "bcde", strict=True))
    ),
    "three mistakes at once": written(
        "engine: locl\ndevices:\n- type: GPU\n  memory_limit: lots\n- type: CPU\n  cores: 0\n"
    ),
    "a file that is not there": lambda: load("hetero_cofnig.yaml"),
    "a setting of the wrong form": lambda: load({}, set=["engine:local"]),
    "a setting beyond the list": lambda: load({"devices": [{"type": "cpu"}]}, set=["devices.3.cores=2"]),
    "a keyword with a wrong value": lambda: load(None, memory_pool_size="2 gigs"),
    "a configuration that is none": lambda: load(8),  # type: ignore[arg-type]
    "an amount without sense": lambda: parse_bytes("-1GB"),
    "a bandwidth in bits or bytes": lambda: parse_bandwidth("10gb/s"),
    "a duration without sense": lambda: parse_seconds("soon"),
    "a switch out of range": switched("HETERO_DEBUG", "9", settings.debug_level),
    "a switch that cannot be split": switched("HETERO_SET", "name='x", lambda: load(None)),
    "hetero run of a script that is not there": command("run", "programm.py"),
    "hetero run with an engine that does not exist": command("run", "--engine", "loacl", __file__),
    "hetero config check of a wrong file": command("config", "check", FILE, "--set", "polcy=eft"),
}


LOCK = threading.Lock()
LOOP: list[Any] = []
LOOP.append(LOOP)


def sleeper() -> None:
    time.sleep(30)


def quitter() -> None:
    os._exit(3)


def opens_a_context() -> None:
    hetero.Context(devices="1xcpu")


def answers_with_a_lock() -> Any:
    return threading.Lock()


def uses_a_lock() -> Callable[[], Any]:
    lock = threading.Lock()
    return lambda: lock


RUNNING: dict[str, Callable[[hetero.Context], object]] = {
    "a function that cannot travel": lambda ctx: ctx.run(uses_a_lock()),
    "an argument that cannot travel": lambda ctx: ctx.run(len, LOCK),
    "a result that cannot travel": lambda ctx: ctx.run(answers_with_a_lock),
    "a generator where data are due": lambda ctx: ctx.run(sum, (item for item in range(3))),
    "an argument that contains itself": lambda ctx: ctx.run(len, LOOP),
    "something that is no function": lambda ctx: ctx.submit(7),  # type: ignore[arg-type]
    "a task option that does not exist": lambda ctx: hetero.task(memry="1GB")(len),
    "a device word that does not exist": lambda ctx: hetero.task(on="cudaa")(len),
    "a device that the fleet lacks": lambda ctx: ctx.run(hetero.task(on="tpu")(len), []),
    "more memory than any device has": lambda ctx: ctx.run(hetero.task(memory="900TB")(len), []),
    "more cores than any device has": lambda ctx: ctx.run(hetero.task(min_cores=4096)(len), []),
    "a larger group than the fleet": lambda ctx: ctx.run(hetero.task(devices=3)(len), []),
    "a task beyond its time": lambda ctx: ctx.run(hetero.task(timeout=0.2)(sleeper)),
    "a task whose worker dies again and again": lambda ctx: ctx.run(hetero.task(crashes=1)(quitter)),
    "a reduction of nothing": lambda ctx: ctx.reduce(max, []),
    "send outside of a group": lambda ctx: hetero.collectives.send(1, 0),
    "checkpoint outside of a task": lambda ctx: hetero.checkpoint("x"),
    "a log level that does not exist": lambda ctx: hetero.inspect.set_log_level("DEBUGG"),
    "a Context inside a task": lambda ctx: ctx.run(opens_a_context),
    "a closed Context": lambda ctx: _closed().run(len, []),
    "a fleet in one line that is wrong": lambda ctx: hetero.Context(devices="1xcpu,cup:2"),
    "a fleet in one line that is empty": lambda ctx: hetero.Context(devices=" "),
    "devices that are not here": lambda ctx: hetero.Context({"devices": [{"type": "cpu", "cores": 9999}]}),
    "a trace that is damaged": lambda ctx: _damaged_trace(),
}


def _closed() -> hetero.Context:
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as ctx:
        pass
    return ctx


def _damaged_trace() -> object:
    from hetero.drive.trace import summary

    Path("run.trace.jsonl").write_text("not a trace\n")
    return summary(Path("run.trace.jsonl"))


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    fleet = {"devices": [{"type": "cpu", "cores": 1, "memory_limit": "1GB"}]}
    with hetero.Context(fleet, engine="local", history=False) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HETERO_CONFIG", "HETERO_SET", "HETERO_ENGINE", "HETERO_DEVICES", "HETERO_DEBUG"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.chdir(tmp_path)


def message(provoke: Provocation) -> str:
    Path(FILE).write_text("engine: local\n")
    with pytest.raises(HeteroError) as caught:
        provoke()
    return str(caught.value)


def masked(text: str) -> str:
    """Write what differs from host to host, and the numbers of tasks, as N."""
    return re.sub(r"(this host has |^ +cores: |task |it has )\d[\d.]*(?! core)", r"\1N", text, flags=re.MULTILINE)


def test_the_commonest_messages_read_as_agreed(golden: Any, ctx: hetero.Context) -> None:
    running = {what: message(lambda provoke=provoke: provoke(ctx)) for what, provoke in RUNNING.items()}
    said = {what: message(provoke) for what, provoke in MESSAGES.items()} | running
    paragraphs = (f"{what}\n  {masked(text).replace(chr(10), chr(10) + '  ')}\n" for what, text in said.items())
    golden("messages.txt", "\n".join(paragraphs))


@pytest.mark.parametrize("what", MESSAGES)
def test_a_message_is_made_of_lines_that_fit_a_screen(what: str) -> None:
    for line in message(MESSAGES[what]).splitlines():
        assert 20 < len(line) <= 320
        assert "Traceback" not in line
