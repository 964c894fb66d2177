"""The job server of a cluster: takes programs in from elsewhere, on the head's address, by certificate and token.

In: requests of one line of JSON each, with an archive behind it. Out: answers, one line of JSON each, `LAST` the
last of them. It starts Ray's job manager with the first request, and must not read on before a token was shown.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import hmac
import importlib.util
import json
import logging
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, TypeVar, cast

import psutil

from hetero.engines.ray.certificates import server_context
from hetero.engines.ray.cluster import Cluster
from hetero.engines.ray.job_package import MOST_BYTES, JobProgram
from hetero.engines.ray.node import JOB_SERVER_FILE, LEAST_STORE_BYTES
from hetero.engines.shared.exceptions import one_line
from hetero.floor.clock import monotonic_s, sleep
from hetero.floor.documents import JsonObject, parse_json, record_of
from hetero.floor.errors import BadValueError, EngineError, FileError, HeteroError, did_you_mean
from hetero.floor.listening import Admit, Listening, Verdict

if TYPE_CHECKING:
    from types import ModuleType

    from ray.dashboard.modules.job.common import JobInfo, JobInfoStorageClient
    from ray.dashboard.modules.job.job_manager import JobManager

__all__ = ["CANCELLED", "LAST", "JobServer", "Jobs", "State", "keep_ends", "main"]

_log = logging.getLogger("hetero.job_server")

LAST: dict[str, object] = {"last": True}
"""The last answer to a request: answers that end without it were cut off."""

_BACKLOG = 128
_LOOK_S = 1.0
_LONGEST_LINE = 1 << 16
_SILENCE_LINES = 20
_TO_RUN = ("script", "arguments", "variables", "packages")

T = TypeVar("T")
Answer = JsonObject


class JobServer:
    """Listens for requests; each one that shows the token has a thread of its own.

    Parameters
    ----------
    host
        Address to listen on.
    port
        0 for any that is free.
    token
        Who does not show it is sent away.
    certificates
        Folder; None where nothing is encrypted.

    Attributes
    ----------
    address
        'host:port'.
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
    part = Path(told["folder"]) / f"{JOB_SERVER_FILE}.part"
    part.write_text(server.address, encoding="utf-8")
    part.rename(part.with_suffix(""))
    server.serve(node.is_running)


# --- jobs ---------------------------------------------------------------------------------------------------

_LOOK_S_jobs = 0.1
_ANSWER_S = 60.0
_UNFIT = re.compile(r"[^A-Za-z0-9]+")
_CHUNK_BYTES = 1 << 20
_MOST_WHY = 400
CANCELLED = 130
_BEGUN = "Running entrypoint for job "
"""What Ray's job manager writes above what a program prints."""
_WORDS = {
    "PENDING": "waiting", "RUNNING": "running", "STOPPED": "cancelled", "SUCCEEDED": "finished", "FAILED": "failed"
}  # fmt: skip


class State(NamedTuple):
    """How a job stands.

    Attributes
    ----------
    job
        Its name.
    program
        Script and arguments.
    state
        Waiting, running, finished, failed or cancelled.
    submitted_s
        Seconds since 1970.
    took_s
        From submission to its end, None before.
    exit_code
        Of the program, None before its end.
    why
        In one line, why it failed without an exit code of its own.
    """

    job: str
    program: str
    state: str
    submitted_s: float
    took_s: float | None
    exit_code: int | None
    why: str

    @property
    def over(self) -> bool:
        """Return whether it has ended."""
        return self.exit_code is not None


