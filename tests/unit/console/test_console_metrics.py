"""Charts of what nodes tell of themselves: read from a real broker's page, shared, and asked for nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from console_served import Browser, Served, becomes

from fastq import Consumer, Producer
from fastq.console import metrics
from fastq.console.config import ClusterConfig, ConsoleConfig, load_file
from fastq.console.metrics import Look, Metrics, charted, quantile
from fastq.errors import ConfigError
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # its brokers, of one node or of three, are its own


@contextlib.contextmanager
def answering(answer: Callable[[Callable[[bytes], None]], None]) -> Iterator[str]:
    """The address of a server that gets a request and answers it so."""

    class Odd(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            with contextlib.suppress(OSError):  # whoever asked is gone
                answer(self.request.sendall)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()


def test_a_brokers_metrics_are_charted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "LOOK_S", 0.0)
    with Broker(tmp_path / "data", metrics=True) as broker:
        servers = broker.bootstrap_servers
        cluster = ClusterConfig("test", {"bootstrap.servers": servers}, None, (f"{broker.metrics_url}/metrics",))
        console = Served(ConsoleConfig((cluster,), port=0, picture_s=0.0))
        try:
            with Browser(console.url) as browser, Producer(bootstrap_servers=servers, linger_ms=0) as producer:
                assert browser.get("/c/test").text.count('data-url="/c/test/metrics"') == 6
                producer.send("t", b"first").result()  # what nobody has asked for yet has no counter
                first = browser.get("/c/test/metrics").json()
                assert first["failed"] == [] and "produce_ms" not in first
                for _ in range(5):
                    producer.send("t", b"x" * 1_000).result()
                with Consumer("t", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
                    assert len(list(consumer.read_to_end())) == 6
                found: dict[str, float] = {}

                def told() -> bool:
                    found.clear()
                    found.update(browser.get("/c/test/metrics").json())
                    return found["produce_rate"] > 0

                assert becomes(told)
                assert found["produce_ms"] > 0 and found["request_bytes"] > 0 and found["fetch_rate"] >= 0
        finally:
            console.close()


def test_rates_are_between_two_looks_and_a_node_that_began_anew_is_none() -> None:
    total, bucket = ("fastq_requests_total", "Produce", 0.0), "fastq_request_seconds_bucket"
    counters = {(bucket, "Produce", bound): n for bound, n in ((0.001, 90.0), (0.1, 99.0), (float("inf"), 100.0))}
    before = Look(10.0, {"a": {total: 7.0, **dict.fromkeys(counters, 0.0)}}, ())
    told = charted(before, Look(12.0, {"a": {total: 27.0, **counters}}, ()))
    assert told["produce_rate"] == 10.0 and told["produce_ms"] == 100.0 and told["fetch_ms"] == 0.0
    assert charted(before, Look(12.0, {"a": {total: 3.0}}, ()))["produce_rate"] == 0.0
    again = Look(12.0, {"a": {total: 27.0}, "b": {total: 1e9}}, ())
    assert charted(Look(10.0, {}, ()), again)["produce_rate"] == 0.0, "a node that answers again"
    assert charted(before, again)["produce_rate"] == 10.0, "and another that did all the time"
    anew = (
        Look(10.0, {"a": {total: 7.0}, "b": {total: 1e9}}, ("c",)),
        Look(12.0, {"a": {total: 27.0}, "b": {total: 3.0}}, ()),
    )
    assert charted(*anew)["produce_rate"] == 10.0, "one that began anew hides no other"
    assert quantile({}) == 0.0 and quantile({0.5: 0.0, float("inf"): 2.0}) == 0.5


def test_a_page_that_sends_elsewhere_or_is_none_is_told() -> None:
    asked: list[str] = []

    class Odd(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302 if self.path == "/moved" else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(b"\xff")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        urls = [f"{url}/moved", f"{url}/bytes", "http://127.0.0.1:1/"]
        assert asyncio.run(Metrics(urls).told())["failed"] == urls
        server.shutdown()
    assert sorted(asked) == ["/bytes", "/moved"]


@pytest.mark.parametrize(
    "page",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\nf",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"#" * 1_001,
    ],
    ids=["another protocol", "torn", "too long by one"],
)
def test_what_is_no_page_is_a_node_that_is_left_out(page: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PAGE_BYTES_MAX", 1_000)
    with answering(lambda send: send(page)) as url:
        assert asyncio.run(Metrics([url]).told()) == {"failed": [url]}


def test_a_page_that_trickles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PAGE_S", 0.2)
    over = threading.Event()

    def trickle(send: Callable[[bytes], None]) -> None:
        send(b"HTTP/1.1 200 OK\r\n\r\n")
        while not over.wait(0.02):
            send(b"#")

    with answering(trickle) as url:
        try:
            assert asyncio.run(Metrics([url]).told()) == {"failed": [url]}
        finally:
            over.set()


def test_addresses_come_from_the_file(tmp_path: Path, browser: Browser) -> None:
    path = tmp_path / "console.toml"
    table = '[clusters.a]\nbootstrap = "h:1"\nmetrics = '
    path.write_text(table + '["http://h:9404/metrics"]')
    assert load_file(path).clusters[0].metrics == ("http://h:9404/metrics",)
    for wrong in ('"http://h"', "[1]", '["file:///etc/passwd"]', '["http://"]'):
        path.write_text(table + wrong)
        with pytest.raises(ConfigError, match="metrics are"):
            load_file(path)
    answer = browser.get("/c/test/metrics", params={"url": "http://127.0.0.1:1/"})
    assert answer.status_code == 403 and "no metrics pages" in answer.text
