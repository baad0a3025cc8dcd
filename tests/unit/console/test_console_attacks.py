"""What strangers, odd records and slow or broken peers do to the console: it stays, and says what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from console_served import Browser, Served, becomes

from fastq import Admin, AsyncProducer, Producer, TopicPartition
from fastq._native.consume import Record
from fastq.admin import OffsetSpec
from fastq.console import clusters, server, tail
from fastq.console.app import HEADERS, LOGIN_BYTES_MAX, create_app
from fastq.console.audit import AuditLog
from fastq.console.clusters import Cluster, TooManyReaders
from fastq.console.config import ClusterConfig, ConsoleConfig
from fastq.console.decoding import DEPTH_MAX, Decoder, Registry, decode
from fastq.console.filters import Filter
from fastq.console.scan import Plan, scan
from fastq.console.streams import events
from fastq.console.users import Users
from fastq.errors import SchemaRegistryError
from fastq.testing import Broker

NOBODY = ClusterConfig("x", {"bootstrap.servers": "127.0.0.1:1"})


def test_json_that_is_deep_is_a_text() -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        fits = opening * DEPTH_MAX + b"1" + closing * DEPTH_MAX
        assert decode(fits).kind == "json" and decode(opening + fits + closing).kind == "text"
    wide = decode(b"[" + b"[1],[1]," * 500 + b"{}]")
    assert wide.kind == "json"


def test_any_of_a_form_is_refused_with_a_sentence(
    browser: Browser, shared_broker: Broker, make_topic: Callable[..., str]
) -> None:
    for path in ("/c/test/create-topic", "/logout"):
        answer = browser.post(path, data={"name": "x"}, headers={"origin": "http://["})
        assert answer.status_code == 403 and "another site" in answer.text, path
    page = f"/c/test/topics/{make_topic(shared_broker.bootstrap_servers)}/produce"
    for headers in ('[["\\ud800", "x"]]', '[["x", "\\udfff"]]'):
        answer = browser.submit(page, page, headers=headers)
        assert answer.status_code == 400 and "surrogate" in answer.text
    for total in ("1_0", "٣", "+3", "1.0", "0x3", "9" * 5_000, "-", "", " "):
        answer = browser.submit(page, page.replace("/produce", "/add-partitions"), total=total)
        assert answer.status_code == 400 and "whole number" in answer.text, total
    for node in ("1" * 5_000, "x", "٣", "2147483648"):
        answer = browser.get(f"/c/test/nodes/{node}")
        assert answer.status_code == 400 and "whole number" in answer.text, node


def test_what_nobody_foresaw_is_a_page_with_all_headers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise LookupError("secret detail")

    monkeypatch.setattr("fastq.console.pages.login.enter", broken)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(ConsoleConfig((NOBODY,))))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/login")

    answer = asyncio.run(ask())
    assert answer.status_code == 500 and "secret" not in answer.text and "secret detail" in caplog.text
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_a_stream_that_breaks_says_no_more_than_that(caplog: pytest.LogCaptureFixture) -> None:
    async def parts() -> Any:
        yield b"x"
        raise LookupError("secret detail")

    async def all_parts() -> bytes:
        return b"".join([part async for part in events(parts()).parts])

    text = asyncio.run(all_parts())
    assert text.startswith(b"xevent: failed") and b"secret" not in text and "secret detail" in caplog.text


def test_names_are_those_of_browsers_however_they_are_written(served: Callable[..., Served]) -> None:
    console = served(names=frozenset({"Console.Example.ORG"}))
    with Browser(console.url) as browser:
        assert browser.get("/c/test", headers={"host": "console.example.org"}).status_code == 200
        assert browser.get("/c/test", headers={"host": "example.org"}).status_code == 421


# -- clusters ----------------------------------------------------------------------------------------------------------------


def test_all_who_wait_for_a_picture_get_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they would wait a time-out each, and the tenth page of a frozen cluster a hundred seconds."""

    async def check() -> None:
        cluster, asked, answer = Cluster(NOBODY, 2.0, lambda: 0.0), 0, asyncio.Event()

        async def run(_operation: object) -> Any:
            nonlocal asked
            asked += 1
            await answer.wait()
            raise SchemaRegistryError("no answer")

        monkeypatch.setattr(cluster, "run", run)
        waiting = [asyncio.ensure_future(cluster.picture()) for _ in range(10)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # who goes away takes it from nobody
        await asyncio.sleep(0)
        answer.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert asked == 1 and [type(error) for error in found[1:]] == [SchemaRegistryError] * 9
        with pytest.raises(SchemaRegistryError):
            await cluster.picture()
        assert asked == 2

    asyncio.run(check())


def test_a_picture_begun_before_a_change_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        cluster, answers = Cluster(NOBODY, 2.0, lambda: 0.0), [asyncio.Event(), asyncio.Event()]
        asked = iter(range(2))

        async def run(_operation: object) -> Any:
            number = next(asked)
            await answers[number].wait()
            return number

        monkeypatch.setattr(cluster, "run", run)
        before = asyncio.ensure_future(cluster.picture())
        await asyncio.sleep(0)
        cluster.forget_picture()
        after = asyncio.ensure_future(cluster.picture())
        await asyncio.sleep(0)
        answers[1].set()
        assert await after == 1
        answers[0].set()
        assert await before == 0 and await cluster.picture() == 1

    asyncio.run(check())


def test_what_asks_about_everything_is_done_once_at_a_time(
    served: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastq.console.pages.transactions.hanging_shown", _refused)
    with Browser(served().url) as browser:
        for _ in range(2):  # the one that failed holds up none
            assert "not now" in browser.get("/c/test/transactions?hanging=1").text
    cluster = Cluster(NOBODY, 2.0)
    with cluster.alone("a"), cluster.alone("b"), pytest.raises(TooManyReaders, match="a of x"), cluster.alone("a"):
        pass


def test_one_user_does_not_take_all_readers(
    served: Callable[..., Served], users: Users, shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "READERS_OF_ONE_MAX", 1)
    topic = "pub-readers"
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        admin.create_topic(topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send(topic, b"x")
    url, page = served(users=users).url, f"/c/test/topics/{topic}/records"
    with Browser(url) as ann, Browser(url) as vera:
        ann.log_in("ann", "annann")
        vera.log_in("vera", "veravera")
        with ann.stream("GET", page + "/tail") as tailed:
            lines = tailed.iter_lines()
            assert next(lines) == "event: tail"
            answer = ann.get(page + "/download")
            assert (
                answer.status_code == 503 and "as many searches and tails of ann run already as may, 1;" in answer.text
            )
            assert vera.get(page + "/download").status_code == 200
        assert becomes(lambda: ann.get(page + "/download").status_code == 200)


def _refused(*_: object, **__: object) -> None:
    raise SchemaRegistryError("not now")


# -- searches and tails ------------------------------------------------------------------------------------------------------


class _Slow(Decoder):
    """Takes a second a record, of a clock of its own."""

    now = 0.0

    async def row(self, record: Any) -> Any:
        self.now += 1
        return await super().row(record)


def test_a_search_ends_in_time_among_records_that_take_long(
    shared_broker: Broker, make_topic: Callable[..., str]
) -> None:
    servers = shared_broker.bootstrap_servers
    topic = make_topic(servers)
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(100):
            producer.send(topic, b"%d" % n)

    async def check() -> None:
        cluster, slow = Cluster(ClusterConfig("x", {"bootstrap.servers": servers}), 2.0), _Slow(topic, "auto", (), None)
        plan = Plan(topic, start="earliest", limit=1_000, seconds_max=7)
        ended = [progress async for _, progress in scan(cluster, plan, slow, lambda: slow.now)][-1]
        assert ended.ended == "stopped after 7 s" and ended.scanned == 7 and ended.offsets == 7
        newest = Plan(topic, limit=50, records_max=3)
        rows = [row async for found, _ in scan(cluster, newest, Decoder(topic, "auto", (), None)) for row in found]
        assert [row.offset for row in rows] == [97, 98, 99]
        await cluster.close()

    asyncio.run(check())


def test_a_tail_counts_what_retention_takes_before_it_was_read(
    shared_broker: Broker, make_topic: Callable[..., str]
) -> None:
    servers = shared_broker.bootstrap_servers
    topic = make_topic(servers)
    place = TopicPartition(topic, 0)

    async def check() -> None:
        cluster, found = Cluster(ClusterConfig("x", {"bootstrap.servers": servers}), 2.0), {}

        async def start_of(tp: TopicPartition) -> int:
            return (await cluster.admin.list_offsets({tp: OffsetSpec.EARLIEST}))[tp].result().offset

        async with (
            cluster.reader(auto_offset_reset="none") as consumer,
            AsyncProducer(bootstrap_servers=servers) as producer,
        ):
            for n in range(10):
                await producer.send(topic, b"%d" % n)
            await producer.flush()
            (await cluster.admin.delete_records({place: 7})).results()
            followed = tail.Tail(Plan(topic), Decoder(topic, "auto", (), None))
            followed.add({place: 2})
            reading = asyncio.create_task(followed.run(consumer, start_of))
            while followed.seen < 3 and not reading.done():
                await asyncio.wait([reading], timeout=0.02)
            found = await followed.take()
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        await cluster.close()
        assert (found["gone"], [row["offset"] for row in found["rows"]]) == (5, [7, 8, 9])

    asyncio.run(check())


def test_what_waits_for_a_slow_browser_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "WAITING_BYTES_MAX", 1_000)

    async def check() -> None:
        for plan in (Plan("t"), Plan("t", filter=Filter(text="x"))):
            found = tail.Tail(plan, Decoder("t", "auto", (), None))
            await found.look([Record("t", 0, n, value=b"x" * 300) for n in range(10)])
            assert (await found.take(1))["left_out"] == 7
            await found.look([Record("t", 0, 10, value=b"x" * 5_000)])
            taken = await found.take()
            assert [row["offset"] for row in taken["rows"]] == [10] and taken["left_out"] == 9 and not taken["waiting"]

    asyncio.run(check())


def test_a_schema_that_cannot_be_had_is_not_asked_for_with_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    status: int | None = 404

    def schema(schema_id: int) -> None:
        asked.append(schema_id)
        raise SchemaRegistryError("no such schema", status=status)

    async def check() -> None:
        nonlocal status
        now = [0.0]
        registry = Registry("http://127.0.0.1:1", lambda: now[0])
        monkeypatch.setattr(registry._client, "schema", schema)

        async def decoded(*ids: int) -> list[int]:
            asked.clear()
            for schema_id in ids:
                field = await registry.decode("t", b"\0" + schema_id.to_bytes(4, "big") + b"rest")
                assert field is not None and field.kind == "hex" and "no such schema" in field.note
            return list(asked)

        assert await decoded(1, 1, 2, 1, 2) == [1, 2]
        now[0] += 31
        assert await decoded(1) == [1]
        status = None  # the registry itself does not answer
        assert await decoded(3, 4, 5) == [3]

    asyncio.run(check())


def test_a_download_that_cannot_begin_is_a_page(
    served: Callable[..., Served],
    shared_broker: Broker,
    make_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(shared_broker.bootstrap_servers)
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send(topic, b"\n=1+1")
    with Browser(served().url) as browser:
        assert browser.get("/c/test/topics/there-is-none/records/download").status_code == 404
        page = f"/c/test/topics/{topic}/records/download"
        assert "'\n=1+1" in browser.get(page, params={"format": "csv"}).text
        monkeypatch.setattr(clusters, "READERS_MAX", 0)
        answer = browser.get(page)
        assert answer.status_code == 503 and "stop one first" in answer.text


# -- brokers in trouble -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, str]]:
    """A broker to be broken, and a console of it."""
    with Broker(data_dir=tmp_path_factory.mktemp("troubled") / "data") as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic("a", configs={"retention.ms": "-1"})
            admin.alter_group_offsets("g", {TopicPartition("a", 0): 0}).results()
        with Producer(bootstrap_servers=servers, transactional_id="tx") as producer:
            producer.begin_transaction()
            producer.send("a", b"x").result()
            producer.commit_transaction()
        console = Served(ConsoleConfig((ClusterConfig("test", {"bootstrap.servers": servers}),), port=0, picture_s=0.0))
        yield broker, console.url
        console.close()


PAGES = (
    "", "/topics", "/topics/a", "/group?id=g", "/groups", "/transactions?hanging=1", "/transaction?id=tx", "/partitions",
    "/partitions/proposal", "/nodes/1", "/topics/a/records", "/topics/a/records/scan?from=earliest", "/topics/a/ends",
    "/topics/a/records/download?from=earliest", "/topics/a/produce?partition=0&offset=0", "/topics/a/copy", "/group/lag?id=g",
)  # fmt: skip


@pytest.mark.parametrize(
    "api",
    ["Metadata", "ListOffsets", "DescribeConfigs", "DescribeLogDirs", "DescribeQuorum", "DescribeCluster", "ListGroups", "DescribeGroups",
     "ConsumerGroupDescribe", "OffsetFetch", "FindCoordinator", "ListTransactions", "DescribeTransactions", "DescribeProducers",
     "ListPartitionReassignments", "DescribeTopicPartitions"],
)  # fmt: skip
def test_an_error_of_any_call_is_a_sentence(troubled: tuple[Broker, str], api: str) -> None:
    broker, url = troubled
    broker.fail(api, error="UNKNOWN_SERVER_ERROR", times=None)
    with Browser(url) as browser:
        for page in PAGES:
            answer = browser.get("/c/test" + page)
            assert answer.status_code in (200, 404, 409), (page, answer.text)
    broker.clear_faults()


def test_a_tail_says_when_the_cluster_is_not_heard_of(
    troubled: tuple[Broker, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "WATCH_S", 0.05)
    monkeypatch.setattr(tail, "WATCH_TIMEOUT_S", 0.2)
    broker, url = troubled
    stopped, heard = False, []
    try:
        with Browser(url) as browser, browser.stream("GET", "/c/test/topics/a/records/tail") as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                found = json.loads(line[6:])
                if found["ready"] and not stopped:
                    os.kill(broker.pid, signal.SIGSTOP)
                    stopped = True
                elif found["trouble"] and not heard:
                    heard.append(found["trouble"])
                    os.kill(broker.pid, signal.SIGCONT)
                elif heard and not found["trouble"]:
                    break
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert "did not answer" in heard[0]


def test_a_login_takes_little_before_it_knows_who_asks(
    served: Callable[..., Served], users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any stranger may send one, and hundreds at once: what is too large is refused with its first bytes, what is slow in time."""
    monkeypatch.setattr("fastq.console.app.FORM_TIMEOUT_S", 0.5)
    address = urlsplit(served(users=users).url)
    for path in ("/login", "/logout"):
        for body, size, status, words in (
            (b"name=" + b"x" * LOGIN_BYTES_MAX, 4 << 20, b"403", b"up to 4 KiB"),
            (b"name=x", 100, b"403", b"longer than 0 s"),
        ):
            with socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as connection:
                connection.sendall(
                    f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: {size}\r\n".encode()
                    + b"Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\n"
                    + body
                )
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
            assert answer.split()[1] == status and words in answer, (path, answer)


def test_forms_that_strangers_send_are_not_kept(served: Callable[..., Served], users: Users) -> None:
    """A form of megabytes from somebody without a session is not read at all."""
    with Browser(served(users=users).url) as stranger:
        answer = stranger.post("/c/test/create-topic", content=b"name=" + b"x" * (3 << 20))
        assert answer.status_code == 401


def test_a_line_of_the_audit_log_is_bounded_whatever_it_is_about(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    log = AuditLog(path)
    on = {
        "groups": ["g" * 32_000] * 200,
        "offsets": {f"orders-{n}": n for n in range(20_000)},
        "moves": {"orders-0": [1, 2], "orders-1": (3,)},
        "text": "x" * 5_000,
    }
    log.write(who="ann", address="", what="reset offsets", cluster="c", on=on, outcome="done")
    log.close()
    line = path.read_bytes()
    found = json.loads(line)["on"]
    assert len(line) < 4 * 2_200 and found["moves"] == {"orders-0": [1, 2], "orders-1": [3]}
    assert found["groups"] == ["… 200 more"] and found["text"] == "x" * 2_000
    kept = len(found["offsets"]) - 1
    assert kept > 50 and found["offsets"]["…"] == f"{20_000 - kept:,} more" and found["offsets"]["orders-7"] == 7


# -- slow clients ------------------------------------------------------------------------------------------------------------


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(
    served: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.3)
    address = urlsplit(served().url)
    where = (address.hostname or "", address.port or 0)
    whole = f"GET /c/test HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
    for first in (b"", whole):  # a new connection, and one that has had an answer
        with socket.create_connection(where, timeout=0.05) as connection:
            connection.sendall(first)
            assert becomes(lambda connection=connection: _is_cut(connection)), first


def _is_cut(connection: socket.socket) -> bool:
    """Whether the peer has closed, while a head goes on in small pieces."""
    try:
        connection.sendall(b"x")
        return not connection.recv(65_536)
    except TimeoutError:
        return False
    except OSError:
        return True


def test_who_reads_no_answer_holds_no_reader(
    served: Callable[..., Served],
    shared_broker: Broker,
    make_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "STALLED_S", 0.3)
    monkeypatch.setattr(clusters, "READERS_MAX", 1)
    topic = make_topic(shared_broker.bootstrap_servers)
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        for _ in range(20):
            producer.send(topic, b"x" * 900_000)
    console = served()
    address, path = urlsplit(console.url), f"/c/test/topics/{topic}/records/download"
    with socket.socket() as stalled, Browser(console.url) as browser:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stalled.connect((address.hostname, address.port))
        stalled.sendall(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        assert stalled.recv(12) == b"HTTP/1.1 200"
        assert browser.get(path).status_code == 503
        assert becomes(lambda: browser.get(path).status_code == 200)


# -- the audit log -----------------------------------------------------------------------------------------------------------


def test_nothing_is_begun_that_the_audit_log_could_not_tell(
    served: Callable[..., Served],
    new_topic_name: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, names, full, write = tmp_path / "audit", [new_topic_name() for _ in range(3)], [True], os.write

    def written(file: int, data: bytes) -> int:
        if full[0] and b'"who"' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    with Browser(served(audit_log=log).url) as browser, caplog.at_level(logging.ERROR):
        monkeypatch.setattr("fastq.console.audit.os.write", written)
        form = "/c/test/new-topic", "/c/test/create-topic"
        first = browser.submit(*form, name=names[0])
        assert first.status_code == 200 and names[0] in caplog.text  # it was done, and is told
        refused = browser.submit(*form, name=names[1])
        assert refused.status_code == 503 and "No space left" in refused.text
        assert browser.get(f"/c/test/topics/{names[1]}").status_code == 404
        full[0] = False
        assert browser.submit(*form, name=names[2]).status_code == 200
    outcomes = [json.loads(line)["outcome"] for line in log.read_text().splitlines()]
    assert [outcome == "done" for outcome in outcomes] == [True, False, True]
