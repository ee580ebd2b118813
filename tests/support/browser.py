"""A headless Chromium for tests of pages: opens a page with a width and a colour scheme, and reports what it shows.

    with Browser() as browser:
        page = browser.open("file:///tmp/report.html", width=360, dark=True)
        page.errors                 # Messages of the console at level "error", uncaught exceptions, blocked loads.
        page.evaluate("document.title")
        page.screenshot("/tmp/narrow.png")

Uses the DevTools protocol over a pipe, so it needs only the standard library and the program chromium.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60  # Seconds for each answer.
TALLEST = 16000  # The greatest height of a picture in pixels.


def find_browser():
    """The program's path, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self):
        self._profile = tempfile.mkdtemp()
        # The browser reads descriptor 3 and writes descriptor 4.
        read_commands, self._to = os.pipe()
        self._from, write_answers = os.pipe()
        words = [find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        words += [f"--user-data-dir={self._profile}", "--disable-dev-shm-usage", "--hide-scrollbars", "about:blank"]
        script = f'exec 3<&{read_commands} 4>&{write_answers}; exec "$@"'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, "browser", *words],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._number = 0
        self._buffer = b""
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method, session=None, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def wait_for(self, event, session):
        deadline = time.monotonic() + PATIENCE
        while not any(e.get("method") == event and e.get("sessionId") == session for e in self.events):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{event} did not come")
            self.events.append(self._next())

    def _next(self):
        while b"\0" not in self._buffer:
            data = os.read(self._from, 1 << 20)
            if not data:
                raise RuntimeError("the browser ended")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, url, width=1280, height=900, dark=False):
        return Page(self, url, width, height, dark)


class Page:
    def __init__(self, browser, url, width, height, dark):
        self._browser = browser
        self._width = width
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self._resize(height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        browser.wait_for("Page.loadEventFired", self._session)

    def call(self, method, **params):
        return self._browser.call(method, session=self._session, **params)

    def _resize(self, height):
        metrics = {"width": self._width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def _events(self, method):
        return [
            e["params"]
            for e in self._browser.events
            if e.get("method") == method and e.get("sessionId") == self._session
        ]

    @property
    def errors(self):
        found = [p["exceptionDetails"]["text"] for p in self._events("Runtime.exceptionThrown")]
        found += [str(p["args"]) for p in self._events("Runtime.consoleAPICalled") if p["type"] in ("error", "assert")]
        return found + [p["entry"]["text"] for p in self._events("Log.entryAdded") if p["entry"]["level"] == "error"]

    @property
    def requests(self):
        """The addresses of everything that the page loaded or tried to load."""
        return [p["request"]["url"] for p in self._events("Network.requestWillBeSent")]

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", expression))
        return result["result"].get("value")

    def screenshot(self, path):
        """A picture of the whole page, up to the greatest height."""
        self._resize(min(TALLEST, self.evaluate("document.documentElement.scrollHeight")))
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
