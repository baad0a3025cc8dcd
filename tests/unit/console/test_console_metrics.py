"""Charts of what nodes tell of themselves: read from a real broker's page, shared, and asked for nowhere else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
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
from fastq.console.metrics import Look, Metrics, charted, host_of, quantile
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
                assert first["silent"] == [] and "produce_ms" not in first
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
        assert asyncio.run(Metrics(urls).told()) == {"silent": ["127.0.0.1:1", url.removeprefix("http://")]}
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
        assert asyncio.run(Metrics([url]).told()) == {"silent": [host_of(url)]}


def test_a_page_that_trickles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PAGE_S", 0.2)
    over = threading.Event()

    def trickle(send: Callable[[bytes], None]) -> None:
        send(b"HTTP/1.1 200 OK\r\n\r\n")
        while not over.wait(0.02):
            send(b"#")

    with answering(trickle) as url:
        try:
            assert asyncio.run(Metrics([url]).told()) == {"silent": [host_of(url)]}
        finally:
            over.set()


SECRET = "http://ann:geheim@127.0.0.1:{port}/geheim/metrics?token=geheim#geheim"


def counting(port_and_path: dict[str, object]) -> type[BaseHTTPRequestHandler]:
    """A node's page with a counter of bytes that grows by 1,000 with each look, unless it `is_silent`; it notes the logins."""

    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            port_and_path["bytes"] = int(str(port_and_path.get("bytes", 10**12))) + 1_000
            port_and_path["login"] = self.headers.get("authorization")
            page = f'fastq_request_bytes_total{{api="Produce"}} {port_and_path["bytes"]}\n'
            self.send_response(503 if port_and_path.get("is_silent") else 200)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    return Node


def test_a_node_that_is_left_out_is_told_without_its_secrets_and_comes_back_without_a_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "LOOK_S", 0.0)
    times = iter(range(0, 1_000, 1))
    one: dict[str, object] = {}
    other: dict[str, object] = {}
    with contextlib.ExitStack() as open_ones:
        urls = []
        for node in (one, other):
            server = open_ones.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), counting(node)))
            open_ones.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            urls.append(SECRET.format(port=server.server_address[1]))
        host = host_of(urls[1])

        async def looks() -> list[dict[str, object]]:
            watched, found = Metrics(urls, clock=lambda: float(next(times) // 2)), []
            for is_silent in (False, False, True, True, False, False):
                other["is_silent"] = is_silent
                found.append(await watched.told())
            return found

        found = asyncio.run(looks())
    assert [one["silent"] for one in found] == [[], [], [host], [host], [host], []]  # not in it, with one end alone
    rates = [float(str(one["request_bytes"])) for one in found[1:]]
    assert max(rates) == 2 * min(rates) and rates[0] == rates[-1], rates
    assert "geheim" not in json.dumps(found) and "ann" not in json.dumps(found)
    assert one["login"] == "Basic " + base64.b64encode(b"ann:geheim").decode()


def test_nothing_is_charted_where_no_node_answers() -> None:
    urls = ("http://a/metrics", "http://b:1/metrics")
    before, now = Look(10.0, {url: {} for url in urls}, ()), Look(12.0, {}, urls)
    watched = Metrics(urls)
    watched._before, watched._now = before, now
    watched._clock = lambda: 12.0
    assert asyncio.run(watched.told()) == {"silent": ["a", "b:1"]}


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://kafka-1:9404/metrics", "kafka-1:9404"),
        ("https://kafka-1/metrics?token=geheim", "kafka-1"),
        ("https://ann:ge@heim@kafka-1:9404/", "kafka-1:9404"),
        ("http://ann@[::1]:9404/", "[::1]:9404"),
    ],
)
def test_of_an_address_the_host_alone_is_told(url: str, host: str) -> None:
    assert host_of(url) == host


def test_addresses_come_from_the_file(tmp_path: Path, browser: Browser) -> None:
    path = tmp_path / "console.toml"
    table = '[clusters.a]\nbootstrap = "h:1"\nmetrics = '
    path.write_text(table + '["http://h:9404/metrics"]')
    assert load_file(path).clusters[0].metrics == ("http://h:9404/metrics",)
    odd = ("http://ann:geheim@h:99999/", "http://ann:geheim@h:x/", "http://ann:geheim@[h/")
    for wrong in ('"http://h"', "[1]", '["file:///etc/passwd"]', '["http://"]', *(f'["{url}"]' for url in odd)):
        path.write_text(table + wrong)
        with pytest.raises(ConfigError, match="metrics are") as told:
            load_file(path)
        assert "geheim" not in str(told.value)
    answer = browser.get("/c/test/metrics", params={"url": "http://127.0.0.1:1/"})
    assert answer.status_code == 403 and "no metrics pages" in answer.text
