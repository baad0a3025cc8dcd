"""Debian's Chromium without a window, driven over a pipe: the DevTools protocol, JSON between zero bytes, and no package of its own.

Rules: one thread. What a page does is waited for by a condition in the page, never by a time. `troubles` has what pages complained of:
exceptions of scripts, what the content security policy refused, and what could not be loaded. Keys and clicks are real input: what is
clicked is loaded, stands still and is what lies under the pointer, as for somebody who sees it.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = "chromium"
WAIT_S = 10.0
KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "/": (191, "/")}


class PageError(AssertionError):
    """A page is not as it should be."""


class Chromium:
    """One browser with one page."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which(PROGRAM)
        assert program, "chromium is not here: apt-get install chromium"
        to_it, self._to = _pipe()
        self._from, from_it = _pipe()
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--no-proxy-server", "--remote-debugging-pipe", f"--user-data-dir={profile}",
        ]  # fmt: skip
        # Its ends of the pipes are 3 and 4; whatever this process has there.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{from_it}', "bash", program, *options, "about:blank"],
            pass_fds=(to_it, from_it),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_it)
        os.close(from_it)
        self._read, self._number, self._session = b"", 0, ""
        self._loaded = ""
        self.troubles: list[str] = []
        target = next(one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it; idempotent."""
        if self._process.poll() is None:
            self._session = ""
            self._send("Browser.close")
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            os.close(self._to)
            os.close(self._from)

    # -- the protocol

    def _send(self, method: str, **params: Any) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        return self._number

    def ask(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its result; raises PageError with the browser's words."""
        number = self._send(method, **params)
        while True:
            message = self._next()
            if message.get("id") == number:
                if "error" in message:
                    raise PageError(f"{method}: {message['error']['message']}")
                return message["result"]

    def _next(self, timeout_s: float = WAIT_S) -> dict[str, Any]:
        while b"\0" not in self._read:
            if not select.select([self._from], [], [], timeout_s)[0]:
                raise PageError(f"the browser said nothing for {timeout_s:.0f} s")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise PageError("the browser is gone")
            self._read += data
        line, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded = params["loaderId"]
        elif method == "Runtime.exceptionThrown":
            self.troubles.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.troubles.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.troubles.append(f"a dialog: {params['message']}")

    # -- pages

    def go(self, url: str) -> None:
        """Open a page and wait until it is loaded: this one, for the page of before may become so while it is left."""
        found = self.ask("Page.navigate", url=url)
        if found.get("errorText"):
            raise PageError(f"{url}: {found['errorText']}")
        while self._loaded != found["loaderId"]:
            self._next()

    def run(self, script: str) -> Any:
        """The value of an expression; a promise's value."""
        found = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise PageError(f"{script[:200]}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, condition: str) -> Any:
        """Wait until an expression is true, in this page or in the one that it becomes; its value."""
        end = time.monotonic() + WAIT_S
        waiting = f"""new Promise((done) => {{
            const end = performance.now() + 2000;
            const look = () => {{
                const found = ({condition});
                if (!found && performance.now() < end) setTimeout(look, 20);
                else done(found instanceof Node ? true : found);
            }};
            look();
        }})"""
        while time.monotonic() < end:
            try:
                found = self.run(waiting)
            except PageError:
                continue  # the page went away meanwhile; the next one is asked
            if found:
                return found
        raise PageError(f"not so within {WAIT_S:.0f} s: {condition}; the page has {self.text()[:3_000]!r}")

    def until_text(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.until(f"document.body && document.body.innerText.includes({json.dumps(text)})")

    def text(self) -> str:
        """What the page shows."""
        return str(self.run("document.body.innerText"))

    def click(self, selector: str) -> None:
        """Click into the middle of an element: again where a page that was not yet painted swallowed it, and never twice."""
        place = f"""(async () => {{
            const find = () => document.querySelector({json.dumps(selector)});
            // The first line of what is wrapped: the middle of the whole may be beside it.
            const box = () => {{ const box = find()?.getClientRects()[0]; return box?.width ? box : null; }};
            if (document.readyState != "complete" || !box()) return null;
            find().scrollIntoView({{block: "center", behavior: "instant"}});
            const before = box();
            await new Promise((painted) => requestAnimationFrame(() => requestAnimationFrame(painted)));
            const now = box();
            if (JSON.stringify(before) != JSON.stringify(now)) return null;
            const [x, y] = [now.x + now.width / 2, now.y + now.height / 2];
            if (!find().contains(document.elementFromPoint(x, y))) return null;
            window.untouched = true;
            addEventListener("mousedown", () => {{ window.untouched = false; }}, {{capture: true, once: true}});
            return [x, y];
        }})()"""
        end = time.monotonic() + WAIT_S
        while True:
            x, y = self.until(place)
            for kind in ("mousePressed", "mouseReleased"):
                self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            try:
                if not self.run("window.untouched"):
                    return
            except PageError:
                return  # the page that it led away from
            if time.monotonic() > end:
                raise PageError(f"no click reaches {selector} within {WAIT_S:.0f} s")

    def fill(self, selector: str, text: str) -> None:
        """Put a text in place of what a field has."""
        self.until(f"document.querySelector({json.dumps(selector)})")
        self.run(f"(() => {{ const f = document.querySelector({json.dumps(selector)}); f.focus(); f.select(); }})()")
        self.ask("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose of a list."""
        field = f"document.querySelector({json.dumps(selector)})"
        self.until(field)
        self.run(
            f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('change', {{bubbles: true}})); true"
        )

    def press(self, key: str) -> None:
        """Press a key."""
        code, text = KEYS[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def screen(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Of which size and colours the screen is."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def violations(self) -> list[str]:
        """What axe-core finds wrong with the page for those who cannot see it, or use no mouse."""
        self.run(Path(__file__).with_name("axe.min.js").read_text(encoding="utf-8") + "; true")
        found = self.run("axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)")
        return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]} ({len(one['nodes'])})" for one in found]


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are none of the numbers that the browser has for its own."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
