"""The way to a cluster's door: one request a connection, encrypted where the cluster has certificates.

In: where the door is, and a request. Out: its answers, one by one. It must not show a token to whom it does not know.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero.engines.ray.address import KNOCK_S, check_address, is_loopback
from hetero.engines.ray.certificates import check_folder, client_context, why_refused
from hetero.engines.ray.node import read_token, this_node
from hetero.floor.documents import parse_json, record_of
from hetero.floor.errors import BadValueError, EngineError, FileError
from hetero.floor.text import single_line

__all__ = ["Doorway", "way_to"]


@dataclass(frozen=True, slots=True)
class Doorway:
    """Where a door is, and what opens it.

    Attributes
    ----------
    address : 'host:port'
    token : of the cluster
    certificates : folder, None where nothing is encrypted, which is so on loopback only
    """

    address: str
    token: str
    certificates: Path | None

    def ask(self, do: str, body: bytes = b"", **words: Any) -> Iterator[dict[str, Any]]:
        """Send one request; give the answers as they come.

        Raises
        ------
        EngineError
            Nobody answers there, what answers is no door, or it refuses.
        """
        head = {"token": self.token, "do": do, "nbytes": len(body), **words}
        try:
            with closing(self._connected()) as line, line.makefile("rb") as answers:
                line.sendall(json.dumps(head).encode() + b"\n" + body)
                line.settimeout(None)
                for answer in answers:
                    yield self._read(answer)
        except ssl.SSLError as error:
            wrong, what_to_do = why_refused(error)
            raise EngineError(
                f"what answers at {self.address} is no door of a cluster with these certificates: {wrong}",
                remedy=what_to_do,
            ) from error
        except OSError as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or error
            raise EngineError(
                f"no cluster takes jobs at {self.address}: {why}",
                remedy="give the address for jobs that 'hetero node start --head' printed",
            ) from error

    def _connected(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        line = socket.create_connection((host.strip("[]"), int(port)), KNOCK_S)
        if self.certificates is None:
            return line
        try:
            return client_context(self.certificates).wrap_socket(line)
        except BaseException:
            line.close()
            raise

    def _read(self, answer: bytes) -> dict[str, Any]:
        try:
            read = record_of(parse_json(answer.decode(), self.address), {}, self.address)
        except (UnicodeError, FileError) as error:
            raise EngineError(
                f"what answers at {self.address} is no door of a cluster",
                remedy="give the address for jobs that 'hetero node start --head' printed, not that of the cluster",
            ) from error
        if "problem" in read:
            raise EngineError(single_line(read["problem"]), remedy=single_line(read.get("remedy", "")))
        return read


def way_to(address: str, token_file: Path | None, certificates: Path | None) -> Doorway:
    """Give the way to a door; what is not named is that of this host's node.

    Parameters
    ----------
    address : 'host:port' of the door, 'auto' for that of the head on this host

    Raises
    ------
    BadValueError
        Something is neither named nor known here, or nothing would be encrypted beyond loopback.
    """
    check_address(address)
    node = this_node()
    if address in ("auto", "local"):
        if node is None or not node.jobs:
            raise BadValueError(
                "no head of a cluster runs on this host",
                remedy="give --address with the address for jobs that 'hetero node start --head' printed",
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
    return Doorway(address, token, folder)
