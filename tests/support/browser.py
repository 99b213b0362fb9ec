"""A headless Chromium, spoken to through two pipes (the DevTools protocol): a page is looked at as
it is, with its own policy in force, and nothing listens on a port."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ANSWERS_WITHIN = 60.0
SIZES = {"desk": (1280, 800), "phone": (390, 844)}
"""Width and height of the window in CSS pixels."""
_PIXELS = """
(async () => {
  const picture = new Image();
  picture.src = "data:image/png;base64,%s";
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = picture.width; canvas.height = picture.height;
  const brush = canvas.getContext("2d");
  brush.drawImage(picture, 0, 0);
  const { x, y, width, height } = %s;
  const data = brush.getImageData(x, y, width, height).data, seen = {};
  for (let i = 0; i < data.length; i += 4) {
    const colour = data[i] + "," + data[i + 1] + "," + data[i + 2];
    seen[colour] = (seen[colour] || 0) + 1;
  }
  return seen;
})()
"""
Colour = tuple[int, int, int]


class Browser:
    """`command`: what starts it. `profile`: a folder of its own."""

    def __init__(self, command: str, profile: Path) -> None:
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        root = ["--no-sandbox"] if os.getuid() == 0 else []
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash"),
                *(command, "--headless", *root, "--disable-gpu", "--disable-dev-shm-usage"),
                *("--hide-scrollbars", "--no-first-run", "--disable-background-networking"),
                *(f"--user-data-dir={profile}", "--remote-debugging-pipe"),
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest = b""
        self._asked = 0
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        """What the page did by itself since it was opened: (name, what is known of it)."""
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        self._ask("Browser.close", {})
        os.close(self._write)
        os.close(self._read)
        self._process.wait(ANSWERS_WITHIN)

    def open(self, page: Path, size: str, *, dark: bool = False) -> None:
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", metrics)
        wish = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", {"features": wish})
        self.events.clear()
        failed = self.ask("Page.navigate", {"url": page.as_uri()}).get("errorText")
        assert not failed, failed
        while not any(name == "Page.loadEventFired" for name, _ in self.events):
            self._take()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is worth in the page."""
        wish = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.ask("Runtime.evaluate", wish)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """The addresses that the page asked for, itself included."""
        return [
            str(about["request"]["url"])
            for name, about in self.events
            if name == "Network.requestWillBeSent"
        ]

    def screenshot(self) -> str:
        """The window as PNG, in base64."""
        return str(self.ask("Page.captureScreenshot", {"format": "png"})["data"])

    def printed(self) -> bytes:
        """The page on A4 paper, as PDF."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}
        return base64.b64decode(self.ask("Page.printToPDF", paper)["data"])

    def colours(self, png: str, box: Mapping[str, float]) -> dict[Colour, int]:
        """How many pixels of a screenshot's `box` have which colour. Leaves the page open: the
        browser reads the picture in a blank one."""
        whole = {name: round(box[name]) for name in ("x", "y", "width", "height")}
        self.ask("Page.navigate", {"url": "about:blank"})
        counts = self.value(_PIXELS % (png, json.dumps(whole)))
        counted = {
            tuple(int(part) for part in colour.split(",")): n for colour, n in counts.items()
        }
        return {(red, green, blue): many for (red, green, blue), many in counted.items()}

    def ask(self, method: str, wish: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._ask(method, wish or {}, self._session)

    def _ask(
        self, method: str, wish: Mapping[str, Any], session: str | None = None
    ) -> dict[str, Any]:
        self._asked += 1
        message: dict[str, Any] = {"id": self._asked, "method": method, "params": wish}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._take()
            if answer.get("id") == self._asked:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])

    def _take(self) -> dict[str, Any]:
        """The next message; what is no answer is kept among the events."""
        until = time.monotonic() + ANSWERS_WITHIN
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            block = os.read(self._read, 1 << 20) if ready else b""
            assert block, f"the browser is silent (exit code {self._process.poll()})"
            self._rest += block
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message
