"""`hetero cluster`: this host as a part of a cluster of hosts, and programs that a cluster runs or ran.

In: options; a script, its arguments, where the cluster is; the name of a job. Out: a running node, or its end; a
program's words and its exit code, a table or JSON. The work is in `hetero.engines.ray`, its `node` and `job_client`.
"""

from __future__ import annotations

import datetime
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.doctor import PUBLIC
from hetero.cli.options import AsJson, ClusterAddress, Devices
from hetero.cli.output import console, note, print_json, say
from hetero.floor.errors import BadValueError, EngineError, ExitCode
from hetero.floor.listening import is_public

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hetero.engines.ray.job_client import JobClient
    from hetero.engines.ray.node import Node
    from hetero.floor.documents import JsonObject

__all__ = ["cancel", "certificates", "jobs", "logs", "serve", "start", "stop", "submit", "tell"]

_AGAIN_S = 10.0


def start(
    head: Annotated[bool, typer.Option("--head", help="Be the first host of a cluster.")] = False,
    join: Annotated[str, typer.Option(metavar="ADDRESS", help="Join the cluster whose head printed this.")] = "",
    host: Annotated[str, typer.Option(help="Address of this host, on which the others reach it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the head; 0 takes any that is free.")] = 0,
    jobs_port: Annotated[int, typer.Option(help="Port of the head for jobs; 0 takes any that is free.")] = 0,
    token_file: Annotated[Path | None, typer.Option(help="File with the cluster's token.")] = None,
    certificates: Annotated[Path | None, typer.Option(help="Folder of 'hetero cluster certificates'.")] = None,
    devices: Devices = None,
    object_store_memory: Annotated[str, typer.Option(help="Size of Ray's object store.")] = "1GB",
    autoscaling: Annotated[Path | None, typer.Option(help="Configuration of Ray's autoscaler, for a head.")] = None,
    block: Annotated[bool, typer.Option("--block", help="Go on until the node ends; end it when interrupted.")] = False,
    json: AsJson = False,
) -> None:
    """Start this host's part of a cluster, and say how the next host joins."""
    from hetero.engines.ray.node import start_node
    from hetero.floor.extras import need

    need("ray", "a node of a cluster")
    from hetero.floor.units import parse_bytes

    if head == bool(join):
        raise BadValueError("a node is a head or joins one", remedy="give --head or --join ADDRESS")
    if join and (port or jobs_port):
        raise BadValueError("only a head has ports of its own", remedy="leave --port and --jobs-port out")
    if block:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _refuse_devices(devices or "")
    node = start_node(
        join=join,
        host=host,
        port=port,
        jobs_port=jobs_port,
        token_file=token_file,
        certificates=certificates,
        devices=devices or "",
        store_bytes=parse_bytes(object_store_memory),
        autoscaling=autoscaling,
    )
    if is_public(node.host):
        say(f"hetero: {node.host} {PUBLIC}", to=sys.stderr)
    file = _token_file(node.token, token_file) if head else token_file
    if json:
        facts = {"address": node.address, "host": node.host, "jobs": node.jobs, "token_file": file and str(file)}
        print_json({"head": head, **facts})
        sys.stdout.flush()
    else:
        _print_node(node, head, file)
    if block:
        _stay(node)


def _print_node(node: Node, head: bool, file: Path | None) -> None:
    say(f"{'head' if head else 'member'} of the cluster {node.address}, as {node.host}")
    if head:
        say(f"token: {file}")
        say(f"on other hosts: hetero cluster start --join {node.address} --token-file FILE --certificates FOLDER")
        say(f"for programs from elsewhere: hetero cluster submit --address {node.jobs} SCRIPT")
    say("in programs here: hetero.Context(engine='ray', address='auto')", flush=True)


def _refuse_devices(line: str) -> None:
    """Refuse a fleet that this host does not have, before programs do that find the node."""
    from hetero.cli.options import as_setting
    from hetero.floor import settings
    from hetero.session.config import load
    from hetero.session.fleet import find_devices

    if line or settings.default_devices():
        find_devices(load(set=[as_setting("devices", line)] if line else []))


def _stay(node: Node) -> None:
    """Wait for the node's end, as those who start and end it need that watch over one process of their own.

    A job server that ended is started again.
    """
    from hetero.engines.ray.node import stop_node
    from hetero.floor.clock import sleep

    try:
        while node.alive:
            sleep(0.5)
            if node.jobs and not node.job_server_alive:
                node = _served_again(node)
    finally:
        stop_node()


def _served_again(node: Node) -> Node:
    from hetero.engines.ray.node import serve_jobs, this_node
    from hetero.floor.clock import sleep

    try:
        served = serve_jobs()
    except EngineError as error:
        say(f"hetero: the job server at {node.jobs} has ended: {error}", to=sys.stderr)
        sleep(_AGAIN_S)
        return this_node() or node
    say(f"hetero: the job server had ended, and takes jobs at {served.jobs} again", to=sys.stderr)
    return served


def _token_file(token: str, given: Path | None) -> Path:
    """Write the token where only this user reads it; return the file."""
    if given is not None:
        return given
    from hetero.floor.private import own_home, write_private

    path = own_home() / "node-token"
    write_private(path, token.encode())
    return path


def stop(json: AsJson = False) -> None:
    """End this host's part of the cluster: only what 'hetero cluster start' started."""
    from hetero.engines.ray.node import stop_node

    node = stop_node()
    if json:
        print_json({"left": None if node is None else node.address})
        return
    say("no node runs on this host" if node is None else f"left the cluster {node.address}")


