"""The job server of a cluster: takes programs in from elsewhere, on the head's address, by certificate and token.

In: requests of one line of JSON each, with an archive behind it. Out: answers, one line of JSON each, `LAST` the
last of them. It starts Ray's job manager with the first request, and must not read on before a token was shown.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any, cast

import psutil

from hetero.engines.ray.certificates import server_context
from hetero.engines.ray.job_package import MOST_BYTES, JobProgram
from hetero.engines.ray.jobs import Jobs
from hetero.engines.shared.exceptions import one_line
from hetero.floor.clock import monotonic_s, sleep
from hetero.floor.documents import parse_json, record_of
from hetero.floor.errors import BadValueError, EngineError, FileError, HeteroError
from hetero.floor.listening import Admit, Listening, Verdict

__all__ = ["FILE", "LAST", "JobServer", "main"]

_log = logging.getLogger("hetero.job_server")

FILE = "job_server"
"""In the node's folder: the address, as soon as it listens."""
LAST: dict[str, Any] = {"last": True}
"""The last answer to a request: answers that end without it were cut off."""

_BACKLOG = 128
_LOOK_S = 1.0
_LONGEST_LINE = 1 << 16
_SILENCE_LINES = 20
_TO_RUN = ("script", "arguments", "variables", "packages")

Answer = dict[str, Any]


class JobServer:
    """Listens for requests; each one that shows the token has a thread of its own.

    Parameters
    ----------
    host : address to listen on
    port : 0 for any that is free
    token : who does not show it is sent away
    certificates : folder; None where nothing is encrypted

    Attributes
    ----------
    address : 'host:port'
    """

    def __init__(self, host: str, port: int, token: str, certificates: Path | None) -> None:
        self._token = token
        self._lock = threading.Lock()
        self._jobs: Jobs | None = None
        listener = socket.create_server((host, port), backlog=_BACKLOG)
        self.address = f"{host}:{listener.getsockname()[1]}"
        encrypting = None if certificates is None else server_context(certificates)
        self._listening = Listening(listener, self._heard, _LONGEST_LINE, encrypting=encrypting)

    def serve(self, while_true: Callable[[], bool]) -> None:
        """Accept requests as long as this is true."""
        with self._listening:
            while while_true():
                sleep(_LOOK_S)

    def _heard(self, said: bytes, peer: str) -> Verdict:
        """Read a request and its token, before anything is done for whoever sent it."""
        line, end, begun = said.partition(b"\n")
        if not end:
            return None
        try:
            request = self._read(line, peer)
        except HeteroError as error:
            return _refusal(error)
        return Admit(lambda visitor: self._let_in(visitor, request, begun))

    def _let_in(self, visitor: socket.socket, request: Answer, begun: bytes) -> None:
        """Talk in a thread of its own; one whose host is gone is noticed in minutes."""
        visitor.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        threading.Thread(target=self._talk, args=(visitor, request, begun), daemon=True).start()

    def _talk(self, visitor: socket.socket, request: Answer, begun: bytes) -> None:
        with suppress(OSError), closing(visitor), cast(IO[bytes], visitor.makefile("rwb")) as file:
            for line in self._lines(request, begun, file):
                file.write(line)
                file.flush()

    def _lines(self, request: Answer, begun: bytes, file: IO[bytes]) -> Iterator[bytes]:
        """Return the answers to a request, each a line; the last one is `LAST` or a refusal, whatever happens."""
        try:
            for answer in self._answers(request, begun, file):
                yield json.dumps(answer).encode() + b"\n"
            yield json.dumps(LAST).encode() + b"\n"
        except HeteroError as error:
            yield _refusal(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # of a field that is no such thing
            yield _refusal(BadValueError(f"the request is not understood: {one_line(error)}"))
        except Exception as error:  # noqa: BLE001 - Ray raises anything
            _log.exception("a request failed")
            why = f"the job server could not answer: {one_line(error)}"
            yield _refusal(EngineError(why, remedy="see job_server.log in the folder of the head's node"))

    def _read(self, line: bytes, peer: str) -> Answer:
        try:
            request = record_of(parse_json(line.decode(), "the request"), {"token": str, "do": str}, "the request")
        except (UnicodeError, FileError) as error:
            self._listening.log_rejected(peer, "no request")
            raise BadValueError(
                "this is no request of hetero", remedy="use 'hetero cluster submit' or 'hetero cluster jobs'"
            ) from error
        if not hmac.compare_digest(request["token"].encode(errors="replace"), self._token.encode()):
            self._listening.log_rejected(peer, "another token")
            raise BadValueError(
                "the cluster refuses this token", remedy="copy the head's to this host and give --token-file FILE"
            )
        return request

    def _answers(self, request: Answer, begun: bytes, file: IO[bytes]) -> Iterator[Answer]:
        begin_s = monotonic_s()
        jobs = self._opened()
        match request["do"]:
            case "submit":
                job = jobs.submit(_program(request), _archive(begun, file, request["nbytes"]))
                yield {"job": job}
                if request["follow"]:
                    yield from _followed(jobs, job, True, begin_s)
            case "logs":
                yield from _followed(jobs, request["job"], request["follow"], None)
            case "cancel":
                yield jobs.cancel(request["job"])._asdict()
            case _:
                yield from (state._asdict() for state in jobs.all())

    def _opened(self) -> Jobs:
        with self._lock:
            if self._jobs is None:
                self._jobs = Jobs()
            return self._jobs


def _program(request: Answer) -> JobProgram:
    script, arguments, variables, packages = (request[name] for name in _TO_RUN)
    return JobProgram(script, tuple(arguments), tuple([tuple(pair) for pair in variables]), tuple(packages))


def _refusal(error: HeteroError) -> bytes:
    return json.dumps({"problem": error.problem, "remedy": error.remedy}).encode() + b"\n"


def _archive(begun: bytes, file: IO[bytes], nbytes: int) -> bytes:
    """Read an archive, of which the first bytes may have come with the request."""
    if not 0 < nbytes <= 2 * MOST_BYTES:
        raise BadValueError(f"an archive of {nbytes} bytes", remedy=f"send 1 to {2 * MOST_BYTES}")
    archive = begun + file.read(nbytes - len(begun))
    if len(archive) < nbytes:
        raise BadValueError(f"the archive ended after {len(archive)} of {nbytes} bytes", remedy="send it again")
    return archive


def _followed(jobs: Jobs, job: str, follow: bool, begin_s: float | None) -> Iterator[Answer]:
    """Yield what a program prints, how long it took until it began, and how it ended or stands."""
    silent = 0
    for text in jobs.printed(job, follow):
        if begin_s is not None and text is not None:
            yield {"cold_start_s": monotonic_s() - begin_s}
            begin_s = None
        silent = 0 if text else silent + 1
        if text or silent % _SILENCE_LINES == 0:
            yield {"text": text or ""}
    yield jobs.state(job)._asdict()


def main() -> None:
    """Serve jobs for the node described on standard input, as long as that runs."""
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("hetero").setLevel(logging.INFO)
    told = json.loads(sys.stdin.readline())
    node = psutil.Process(told["pid"])
    certificates = Path(told["certificates"]) if told["certificates"] else None
    server = JobServer(told["host"], told["port"], told["token"], certificates)
    part = Path(told["folder"]) / f"{FILE}.part"
    part.write_text(server.address, encoding="utf-8")
    part.rename(part.with_suffix(""))
    server.serve(node.is_running)


if __name__ == "__main__":
    main()
