"""A headless Chromium that is told what to do: Chrome's debugging protocol over a pipe."""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"]


class Tab:
    """One page. `complaints` are what its console, its policy and its exceptions said."""

    def __init__(self, send_to: int, read_from: int) -> None:
        self._write, self._read, self._number, self._rest, self._session = send_to, read_from, 0, b"", ""
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send one command and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | ({"sessionId": self._session} if self._session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (reply := self._next()).get("id") != self._number:
            self._hear(reply)
        assert "error" not in reply, reply
        return reply["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], 60)[0], "the browser does not answer"
            self._rest += os.read(self._read, 1 << 20)
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(event["params"]))

    def value(self, expression: str) -> Any:
        """What JavaScript makes of an expression; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < deadline, (expression, self.complaints)
            time.sleep(0.05)


@contextmanager
def browser_tab(profile: Path, width: int, height: int) -> Iterator[Tab]:
    """A tab with a view of that size; the browser ends with it."""
    to_browser, ours = os.pipe()
    theirs, from_browser = os.pipe()[::-1]
    shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{theirs}'
    command = ["bash", "-c", shell, CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(command, pass_fds=(to_browser, theirs), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(to_browser)
    os.close(theirs)
    try:
        tab = Tab(ours, from_browser)
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        yield tab
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(from_browser)
