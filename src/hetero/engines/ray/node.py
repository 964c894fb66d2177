"""One host as a part of a cluster: Ray's processes started and ended, and how programs here find them.

In: an address to join, or none for a head. Out: a running node, written down in HETERO_HOME. It ends only what it
started, and refuses to listen beyond loopback without a token and certificates.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import psutil

from hetero.engines.ray.address import ask_cluster, check_address, is_loopback, knock
from hetero.engines.ray.certificates import check_folder, tls_variables
from hetero.floor import settings
from hetero.floor.clock import monotonic_s, sleep
from hetero.floor.documents import read_record
from hetero.floor.errors import BadValueError, EngineError, FileError
from hetero.floor.listening import is_wildcard
from hetero.floor.private import check_own, check_secret, own_home, private_folder, temporary_folder, write_private
from hetero.floor.units import format_bytes, shown

__all__ = [
    "JOB_SERVER_FILE",
    "LEAST_STORE_BYTES",
    "RAYS",
    "Node",
    "folder_for_ray",
    "read_node",
    "read_token",
    "serve_jobs",
    "start_node",
    "stop_node",
    "this_node",
]

LEAST_STORE_BYTES = 80_000_000
"""Ray refuses an object store below 75 MiB."""
START_S = 60.0
STOP_S = 3.0
_POLL_S = 0.1
_LEAST_TOKEN = 16
_MOST_BYTES = 100_000
_LAST_PORT = 65535
_MOST_PID = 2**22
"""Linux knows no higher process id."""
_KINDS: dict[str, type] = {"str": str, "int": int}
_PREFIX = "hetero-"
_JOB_SERVER = "hetero.engines.ray.job_server"
JOB_SERVER_FILE = "job_server"
"""In the node's folder: the job server's address, as soon as it listens."""
RAYS = "r"
"""Within the node's folder: Ray opens its own folder to everybody, so it lies in one that is closed."""
_SOCKET = "session_2026-11-22_04-13-50_609332_4194304/sockets/plasma_store"
_LONGEST_SOCKET = 107
_LETTER = "n"
"""The folder's name is a label too, which Ray lets end in a letter or a digit only."""
_WATCHING = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_grpc_keepalive_time_ms": "3000",
    "RAY_grpc_keepalive_timeout_ms": "3000",
    "RAY_grpc_client_keepalive_time_ms": "3000",
    "RAY_grpc_client_keepalive_timeout_ms": "3000",
}
"""So that a host which is silent is found in seconds: Ray's own values take minutes."""
_ONCE = {"RAY_object_manager_pull_timeout_ms": "120000"}
"""Ray sends an array anew when it has not come whole after 10 s, which a slow link or a loaded host takes."""


@dataclass(frozen=True, slots=True)
class Node:
    """What is written down of the node of this host.

    Attributes
    ----------
    address
        Of the cluster's head, 'host:port'.
    host
        Address of this host within the cluster.
    token
        That everyone in the cluster shows.
    certificates
        Folder, '' on loopback.
    pid
        Of the process that watches over Ray's.
    folder
        Of Ray's sockets and logs; nobody else can look into it.
    jobs
        Address of the head's job server, 'host:port'; '' on the others.
    job_server_pid
        Process id of that server, 0 on the others.
    """

    address: str
    host: str
    token: str
    certificates: str
    pid: int
    folder: str
    jobs: str = ""
    job_server_pid: int = 0

    @property
    def alive(self) -> bool:
        """Return whether it still runs."""
        return _runs(self.pid, Path(self.folder).name)

    @property
    def job_server_alive(self) -> bool:
        """Return whether its job server still runs."""
        return bool(self.job_server_pid) and _runs(self.job_server_pid, _JOB_SERVER)

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which a program becomes a part of the cluster."""
        return _variables(self.host, self.token, self.certificates)


def _runs(pid: int, word: str) -> bool:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return word in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    return False


def _variables(host: str, token: str, certificates: str) -> dict[str, str]:
    given = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, **_WATCHING, **_ONCE}
    given |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if is_loopback(f"{host}:0") else {}
    return given | (tls_variables(Path(certificates)) if certificates else {})


def _file() -> Path:
    return settings.home() / "node.json"


def this_node() -> Node | None:
    """Return the node that was started on this host and still runs."""
    node = _written()
    return node if node is not None and node.alive else None


def _written() -> Node | None:
    """Return what is written down, None where nothing is; another user's word is not taken."""
    try:
        check_own(_file())
        return read_node(_file())
    except BadValueError as error:
        raise EngineError(f"no node can be used here: {error.problem}", remedy=error.remedy) from error
    except (OSError, FileError):
        return None


