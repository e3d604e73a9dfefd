"""A headless Chromium over its debugging pipe: two file descriptors, no port, no driver."""

import base64
import fcntl
import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

KEYS = {
    "Tab": {"code": "Tab", "windowsVirtualKeyCode": 9},
    "Enter": {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    " ": {"code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
    "ArrowLeft": {"code": "ArrowLeft", "windowsVirtualKeyCode": 37},
    "ArrowRight": {"code": "ArrowRight", "windowsVirtualKeyCode": 39},
    "ArrowDown": {"code": "ArrowDown", "windowsVirtualKeyCode": 40},
}

REACHABLE = """
    [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary, [tabindex="0"]')]
      .filter(one => one.checkVisibility({visibilityProperty: true}) && one.getClientRects().length && !one.disabled)
      .filter(one => one.tabIndex >= 0 && !(one.type === 'radio' && !one.checked))
"""
"""Of radio buttons the arrow keys reach all but the chosen one."""

SCROLLS = """
    [...document.querySelectorAll('body *')].filter(one => {
      const wide = one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0;
      return wide && one.checkVisibility() && ['auto', 'scroll'].includes(getComputedStyle(one).overflowX);
    })
"""
FOCUSED = """
    (() => {
      const one = document.activeElement;
      if (one === document.body) return false;
      const marks = [one, ...(one.labels || [])].map(shown => getComputedStyle(shown));
      const seen = marks.some(style => style.outlineStyle !== 'none' || style.boxShadow !== 'none');
      one.dataset.reached = seen ? 'seen' : 'unseen';
      return true;
    })()
"""


def find_browser() -> str | None:
    """The command of an installed Chromium or Chrome."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        self.call("Page.enable")
        self.call("Runtime.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def open(self, path: Path) -> None:
        """Load a file and wait for it."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def run(self, script: str) -> Any:
        """The value of an expression; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str, seconds: float = 60.0) -> None:
        """Wait in the page until a condition holds."""
        script = (
            f"new Promise((done, fail) => {{ const end = Date.now() + {1000 * seconds}; const look = () => {{"
            f" if ({condition}) done(true); else if (Date.now() > end) fail(new Error({json.dumps(condition)}));"
            " else setTimeout(look, 20); }; look(); })"
        )
        self.run(script)

    def press(self, *keys: str) -> None:
        """Press keys one after the other: names in `KEYS`, or characters."""
        for key in keys:
            event = {"key": key, **KEYS.get(key, {"text": key})}
            self.call("Input.dispatchKeyEvent", type="keyDown", **event)
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def width(self, pixels: int) -> None:
        """Of the window, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=pixels, height=900, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features: str) -> None:
        """Media features such as `prefers_color_scheme="dark"`."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=named)

    def screenshot(self, path: Path, width: int = 1200, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


class Browser:
    """Sends commands and reads their answers; events are kept."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[self._write.write(data) :]
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = self._read.read(1 << 16)
            if not chunk:
                raise ConnectionError("the browser is gone")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def page(self) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        return Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])

    def close(self) -> None:
        self._read.close()
        self._write.close()


@contextmanager
def browser(command: str, profile: Path) -> Iterator[Browser]:
    """Start it with a fresh profile; it ends with the block."""
    (to_read, from_write), (from_read, to_write) = os.pipe(), os.pipe()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
    # Chromium reads from descriptor 3 and writes to 4; copies above them, so that neither overwrites the other.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_read, to_write)]
    started = os.posix_spawn(
        command,
        [command, *flags, f"--user-data-dir={profile}"],
        os.environ,
        file_actions=[
            *((os.POSIX_SPAWN_OPEN, output, os.devnull, os.O_WRONLY, 0) for output in (1, 2)),
            *((os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(ends, start=3)),
        ],
    )
    for end in (to_read, to_write, *ends):
        os.close(end)
    connection = Browser(from_read, from_write)
    try:
        yield connection
    finally:
        connection.close()
        os.kill(started, signal.SIGTERM)
        os.waitpid(started, 0)


def check_by_keyboard(page: Page) -> None:
    """All that can be worked or scrolled is reached by Tab, with a focus that one sees; the page keeps its width."""
    assert page.run("document.documentElement.scrollWidth <= innerWidth"), "the page itself scrolls sideways"
    unnamed = f"{SCROLLS}.filter(one => one.tabIndex < 0 || !one.getAttribute('aria-label'))"
    assert page.run(f"{unnamed}.map(one => one.outerHTML.slice(0, 160))") == []
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    page.run("document.activeElement.blur()")
    for _ in range(1000):
        page.press("Tab")
        if not page.run(FOCUSED):
            break
    missed = f"{REACHABLE}.filter(one => one.dataset.reached !== 'seen')"
    assert page.run(f"{missed}.map(one => one.outerHTML.slice(0, 160))") == []
