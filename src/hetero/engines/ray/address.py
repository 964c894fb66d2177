"""Addresses of Ray clusters, and a check that somebody answers first: Ray itself waits long, or ends the process.

In: an address. Out: nothing, or an error that says what is wrong with it, or who answered there.
It must not import Ray.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TypedDict

from hetero.engines.ray.certificates import client_context, why_refused
from hetero.floor.errors import BadValueError, EngineError

__all__ = ["ANSWER_S", "KNOCK_S", "ask_cluster", "check_address", "is_loopback", "knock"]

KNOCK_S = 3.0
ANSWER_S = 7.0
"""With the knock, less than the ten seconds after which a user thinks that nothing happens."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS = 4
_ASK = """
import json, sys
from ray._private.utils import compute_version_info
from ray._raylet import GcsClient
print("asks", flush=True)
try:
    told = GcsClient(address=sys.argv[1]).internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster")
    facts = json.loads(told)
    print(json.dumps({"cluster": [facts["ray_version"], facts["python_version"]], "own": compute_version_info()}))
except Exception as error:
    print(json.dumps({"error": str(error)}))
"""


def check_address(address: str) -> None:
    """Refuse what is no address.

    Raises
    ------
    BadValueError
        It is none.

    Examples
    --------
    >>> check_address("local"), check_address("10.0.0.1:6379")
    (None, None)
    """
    if address in ("local", "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadValueError(
            f"{address!r} is no address of a Ray cluster", remedy="write 'local', 'auto' or 'host:port', as in 'h:6379'"
        )


def is_loopback(address: str) -> bool:
    """Return whether 'host:port' is this host to itself.

    Examples
    --------
    >>> is_loopback("127.0.0.1:6379"), is_loopback("localhost:1"), is_loopback("10.0.0.1:6379")
    (True, True, False)
    """
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def knock(address: str, authority: Path | None = None) -> None:
    """Find out whether a gRPC server answers at 'host:port'.

    Parameters
    ----------
    authority
        Certificate of the cluster's authority, None where nothing is encrypted.

    Raises
    ------
    EngineError
        Nobody answers in `KNOCK_S`, or something else does.
    """
    host, _, port = address.rpartition(":")
    remedy = "start it with 'hetero cluster start --head', and give the address that this prints"
    try:
        with closing(socket.create_connection((host, int(port)), KNOCK_S)) as line:
            line.settimeout(KNOCK_S)
            if authority is not None:
                line = _encrypted(line, authority.parent)
            line.sendall(_PREFACE)
            answer = line.recv(9)
    except ssl.SSLError as error:
        wrong, what_to_do = why_refused(error)
        raise EngineError(
            f"what answers at {address} shows no certificate of this cluster's authority: {wrong}", remedy=what_to_do
        ) from error
    except (OSError, ValueError) as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or error
        raise EngineError(f"no Ray cluster answers at {address}: {why}", remedy=remedy) from error
    if len(answer) < 4 or answer[3] != _SETTINGS:
        raise EngineError(
            f"what answers at {address} is no Ray cluster, or one that speaks only to hosts with its certificates",
            remedy="make this host part of it: 'hetero cluster start --join ADDRESS'",
        )


def _encrypted(line: socket.socket, folder: Path) -> socket.socket:
    context = client_context(folder)
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(line)


def ask_cluster(address: str) -> None:
    """Ask a cluster for its versions, in a process of its own: what answers may keep Ray waiting without end.

    Raises
    ------
    EngineError
        It does not answer in `ANSWER_S` from when it is asked, refuses the token, or has another Ray or Python.
    """
    answer = _answer(address)
    if "error" in answer:
        raise _refused(address, answer["error"])
    if list(answer["cluster"]) != list(answer["own"]):
        theirs, own = (" on Python ".join(versions) for versions in (answer["cluster"], answer["own"]))
        raise EngineError(
            f"the Ray cluster at {address} has Ray {theirs}, and this program Ray {own}",
            remedy="use the same Ray and the same Python on every host",
        )


class _Answer(TypedDict, total=False):
    """The versions of Ray and Python, in the cluster and here, or why they are not known."""

    error: str
    cluster: list[str]
    own: list[str]


def _answer(address: str) -> _Answer:
    command = [sys.executable, "-c", _ASK, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as asking:
        assert asking.stdout is not None
        asking.stdout.readline()
        try:
            lines = asking.communicate(timeout=ANSWER_S)[0].splitlines()
        except subprocess.TimeoutExpired:
            asking.kill()
            return {"error": f"no answer in {ANSWER_S:g} s"}
    answer: _Answer = json.loads(lines[-1]) if lines else {"error": "its answer could not be read"}
    return answer


def _refused(address: str, why: str) -> EngineError:
    if "uthenticat" in why or "token" in why.lower():
        return EngineError(
            f"the Ray cluster at {address} refuses this program: its token is missing or another one",
            remedy="run 'hetero cluster start --join ADDRESS --token-file FILE' on this host, with the head's token",
        )
    return EngineError(
        f"what answers at {address} is no Ray cluster that can be used: {why}",
        remedy="give the address that 'hetero cluster start --head' printed",
    )