def read_node(path: Path) -> Node:
    """Read what is written down of a node.

    Raises
    ------
    FileError
        It is damaged, or names something that `hetero cluster start` does not make.
    """
    kinds = {field.name: _KINDS[str(field.type)] for field in fields(Node)}
    told = read_record(path, kinds, most=_MOST_BYTES)
    node = Node(**{name: told[name] for name in kinds})
    folder = Path(node.folder)
    if not 0 < node.pid <= _MOST_PID or not 0 <= node.job_server_pid <= _MOST_PID:
        raise FileError(f"{path}: there is no process {node.pid} or {node.job_server_pid}", remedy="remove the file")
    if not folder.is_absolute() or not folder.name.startswith(_PREFIX) or ".." in folder.parts:
        raise FileError(f"{path}: {shown(node.folder)} is no folder of a node", remedy="remove the file")
    return node


def start_node(
    *,
    join: str = "",
    host: str = "127.0.0.1",
    port: int = 0,
    jobs_port: int = 0,
    token_file: Path | None = None,
    certificates: Path | None = None,
    devices: str = "",
    store_bytes: int = 1_000_000_000,
    autoscaling: Path | None = None,
) -> Node:
    """Start Ray's processes on this host, and wait until they answer.

    Parameters
    ----------
    join
        'host:port' of the head; '' makes this host the head.
    host
        Address of this host, on which the others reach it.
    port
        Of the head, 0 for any that is free.
    jobs_port
        Of the head's job server, 0 for any that is free.
    token_file
        With the cluster's token; a new head without one makes one.
    certificates
        Folder made by `make_certificates`.
    devices
        The fleet of this host, as HETERO_DEVICES takes it; '' for all of it.
    store_bytes
        Of the object store.
    autoscaling
        Configuration of Ray's autoscaler, which the head hands on unread.

    Raises
    ------
    BadValueError
        A port, the head's address or the size of the object store is none; the autoscaler's configuration is not
        there, or not for a head; it would listen beyond loopback without
        certificates, or join without a token; HETERO_HOME or the temporary folder is open to others.
    EngineError
        A node runs here already, the port is in use, nobody answers, or Ray does not start.
    """
    _refuse_options(join, port, jobs_port, store_bytes)
    own_home()
    running = this_node()
    if running is not None:
        raise EngineError(f"a node of {running.address} runs on this host", remedy="end it with 'hetero cluster stop'")
    if (ended := _written()) is not None:
        shutil.rmtree(ended.folder, ignore_errors=True)
    if autoscaling is not None and (join or not autoscaling.is_file()):
        problem = "only a head has an autoscaler" if join else f"{autoscaling}: there is no such file"
        raise BadValueError(problem, remedy="give --autoscaling FILE with --head")
    _refuse_open(host, join, certificates)
    token = _token(token_file, join)
    variables = _variables(host, token, str(certificates.absolute()) if certificates else "")
    if join:
        knock(join, None if certificates is None else certificates / "ca.crt")
        with settings.replaced(variables):
            ask_cluster(join)
    else:
        _refuse_taken(host, port, "--port")
        _refuse_taken(host, jobs_port, "--jobs-port")
    private = folder_for_ray(_PREFIX, _LETTER)
    folder = str(private)
    role = [f"--address={join}"] if join else ["--head", f"--port={port}"]
    role += [f"--temp-dir={private / RAYS}"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *role, f"--node-ip-address={host}", "--block"]
    command += ["--num-cpus=0", "--num-gpus=0", f"--object-store-memory={store_bytes}", "--disable-usage-stats"]
    command += ["--include-dashboard=false"] if not join else []
    command += [f"--autoscaling-config={autoscaling.absolute()}"] if autoscaling is not None else []
    command += ["--no-monitor"] if not join and autoscaling is None else []
    command += [f"--labels=hetero={Path(folder).name}"]
    variables |= {"HETERO_DEVICES": devices} if devices else {}
    process = _started(command, variables, Path(folder))
    try:
        address = join or _head_address(process, Path(folder))
        _wait_joined(process, Path(folder))
        node = Node(address, host, token, str(certificates.absolute()) if certificates else "", process.pid, folder)
        node = node if join else _with_job_server(node, jobs_port)
        private_folder(private)
        write_private(_file(), json.dumps(asdict(node)).encode())
    except BaseException:
        _end(process.pid)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return node


