"""The client of a cluster's job server: one request a connection, encrypted where the cluster has certificates.

In: where the server is, and a request. Out: its answers, one by one. It must not show a token to whom it does not know.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from hetero.engines.ray.address import KNOCK_S, check_address, is_loopback
from hetero.engines.ray.certificates import check_folder, client_context, why_refused
from hetero.engines.ray.job_server import LAST
from hetero.engines.ray.node import read_token, this_node
from hetero.floor.documents import parse_json, record_of
from hetero.floor.errors import BadValueError, EngineError, FileError
from hetero.floor.text import single_line

__all__ = ["JobClient", "client_for"]

_SILENCE_S = 150.0
"""Longest silence of a job server, s: it waits for Ray up to twice 60 s, and following a job it answers every 2 s."""
_CHUNK_BYTES = 1 << 20
_LONGEST_ANSWER = 1 << 24
_ADDRESS = "give the address for jobs that 'hetero cluster start --head' printed, not that of the cluster"
_STATE = {
    "job": str,
    "program": str,
    "state": str,
    "submitted_s": float,
    "why": str,
    "took_s": object,
    "exit_code": object,
}
_ANSWERS: tuple[dict[str, type], ...] = (
    {"text": str},
    {"job": str},
    {"cold_start_s": float},
    _STATE,
    {"problem": str, "remedy": str},
    {"last": bool},
)
"""The fields of all answers that there are."""


@dataclass(frozen=True, slots=True)
class JobClient:
    """Where a job server is, and what it asks for.

    Attributes
    ----------
    address
        'host:port'.
    token
        Of the cluster.
    certificates
        Folder, None where nothing is encrypted, which is so on loopback only.
    """

    address: str
    token: str
    certificates: Path | None

    def ask(self, do: str, body: bytes = b"", **words: object) -> Iterator[dict[str, object]]:
        """Send one request; return the answers as they come.

        Raises
        ------
        EngineError
            Nobody answers there, what answers is no job server, it refuses, or the connection was lost before its last
            answer.
        """
        head = {"token": self.token, "do": do, "nbytes": len(body), **words}
        job, answered, why = str(words.get("job", "")), False, "it closed the connection"
        try:
            with closing(self._connected()) as line, line.makefile("rb") as answers:
                self._send(line, json.dumps(head).encode() + b"\n" + body)
                while (answer := answers.readline(_LONGEST_ANSWER)).endswith(b"\n"):
                    read = self._read(answer)
                    if read == LAST:
                        return
                    job, answered = str(read["job"]) if do == "submit" and "job" in read else job, True
                    yield read
        except OSError as error:
            if not answered and isinstance(error, ssl.SSLError):
                raise self._unencrypted(error) from error
            why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise self._lost(do, job, why) if answered else self._no_server(f"{why}, and gave no answer")

    def _connected(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        try:
            line = socket.create_connection((host.strip("[]"), int(port)), KNOCK_S)
        except OSError as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or error
            raise EngineError(f"no cluster takes jobs at {self.address}: {why}", remedy=_ADDRESS) from error
        if self.certificates is None:
            return line
        try:
            return client_context(self.certificates).wrap_socket(line)
        except BaseException:
            line.close()
            raise

    @staticmethod
    def _send(line: socket.socket, data: bytes) -> None:
        """Send all, or as much as the other end takes before it refuses; a slow network may take its time."""
        line.settimeout(_SILENCE_S)
        with suppress(ConnectionError):
            for start in range(0, len(data), _CHUNK_BYTES):
                line.sendall(data[start : start + _CHUNK_BYTES])

    def _read(self, answer: bytes) -> dict[str, object]:
        try:
            read = record_of(parse_json(answer.decode(), self.address), {}, self.address)
            kinds = next((kinds for kinds in _ANSWERS if set(read) == set(kinds)), None)
            if kinds is None:
                raise FileError("no such answer", remedy="")
            record_of(read, {name: kind for name, kind in kinds.items() if kind is not object}, self.address)
        except (UnicodeError, FileError) as error:
            raise self._no_server("its answer is not understood") from error
        if "problem" in read:
            raise EngineError(single_line(read["problem"]), remedy=single_line(read["remedy"]))
        return read

    def _unencrypted(self, error: ssl.SSLError) -> EngineError:
        wrong, what_to_do = why_refused(error)
        problem = f"what answers at {self.address} is no job server of a cluster with these certificates: {wrong}"
        return EngineError(problem, remedy=what_to_do)

    def _no_server(self, why: str) -> EngineError:
        return EngineError(f"what answers at {self.address} is no job server of a cluster: {why}", remedy=_ADDRESS)

    def _lost(self, do: str, job: str, why: str) -> EngineError:
        again = "'hetero cluster serve' on the head's host starts the job server again if it has ended"
        see = f"'hetero cluster logs --follow {job}'" if job else "'hetero cluster jobs'"
        goes_on = f"job {job} may go on: see {see}" if job else f"try {see} again"
        told = f"the connection to the job server at {self.address} was lost ({why})"
        return EngineError(f"{told} before it had answered all of '{do}'", remedy=f"{goes_on}; {again}")


def client_for(address: str, token_file: Path | None, certificates: Path | None) -> JobClient:
    """Return a client of a job server; what is not named is that of this host's node.

    Parameters
    ----------
    address
        'host:port' of the server, 'auto' for that of the head on this host.

    Raises
    ------
    BadValueError
        Something is neither named nor known here, or nothing would be encrypted beyond loopback.
    EngineError
        The job server of this host's head has ended.
    """
    check_address(address)
    node = this_node()
    if address in ("auto", "local"):
        if node is None or not node.jobs:
            raise BadValueError(
                "no head of a cluster runs on this host",
                remedy="give --address with the address for jobs that 'hetero cluster start --head' printed",
            )
        if not node.job_server_alive:
            raise EngineError(
                f"the job server at {node.jobs} has ended; the jobs of this head go on",
                remedy="start it again with 'hetero cluster serve'",
            )
        address = node.jobs
    folder = certificates or (Path(node.certificates) if node is not None and node.certificates else None)
    if folder is None and not is_loopback(address):
        raise BadValueError(
            f"{address} is reached over a network, and nothing would be encrypted",
            remedy="give --certificates FOLDER, or go through SSH: 'ssh -L PORT:localhost:PORT HOST'",
        )
    if folder is not None:
        check_folder(folder)
    if token_file is None and node is None:
        raise BadValueError("no token is known here", remedy="copy the head's to this host and give --token-file FILE")
    token = read_token(token_file) if token_file is not None else node.token if node is not None else ""
    return JobClient(address, token, folder)
