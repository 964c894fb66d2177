"""An S3 server in a process of its own, on a port that the system chose.

In: nothing. Out: its address as a context manager, and the options by which a client finds it.
It must not outlive the test, nor be reached from elsewhere.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue

__all__ = ["s3_server"]

_BOOT_S = 90.0


@contextmanager
def s3_server(bucket: str) -> Iterator[dict[str, str]]:
    """Start a server with an empty bucket; return the options for it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
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
