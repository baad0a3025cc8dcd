"""The pages of the schema registry, of one that says anything at all, or nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import pytest
from console_served import Browser, Served

from fastq.console import decoding
from fastq.console.config import ClusterConfig
from fastq.console.decoding import Registry
from fastq.console.pages import schemas
from fastq.console.threads import Threads
from fastq.errors import SchemaRegistryError, SchemaRegistryTimeout, WaitTimeout
from fastq.schema_registry import Schema, SchemaRegistryClient, avro, client
from fastq.testing import Broker, SchemaRegistry

SUBJECTS, SUBJECT = "/c/test/schemas", "/c/test/schema?id=a"


class Liar:
    """A server at a registry's address: `answers` by what a path ends with, the rest as a registry would; `asked` are the paths."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.over = threading.Event()
        self.schema: Callable[[int], str] = lambda version: '{"type": "string"}'
        liar = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                path = self.path.partition("?")[0]
                liar.asked.append(f"{self.command} {path}")
                known = liar.regular(path)
                found = next((answer for end, answer in liar.answers.items() if path.endswith(end)), known)
                if callable(found):
                    found(self)
                    return
                status, body = found if isinstance(found, tuple) else (200, found)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def regular(self, path: str) -> Any:
        last = path.rpartition("/")[2]
        if path == "/subjects":
            return ["a"]
        if path.startswith("/config"):
            return {"compatibilityLevel": "BACKWARD"}
        if path.startswith("/compatibility"):
            return {"is_compatible": True}
        if last == "versions":
            return [1, 2]
        return {"id": 1, "subject": "a", "version": int(last), "schema": self.schema(int(last))}

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


def silent(over: threading.Event) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda handler: over.wait(60) and None


