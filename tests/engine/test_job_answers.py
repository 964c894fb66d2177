"""Answers of a job server that do not end as they should are errors, in the library and at the command line."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hetero.cli.cluster import tell
from hetero.engines.ray import job_client, job_server
from hetero.engines.ray.certificates import make_certificates, server_context
from hetero.engines.ray.job_client import JobClient
from hetero.errors import BadValueError, EngineError

PATIENCE_S = 60.0
TOKEN = "a-token-of-some-length"
JOB = {"job": "slow-1"}
TEXT = {"text": "0\n"}
END = {"program": "slow.py", "state": "failed", "submitted_s": 1.0, "took_s": 2.0, "exit_code": 9, "why": ""}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers") / "certificates"
    make_certificates(folder, ["127.0.0.1"])
    return folder


@contextmanager
def server(answer: Callable[[socket.socket], None], folder: Path | None) -> Iterator[JobClient]:
    """Answer one request, and hang up."""

    def serve() -> None:
        with suppress(OSError):
            visitor = listener.accept()[0]
            with server_context(folder).wrap_socket(visitor, server_side=True) if folder else visitor as visitor:
                visitor.makefile("rb").readline()
                answer(visitor)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve)
        serving.start()
        yield JobClient(f"127.0.0.1:{listener.getsockname()[1]}", TOKEN, folder)
        serving.join(PATIENCE_S)


def lines(*answers: dict[str, object], cut: int = 0) -> Callable[[socket.socket], None]:
    said = b"".join(json.dumps(answer).encode() + b"\n" for answer in answers)
    return lambda visitor: visitor.sendall(said[: len(said) - cut])


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("do", ["submit", "logs", "cancel", "list"])
@pytest.mark.parametrize("cut", [0, 5])
def test_answers_without_the_last_one_were_cut_off(do: str, cut: int, encrypted: bool, certificates: Path) -> None:
    answers = {"submit": [JOB, TEXT], "logs": [TEXT, TEXT], "cancel": [JOB | END] * 2, "list": [JOB | END] * 2}[do]
    words = {"job": "slow-1"} if do in ("logs", "cancel") else {}
    with server(lines(*answers, cut=cut), certificates if encrypted else None) as way:
        given = way.ask(do, **words)
        assert do != "submit" or next(given) == JOB
        with pytest.raises(EngineError, match=r"the connection to the job server at 127.0.0.1:\d+ was lost") as found:
            tell(given) if do != "list" else list(given)
    look = "'hetero cluster jobs'" if do == "list" else "'hetero cluster logs --follow slow-1'"
    assert look in found.value.remedy


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(
    "said", [b"", b"\x00\x00\x12\x04\x00", b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"a": 1}\n', b'{"job": 3}\n']
)
def test_what_gives_no_answer_of_a_job_server_is_none(said: bytes, encrypted: bool, certificates: Path) -> None:
    with (
        server(lambda visitor: visitor.sendall(said), certificates if encrypted else None) as way,
        pytest.raises(EngineError, match=r"is no job server of a cluster: .*; give the address for jobs"),
    ):
        list(way.ask("list"))


def test_a_job_server_that_is_silent_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_client, "_SILENCE_S", 0.2)
    over = threading.Event()

    def silent(visitor: socket.socket) -> None:
        lines(JOB)(visitor)
        over.wait(PATIENCE_S)

    with server(silent, None) as way:
        with pytest.raises(EngineError, match=r"was lost \(no answer in time\)"):
            list(way.ask("submit", b"x"))
        over.set()


def test_answers_with_the_last_one_are_all(certificates: Path) -> None:
    with server(lines(TEXT, JOB | END, job_server.LAST), certificates) as way:
        assert tell(way.ask("logs", job="slow-1")) == 9
    with server(lines(job_server.LAST), None) as way:
        assert list(way.ask("list")) == []


def test_a_request_that_fails_in_an_unforeseen_way_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def all(self) -> list[object]:
            raise RuntimeError("Ray is gone")

        def cancel(self, job: str) -> object:
            raise BadValueError(f"there is no job {job!r}", remedy="")

    monkeypatch.setattr(job_server, "Jobs", Broken)
    served = job_server.JobServer("127.0.0.1", 0, TOKEN, None)
    over = threading.Event()
    serving = threading.Thread(target=served.serve, args=(lambda: not over.is_set(),))
    serving.start()
    try:
        way = JobClient(served.address, TOKEN, None)
        with pytest.raises(EngineError, match=r"the job server could not answer: .*Ray is gone"):
            list(way.ask("list"))
        with pytest.raises(EngineError, match="there is no job 'a'"):
            list(way.ask("cancel", job="a"))
    finally:
        over.set()
        serving.join(PATIENCE_S)
