"""Metrics: the text that Prometheus reads, against its own parser, and the HTTP side against rude peers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastq_broker import metrics as metrics_module
from fastq_broker import metrics_http, metrics_kafka
from fastq_broker.groups.offsets import CommittedOffset
from fastq_broker.listeners import ListenError
from fastq_broker.log import LogConfig, LogManager
from fastq_broker.log.recovery_progress import RecoveryProgress
from fastq_broker.metrics import LATENCY_BUCKETS_S, ApiStats, BrokerMetrics, Exposition
from fastq_broker.metrics_http import Answer, MetricsServer, Serve, Work, parse_address, serve_broker
from fastq_broker.replicas import Replica, ReplicaTable
from prometheus_client.parser import text_string_to_metric_families

from fastq._native.records import build_batch
from fastq.errors import KafkaStorageError

NOW_MS = 1_700_000_000_000
TOPIC_ID = b"t" * 16


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name and labels, as Prometheus reads them."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_families_and_labels() -> None:
    out = Exposition()
    out.family("plain", "gauge", "One number.", 4.5)
    out.family("labelled_total", "counter", "Odd labels.", [({"name": 'a"b\\c\nd', "n": 1}, 7)])
    assert parsed(out.text()) == {
        "plain": {(): 4.5},
        "labelled_total": {(("n", "1"), ("name", 'a"b\\c\nd')): 7.0},
    }


def test_histograms_add_up() -> None:
    stats = ApiStats()
    for seconds in (0.00005, 0.0001, 0.0002, 0.3, 99.0):
        stats.answered(seconds, 10)
    out = Exposition()
    out.histogram("latency_seconds", "How long.", [({"api": "Fetch"}, stats.buckets, stats.seconds)])
    samples = parsed(out.text())
    counts = {dict(labels)["le"]: value for labels, value in samples["latency_seconds_bucket"].items()}
    assert (counts["0.0001"], counts["0.00025"], counts["0.25"], counts["0.5"], counts["+Inf"]) == (2, 3, 3, 4, 5)
    assert len(counts) == len(LATENCY_BUCKETS_S) + 1
    assert samples["latency_seconds_count"] == {(("api", "Fetch"),): 5}
    assert samples["latency_seconds_sum"][(("api", "Fetch"),)] == pytest.approx(99.30035)
    assert (stats.requests, stats.bytes_out) == (5, 50)


def test_errors_are_counted_by_code() -> None:
    stats = ApiStats()
    for code in (3, 3, -1):
        stats.failed(code)
    assert stats.errors == {3: 2, -1: 1}


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9100", ("127.0.0.1", 9100)), (":0", ("", 0)), ("[::1]:9100", ("::1", 9100)), ("host:1", ("host", 1))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["9100", "host", "host:port", "::1:9100", "host:70000", ""])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="it takes HOST:PORT"):
        parse_address(text)


# -- HTTP --------------------------------------------------------------------------------------------------------------------


def over_http(serve: Serve, talk: Callable[[int, MetricsServer], Awaitable[None]]) -> None:
    """Run a server with `serve`, and `talk` to its port."""

    async def run() -> None:
        server = MetricsServer(asyncio.get_running_loop(), serve, cast("BrokerMetrics", None))
        await server.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(talk(server.port, server), 20)
        finally:
            server.close()

    asyncio.run(run())


async def ask(port: int, request: bytes) -> tuple[str, str]:
    """The status line and the body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head.split("\r\n")[0], body


def here(path: str) -> Answer:
    if path == "/fails":
        raise RuntimeError("on purpose")
    return Answer("200 OK", f"at {path}\n")


