"""`hetero cluster start`, `stop` and `certificates`: this host as a part of a cluster of hosts.

In: options. Out: a running node, or its end, and what to do on the next host. The work is in `hetero.engines.ray.node`.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.checks import PUBLIC
from hetero.cli.options import AsJson, Devices
from hetero.cli.output import print_json, say
from hetero.floor.errors import BadValueError, EngineError
from hetero.floor.listening import is_public

if TYPE_CHECKING:
    from hetero.engines.ray.node import Node

__all__ = ["certificates", "start", "stop"]

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
        _print(node, head, file)
    if block:
        _stay(node)


def _print(node: Node, head: bool, file: Path | None) -> None:
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
    from hetero.session.config_here import find_devices

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