def folder_for_ray(prefix: str, suffix: str = "") -> Path:
    """Make a folder in which Ray's own is closed to others.

    Raises
    ------
    BadValueError
        The temporary folder is open to others, or its path too long for Ray's sockets.
    """
    folder = temporary_folder(prefix, suffix)
    most = _LONGEST_SOCKET - len(f"/{folder.name}/{RAYS}/{_SOCKET}")
    if len(str(folder.parent)) > most:
        folder.rmdir()
        raise BadValueError(
            f"the path of the temporary folder {folder.parent} is too long for Ray's sockets",
            remedy=f"set TMPDIR to one of at most {most} characters",
        )
    return folder


def _refuse_options(join: str, port: int, jobs_port: int, store_bytes: int) -> None:
    if join:
        check_address(join)
    if join in ("auto", "local"):
        raise BadValueError(f"--join {join} names no cluster", remedy="give the address that the head printed")
    for option, number in (("--port", port), ("--jobs-port", jobs_port)):
        if not 0 <= number <= _LAST_PORT:
            raise BadValueError(f"{option} {number} is no port", remedy=f"give 1 to {_LAST_PORT}, or 0 for any")
    most = psutil.virtual_memory().total
    if not LEAST_STORE_BYTES <= store_bytes <= most:
        raise BadValueError(
            f"--object-store-memory {format_bytes(store_bytes)} is no size of an object store on this host",
            remedy=f"give {format_bytes(LEAST_STORE_BYTES)} to {format_bytes(most)}, as in --object-store-memory 1GB",
        )


def _refuse_open(host: str, join: str, certificates: Path | None) -> None:
    if is_wildcard(host):
        raise BadValueError(
            f"--host {host} is every interface of this host, and no address on which the others reach it",
            remedy="give the address of one of them, as in 10.0.0.7",
        )
    beyond = not is_loopback(f"{host}:0") or (join and not is_loopback(join))
    if beyond and certificates is None:
        raise BadValueError(
            f"{host} is reached from elsewhere, and nothing would be encrypted",
            remedy="make some with 'hetero cluster certificates', copy them to each host, give --certificates FOLDER",
        )
    if certificates is not None:
        check_folder(certificates)


def _token(file: Path | None, join: str) -> str:
    if file is not None:
        return read_token(file)
    if join:
        raise BadValueError("joining takes the head's token", remedy="copy its file here and give --token-file FILE")
    return secrets.token_hex(32)


def read_token(file: Path) -> str:
    """Read a cluster's token.

    Raises
    ------
    BadValueError
        It cannot be read, others may read it too, or it is too short to be one.
    """
    try:
        check_secret(file)
        token = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadValueError(f"{file}: the token cannot be read: {error.strerror}", remedy="check the path") from error
    if len(token) < _LEAST_TOKEN:
        raise BadValueError(f"{file}: the token is shorter than {_LEAST_TOKEN} characters", remedy="take the head's")
    return token