def certificates(
    folder: Annotated[Path, typer.Argument(help="New folder for ca.crt, node.crt and node.key.")],
    host: Annotated[list[str] | None, typer.Option(help="Address of a host; give it once for each.")] = None,
    json: AsJson = False,
) -> None:
    """Make the certificates that the hosts of a cluster share."""
    from hetero.engines.ray.certificates import make_certificates

    make_certificates(folder, host or [])
    if json:
        print_json({"folder": str(folder), "hosts": host or []})
        return
    say(f"{folder}: copy this folder to every host, readable for you only")


TokenFile = Annotated[Path | None, typer.Option(help="File with the cluster's token; default: that of this host.")]
Certificates = Annotated[
    Path | None, typer.Option(help="Folder of 'hetero cluster certificates'; default: that of this host's node.")
]
Job = Annotated[str, typer.Argument(help="Name of the job.")]


def submit(
    script: Annotated[Path, typer.Argument(help="Python file to run on the cluster.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    address: ClusterAddress = "auto",
    token_file: TokenFile = None,
    certificates: Certificates = None,
    working_dir: Annotated[
        Path | None, typer.Option(help="Folder that travels too, the script in it; default: the script alone.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(help="Variable for it, NAME=VALUE; may be repeated.")] = None,
    pip: Annotated[list[str] | None, typer.Option(help="Package to install for it; may be repeated.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the name of the job, and do not wait.")] = False,
) -> None:
    """Run a program on a cluster; it finds the devices of all hosts.

    What it prints comes out here, and the command ends with its exit code.
    """
    from hetero.engines.ray.job_package import pack, read_variables

    client = job_client(address, token_file, certificates)
    variables = read_variables(env or ())
    inside, archive = pack(script, working_dir)
    words: dict[str, object] = {
        "script": inside,
        "arguments": args or [],
        "variables": variables,
        "packages": pip or [],
    }
    answers = client.ask("submit", archive, follow=not detach, **words)
    job = next(answers)["job"]
    if detach:
        print(job)
        return
    note(f"hetero: job {job} is submitted")
    try:
        raise typer.Exit(tell(answers))
    except KeyboardInterrupt:
        print(
            f"hetero: job {job} goes on; see 'hetero cluster logs --follow {job}' and 'hetero cluster cancel {job}'",
            file=sys.stderr,
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def job_client(address: str, token_file: Path | None, certificates: Path | None) -> JobClient:
    """Return the client of a cluster's job server."""
    from hetero.engines.ray.job_client import client_for

    return client_for(address, token_file, certificates)


def tell(answers: Iterable[JsonObject]) -> int:
    """Show what a program prints; return its exit code, 0 where it goes on."""
    code = 0
    for answer in answers:
        if "text" in answer:
            print(answer["text"], end="", flush=True)
        elif "cold_start_s" in answer:
            note(f"hetero: its program began after a cold start of {answer['cold_start_s']:.1f} s")
        else:
            code = answer["exit_code"] or 0
            took = "" if answer["took_s"] is None else f" after {answer['took_s']:.1f} s"
            how = f", exit code {code}" if answer["state"] == "failed" else ""
            why = f": {answer['why']}" if answer["why"] else ""
            note(f"hetero: job {answer['job']} {answer['state']}{took}{how}{why}")
    return code


def jobs(
    address: ClusterAddress = "auto",
    token_file: TokenFile = None,
    certificates: Certificates = None,
    json: AsJson = False,
) -> None:
    """List the jobs, the latest first."""
    found = list(job_client(address, token_file, certificates).ask("list"))
    print_json({"jobs": found}) if json else _print_jobs(found)


def logs(
    job: Job,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends, and end as it ends.")] = False,
    address: ClusterAddress = "auto",
    token_file: TokenFile = None,
    certificates: Certificates = None,
) -> None:
    """Show what the program of a job printed."""
    code = tell(job_client(address, token_file, certificates).ask("logs", job=job, follow=follow))
    raise typer.Exit(code if follow else 0)


def cancel(
    job: Job,
    address: ClusterAddress = "auto",
    token_file: TokenFile = None,
    certificates: Certificates = None,
    json: AsJson = False,
) -> None:
    """Stop a job; one that is over stays as it ended."""
    answers = job_client(address, token_file, certificates).ask("cancel", job=job)
    if json:
        print_json(list(answers)[-1])
    else:
        tell(answers)


def serve(json: AsJson = False) -> None:
    """Start the job server of this host's head again, after it has ended; jobs go on without it and are found again."""
    from hetero.engines.ray.node import serve_jobs

    jobs = serve_jobs().jobs
    print_json({"jobs": jobs}) if json else say(f"jobs are taken at {jobs}")


def _print_jobs(jobs: list[JsonObject]) -> None:
    if not jobs:
        say("no jobs")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("job", "state", "exit", "submitted", "took", "program"):
        table.add_column(heading, justify="right" if heading in ("exit", "took") else "left", overflow="fold")
    for job in jobs:
        submitted = datetime.datetime.fromtimestamp(job["submitted_s"]).strftime("%Y-%m-%d %H:%M:%S")
        code = "" if job["exit_code"] is None else str(job["exit_code"])
        took = "" if job["took_s"] is None else f"{job['took_s']:.1f} s"
        table.add_row(job["job"], job["state"], code, submitted, took, job["program"])
    console().print(table)
