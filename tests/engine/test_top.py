from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetero
from hetero.floor.errors import BadValueError
from hetero.session.run_server import RunGoneError, ask, find, open_runs

WAIT_S = 90.0


def top(*words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "hetero", "top", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETERO_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def ctx(home: Path) -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu,1xcpu*0.5", isolation="thread", name="shown") as ctx:
        yield ctx


def test_a_run_tells_what_its_devices_and_tasks_do(ctx: hetero.Context) -> None:
    go_on = threading.Event()
    ended = [ctx.submit(len, "abc") for _ in range(3)]
    ctx.gather(ended)
    blocked = [ctx.submit(hetero.task(go_on.wait, on=(device.id,), name="wait"), WAIT_S) for device in ctx.devices]
    later = ctx.submit(lambda before: before, blocked[0])
    try:
        deadline_s = time.monotonic() + WAIT_S
        while ask(open_runs()[0]).tasks.running < 2 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        now = json.loads(top("shown", "--json"))["now"]
    finally:
        go_on.set()
    assert now["tasks"] == {
        "submitted": 6, "waiting": 1, "ready": 0, "placed": 0, "running": 2, "finished": 3, "failed": 0, "retried": 0
    }  # fmt: skip
    assert [device["task"] for device in now["devices"]] == ["wait", "wait"]
    assert [device["remark"] for device in now["devices"]] == ["", "throttled to 0.5"]
    assert sum(device["finished"] for device in now["devices"]) == 3
    assert later.result() is True


def test_transfers_are_counted_by_link(home: Path) -> None:
    import numpy as np

    fleet = [{"type": "CPU", "cores": 1}, {"type": "CPU", "cores": 1, "memory_limit": "1GB"}]
    with hetero.Context({"devices": fleet}, name="links") as ctx:
        array = ctx.put(np.ones(1_000_000))
        ctx.gather([ctx.submit(np.sum, array, axis=None) for _ in range(4)])
        now = hetero.inspect.snapshot(ctx)
    assert all(link.moved_bytes >= 8_000_000 * link.transfers for link in now.links)
    assert next(node for node in now.nodes if node.id == "h0/ram").peak_bytes >= 8_000_000


def test_only_the_user_can_reach_the_socket_and_read_the_token(ctx: hetero.Context, home: Path) -> None:
    (descriptor,) = (home / "run").glob("*.json")
    address = Path(json.loads(descriptor.read_text())["socket"])
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (descriptor, address, address.parent, home / "run")]
    assert modes == [0o600, 0o600, 0o700, 0o700]


def test_a_wrong_token_gets_no_answer(ctx: hetero.Context) -> None:
    (run,) = open_runs()
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(WAIT_S)
        line.connect(run.socket)
        line.sendall(b"0" * len(run.token) + b"\n")
        assert json.loads(line.makefile().readline()) == {"error": "the token is wrong"}


def test_one_who_asks_and_says_nothing_does_not_keep_others_out(ctx: hetero.Context) -> None:
    (run,) = open_runs()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(run.socket)
        assert ask(run).run == "shown"


def test_a_closed_run_leaves_nothing_and_gives_no_answer(home: Path, no_leaks: None) -> None:
    with hetero.Context(devices="1xcpu", isolation="thread", name="brief"):
        (run,) = open_runs()
    assert list((home / "run").iterdir()) == []
    assert not Path(run.socket).parent.exists()
    with pytest.raises(RunGoneError, match="does not answer"):
        ask(run)
    assert top() == "No run is going on. A program can be looked at while it has an open hetero.Context.\n"


def test_what_a_killed_program_left_behind_is_taken_away(home: Path) -> None:
    program = "import hetero\nctx = hetero.Context(devices='1xcpu', name='killed')\nprint('up', flush=True)\ninput()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        (run,) = open_runs()
        child.send_signal(signal.SIGKILL)
    assert open_runs() == ()
    assert list((home / "run").iterdir()) == []
    assert not Path(run.socket).exists()


def test_several_runs_are_listed_and_told_apart_by_name_and_process(ctx: hetero.Context) -> None:
    with hetero.Context(devices="1xcpu", isolation="thread", name="second"):
        listed = top()
        assert "shown" in listed
        assert "second" in listed
        assert f"process {os.getpid()}" in top("second", "--once")
        assert "did you mean 'second'" in top("secnd", code=2)
        assert len(json.loads(top(str(os.getpid()), "--json"))["runs"]) == 2


def test_a_run_of_another_user_is_told_as_such(ctx: hetero.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = os.getuid() + 4711
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    (run,) = open_runs()
    assert run.user
    assert (run.token, run.socket) == ("", "")
    with pytest.raises(BadValueError, match="only its owner may look"):
        find("shown", (run,))


def test_a_damaged_descriptor_is_passed_over(ctx: hetero.Context, home: Path) -> None:
    for name, text in (("a-1-1", "{"), ("b-1-1", "[]"), ("c-1-1", '{"host": 1}'), ("d-1-1", "")):
        (home / "run" / f"{name}.json").write_text(text, encoding="utf-8")
    assert [run.name for run in open_runs()] == ["shown"]


def test_a_run_goes_on_where_its_folder_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("HETERO_HOME", str(tmp_path / "file"))
    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
        assert ctx.run(len, "abc") == 3
    assert open_runs() == ()


def test_the_inline_engine_cannot_be_looked_at(home: Path) -> None:
    with hetero.Context(devices="1xcpu", engine="inline"):
        assert open_runs() == ()


def test_the_live_view_draws_again_and_ends_with_the_run(ctx: hetero.Context) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hetero", "top", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"}) as child:
        os.close(theirs)
        shown = _until(ours, b"Memory for data")
        ctx.close()
        shown += _until(ours, b"The run has ended.")
        assert child.wait(WAIT_S) == 0
    os.close(ours)
    assert shown.count(b"Device") >= 2


def _until(terminal: int, word: bytes) -> bytes:
    shown, deadline_s = b"", time.monotonic() + WAIT_S
    while word not in shown:
        assert time.monotonic() < deadline_s, shown[-500:]
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 65536)
    return shown