class Jobs:
    """The jobs of the cluster of this host's node; it becomes a part of it when it is made."""

    def __init__(self) -> None:
        self._cluster = Cluster.open("auto", LEAST_STORE_BYTES)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="hetero-jobs").start()
        self._client, self._logs = self._call(_client())

    def submit(self, program: JobProgram, archive: bytes) -> str:
        """Start a program; return the name of its job at once.

        Raises
        ------
        EngineError
            Packages are asked for, and this host cannot install any.
        """
        from ray._private.runtime_env.packaging import upload_package_to_gcs

        if program.packages and importlib.util.find_spec("virtualenv") is None:
            raise EngineError(
                f"the head cannot install {', '.join(program.packages)} for a job: it lacks virtualenv",
                remedy="pip install virtualenv on every host, or install the packages there",
            )
        name = f"{_UNFIT.sub('-', Path(program.script).stem)[:40]}-{secrets.token_hex(4)}"
        uri = f"gcs://_ray_pkg_{hashlib.sha256(archive).hexdigest()[:32]}.zip"
        upload_package_to_gcs(uri, archive)
        environment: dict[str, object] = {"working_dir": uri, "env_vars": dict(program.variables)}
        if program.packages:
            environment["pip"] = list(program.packages)
        command = program.command("python" if program.packages else sys.executable)
        title = {"program": program.title}
        self._call(
            self._client.submit_job(entrypoint=command, submission_id=name, runtime_env=environment, metadata=title)
        )
        return name

    def all(self) -> list[State]:
        """Return all jobs, the latest first."""
        found = self._call(self._client.list_jobs())
        states = [_state(name, info) for name, info in found.items()]
        return sorted(states, key=lambda state: (-state.submitted_s, state.job))

    def state(self, job: str) -> State:
        """Return how a job stands.

        Raises
        ------
        BadValueError
            There is none of this name.
        """
        info = self._call(self._client.get_job_info(job))
        if info is None:
            known = [state.job for state in self.all()]
            raise BadValueError(
                f"there is no job {job!r}", remedy=did_you_mean(job, known) or "see 'hetero cluster jobs'"
            )
        return _state(job, info)

    def cancel(self, job: str) -> State:
        """Stop a job; one that is over stays as it ended.

        Raises
        ------
        EngineError
            It goes on all the same.
        """
        if not self.state(job).over:
            self._client.stop_job(job)
        deadline_s = monotonic_s() + _ANSWER_S
        while not (state := self.state(job)).over and monotonic_s() < deadline_s:
            sleep(_LOOK_S_jobs)
        if not state.over:
            problem = f"job {job} did not end within {_ANSWER_S:g} s of being told to"
            raise EngineError(
                problem, remedy=f"see 'hetero cluster jobs', and cancel it again: 'hetero cluster cancel {job}'"
            )
        return state

    def printed(self, job: str, follow: bool) -> Iterator[str | None]:
        """Yield what a job's program prints; with `follow` until it ends, '' where nothing is new.

        None comes while the program has not begun. The first text comes when it has, and may be empty.
        """
        self.state(job)
        prologue = f"{_BEGUN}{job}: {self._call(self._client.get_job_info(job)).entrypoint}\n".encode()
        log = self._logs / f"job-driver-{job}.log"
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        position = None
        while True:
            last = not follow or self.state(job).over
            if position is None:
                position = _end_of(prologue, log)
            data = b"" if position is None else _read_on(log, position)
            rest = len(data) == _CHUNK_BYTES
            if position is not None:
                position += len(data)
                yield decode(data, final=last and not rest)
            else:
                yield None
            if last and not rest:
                return
            if not rest:
                sleep(_LOOK_S_jobs)

    def _call(self, question: Coroutine[object, object, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(question, self._loop).result(_ANSWER_S)
        except TimeoutError as error:
            problem = f"Ray's job manager gave no answer in {_ANSWER_S:g} s"
            raise EngineError(problem, remedy="see node.log in the folder of the head's node") from error


async def _client() -> tuple[JobManager, Path]:
    """Return Ray's job manager, and the folder of its logs; it belongs to the loop in which it is made."""
    import ray

    try:
        from ray.dashboard.modules.job.job_manager import JobManager
    except ImportError as error:
        raise EngineError(
            f"Ray {ray.__version__} does not keep jobs as hetero knows it: {error}", remedy="use Ray 2.60"
        ) from error
    worker = importlib.import_module("ray._private.worker")
    logs = worker._global_node.get_logs_dir_path()
    _name_head(worker)
    manager = JobManager(worker.global_worker.gcs_client, logs)
    keep_ends(manager._job_info_client)
    return manager, Path(logs)


def keep_ends(client: JobInfoStorageClient) -> None:
    """Keep the exit code of a job that is over from being overwritten.

    Ray's job manager, when it is started anew, would write this over the exit code of one that ends just then.
    """
    put = client.put_status

    async def put_unless_over(job: str, *words: object, **named: object) -> None:
        info = await client.get_info(job)
        if info is None or not info.status.is_terminal():
            await put(job, *words, **named)

    client.put_status = put_unless_over


def _name_head(worker: ModuleType) -> None:
    """Set the head's host in Ray's job manager: else it starts programs anywhere, and their output stays there.

    Ray's dashboard would write it down, which does not run here.
    """
    import ray
    from ray._private import ray_constants

    own = ray.get_runtime_context().get_node_id().encode()
    worker.global_worker.gcs_client.internal_kv_put(
        ray_constants.KV_HEAD_NODE_ID_KEY, own, True, namespace=ray_constants.KV_NAMESPACE_JOB
    )


def _end_of(prologue: bytes, log: Path) -> int | None:
    """Return where the program's own words begin in its log, None before it has begun."""
    text = log.read_bytes() if log.exists() else b""
    place = text.find(prologue)
    return None if place < 0 else place + len(prologue)


def _read_on(log: Path, position: int) -> bytes:
    with log.open("rb") as file:
        file.seek(position)
        return file.read(_CHUNK_BYTES)


def _state(name: str, info: JobInfo) -> State:
    word = _WORDS[str(info.status)]
    over = bool(info.status.is_terminal())
    code, why = (_exit_code(word, info.driver_exit_code), "") if over else (None, "")
    if word == "failed" and info.driver_exit_code is None:
        why = " ".join(str(info.message).split())[:_MOST_WHY]
    program = (info.metadata or {}).get("program") or str(info.entrypoint)
    took_s = (info.end_time - info.start_time) / 1e3 if over and info.end_time else None
    return State(name, program, word, info.start_time / 1e3, took_s, code, why)


def _exit_code(word: str, code: int | None) -> int:
    """Return the code as a shell does: a program that a signal ended has 128 and the signal."""
    if word == "cancelled":
        return CANCELLED
    if code is None:
        return 1 if word == "failed" else 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
