"""A headless Chromium, controlled by the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from tests.serve.conftest import TIMEOUT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_READ, _WRITE = 3, 4  # file descriptors that Chromium uses for `--remote-debugging-pipe`


class Browser:
    """A browser with one page; usable as a context manager.

    problems: exceptions, console errors and violations of the security policy so far
    """

    def __init__(self, profile: Path) -> None:
        """Start Chromium. profile: an empty folder for its files"""
        assert CHROMIUM is not None
        to_browser, self._commands = os.pipe()
        self._messages, from_browser = os.pipe()
        # Duplicates with numbers above those of the child: otherwise, the first dup2 could close the second source.
        sources = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (to_browser, from_browser)]
        actions = [(os.POSIX_SPAWN_DUP2, sources[0], _READ), (os.POSIX_SPAWN_DUP2, sources[1], _WRITE)]
        with Path(os.devnull).open("w") as null:
            silent = [(os.POSIX_SPAWN_DUP2, null.fileno(), 2)]
            arguments = [CHROMIUM, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
            arguments += ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--lang=en"]
            environment = dict(os.environ) | {"HOME": str(profile)}
            self._pid = os.posix_spawn(CHROMIUM, arguments, environment, file_actions=[*silent, *actions])
        for descriptor in (to_browser, from_browser, *sources):
            os.close(descriptor)
        self.problems: list[str] = []
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.call("Browser.close")
        os.waitpid(self._pid, 0)
        os.close(self._commands)
        os.close(self._messages)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None and not method.startswith("Browser."):
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (message := self._receive()).get("id") != self._number:
            self._record(message)
        assert "error" not in message, (method, message["error"])
        result: dict[str, Any] = message["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            received = os.read(self._messages, 1 << 16)
            assert received, "the browser has exited"
            self._buffer += received
        content, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(content)
        return message

    def _record(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("warning", "error"):
                self.problems.append(parameters["entry"]["text"])
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "assert"):
                self.problems.append(str(parameters["args"]))

    def open(self, url: str) -> None:
        """Load a page and wait for its scripts."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + TIMEOUT
        while not self.run(condition):
            assert time.monotonic() < deadline, (condition, self.problems)
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Insert text at the cursor."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int = 0) -> None:
        """Press a key; code: its virtual key code, which the default actions of some keys need."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Send a mouse event: `mouseMoved`, `mousePressed` or `mouseReleased`."""
        button = "none" if kind == "mouseMoved" else "left"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def center(self, selector: str) -> tuple[float, float]:
        """Scroll an element into view and return its center."""
        script = f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center", behavior: "instant"}});
            const {{left, top, width, height}} = found.getClientRects()[0];
            return [left + width / 2, top + height / 2];
        }})()"""
        x, y = self.run(script)
        return x, y

    def hover(self, selector: str) -> None:
        """Move the mouse to an element."""
        self.mouse("mouseMoved", *self.center(selector))

    def click(self, selector: str) -> None:
        """Click on an element."""
        x, y = self.center(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def screenshot(self, path: Path, *, width: int = 1200, height: int = 900) -> None:
        """Write a PNG screenshot of the whole page, which may be taller than `height`."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))
