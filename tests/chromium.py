"""Chromium without a window, driven over a pipe with the DevTools protocol."""

import base64
import io
import json
import os
import select
import shutil
import subprocess
import sys
import time
from typing import Any

import matplotlib.image
import numpy as np
import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
# The browser reads commands from descriptor 3 and answers on 4: this puts our pipes there and becomes the browser.
_LAUNCHER = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str:
    """The browser that is installed; skips the test if there is none."""
    executable = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(_BROWSERS)} is installed")
    return executable


class Browser:
    """One page of a headless browser. local: beginnings of addresses that it may ask for. patience: in seconds."""

    local: tuple[str, ...] = ("file:", "data:", "about:", "blob:")
    patience: float = 20.0

    def __init__(self, executable: str, profile: str):
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        launch = [sys.executable, "-c", _LAUNCHER, str(commands), str(answers), executable, *_FLAGS]
        self._process = subprocess.Popen(
            [*launch, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._unread = b""
        self._calls = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._calls:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self, timeout: float = 30.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._answers, 1 << 16) if ready else b""
            assert chunk, "the browser does not answer" if not ready else "the browser has gone"
            self._unread += chunk
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)

    def js(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, condition: str, timeout: float | None = None) -> None:
        deadline = time.monotonic() + (self.patience if timeout is None else timeout)
        while not self.js(condition):
            assert time.monotonic() < deadline, f"still not true: {condition}"
            time.sleep(0.02)

    def open(self, path: os.PathLike[str], width: int = 900, height: int = 640, scheme: str = "light") -> None:
        """Loads a page from disk; forgets what the one before logged."""
        self.visit(f"file://{path}", "Boolean(window.shoal)", width, height, scheme)

    def visit(self, url: str, ready: str, width: int = 900, height: int = 640, scheme: str = "light") -> None:
        """Loads a page and waits until it is ready; forgets what the one before logged."""
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=media)
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait(ready)

    def settle(self) -> None:
        """Waits until everything asked for has been drawn."""
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")

    def key(self, key: str, shift: bool = False) -> None:
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 * shift, **text)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        at = {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=start[0], y=start[1], **at)
        if end != start:
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=end[0], y=end[1], buttons=1, button="left")
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], **at)

    def click(self, selector: str) -> None:
        self.js(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'nearest'}})")
        box = self.js(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box_of(selector)})")
        self.drag(tuple(box), tuple(box))

    def choose(self, selector: str, value: Any) -> None:
        element = f"document.querySelector({json.dumps(selector)})"
        self.js(f"{element}.value = {json.dumps(value)}; {element}.dispatchEvent(new Event('change'))")

    def screenshot(self) -> np.ndarray:
        return matplotlib.image.imread(io.BytesIO(self.picture()))[:, :, :3]

    def picture(self) -> bytes:
        """What the page looks like, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def complaints(self) -> list[dict[str, Any]]:
        """Exceptions, console errors and warnings, blocked resources, and requests that leave the machine."""
        self.settle()
        return [event for event in self.events if _is_complaint(event, self.local)]

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._commands)
            os.close(self._answers)


def box_of(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"


def _is_complaint(event: dict[str, Any], local: tuple[str, ...]) -> bool:
    params = event.get("params", {})
    match event.get("method"):
        case "Runtime.exceptionThrown":
            return True
        case "Runtime.consoleAPICalled":
            return params["type"] in ("error", "warning", "assert")
        case "Log.entryAdded":
            return params["entry"]["level"] in ("error", "warning")
        case "Network.requestWillBeSent":
            return not params["request"]["url"].startswith(local)
    return False