def trickling(over: threading.Event, *, head: bool) -> Callable[[BaseHTTPRequestHandler], None]:
    """A byte every so often, of the head or of the body, until it is over."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"" if head else b"content-length: 100000\r\n\r\n"))
        while not over.wait(0.02):
            try:
                handler.wfile.write(b"x: y\r\n" if head else b" ")
            except OSError:
                return

    return answer


@pytest.fixture
def liar() -> Iterator[Liar]:
    server = Liar()
    yield server
    server.close()


@pytest.fixture
def browser(served: Callable[..., Served], shared_broker: Broker, liar: Liar) -> Iterator[Browser]:
    cluster = ClusterConfig("test", {"bootstrap.servers": shared_broker.bootstrap_servers}, liar.url)
    with Browser(served(clusters=(cluster,)).url) as client:
        yield client


WRONG = "not what a schema registry says"


@pytest.mark.parametrize(
    ("page", "end", "answer", "words"),
    [
        *((SUBJECTS, "/subjects", body, WRONG) for body in ([1], [{}], [None], [["a"]], ["\ud800"], {}, "a", None)),
        *((SUBJECTS, "/config", {"compatibilityLevel": level}, WRONG) for level in (5, None, "\ud800", ["BACKWARD"])),
        *((SUBJECT, "/versions", body, WRONG) for body in (["1"], [1, "a"], [{}], [-1], [2**70], [True], [1.5])),
        *((SUBJECT, "/2", body, WRONG) for body in ([], None, {}, {"id": 1})),
        (SUBJECT, "/2", {"id": "x" * 10_000, "subject": "a", "version": 2, "schema": "1"}, WRONG),
        (SUBJECT, "/2", b'{"id": 1e999, "subject": "a", "version": 2, "schema": "1"}', WRONG),
        (SUBJECT, "/2", {"id": 1, "subject": {}, "version": 2, "schema": "1"}, WRONG),
        (SUBJECT, "/2", {"id": 1, "subject": "a", "version": 2, "schema": "\ud800"}, WRONG),
        (SUBJECT, "/2", {"id": 1, "subject": "a", "version": 2, "schema": "1", "schemaType": [1]}, WRONG),
        (SUBJECT, "/2", {"id": 1, "subject": "a", "version": 2, "schema": "1", "references": ["x"]}, WRONG),
        (
            SUBJECT,
            "/2",
            {
                "id": 1,
                "subject": "a",
                "version": 2,
                "schema": "1",
                "references": [{"name": 1, "subject": [], "version": "x"}],
            },
            WRONG,
        ),
        (SUBJECTS, "/subjects", (200, b"<html>not one</html>"), "not JSON"),
        (SUBJECTS, "/subjects", (204, b""), "not JSON"),
        (SUBJECTS, "/subjects", (200, b"[" * 100_000), "not JSON"),
        (SUBJECTS, "/subjects", (500, b"<html>no</html>"), "HTTP 500"),
        (SUBJECTS, "/subjects", (422, {"message": "x" * 5_000_000}), "HTTP 422"),
        (SUBJECTS, "/subjects", (422, {"message": "\ud800"}), "HTTP 422"),
        (SUBJECTS, "/subjects", (422, {"message": ["x"]}), "HTTP 422"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_no_registrys_answer_is_a_sentence(
    browser: Browser, liar: Liar, page: str, end: str, answer: Any, words: str
) -> None:
    liar.answers[end] = answer
    told = browser.get(page)
    assert told.status_code == 409 and words in told.text and len(told.text) < 10_000, told.text[:2_000]


@pytest.mark.parametrize(
    ("body", "words"),
    [({"id": 1, "subject": "a", "version": 2, "schema": '"\\ud800"'}, "?")]
    + [
        ({"id": 1, "subject": "a", "version": 2, "schema": text}, "characters")
        for text in ("x" * 3_000_000, "[" * 900 + "]" * 900)
    ],
    ids=["surrogate", "long", "deep"],
)
def test_odd_schemas_are_shown_in_bounds(browser: Browser, liar: Liar, body: Any, words: str) -> None:
    liar.answers["/2"] = body
    told = browser.get(SUBJECT)
    assert told.status_code == 200 and words in told.text and len(told.content) < 3 * schemas.SHOWN_MAX


def test_names_of_any_kind_and_number_lead_to_their_subjects(browser: Browser, liar: Liar) -> None:
    odd = ['a"b', "a/b", "../x", "<b>&amp;", "a b?c#d%2f", "ü\u2028\u202e", "x\r\ny", "'"]
    liar.answers["/subjects"] = [*odd, "y" * 1_001, *(f"s{n:05}" for n in range(10_000))]
    page = browser.get(SUBJECTS)
    assert "10,008 in all, page 1 of 201" in page.text and "1 subject whose name is too long" in page.text
    assert len(page.content) < 20_000 and "<b>&" not in page.text
    for name in odd:
        liar.asked.clear()
        assert browser.get("/c/test/schema", params={"id": name}).status_code == 200, name
        assert f"GET /subjects/{quote(name, safe='')}/versions" in liar.asked
    assert "s07777" in browser.get(SUBJECTS, params={"q": "S07777"}).text


def test_a_name_that_makes_another_path_is_none(browser: Browser, liar: Liar) -> None:
    """PUT /config/ is the level of all subjects."""
    for name in ("", ".", ".."):
        assert browser.get("/c/test/schema", params={"id": name}).status_code == 400
        for action, fields in (("level", {"level": "NONE"}), ("check", {"schema": "x"})):
            answer = browser.submit("/c/test/new-topic", f"/c/test/schema/{action}", id=name, **fields)
            assert answer.status_code == 400 and "the name of a subject" in answer.text
    assert not liar.asked


def test_many_versions_and_none(browser: Browser, liar: Liar) -> None:
    liar.answers["/versions"] = list(range(1, 50_001))
    page = browser.get(SUBJECT)
    assert len(page.content) < 100_000 and "49,500 older versions are not in the lists" in page.text
    liar.answers["/versions"] = []
    answer = browser.submit("/c/test/new-topic", "/c/test/schema/check", id="a", schema="x")
    assert answer.status_code == 400 and "no version that another could follow" in answer.text


def test_versions_that_have_nothing_in_common_are_compared_at_once(browser: Browser, liar: Liar) -> None:
    """With `difflib.ndiff`, which looks into lines, this took minutes that no other page had."""
    liar.schema = lambda version: "\n".join(f"{n * 7919 % 4999:04} {'abc'[version:]} {n}" for n in range(4_999))
    page = browser.get(f"{SUBJECT}&version=2&with=1")
    assert page.status_code == 200 and "4,999 lines came and 4,999 lines went" in page.text
    liar.answers["/3"] = {"id": 3, "subject": "a", "version": 3, "schema": "x\n" * 5_001}
    page = browser.get(f"{SUBJECT}&version=3&with=1")
    assert page.status_code == 400 and "are not compared" in page.text


@pytest.mark.parametrize("way", ["silent", "body", "head"])
def test_a_registry_that_takes_its_time_is_told_and_holds_up_nothing_else(
    served: Callable[..., Served], shared_broker: Broker, liar: Liar, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(decoding, "ASK_S", 0.2)
    monkeypatch.setattr(decoding, "WAIT_S", 0.6)
    liar.answers["/subjects"] = silent(liar.over) if way == "silent" else trickling(liar.over, head=way == "head")
    cluster = ClusterConfig("test", {"bootstrap.servers": shared_broker.bootstrap_servers}, liar.url)
    with Browser(served(clusters=(cluster,)).url) as browser:
        for _ in range(decoding.ASKED_AT_ONCE + 1):  # the last finds no thread, where the head trickles
            answer = browser.get(SUBJECTS)
            assert answer.status_code == 504 and "schema registry" in answer.text
        assert browser.get("/c/test").status_code == 200


def test_threads_that_nobody_waits_for_count_until_they_end() -> None:
    async def check() -> None:
        go, ended = threading.Event(), list[int]()

        def late() -> int:
            go.wait(30)
            ended.append(1)
            return 7

        threads = Threads("a thing", 1, 0.1)
        for _ in range(2):
            with pytest.raises(WaitTimeout, match="a thing took longer"):
                await threads.run(late)
        assert not ended
        go.set()
        threads._wait_s = 30
        assert await threads.run(late) == 7 and ended == [1, 1], "of two, the second never found a place"
        with pytest.raises(SchemaRegistryTimeout):
            await threads.run(_raise, SchemaRegistryTimeout())

    asyncio.run(check())


def _raise(error: Exception) -> None:
    raise error


def test_a_schema_that_takes_too_long_is_a_word_beside_the_bytes(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ASK_S", 0.2)
    monkeypatch.setattr(decoding, "WAIT_S", 0.6)
    liar.answers["/7"] = trickling(liar.over, head=True)

    async def check() -> None:
        registry = Registry(liar.url)
        for _ in range(2):
            found = await registry.decode("t", b"\0\0\0\0\7x")
            assert found is not None and found.kind == "hex" and "took longer" in found.note
        assert len(liar.asked) == 1, "and is not asked for with each record"

    asyncio.run(check())


def test_a_client_keeps_the_newest_and_trusts_no_type(monkeypatch: pytest.MonkeyPatch, liar: Liar) -> None:
    monkeypatch.setattr(client, "CACHED_MAX", 3)
    with SchemaRegistry() as registry:
        one = SchemaRegistryClient(registry.url)
        ids = [one.register("s", Schema(json.dumps({"type": "fixed", "name": "f", "size": n}))) for n in range(1, 6)]
        del registry.requests[:]
        for schema_id in (*ids, ids[-1], ids[0]):
            one.schema(schema_id)
        assert len(registry.requests) == 6, "the newest three are kept, so the last is there and the first is not"
    liar.answers["/versions/latest"] = {"is_compatible": "no"}
    with pytest.raises(SchemaRegistryError, match="true or false"):
        SchemaRegistryClient(liar.url).compatible("a", Schema("x"))
    monkeypatch.setattr(client, "RESPONSE_BYTES_MAX", 1_000)
    liar.answers["/subjects"] = ["x" * 1_000]
    with pytest.raises(SchemaRegistryError, match="more than 1,000 bytes"):
        SchemaRegistryClient(liar.url).subjects()


def test_an_avro_schema_that_is_not_decoded_with_is_parsed_once(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was parsed in the event loop for each of a page's records."""
    parsed: list[object] = []
    parse = avro._parse
    monkeypatch.setattr(avro, "_parse", lambda *arguments: parsed.append(arguments) or parse(*arguments))
    liar.answers["/schemas/ids/1"] = {"schema": '{"type": "array", "items": "null"}'}

    async def notes() -> list[str]:
        registry = Registry(liar.url)
        found = [await registry.decode("t", b"\0\0\0\0\1\0") for _ in range(10)]
        return [field.note for field in found if field is not None]

    told = asyncio.run(notes())
    assert len(told) == 10 and len(set(told)) == 1 and "items that take no bytes" in told[0]
    assert len(parsed) == 1


