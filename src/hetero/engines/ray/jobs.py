"""Jobs: programs that a cluster runs by itself, by Ray's own job manager; each has a supervisor on the head.

In: an archive and what to run of it. Out: states, and what the programs print. Programs run on the head, where their
words can be read. It must not be reached but by the job server.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import importlib.util
import re
import secrets
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hetero.engines.ray.cluster import LEAST_STORE_BYTES, Cluster
from hetero.engines.ray.job_package import JobProgram
from hetero.floor.clock import monotonic_s, sleep
from hetero.floor.errors import BadValueError, EngineError, did_you_mean

__all__ = ["CANCELLED", "Jobs", "State", "keep_ends"]

_LOOK_S = 0.1
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
    job : its name
    program : script and arguments
    state : waiting, running, finished, failed or cancelled
    submitted_s : s since 1970
    took_s : from submission to its end, None before
    exit_code : of the program, None before its end
    why : in one line, why it failed without an exit code of its own
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
        environment: dict[str, Any] = {"working_dir": uri, "env_vars": dict(program.variables)}
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
            sleep(_LOOK_S)
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
                sleep(_LOOK_S)

    def _call(self, question: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(question, self._loop).result(_ANSWER_S)
        except TimeoutError as error:
            problem = f"Ray's job manager gave no answer in {_ANSWER_S:g} s"
            raise EngineError(problem, remedy="see node.log in the folder of the head's node") from error


async def _client() -> tuple[object, Path]:
    """Return Ray's job manager, and the folder of its logs; it belongs to the loop in which it is made."""
    import ray

    try:
        from ray.dashboard.modules.job.job_manager import JobManager
    except ImportError as error:
        raise EngineError(
            f"Ray {ray.__version__} does not keep jobs as hetero knows it: {error}", remedy="use Ray 2.60"
        ) from error
    worker: Any = importlib.import_module("ray._private.worker")
    logs = worker._global_node.get_logs_dir_path()
    _name_head(worker.global_worker.gcs_client)
    manager = JobManager(worker.global_worker.gcs_client, logs)
    keep_ends(manager._job_info_client)
    return manager, Path(logs)


def keep_ends(client: Any) -> None:
    """Keep the exit code of a job that is over from being overwritten.

    Ray's job manager, when it is started anew, would write this over the exit code of one that ends just then.
    """
    put = client.put_status

    async def put_unless_over(job: str, *words: Any, **named: Any) -> None:
        info = await client.get_info(job)
        if info is None or not info.status.is_terminal():
            await put(job, *words, **named)

    client.put_status = put_unless_over


def _name_head(store: Any) -> None:
    """Set the head's host in Ray's job manager: else it starts programs anywhere, and their output stays there.

    Ray's dashboard would write it down, which does not run here.
    """
    import ray
    from ray._private import ray_constants

    own = ray.get_runtime_context().get_node_id().encode()
    store.internal_kv_put(ray_constants.KV_HEAD_NODE_ID_KEY, own, True, namespace=ray_constants.KV_NAMESPACE_JOB)


def _end_of(prologue: bytes, log: Path) -> int | None:
    """Return where the program's own words begin in its log, None before it has begun."""
    text = log.read_bytes() if log.exists() else b""
    place = text.find(prologue)
    return None if place < 0 else place + len(prologue)


def _read_on(log: Path, position: int) -> bytes:
    with log.open("rb") as file:
        file.seek(position)
        return file.read(_CHUNK_BYTES)


def _state(name: str, info: Any) -> State:
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
