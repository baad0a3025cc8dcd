"""The browser of the console's tests does what somebody would who looks at the page: it clicks what has come to rest.

Rules: pages and what they load are a server's here, which holds back what a test wants late until the browser has asked for something else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from chromium import WAIT_S, Chromium

LINK = "<p id=here><a href=/there>go on</a></p>"


class Pages:
    """A server of pages. `late` has what is answered only once another path was asked for."""

    def __init__(self, pages: dict[str, str], late: dict[str, str]) -> None:
        asked = {path: threading.Event() for path in (*pages, *late, *late.values())}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path in asked:
                    asked[self.path].set()
                if self.path in late:
                    asked[late[self.path]].wait(WAIT_S)
                body = pages.get(self.path, "").encode()
                self.send_response(200)
                self.send_header("content-type", "text/css" if self.path.endswith(".css") else "text/html")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        browser.screen(1280, 900)
        yield browser


def test_a_page_is_open_once_it_is_loaded_itself_whatever_loads_late_in_the_one_of_before(chromium: Chromium) -> None:
    pages = {
        "/second": "second <img src=/late.png><script>addEventListener('load', () => fetch('/second-is-loaded'))</script>",
        "/third": "third <img src=/later.png><script>addEventListener('DOMContentLoaded', () => fetch('/third-is-read'))</script>",
    }
    late = {"/late.png": "/third", "/third": "/second-is-loaded", "/later.png": "/third-is-read"}
    with Pages(pages, late) as served:
        chromium.ask("Page.navigate", url=f"{served.url}/second")
        chromium.until_text("second")
        chromium.go(f"{served.url}/third")
        assert chromium.run("document.readyState") == "complete" and "third" in chromium.text()


def test_a_click_waits_for_what_moves_its_element(chromium: Chromium) -> None:
    pages = {
        "/page": f"""<head><script>
            const rects = Element.prototype.getClientRects;
            Element.prototype.getClientRects = function () {{ fetch("/measured"); return rects.call(this); }};
            document.addEventListener("DOMContentLoaded", () => fetch("/measured"));
            </script><link rel=stylesheet href=/late.css></head>{LINK}""",
        "/late.css": "#here { margin: 500px 0 0 700px; }",
        "/there": "arrived",
    }
    with Pages(pages, {"/late.css": "/measured"}) as served:
        chromium.ask("Page.navigate", url=f"{served.url}/page")
        chromium.click("a[href='/there']")
        chromium.until_text("arrived")


def test_a_click_waits_for_what_lies_above_its_element(chromium: Chromium) -> None:
    pages = {
        "/page": f"""{LINK}<div style="position: fixed; inset: 0; background: white"></div><script>
            const at = document.elementFromPoint;
            document.elementFromPoint = function (...where) {{
                setTimeout(() => document.querySelector("div")?.remove(), 30);
                return at.apply(this, where);
            }};
            </script>""",
        "/there": "arrived",
    }
    with Pages(pages, {}) as served:
        chromium.go(f"{served.url}/page")
        chromium.click("a[href='/there']")
        chromium.until_text("arrived")