def _refuse_taken(host: str, port: int, option: str) -> None:
    try:
        with socket.create_server((host, port)):
            return
    except OSError as error:
        remedy = "give --host an address of this host"
        if error.errno == errno.EADDRINUSE:
            remedy = f"give another {option}, or 0 for any that is free"
        why = os.strerror(error.errno) if error.errno else str(error)
        raise EngineError(f"{host}:{port} cannot be used: {why}", remedy=remedy) from error


def serve_jobs() -> Node:
    """Start the job server of this host's head again, after it has ended; return the node.

    It listens where it did, or on another port where that has been taken.

    Raises
    ------
    EngineError
        No head runs here, its job server runs, or it does not start.
    """
    node = this_node()
    if node is None or not node.jobs:
        raise EngineError(
            "no head of a cluster runs on this host", remedy="start one with 'hetero cluster start --head'"
        )
    if node.job_server_alive:
        raise EngineError(f"the job server at {node.jobs} runs already", remedy="see 'hetero cluster jobs'")
    port = int(node.jobs.rpartition(":")[2])
    try:
        _refuse_taken(node.host, port, "port")
    except EngineError:
        port = 0
    node = _with_job_server(node, port)
    write_private(_file(), json.dumps(asdict(node)).encode())
    return node


def _with_job_server(node: Node, port: int) -> Node:
    """Start the head's job server, a process beside Ray's that needs no Ray before the first job."""
    folder = Path(node.folder)
    (folder / JOB_SERVER_FILE).unlink(missing_ok=True)
    command = [sys.executable, "-m", _JOB_SERVER]
    variables = {**node.variables, "RAY_LOG_TO_DRIVER": "0", "RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES": "0"}
    process = _started(command, variables, folder, JOB_SERVER_FILE, subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(json.dumps(asdict(node) | {"port": port}).encode() + b"\n")
    try:
        _wait(process, folder, (folder / JOB_SERVER_FILE).is_file, JOB_SERVER_FILE)
    except BaseException:
        _end(process.pid)
        raise
    return replace(node, jobs=(folder / JOB_SERVER_FILE).read_text(encoding="utf-8"), job_server_pid=process.pid)


def _started(
    command: list[str], variables: Mapping[str, str], folder: Path, name: str = "node", stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    log_file = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(log_file, "ab") as log, settings.replaced({**variables, "RAY_ADDRESS": None}):
        return subprocess.Popen(command, stdin=stdin, stdout=log, stderr=log, start_new_session=True, cwd=folder)


def _head_address(process: subprocess.Popen[bytes], folder: Path) -> str:
    file = folder / RAYS / "ray_current_cluster"
    _wait(process, folder, lambda: file.is_file() and ":" in file.read_text(encoding="utf-8"))
    return file.read_text(encoding="utf-8").strip()


def _wait_joined(process: subprocess.Popen[bytes], folder: Path) -> None:
    _wait(process, folder, lambda: "Ray runtime started" in _said(folder))


def _wait(process: subprocess.Popen[bytes], folder: Path, done: Callable[[], bool], name: str = "node") -> None:
    deadline_s = monotonic_s() + START_S
    while not done():
        if process.poll() is not None or monotonic_s() > deadline_s:
            lines = [line.strip() for line in _said(folder, name).splitlines() if "rror" in line]
            why = lines[-1] if lines else f"Ray was not ready after {START_S:g} s"
            remedy = "check the address, token and certificates"
            if "object store" in why:
                why, remedy = (
                    "this host has too little memory free for its object store",
                    "give a smaller --object-store-memory",
                )
            raise EngineError(f"the node cannot be started: {why}", remedy=remedy)
        sleep(_POLL_S)


def _said(folder: Path, name: str = "node") -> str:
    return (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")


def stop_node() -> Node | None:
    """End the node of this host with all its processes; return it, None where there was none."""
    written, node = _written(), this_node()
    if node is not None:
        _end(node.pid, *([node.job_server_pid] if node.job_server_alive else []))
    if written is not None:
        shutil.rmtree(written.folder, ignore_errors=True)
    _file().unlink(missing_ok=True)
    return node


def _end(*pids: int) -> None:
    family: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            family += [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(family, STOP_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, START_S)