PATTERN = {"type": "string", "pattern": "^(a+)+$"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}
TREE = {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]}
TOWER: Any = {"type": "record", "name": "T0", "fields": []}
for _place in range(1, 40):
    TOWER = {
        "type": "record",
        "name": f"T{_place}",
        "fields": [{"name": "one", "type": TOWER}, {"name": "two", "type": f"T{_place - 1}"}],
    }
NAMES = {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["A" * 1_000_000]}}
ROUND: Any = ["null", "R0"]
for _place in reversed(range(120)):
    ROUND = {"type": "record", "name": f"R{_place}", "fields": [{"name": "a", "type": ROUND}]}
ROW: Any = [{"type": "record", "name": "R0", "fields": [{"name": "number", "type": "int"}]}]
ROW += [{"type": "record", "name": f"R{n}", "fields": [{"name": "a", "type": f"R{n - 1}"}]} for n in range(1, 15_000)]


@pytest.mark.parametrize(
    ("kind", "schema", "data", "words"),
    [
        ("JSON", PATTERN, b'"' + b"a" * 40 + b'!"', "schema 1"),
        ("AVRO", {"type": "array", "items": "null"}, bytes([0x80] * 5 + [0x01, 0x00]), "items that take no bytes"),
        ("AVRO", TOWER, b"", "more than 100 values that take no bytes"),
        ("AVRO", DECIMAL, bytes([0x80, 0x89, 0x7A]) + b"\x7f" * 1_000_000, "schema 1"),
        ("AVRO", TREE, b"\2" * 100_000 + b"\0", "recursion"),
        ("AVRO", ROUND, b"\2" * 199 + b"\0", "recursion"),
        ("AVRO", ROW, b"\xae\xea\1\2", "within one another on 15001 levels"),
        ("AVRO", TREE, b"\xff" * 3_000_000, "a number of the Avro value has more than 10 bytes"),
        ("AVRO", {**TREE, "fields": [{"name": "a", "type": "A"}]}, b"", "in each of its own values"),
        ("AVRO", NAMES, bytes([0x80, 0x89, 0x7A]) + bytes(1_000_001), "the value has more than 32,000,"),
    ],
    ids=["pattern", "nulls", "tower", "digits", "deep", "round", "row", "long", "endless", "names"],
)
def test_what_anybody_registers_does_not_hold_the_console_up(
    liar: Liar, kind: str, schema: Any, data: bytes, words: str
) -> None:
    """In a process of its own: some of it ended that, and the rest was not to be ended."""
    liar.answers["/schemas/ids/1"] = {"schema": json.dumps(schema), "schemaType": kind}
    program = (
        "import asyncio, sys; from fastq.console.decoding import Registry\n"
        "found = asyncio.run(Registry(sys.argv[1]).decode('t', bytes([0, 0, 0, 0, 1]) + sys.stdin.buffer.read()))\n"
        "print(found.note)"
    )
    done = subprocess.run([sys.executable, "-c", program, liar.url], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0 and words in done.stdout.decode(), done
