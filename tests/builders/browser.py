"""A page in headless Chromium, driven over its DevTools protocol: what a reader sees, clicks and types."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
          "--remote-debugging-port=0", "--no-first-run", "--disable-extensions", "--mute-audio")  # fmt: skip


class Browser:
    """One Chromium with one tab; every call waits at most `patience_s`."""

    def __init__(self, patience_s: float = 60.0) -> None:
        assert CHROMIUM is not None
        self.patience_s = patience_s
        self._folder = tempfile.TemporaryDirectory()
        self._loop = asyncio.new_event_loop()
        self._process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self._process.stderr is not None
        for line in self._process.stderr:
            found = re.search(r"ws://([^/]+)/", line)
            if found:
                break
        else:
            raise RuntimeError("chromium ended without an address")
        self._id = 0
        self.complaints: list[str] = []
        self._run(self._connect(found[1]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._socket.close())
        self._run(self._session.close())
        self._process.kill()
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._loop.close()
        self._folder.cleanup()

    def _run(self, what: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(what, self.patience_s))

    async def _connect(self, address: str) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://{address}/json") as answer:
            tab = next(t for t in await answer.json() if t["type"] == "page")
        self._socket = await self._session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0)

    async def _send(self, method: str, **params: Any) -> Any:
        self._id += 1
        await self._socket.send_json({"id": self._id, "method": method, "params": params})
        while True:
            found = json.loads((await self._socket.receive()).data)
            self._note(found)
            if found.get("id") == self._id:
                assert "error" not in found, found
                return found["result"]

    def _note(self, event: Any) -> None:
        """What the page's console and its policy complain about."""
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["params"]["exceptionDetails"])[:500])
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.complaints.append(event["params"]["entry"]["text"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {event['params']['message']}")

    def send(self, method: str, **params: Any) -> Any:
        return self._run(self._send(method, **params))

    def open(self, path: Path, width: int = 1440, height: int = 900, dark: bool = False, anchor: str = "") -> None:
        """Load a file at a viewport's size, and wait until it is drawn."""
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.complaints.clear()
        self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.send("Page.navigate", url=f"about:blank#{path.name}")
        self.send("Page.navigate", url=f"{path.resolve().as_uri()}{anchor}")
        self.run("document.readyState === 'complete' || new Promise(done => addEventListener('load', done))")
        self.settle()

    def settle(self) -> None:
        """Until two frames have been painted."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 60))))")

    def resize(self, width: int, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        found = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def move(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drop(self, paths: list[Path], x: float, y: float) -> None:
        """Drag these files and folders from outside over a place of the page, and let go there."""
        data = {"items": [], "files": [str(p.resolve()) for p in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.send("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def screenshot(self, path: Path, whole: bool = False) -> Path:
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def pdf(self, path: Path) -> Path:
        """As printed on A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", **size)["data"]))
        return path