def test_requests_and_what_is_none() -> None:
    async def talk(port: int, _server: MetricsServer) -> None:
        assert await ask(port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n") == ("HTTP/1.1 200 OK", "at /metrics\n")
        assert await ask(port, b"GET /metrics HTTP/1.0\n\n") == ("HTTP/1.1 200 OK", "at /metrics\n")
        assert await ask(port, b"HEAD /metrics HTTP/1.1\r\n\r\n") == ("HTTP/1.1 200 OK", "")
        for request, status in (
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"\x00\x00\x00\x10junk\r\n\r\n", "400 Bad Request"),
            (b"GET /metrics FTP/1\r\n\r\n", "400 Bad Request"),
            (b"GET / HTTP/1.1\r\n" + b"x" * metrics_http.HEAD_BYTES_MAX, "431 Request Header Fields Too Large"),
            (b"GET /fails HTTP/1.1\r\n\r\n", "500 Internal Server Error"),
        ):
            assert (await ask(port, request))[0] == f"HTTP/1.1 {status}"

    over_http(here, talk)


def test_a_request_in_pieces() -> None:
    async def talk(port: int, _server: MetricsServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in (b"GET /me", b"trics HTTP/1.1\r\nHo", b"st: a\r\n", b"\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        assert (await reader.read()).endswith(b"at /metrics\n")
        writer.close()

    over_http(here, talk)


def test_peers_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(metrics_http, "TIMEOUT_S", 0.2)

    async def talk(port: int, server: MetricsServer) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        for reader, _ in silent:  # the last three at once, the others when their time is over
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
        assert server.peers == set()
        assert (await ask(port, b"GET / HTTP/1.1\r\n\r\n"))[0] == "HTTP/1.1 200 OK"
        for _, writer in silent:
            writer.close()

    over_http(here, talk)


def test_others_are_answered_while_an_answer_takes_many_turns() -> None:
    left: list[str] = []
    one_left = asyncio.Event()
    go_on = False

    def work(path: str) -> Work:
        try:
            while not go_on:
                yield
            if path == "/long/fails":
                raise RuntimeError("on purpose")
            return here(path)
        finally:
            left.append(path)
            one_left.set()

    def serve(path: str) -> Answer | Work:
        return work(path) if path.startswith("/long") else here(path)

    async def talk(port: int, server: MetricsServer) -> None:
        nonlocal go_on
        _, gone = await asyncio.open_connection("127.0.0.1", port)
        gone.write(b"GET /long/gone HTTP/1.1\r\n\r\n")
        long = [
            asyncio.ensure_future(ask(port, b"GET /long/%s HTTP/1.1\r\n\r\n" % word)) for word in (b"well", b"fails")
        ]
        assert await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n") == ("HTTP/1.1 200 OK", "at /metrics\n")
        gone.close()
        await one_left.wait()  # its work ends with its peer
        assert left == ["/long/gone"] and not any(each.done() for each in long)
        go_on = True
        assert await asyncio.gather(*long) == [
            ("HTTP/1.1 200 OK", "at /long/well\n"),
            ("HTTP/1.1 500 Internal Server Error", "the broker's log says more\n"),
        ]

    over_http(serve, talk)


def test_a_port_in_use() -> None:
    async def talk(port: int, server: MetricsServer) -> None:
        second = MetricsServer(asyncio.get_running_loop(), here, cast("BrokerMetrics", None))
        with pytest.raises(ListenError, match="in use"):
            await second.start("127.0.0.1", port)

    over_http(here, talk)


def test_the_paths_of_a_broker() -> None:
    class Metrics:
        reason: str | None = "the broker is starting"

        def loading(self) -> Iterator[None]:
            yield

        def text(self) -> str:
            return "up 1\n"

        def problem(self) -> str | None:
            return self.reason

        def death(self) -> str | None:
            return "all is lost" if self.reason is None else None

    metrics: Any = Metrics()
    serve = serve_broker(metrics)
    work = serve("/metrics")
    assert not isinstance(work, Answer)
    next(work)  # where the loop has a turn
    with pytest.raises(StopIteration) as end:
        next(work)
    assert end.value.value.body == "up 1\n" and "version=0.0.4" in end.value.value.content_type
    assert serve("/health/live") == Answer("200 OK", "live\n")
    assert serve("/health/ready") == Answer("503 Service Unavailable", "the broker is starting\n")
    metrics.reason = None
    assert serve("/health/ready") == Answer("200 OK", "ready\n")
    assert serve("/health/live") == Answer("503 Service Unavailable", "all is lost\n")
    assert serve("/") == Answer("404 Not Found", "there are /metrics, /health/live and /health/ready\n")


def test_logs_that_nobody_has_touched_are_loaded_in_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All in one turn, the first scrape after a start with thousands held everybody up for seconds."""
    monkeypatch.setattr(metrics_module, "LOAD_TURN_S", 0.0)
    for start in ("first", "second"):  # which finds logs that nobody has touched
        manager = LogManager([tmp_path], default_config=LogConfig(), clock=lambda: NOW_MS)
        manager.start()
        table = ReplicaTable(1)
        for partition in range(5):
            log = manager.get("t", partition) or manager.create("t", partition, TOPIC_ID)
            table.add(Replica(log, "t", TOPIC_ID, partition))
        if start == "first":
            for replica in table:
                replica.log.append(build_batch([(NOW_MS, None, b"v")]), leader_epoch=0, now_ms=NOW_MS)
            manager.close()
    metrics = BrokerMetrics(cast("Any", SimpleNamespace(replicas=table)), cast("Any", None))
    logs = [replica.log for replica in table]
    assert [log.loaded for log in logs] == [False] * 5
    work = metrics.loading()
    next(work)
    found = [sum(log.loaded for log in logs)]
    del table.by_name[b"t"][4]  # it goes while others are loaded: it has no files any more
    found += [sum(log.loaded for log in logs) for _ in work]
    assert found == sorted(found) and len(found) == 5, found
    assert [log.loaded for log in logs] == [True] * 4 + [False]
    assert list(metrics.loading()) == []
    manager.close()


def test_logs_that_lack_records_are_told(tmp_path: Path) -> None:
    """Of a process that has died with power: the first segment of one log is empty."""
    config = LogConfig(segment_bytes=200)
    manager = LogManager([tmp_path], default_config=config, clock=lambda: NOW_MS)
    manager.start()
    for partition in range(2):
        log = manager.create("t", partition, TOPIC_ID)
        for _ in range(9):
            log.append(build_batch([(NOW_MS, None, b"v")]), leader_epoch=0, now_ms=NOW_MS)
        first, second, *_ = log.segments
    assert manager.close()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    (tmp_path / "t-1" / f"{first.base_offset:020d}.log").write_bytes(b"")
    again = LogManager([tmp_path], default_config=config, clock=lambda: NOW_MS)
    again.start()
    again.recover()
    table = ReplicaTable(1)
    for partition in range(2):
        found = again.get("t", partition)
        assert found is not None
        table.add(Replica(found, "t", TOPIC_ID, partition))
    out = Exposition()
    BrokerMetrics(cast("Any", SimpleNamespace(replicas=table)), cast("Any", None))._gaps(out)
    assert parsed(out.text()) == {
        "fastq_partitions_with_gaps": {(): 1.0},
        "fastq_partition_missing_offsets": {(("partition", "1"), ("topic", "t")): float(second.base_offset)},
    }
    again.close()


def test_lag_is_told_of_partitions_that_are_in_sync_here(tmp_path: Path) -> None:
    """A replica that is behind its leader knows no end: it would tell a lag of nothing. A sum that leaves some out is none."""
    manager = LogManager([tmp_path], default_config=LogConfig(), clock=lambda: NOW_MS)
    manager.start()
    table = ReplicaTable(1)
    isr = {("led", 0): (1, 2), ("followed", 0): (2, 1), ("behind", 0): (1, 2), ("behind", 1): (2, 3)}
    for topic, partition in isr:
        log = manager.create(topic, partition, TOPIC_ID)
        log.append(build_batch([(NOW_MS, None, b"v")] * 5), leader_epoch=0, now_ms=NOW_MS)
        log.high_watermark = 5
        replica = Replica(log, topic, TOPIC_ID, partition)
        replica.leader_id = isr[topic, partition][0]
        table.add(replica)
    image = SimpleNamespace(partition=lambda topic, partition: SimpleNamespace(isr=isr[topic, partition]))
    committed = dict.fromkeys([*isr, ("elsewhere", 0)], CommittedOffset(2))
    shard = SimpleNamespace(groups={"g": SimpleNamespace(state_name="Empty")}, committed=lambda group_id: committed)
    broker: Any = SimpleNamespace(
        node_id=1,
        replicas=table,
        controller=SimpleNamespace(image=image),
        groups=SimpleNamespace(runtime=SimpleNamespace(shards=lambda: [shard])),
    )
    out = Exposition()
    BrokerMetrics(broker, cast("Any", None))._groups(out)
    found = parsed(out.text())
    topics = {dict(labels)["topic"]: value for labels, value in found["fastq_group_lag_records"].items()}
    assert topics == {"led": 3, "followed": 3}
    kminion = {dict(each)["topic_name"]: lag for each, lag in found["kminion_kafka_consumer_group_topic_lag"].items()}
    assert kminion == topics
    partitions = {(dict(each)["topic"], dict(each)["partition"]) for each in found["kafka_consumergroup_lag"]}
    assert partitions == {("led", "0"), ("followed", "0"), ("behind", "0")}
    untold = {dict(each)["topic"]: count for each, count in found["fastq_group_lag_untold_partitions"].items()}
    assert untold == {"behind": 1, "elsewhere": 1}
    manager.close()


def test_what_the_health_of_a_broker_is() -> None:
    broker: Any = SimpleNamespace(
        server=SimpleNamespace(stopping=False),
        logs=SimpleNamespace(offline_dirs={}, dirs=["/a", "/b"], recovery=RecoveryProgress(lambda: 0)),
        loop=SimpleNamespace(time=lambda: now_s),
        housekept_s=100.0,
    )
    now_s = 100.0
    metrics = BrokerMetrics(broker, cast("Any", None))
    assert (metrics.problem(), metrics.death()) == ("the broker is starting", None)
    broker.logs.recovery.logs, broker.logs.recovery.done = 40, 12
    now_s = 5000.0  # nothing is kept house for before the start is through
    assert metrics.problem() == "the broker is starting: recovering, 12 of 40 logs, 0 MB read"
    assert metrics.death() is None
    metrics.started, now_s = True, 100.1
    assert (metrics.problem(), metrics.death()) == (None, None)
    broker.logs.offline_dirs["/a"] = "its error"
    assert metrics.problem() is not None and metrics.death() is None, "the other one is served"
    broker.logs.offline_dirs["/b"] = "its error"
    assert metrics.death() == "all log directories are offline: /a, /b"
    broker.logs.offline_dirs.clear()
    now_s = 115.0
    assert metrics.death() == "the event loop was held up for 15 s"
    broker.server.stopping = True
    assert metrics.death() is None


def test_a_metadata_log_that_a_shortage_has_left_half_cut_keeps_nothing_else_from_being_told() -> None:
    class Quorum:
        leader_id, epoch, high_watermark = 1, 2, 3
        commit_times = SimpleNamespace(mean_ms=lambda: 4.0)
        driver = SimpleNamespace(machine=SimpleNamespace(leadership=SimpleNamespace(others={})))

        @property
        def end_offset(self) -> int:
            raise KafkaStorageError("loading a log failed: Too many open files")

    out = Exposition()
    metrics_kafka._raft(out, cast("Any", SimpleNamespace(controller=SimpleNamespace(quorum=Quorum()))))
    assert "raftmetrics_current_epoch 2" in out.text() and "commit_latency_avg 4" in out.text()
    assert "log_end_offset" not in out.text()
