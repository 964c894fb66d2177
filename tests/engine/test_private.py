"""Another user of this host can neither list, read nor reach what a run or a node puts where everybody is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetero
from hetero.engines.ray.certificates import check_folder, make_certificates
from hetero.engines.ray.node import read_token, start_node, stop_node, this_node
from hetero.errors import BadValueError, HeteroError
from hetero.floor.private import check_own, own_home, private_folder, temporary_folder, write_private
from hetero.session.run_server import open_runs

PATIENCE_S = 180.0
NOBODY = 65534
HETERO = str(Path(sys.executable).with_name("hetero"))
LOOK = """
import json, os, pathlib, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
found = []
for place in sys.argv[2:]:
    for way in (os.listdir, lambda path: open(path).read(), lambda path: open(path + "/new", "w")):
        try:
            way(place); found.append(place)
        except OSError:
            pass
    for folder, _, names in os.walk(place):
        found += [os.path.join(folder, name) for name in names]
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(place); found.append(place)
    except OSError:
        pass
print(json.dumps(found))
"""


@pytest.fixture
def tmp() -> Iterator[Path]:
    """A folder as /tmp is: open to everybody, and sticky."""
    folder = Path(tempfile.mkdtemp(prefix="ht-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def seen_by_another(*places: Path | str) -> list[str]:
    """Return what another real user can list, read, write to or connect to."""
    if os.getuid():
        pytest.skip("only root can be another user")
    command = ["/usr/bin/env", "python3", "-c", LOOK, str(NOBODY), *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True, cwd="/")
    return list(json.loads(done.stdout))


def test_the_other_user_would_see_what_is_open(tmp: Path) -> None:
    (tmp / "open").write_text("seen")
    (tmp / "closed").mkdir(mode=0o700)
    assert seen_by_another(tmp / "open", tmp / "closed") == [str(tmp / "open")]


def test_another_user_reaches_nothing_of_a_run(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_HOME", str(tmp / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with hetero.Context(devices="cpu:1", name="private") as ctx:
        assert ctx.run(len, "abc") == 3
        (run,) = open_runs()
        assert {path.name.partition("-")[0] for path in tmp.iterdir()} == {"home", "hetero"}
        assert seen_by_another(*tmp.iterdir(), tmp / "home" / "run", run.socket, *(tmp / "home").rglob("*")) == []
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert stat.S_IMODE((tmp / "home" / "history.sqlite").stat().st_mode) == 0o600


def test_a_run_is_not_shown_through_a_folder_that_another_user_laid(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_HOME", str(tmp / "home"))
    (tmp / "home").mkdir(mode=0o700)
    (tmp / "theirs").mkdir(mode=0o777)
    (tmp / "home" / "run").symlink_to(tmp / "theirs")
    with hetero.Context(devices="cpu:1", isolation="thread", history=False) as ctx:
        assert ctx.run(len, "abc") == 3
        assert list((tmp / "theirs").iterdir()) == []


@pytest.mark.parametrize("trick", ["theirs", "link", "writable", "above", "above_theirs"])
def test_a_folder_that_another_user_could_change_is_refused(tmp: Path, trick: str) -> None:
    if os.getuid():
        pytest.skip("only root can give a folder away")
    path = tmp / "above" / "folder"
    path.mkdir(parents=True)
    if trick == "theirs":
        os.chown(path, NOBODY, NOBODY)
    elif trick == "link":
        path.rename(tmp / "above" / "elsewhere")
        path.symlink_to(tmp / "above" / "elsewhere")
    elif trick == "writable":
        path.chmod(0o777)
    elif trick == "above":
        path.parent.chmod(0o777)
    else:
        os.chown(path.parent, 12345, 12345)
    with pytest.raises(BadValueError, match=r"belongs to|is a link|others may write"):
        private_folder(path)


def test_a_folder_of_ones_own_is_closed_and_a_file_in_it_is_written_for_nobody_else(tmp: Path) -> None:
    (tmp / "own").mkdir(mode=0o755)
    assert stat.S_IMODE(private_folder(tmp / "own").stat().st_mode) == 0o700
    (tmp / "own" / "elsewhere").write_text("kept")
    (tmp / "own" / "secret").symlink_to(tmp / "own" / "elsewhere")
    write_private(tmp / "own" / "secret", b"word")
    check_own(tmp / "own" / "secret")
    assert (tmp / "own" / "elsewhere").read_text() == "kept"
    assert stat.S_IMODE((tmp / "own" / "secret").stat().st_mode) == 0o600
    assert sorted(path.name for path in (tmp / "own").iterdir()) == ["elsewhere", "secret"]


def test_a_home_that_others_may_write_to_takes_no_secrets(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_HOME", str(tmp))
    with pytest.raises(BadValueError, match=f"others may write to {tmp}; chmod go-w {tmp}"):
        own_home()


@pytest.mark.parametrize("trick", ["above", "link_above", "link", "their_link"])
def test_a_home_that_others_may_replace_is_refused(tmp: Path, monkeypatch: pytest.MonkeyPatch, trick: str) -> None:
    home = tmp / "shared" / "home"
    (tmp / "own" / "home").mkdir(parents=True, mode=0o700)
    if trick == "above":
        home.mkdir(parents=True, mode=0o700)
    elif trick == "link_above":
        (tmp / "shared").mkdir()
        (tmp / "shared" / "link").symlink_to(tmp / "own")
        home = tmp / "shared" / "link" / "home"
    else:
        (tmp / "shared").mkdir()
        home.symlink_to(tmp / "own" / "home")
    monkeypatch.setenv("HETERO_HOME", str(home))
    assert own_home() == home
    if trick == "their_link":
        if os.getuid():
            pytest.skip("only root can give a link away")
        os.chown(home, NOBODY - 1, NOBODY - 1, follow_symlinks=False)
    else:
        (tmp / "shared").chmod(0o777)
    with pytest.raises(BadValueError, match=rf"{tmp}/shared.*replace {home}"):
        own_home()


def test_no_node_starts_where_others_may_replace_its_folder(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_HOME", str(tmp / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    tmp.chmod(0o777)
    with pytest.raises(BadValueError, match=f"others may write to {tmp}"):
        start_node()
    assert list((tmp).glob("hetero-*")) == []
    with pytest.raises(BadValueError, match="others may write"):
        temporary_folder("hetero-")


def test_another_users_word_about_a_node_is_not_taken(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid():
        pytest.skip("only root can give a file away")
    monkeypatch.setenv("HETERO_HOME", str(tmp))
    kept = tmp / "kept"
    kept.mkdir()
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        words = {"address": "127.0.0.1:1", "host": "127.0.0.1", "token": "", "certificates": "", "pid": bystander.pid}
        (tmp / "node.json").write_text(json.dumps({**words, "folder": str(kept)}))
        os.chown(tmp / "node.json", NOBODY, NOBODY)
        for ask in (this_node, stop_node):
            with pytest.raises(HeteroError, match="belongs to nobody"):
                ask()
        assert bystander.poll() is None
        bystander.send_signal(signal.SIGKILL)
    assert kept.exists()


def test_a_token_or_a_key_that_everybody_may_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-some-length")
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(BadValueError, match="is a secret, and others may read or write it; chmod 600"):
        read_token(tmp_path / "token")
    (tmp_path / "token").chmod(0o600)
    assert read_token(tmp_path / "token") == "a-token-of-some-length"
    make_certificates(tmp_path / "certificates", ["127.0.0.1"])
    check_folder(tmp_path / "certificates")
    (tmp_path / "certificates" / "node.key").chmod(0o640)
    check_folder(tmp_path / "certificates")
    (tmp_path / "certificates" / "node.key").chmod(0o644)
    with pytest.raises(BadValueError, match=r"node.key is a secret"):
        check_folder(tmp_path / "certificates")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_another_user_reaches_nothing_of_a_node_and_no_port_is_open_to_other_hosts(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**os.environ, "HETERO_HOME": str(tmp / "home"), "TMPDIR": str(tmp)}

    def ran(*words: str) -> None:
        done = subprocess.run(
            [HETERO, "cluster", *words], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr

    ran("start", "--head", "--devices", "cpu:1", "--object-store-memory", "100MB")
    try:
        node = json.loads((tmp / "home" / "node.json").read_text())
        folder = Path(node["folder"])
        assert {path.name for path in tmp.iterdir()} == {"home", folder.name}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        sockets = list(folder.glob("r/session_*/sockets/*"))
        logs = list(folder.glob("*.log"))
        assert sockets
        assert {stat.S_IMODE(log.stat().st_mode) for log in logs} == {0o600}
        places = [folder, *logs, *sockets, folder / "r", *folder.glob("r/*"), *(tmp / "home").iterdir()]
        assert seen_by_another(tmp / "home", *places) == []
        assert listening_elsewhere(node["pid"], node["job_server_pid"]) == []
    finally:
        ran("stop")
    assert [path.name for path in tmp.iterdir()] == ["home"]


def listening_elsewhere(*pids: int) -> list[tuple[str, int]]:
    """Return the addresses beyond loopback at which a family of processes listens."""
    import psutil

    family = [member for pid in pids for member in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
    found = []
    for member in family:
        for each in member.net_connections("inet"):
            if each.status == psutil.CONN_LISTEN and each.family in (socket.AF_INET, socket.AF_INET6):
                address = each.laddr.ip.removeprefix("::ffff:")
                if not address.startswith("127.") and address != "::1":
                    found.append((f"{member.name()} {' '.join(member.cmdline())[:200]}", each.laddr.port))
    return found
