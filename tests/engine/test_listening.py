"""Who connects and does not say who it is costs a run nothing: no step, no thread, no descriptor beyond a few."""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import hetero
from hetero.comm.errors import GroupBrokenError, LineClosedError
from hetero.comm.lines import Line, LineServer
from hetero.comm.mesh import Mesh
from hetero.engines.ray.certificates import make_certificates
from hetero.engines.ray.job_server import JobServer
from hetero.floor.listening import Admit, Listening
from hetero.session.run_server import ask, open_runs

PATIENCE_S = 120.0
CROWD = 200
ROUNDS = 200
SPARE_DESCRIPTORS = 40
Dial = Callable[[], socket.socket]


def tcp(port: int) -> Dial:
    return lambda: socket.create_connection(("127.0.0.1", port), PATIENCE_S)


@contextmanager
def crowd(dial: Dial, word: bytes = b"x") -> Iterator[list[socket.socket]]:
    """Have 200 strangers, renewed when they are hung up on: half of them are silent, half say a byte now and then."""
    strangers = [dial() for _ in range(CROWD)]
    over = threading.Event()

    def say() -> None:
        while not over.wait(0.2):
            for number, each in enumerate(strangers):
                try:
                    if number % 2:
                        each.send(word)
                except OSError:
                    each.close()
                    with suppress(OSError):
                        strangers[number] = dial()

    saying = threading.Thread(target=say)
    saying.start()
    try:
        yield strangers
    finally:
        over.set()
        saying.join(PATIENCE_S)
        for each in strangers:
            each.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def exchanged(hub: LineServer, line: Line, rounds: int) -> float:
    """Exchange messages with a member; return the processor time of the polling thread, s."""

    def answer() -> None:
        for _ in range(rounds):
            line.send(line.receive(PATIENCE_S))

    member = threading.Thread(target=answer)
    member.start()
    begin_s, done, deadline_s = time.thread_time(), 0, time.monotonic() + PATIENCE_S
    theirs = next(each for each, _ in heard(hub, 1))
    theirs.send("step")
    while done < rounds - 1:
        assert time.monotonic() < deadline_s, f"{done} of {rounds} steps"
        for _, message in hub.poll(1.0):
            assert message is not None
            done += 1
            theirs.send("step")
    heard(hub, 1)
    member.join(PATIENCE_S)
    return time.thread_time() - begin_s


def heard(hub: LineServer, least: int) -> list[tuple[Line, object]]:
    found: list[tuple[Line, object]] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < least and time.monotonic() < deadline_s:
        found += hub.poll(1.0)
    assert len(found) >= least
    return found


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_crowd_that_says_nothing_delays_no_member(encrypted: bool, tmp_path: Path) -> None:
    if encrypted:
        make_certificates(tmp_path, ["127.0.0.1"])
    with LineServer(certificates=str(tmp_path) if encrypted else "") as hub:
        first = Line.dial(hub.address)
        first.send("here")
        alone_s = exchanged(hub, first, ROUNDS)
        threads, open_before = threading.active_count(), descriptors()
        with crowd(tcp(hub.address.port)):
            late = Line.dial(hub.address)
            late.send("here")
            crowded_s = exchanged(hub, late, ROUNDS)
            assert threading.active_count() <= threads + 1
            assert descriptors() - open_before - CROWD <= 64 + SPARE_DESCRIPTORS
        late.close()
        first.close()
    assert crowded_s < 3 * alone_s + 0.2


def test_who_shows_another_key_is_told_so_at_once_and_the_next_is_let_in() -> None:
    with LineServer() as hub:
        with pytest.raises(LineClosedError, match="does not answer"):
            Line.dial(hub.address._replace(key="0" * 64))
        line = Line.dial(hub.address)
        line.send("here")
        assert [message for _, message in heard(hub, 1)] == [("here",)]
        line.close()


@pytest.mark.parametrize("said", [b"", b"x", None])
def test_a_visitor_has_one_deadline_in_all(said: bytes | None) -> None:
    """Nothing, a byte now and then, or no hand for the answer: it is over when the time is."""
    answer = bytes(50_000_000) if said is None else None
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    deadline_s = time.monotonic() + PATIENCE_S
    with Listening(listener, lambda *_: answer, 1000, deadline_s=0.5):
        before = descriptors()
        with tcp(port)() as visitor:
            visitor.sendall(b"!")
            while descriptors() < before + 2:
                assert time.monotonic() < deadline_s
            while descriptors() > before + 1:
                assert time.monotonic() < deadline_s
                with suppress(OSError):
                    visitor.send(said or b"")
                time.sleep(0.05)


def test_what_follows_a_greeting_is_left_for_whoever_takes_the_connection() -> None:
    taken: list[bytes] = []
    done = threading.Event()

    def take(connection: socket.socket) -> None:
        taken.append(connection.recv(4))
        connection.close()
        done.set()

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with Listening(listener, lambda said, _: Admit(take, b"+") if said == b"key!" else None, 4), tcp(port)() as visitor:
        visitor.sendall(b"key!more")
        assert visitor.recv(1) == b"+"
        assert done.wait(PATIENCE_S)
    assert taken == [b"more"]


