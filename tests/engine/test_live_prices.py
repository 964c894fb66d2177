"""Live prices by the real gpuhunt, against a server on loopback that has catalogs as gpuhunt's own has them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.needs import PROJECT, need

COLUMNS = (
    "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags,cpu_arch,"
    "provider_data"
)
ROWS = (
    "big,eu,24.0,96,1000.0,8,H100,80.0,False,,nvidia,,x86,{}",
    "one,eu,3.5,24,200.0,1,H100,80.0,False,,nvidia,,x86,{}",
    "spot,eu,1.0,24,200.0,1,H100,80.0,True,,nvidia,,x86,{}",
    "small,eu,0.4,8,32.0,1,T4,16.0,False,,nvidia,,x86,{}",
    "none,eu,0.1,8,32.0,0,,,False,,,,x86,{}",
)


class _Catalogs(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        provider, *rest = self.path.strip("/").split("/")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            lines = (COLUMNS, *ROWS) if provider == "aws" else (COLUMNS,)
            file.writestr(f"{provider}.csv", "\n".join(lines) + "\n")
        body = b"20261101" if rest == ["version"] else packed.getvalue()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Catalogs) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def asked(address: str) -> subprocess.CompletedProcess[str]:
    code = """
from hetero.advise.prices import live_prices
from hetero.catalog.load import find
found, note = live_prices([find(name) for name in ("H100-SXM", "T4", "L4")])
print({name: (paid.usd_per_hour, paid.origin) for name, paid in found.items()}, note, sep="\\n")
"""
    env = {**os.environ, "GPUHUNT_CATALOG_URL": address}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True, env=env, cwd=PROJECT
    )


def test_the_cheapest_device_on_demand_of_the_same_name_and_memory_is_taken(address: str) -> None:
    need("gpuhunt")
    done = asked(address)
    assert done.stdout.splitlines() == ["{'H100-SXM': (3.0, 'gpuhunt: aws'), 'T4': (0.4, 'gpuhunt: aws')}", ""]
    assert done.stderr == ""


def test_a_server_that_cannot_be_reached_is_one_line_and_no_traceback() -> None:
    need("gpuhunt")
    done = asked("http://127.0.0.1:1")
    assert done.stdout.startswith("{}\ngpuhunt gave no prices: URLError: ")
    assert "--prices" in done.stdout
    assert done.stderr == ""
