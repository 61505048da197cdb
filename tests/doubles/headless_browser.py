"""A real browser without a window, driven through its debugging pipe: enough to open a file, wait
for it, press keys, and look at what is painted. No port is opened and nothing is downloaded.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ANSWER_TIMEOUT_S = 60.0
END_TIMEOUT_S = 10.0

#: Counts the pixels of each colour in a picture, most frequent first.
_COUNT_COLOURS = """(async () => {
  const blob = await (await fetch("data:image/png;base64,PICTURE")).blob();
  const picture = await createImageBitmap(blob);
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  const {data} = context.getImageData(0, 0, picture.width, picture.height);
  const counts = new Map();
  for (let i = 0; i < data.length; i += 4) {
    const colour = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
    counts.set(colour, (counts.get(colour) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1]).slice(0, 4000);
})()"""


def browser_path() -> str | None:
    """Where a browser is installed, if one is."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


class Page:
    """One tab. `troubles` are the errors that its scripts raised or the console showed."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to = to_browser
        self._from = from_browser
        self._numbers = iter(range(1, 1_000_000))
        self._unread = b""
        self._session = ""
        self.troubles: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def resize(self, width: int, height: int) -> None:
        """Give the page this size, in CSS pixels, one device pixel each."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, address: str, ready: str) -> None:
        """Open an address, then wait until the script expression `ready` is true."""
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=address)
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while not self.evaluate(ready):
            assert time.monotonic() < deadline_s, f"not ready: {address}: {self.troubles}"
            time.sleep(0.05)

    def evaluate(self, script: str) -> Any:
        """The value of a script expression; a promise is awaited."""
        answer = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and let go a key that has a name or makes one character."""
        text = {"text": key} if len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def point(self, kind: str, x: float, y: float) -> None:
        """A mouse event: "mouseMoved", "mousePressed" or "mouseReleased", left button."""
        button = "none" if kind == "mouseMoved" else "left"
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def screenshot(self, selector: str | None = None) -> bytes:
        """What is painted, as PNG: the window, or the first element that `selector` finds."""
        clip: dict[str, Any] = {}
        if selector is not None:
            box = self.evaluate(
                f"(() => {{const b = document.querySelector({json.dumps(selector)})"
                ".getBoundingClientRect(); return [b.x + scrollX, b.y + scrollY, b.width, b.height]"
                "})()"
            )
            clip["clip"] = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": 1}
            clip["captureBeyondViewport"] = True
        return base64.b64decode(self._call("Page.captureScreenshot", format="png", **clip)["data"])

    def colours(self, picture: bytes) -> dict[str, int]:
        """Pixels of each colour ("#rrggbb") of a PNG, most frequent first."""
        script = _COUNT_COLOURS.replace("PICTURE", base64.b64encode(picture).decode())
        return {f"#{colour:06x}": count for colour, count in self.evaluate(script)}

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        order = {"id": number, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        data = json.dumps(order).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            message = self._read(method, deadline_s)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self._notice(message)

    def _notice(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.troubles.append(details.get("exception", {}).get("description", details["text"]))
        elif message.get("method") == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.troubles.append(str(told["args"]))
        elif message.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.troubles.append(told["entry"]["text"])

    def _read(self, method: str, deadline_s: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left_s = max(0.0, deadline_s - time.monotonic())
            readable, _, _ = select.select([self._from], [], [], left_s)
            assert readable, f"the browser did not answer {method}"
            data = os.read(self._from, 1 << 20)
            assert data, f"the browser ended during {method}"
            self._unread += data
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextmanager
def open_page(profile: Path) -> Iterator[Page]:
    """A page of a browser of its own, which ends with the block. `profile` is its directory."""
    browser = browser_path()
    assert browser is not None
    order_read, order_write = os.pipe()
    answer_read, answer_write = os.pipe()
    words = [browser, "--headless=new", "--remote-debugging-pipe", "--disable-gpu"]
    words += ["--no-first-run", "--disable-extensions", "--disable-background-networking"]
    words += ["--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={profile}"]
    if os.geteuid() == 0:
        words.append("--no-sandbox")
    # The browser reads orders from descriptor 3 and answers on 4.
    shell = f'exec "$@" 3<&{order_read} 4>&{answer_write}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "browser", *words],
        pass_fds=(order_read, answer_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(order_read)
    os.close(answer_write)
    try:
        yield Page(order_write, answer_read)
    finally:
        os.close(order_write)
        os.close(answer_read)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_TIMEOUT_S)
