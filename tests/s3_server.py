"""An S3 server in a process of its own, on a port that the system chose.

In: the faults that it has. Out: its address as a context manager, and the options by which a client finds it.
It must not outlive the test, nor be reached from elsewhere. It answers one request after another, so that a condition
holds while a name is written, and takes any signature.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

__all__ = ["FAULTS", "s3_server"]

FAULTS = ("ignores-conditions", "loses-answers")
"""Writes whatever a condition says, as versioned buckets of some stores do; loses the answer to every third create."""

_BOOT_S = 90.0


@contextmanager
def s3_server(bucket: str, *faults: str) -> Iterator[dict[str, str]]:
    """Start a server with an empty bucket; return the options for it."""
    command = [sys.executable, __file__, *faults]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    address: Queue[str] = Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, address))
    reader.start()
    try:
        endpoint = address.get(timeout=_BOOT_S)
        request = urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")
        urllib.request.urlopen(request, timeout=_BOOT_S).close()
        yield {
            "endpoint": endpoint, "region": "us-east-1", "access_key_id": "key", "secret_access_key": "secret",
            "virtual_hosted_style_request": "false",
        }  # fmt: skip
    finally:
        process.terminate()
        process.wait(_BOOT_S)
        reader.join()
        process.stdout.close()


def _read(lines: Iterator[str], address: Queue[str]) -> None:
    """Find the address in what the server says, and read on so that it never waits."""
    for line in lines:
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            address.put(found[0])


class _OneAtATime:
    """A WSGI application that answers one request after another, with faults."""

    def __init__(self, application: Callable[..., Iterable[bytes]], faults: Iterable[str]) -> None:
        self._application, self._faults = application, tuple(faults)
        self._lock, self._creates = threading.Lock(), 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
        told: list[tuple[object, ...]] = []
        with self._lock:
            if "ignores-conditions" in self._faults:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            self._creates += "HTTP_IF_NONE_MATCH" in environ
            lost = "loses-answers" in self._faults and "HTTP_IF_NONE_MATCH" in environ and self._creates % 3 == 0
            body = b"".join(self._application(environ, lambda *answer: told.append(answer)))
        if lost:
            start_response("500 Lost", [("Content-Length", "0")])
            return [b""]
        start_response(*told[-1])
        return [body]


def _serve(faults: Iterable[str]) -> None:
    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    os.environ.setdefault("MOTO_PORT", "0")
    application = DomainDispatcherApplication(create_backend_app)
    application.debug = True  # type: ignore[attr-defined]
    handler = MotoRequestHandler
    run_simple("127.0.0.1", 0, _OneAtATime(application, faults), threaded=True, request_handler=handler)


if __name__ == "__main__":
    _serve(sys.argv[1:])