def test_a_visitor_that_breaks_what_reads_it_ends_nothing_and_a_crowd_fills_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with caplog.at_level(logging.INFO, logger="hetero"), Listening(listener, lambda *_: 1 // 0, 4):  # type: ignore[arg-type]
        for _ in range(100):
            with tcp(port)() as visitor:
                visitor.sendall(b"!")
                with suppress(ConnectionError):
                    assert visitor.recv(1) == b""
    assert 1 <= len(caplog.records) <= 20
    assert "refused 127.0.0.1: integer division" in caplog.records[0].getMessage()


def test_a_mesh_forms_although_a_crowd_came_first() -> None:
    told: dict[int, bytes] = {}
    both = threading.Barrier(2)
    strangers: list[socket.socket] = []

    def form(rank: int) -> Mesh:
        def exchange(_: str, mine: bytes, deadline_s: float) -> list[bytes]:
            told[rank] = mine
            both.wait(deadline_s)
            if rank == 1:
                port = json.loads(told[0])[1]
                strangers.extend(tcp(port)() for _ in range(CROWD))
            return [told[0], told[1]]

        return Mesh.form(rank, "127.0.0.1", exchange, 20.0)

    with ThreadPoolExecutor(2) as threads:
        meshes = list(threads.map(form, range(2)))
    assert [list(mesh.sockets) for mesh in meshes] == [[1], [0]]
    for mesh in meshes:
        mesh.leave()
    for each in strangers:
        each.close()


def test_a_mesh_of_which_a_member_stays_away_is_told_and_leaves_no_descriptor() -> None:
    before = descriptors()
    with pytest.raises(GroupBrokenError, match="not all members came in time"):
        Mesh.form(0, "127.0.0.1", lambda _, mine, __: [mine, mine], 0.3)
    assert descriptors() == before


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_job_server_of_a_cluster_answers_beside_a_crowd(encrypted: bool, tmp_path: Path) -> None:
    make_certificates(tmp_path / "certificates", ["127.0.0.1"])
    folder = tmp_path / "certificates" if encrypted else None
    server = JobServer("127.0.0.1", 0, "a-token-of-some-length", folder)
    over = threading.Event()
    serving = threading.Thread(target=server.serve, args=(lambda: not over.is_set(),))
    serving.start()
    threads, open_before = threading.active_count(), descriptors()
    port = int(server.address.rpartition(":")[2])
    try:
        with crowd(tcp(port), b"{"):
            visitor = tcp(port)()
            if encrypted:
                from hetero.engines.ray.certificates import client_context

                visitor = client_context(tmp_path / "certificates").wrap_socket(visitor)
            visitor.sendall(json.dumps({"token": "another", "do": "list"}).encode() + b"\n" + bytes(100_000))
            assert "refuses this token" in json.loads(visitor.makefile().readline())["problem"]
            visitor.close()
            assert threading.active_count() <= threads + 1
            assert descriptors() - open_before - CROWD <= 64 + SPARE_DESCRIPTORS
    finally:
        over.set()
        serving.join(PATIENCE_S)


def test_metrics_and_top_are_answered_beside_a_crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    monkeypatch.setenv("HETERO_HOME", str(tmp_path))
    with (
        hetero.Context(devices="1xcpu", isolation="thread", history=False, name="crowded") as ctx,
        hetero.inspect.metrics_server(ctx) as server,
    ):
        (run,) = open_runs()

        def at_the_file() -> socket.socket:
            visitor = socket.socket(socket.AF_UNIX)
            visitor.connect(run.socket)
            return visitor

        threads = threading.active_count()
        with crowd(tcp(server.port), b"G"), crowd(at_the_file):
            text = urllib.request.urlopen(server.url, timeout=PATIENCE_S).read().decode()
            assert "hetero_run_open 1.0" in text
            assert ask(run).run == "crowded"
            assert ctx.run(len, "abc") == 3
            assert threading.active_count() <= threads + 4


@pytest.mark.parametrize(
    ("request_", "status"),
    [(b"POST / HTTP/1.1\r\n\r\n", b"405"), (b"HEAD / HTTP/1.1\r\n\r\n", b"200"), (b"X" * 20_000, b"")],
)
def test_metrics_answer_what_asks_for_them_only(request_: bytes, status: bytes) -> None:
    pytest.importorskip("prometheus_client")
    with (
        hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx,
        hetero.inspect.metrics_server(ctx) as server,
        tcp(server.port)() as visitor,
    ):
        answer = b""
        with suppress(ConnectionError):
            visitor.sendall(request_)
            while chunk := visitor.recv(1 << 16):
                answer += chunk
        assert answer[9:12] == status
        assert answer.partition(b"\r\n\r\n")[2] in (b"", b"only GET is answered\n")


def test_a_stranger_that_stops_in_the_middle_of_a_handshake_is_hung_up_on(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"])
    with LineServer(certificates=str(tmp_path)) as hub:
        outgoing = ssl.MemoryBIO()
        context = ssl.create_default_context(cadata=hub.address.authority)
        context.check_hostname = False
        shaking = context.wrap_bio(ssl.MemoryBIO(), outgoing)
        with suppress(ssl.SSLWantReadError):
            shaking.do_handshake()
        with tcp(hub.address.port)() as stranger:
            stranger.sendall(outgoing.read())
            with suppress(ConnectionError):
                while stranger.recv(1 << 16):
                    pass
