"""A browser without a window for tests: opens a file with the network off; says what it asked for, and its errors.

In: the path of a page. Out: values of scripts, pictures, requests, errors. It speaks over two pipes and needs no port.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Browser"]

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--disable-extensions",
)  # fmt: skip


def _as_3_and_4(read: int, write: int) -> None:
    """Let a child find two open files under the numbers at which Chromium looks for them."""
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (read, write)]
    for number, each in zip((3, 4), high, strict=True):
        os.dup2(each, number)


_FREE = ("--disable-frame-rate-limit", "--disable-gpu-vsync")
"""Frames as fast as they are drawn: a measured step is not rounded up to the screen's next."""


class Browser:
    """One tab.

    Attributes
    ----------
    requests : addresses that the page asked for, its own left out
    errors : what it wrote to the console as an error, and exceptions that nobody caught
    """

    def __init__(
        self,
        program: str,
        *,
        size: tuple[int, int] = (1280, 900),
        dark: bool = False,
        offline: bool = True,
        free: bool = False,
    ) -> None:
        self._folder = tempfile.mkdtemp(prefix="hetero-browser-")
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        flags = [
            *_FLAGS,
            *(_FREE if free else ()),
            f"--window-size={size[0]},{size[1]}",
            f"--user-data-dir={self._folder}",
        ]
        self._process = subprocess.Popen(
            [program, *flags, "about:blank"], preexec_fn=lambda: _as_3_and_4(to_child, from_child),
            pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        self._rest = b""
        self._number = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._session = ""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        if offline:
            nothing = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
            self.call("Network.emulateNetworkConditions", offline=True, **nothing)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def call(self, method: str, **params: Any) -> Any:
        """Return the answer to one call of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60.0
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            got = os.read(self._read, 1 << 20)
            if not got:
                raise RuntimeError("the browser ended")
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)  # type: ignore[no-any-return]

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    def open(self, path: Path, until: str = "document.readyState === 'complete'") -> float:
        """Open a file and wait until a script is true; returns the seconds that took."""
        own = path.resolve().as_uri()
        took_s = self.open_address(own, until)
        self.requests = [each for each in self.requests if each != own]
        return took_s

    def open_address(self, address: str, until: str) -> float:
        """Open an address and wait until a script is true; returns the seconds that took."""
        begin_s = time.perf_counter()
        self.call("Page.navigate", url=address)
        self.wait(until)
        return time.perf_counter() - begin_s

    def wait(self, until: str) -> None:
        """Wait until a script is true."""
        deadline = time.monotonic() + 90.0
        while not self.value(until):
            if time.monotonic() > deadline:
                raise TimeoutError(f"this never came true: {until}")
            time.sleep(0.005)

    def value(self, script: str) -> Any:
        """Return the value of a script; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, x: float, y: float) -> None:
        """Click at a place of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, whole: bool = True) -> None:
        """Write what is seen as a PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def print(self) -> bytes:
        """Return the page as it prints, a PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._folder, ignore_errors=True)
