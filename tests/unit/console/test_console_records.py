"""Records in the console: searched, followed, downloaded, sent; masks and filters, which are data."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from console_served import Browser, Served, events, searched

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq._native.consume import Record
from fastq.console import paths
from fastq.console.decoding import HEX_BYTES_MAX, JSON_BYTES_MAX, Decoder, Registry, Row, decode
from fastq.console.filters import Filter
from fastq.console.masking import MASKED, Mask, masks_of
from fastq.console.pages.records import time_ms
from fastq.console.scan import Plan
from fastq.console.tail import Tail
from fastq.console.visit import BadValue
from fastq.testing import Broker


@pytest.fixture(scope="module")
def orders(shared_broker: Broker) -> str:
    """A topic of two partitions: 300 orders with keys and headers in the first, odd bytes in the second."""
    servers, topic = shared_broker.bootstrap_servers, "console-orders"
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(300):
            value = json.dumps({"id": n, "who": {"name": f"näme{n}"}, "lines": [{"price": n / 2}]}, ensure_ascii=False)
            producer.send(
                topic,
                value.encode(),
                key=f"k{n}".encode(),
                headers=[("trace", b"t%d" % (n % 3))],
                partition=0,
                timestamp_ms=1_000_000 + n,
            )
        for odd in (b"\xff\xfe\x00", None, b"=1+1", b"-5", b"line\nbreak", b"<b>bold</b>", b""):
            producer.send(topic, odd, partition=1, timestamp_ms=2_000_000)
    return topic


def test_a_search_is_bounded_and_says_how_it_ended(browser: Browser, orders: str) -> None:
    offsets = lambda rows: [row["offset"] for row in rows]  # noqa: E731
    rows, end = searched(browser, orders, partition=0)
    assert offsets(rows) == list(range(250, 300)) and end["scanned"] == 50
    assert end["ended"] == "not looked at: what lies before these last records, 250 offsets"
    rows, end = searched(browser, orders, partition=0, **{"from": "offset", "at": 7, "limit": 3})
    assert offsets(rows) == [7, 8, 9] and end["ended"] == "3 found"
    rows, end = searched(browser, orders, partition=0, **{"from": "time", "at": 1_000_290, "until": 1_000_292})
    assert offsets(rows) == [290, 291, 292]
    rows, end = searched(browser, orders, **{"from": "earliest", "records": 100, "limit": 1000})
    assert end["ended"] == "stopped after 100 records" and end["scanned"] == len(rows) == 100
    rows, end = searched(browser, orders, **{"from": "offset", "at": 10_000})
    assert rows == [] and end["ended"] == "all was looked at"


def test_offsets_that_are_no_more_are_not_said_to_be_looked_at(
    browser: Browser, shared_broker: Broker, new_topic_name: Callable[[], str]
) -> None:
    servers, name = shared_broker.bootstrap_servers, new_topic_name()
    with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
        admin.create_topic(name, partitions=1)
        for n in range(10):
            producer.send(name, b"%d" % n)
        producer.flush()
        admin.delete_records({TopicPartition(name, 0): 6}).results()
    rows, end = searched(browser, name, **{"from": "offset", "at": 2})
    assert [row["offset"] for row in rows] == [6, 7, 8, 9]
    assert end["ended"] == "not looked at: 4 offsets that retention or a deletion has taken"
    _, end = searched(browser, name, **{"from": "offset", "at": 6})
    assert end["ended"] == "all was looked at"


def test_from_the_end_a_search_shows_the_newest_that_fit(browser: Browser, orders: str) -> None:
    rows, end = searched(browser, orders, partition=0, text="t1", limit=3)
    assert [row["offset"] for row in rows] == [292, 295, 298] and (end["found"], end["scanned"]) == (100, 300)
    assert end["ended"] == "all was looked at; these are the newest 3 that fit"
    rows, end = searched(browser, orders, partition=0, until="1000004", limit=2)
    assert [row["offset"] for row in rows] == [3, 4]
    rows, end = searched(browser, orders, partition=0, text="t1", limit=3, records=4)
    assert [row["offset"] for row in rows] == [298]
    assert end["ended"] == "not looked at: what lies before these last records, 296 offsets"


def test_from_the_end_partitions_with_many_records_have_what_others_leave(browser: Browser, orders: str) -> None:
    """The first has 300 records and the second 7."""
    rows, end = searched(browser, orders, text="id", limit=1000, records=100)
    assert [row["offset"] for row in rows] == list(range(207, 300)) and end["scanned"] == 100
    assert end["ended"].endswith("207 offsets")
    rows, _ = searched(browser, orders, limit=20)
    assert sorted(row["partition"] for row in rows) == [0] * 13 + [1] * 7
    rows, end = searched(browser, orders, limit=1000)
    assert len(rows) == 307 and end["ended"] == "all was looked at"


def test_a_search_finds_texts_and_values_of_paths(browser: Browser, orders: str) -> None:
    def found(**values: Any) -> list[int]:
        return [
            row["offset"]
            for row in searched(browser, orders, partition=0, limit=1000, **{"from": "earliest"}, **values)[0]
        ]

    assert found(text="näme29") == [29, *range(290, 300)]
    assert (
        found(text="NÄME299") == []
        and found(text="NÄME299", ignore_case="1") == [299]
        and found(text="K299", ignore_case="1") == [299]
    )
    assert found(text="k123") == [123] and len(found(text="t1")) == 100
    assert found(path="$.id", value="12") == [12] and found(path="id", comparison="<", value="3") == [0, 1, 2]
    assert found(path="$.lines[0].price", comparison=">", value="149") == [299]
    assert found(path="$.lines[*]['price']", value="7") == [14]
    assert found(path="$.who.name", comparison="contains", value="me29") == [29, *range(290, 300)]
    assert found(path="$.none", comparison="exists") == [] and len(found(path="$.who", comparison="exists")) == 300
    assert (
        found(part="key", path="$", value="k5") == [5] and len(found(part="headers", path="trace", value="t2")) == 100
    )
    assert found(path="$.id", comparison="!=", value="0", text="k1")[:2] == [1, 10]


def test_bytes_are_shown_as_what_they_are(browser: Browser, orders: str) -> None:
    rows, _ = searched(browser, orders, partition=1, limit=100)
    assert [row["value"]["kind"] for row in rows] == ["hex", "null", "text", "json", "text", "text", "text"]
    assert rows[0]["value"]["text"].startswith("000000  ff fe 00")
    assert {row["value"]["kind"] for row in searched(browser, orders, partition=1, view="hex")[0]} == {"hex", "null"}
    big = decode(b"\xff" * 5_000)
    assert big.note.startswith(f"the first {HEX_BYTES_MAX:,} of") and decode(b"[" * 200_000).kind == "text"


def test_what_is_asked_wrongly_is_told(browser: Browser, orders: str) -> None:
    page = f"/c/test/topics/{orders}/records"
    for values in (
        {"partition": "x"}, {"from": "code"}, {"from": "time", "at": "soon"}, {"limit": "0"}, {"limit": "1e9"}, {"path": "$.a[b]"},
        {"path": "$." + "a." * 400}, {"comparison": "eval"}, {"part": "__class__"}, {"view": "../etc"}, {"text": "x" * 5_000},
    ):  # fmt: skip
        for place in (page, page + "/scan", page + "/tail", page + "/download"):
            assert browser.get(place, params=values).status_code == 400, (place, values)
    assert browser.get(page + "/download", params={"format": "exe"}).status_code == 400
    assert browser.get("/c/test/topics/there-is-none/records").status_code == 404
    _, told = searched(browser, "there-is-none")
    assert "there-is-none" in told["text"]


def test_downloads(browser: Browser, orders: str) -> None:
    page = f"/c/test/topics/{orders}/records/download"
    answer = browser.get(page, params={"partition": 1, "from": "earliest"})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["value"] for line in lines] == [
        {"base64": "//4A"},
        None,
        "=1+1",
        "-5",
        "line\nbreak",
        "<b>bold</b>",
        "",
    ]
    assert answer.headers["content-disposition"] == f'attachment; filename="{orders}.jsonl"'
    table = list(
        csv.reader(
            io.StringIO(
                browser.get(page, params={"partition": 1, "from": "earliest", "format": "csv"}).text, newline=""
            )
        )
    )
    assert table[0][-1] == "headers" and [row[4] for row in table[3:6]] == ["'=1+1", "-5", "line\nbreak"]
    assert len(browser.get(page, params={"from": "earliest"}).text.splitlines()) == 307


def test_a_record_is_edited_and_sent_again(
    browser: Browser, shared_broker: Broker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(shared_broker.bootstrap_servers, 2)
    page = f"/c/test/topics/{topic}/produce"
    first = {
        "partition": "1",
        "key_kind": "text",
        "key": "k",
        "value": "a\r\nb",
        "headers": '[["h", "é"], ["raw", {"base64": "/w=="}], ["n", null]]',
    }
    assert f"{topic}-1 at offset 0" in browser.submit(page, page, **first).text
    assert "a\nb</textarea>" in browser.get(page, params={"partition": 1, "offset": 0}).text
    assert (
        browser.submit(page, page, partition="1", value_kind="base64", value="/wA=", key_kind="null").status_code == 200
    )
    filled = browser.get(page, params={"partition": 1, "offset": 1}).text
    assert "/wA=" in filled and "<option selected>base64</option>" in filled
    for wrong in (
        {"value_kind": "base64", "value": "?"}, {"key_kind": "null", "key": "x"}, {"headers": "{}"}, {"headers": "[[1, 2]]"},
        {"headers": "[" * 100_000}, {"partition": "2"}, {"value_kind": "pickle"},
    ):  # fmt: skip
        assert browser.submit(page, page, **wrong).status_code == 400, wrong
    assert browser.get(page, params={"partition": 1, "offset": 9}).status_code == 400
    with Consumer(topic, bootstrap_servers=shared_broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        records = list(consumer.read_to_end())
    assert [(record.key, record.value) for record in records] == [(b"k", b"a\nb"), (None, b"\xff\x00")]
    assert records[0].headers == (("h", "é".encode()), ("raw", b"\xff"), ("n", None))


def test_a_tail_follows_what_comes(browser: Browser, shared_broker: Broker, make_topic: Callable[..., str]) -> None:
    topic = make_topic(shared_broker.bootstrap_servers, 2)
    rows: list[str] = []
    with (
        Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer,
        browser.stream("GET", f"/c/test/topics/{topic}/records/tail", params={"text": "yes"}) as answer,
    ):
        producer_began = False
        for name, data in events(answer.iter_lines()):
            assert name == "tail", data
            rows += [row["value"]["text"] for row in data["rows"]]
            if data["ready"] and not producer_began:
                producer_began = True
                for n in range(20):
                    producer.send(topic, (b"yes%d" if n % 2 else b"no%d") % n, partition=n % 4 // 2)
                producer.flush()
            if data["seen"] == 20 and not data["waiting"]:
                assert (data["matched"], data["left_out"]) == (10, 0)
                break
    assert sorted(rows) == sorted(f"yes{n}" for n in range(1, 20, 2))


def test_a_tail_counts_what_a_slow_browser_leaves() -> None:
    async def check() -> None:
        tail = Tail(Plan("t"), Decoder("t", "auto", (), None), waiting_max=10)
        await tail.look([Record("t", 0, n, value=b"%d" % n) for n in range(25)])
        first = await tail.take(4)
        assert [row["offset"] for row in first["rows"]] == [15, 16, 17, 18]
        assert (first["seen"], first["matched"], first["left_out"], first["waiting"]) == (25, 25, 15, 6)
        await tail.look([Record("t", 0, 25, value=b"x")])
        rest = await tail.take()
        assert len(rest["rows"]) + 4 + rest["left_out"] == rest["matched"] == 26

    asyncio.run(check())


def test_masks_hide_from_the_page_the_search_the_download_and_the_form(
    served: Callable[..., Served], orders: str
) -> None:
    masks = (Mask.of("console-*", "value", "$.who.name"), Mask.of("*", "header", "trace"), Mask.of("other", "key", "$"))
    with Browser(served(masks=masks).url) as browser:
        rows, _ = searched(browser, orders, partition=0, limit=1, **{"from": "offset", "at": 5})
        shown = json.loads(rows[0]["value"]["text"])
        assert shown == {"id": 5, "who": {"name": MASKED}, "lines": [{"price": 2.5}]} and rows[0]["key"]["text"] == "k5"
        assert rows[0]["headers"][0][1]["text"] == MASKED
        everything: dict[str, Any] = {"from": "earliest", "limit": 1000}
        for hidden in (
            {"text": "näme5"},
            {"path": "$.who.name", "value": "näme5"},
            {"part": "headers", "path": "trace", "value": "t1"},
        ):
            assert searched(browser, orders, **everything, **hidden)[0] == [], hidden
        assert len(searched(browser, orders, **everything, text='"id": 5,')[0]) == 1
        for view in ("auto", "text", "hex"):
            text = browser.get(
                f"/c/test/topics/{orders}/records/download", params={"from": "earliest", "view": view}
            ).text
            assert "näme" not in text and '"t1"' not in text, view
            assert "bold" not in text  # no JSON: hidden as a whole
        answer = browser.get(f"/c/test/topics/{orders}/produce", params={"partition": 0, "offset": 5})
        assert answer.status_code == 403 and "masked" in answer.text


def test_paths_are_data() -> None:
    document = {"a": [{"b": 1}, {"b": 2}], "x y": {"*": 3}, "c": {"d": None}}
    for text, found in (
        ("$", [document]), ("", [document]), ("$.a[1].b", [2]), ("a[*].b", [1, 2]), ("$['x y']['*']", [3]), ('$["c"].*', [None]),
        ("$.a[9]", []), ("$.a.b", []), ("[0]", []), ("$.c.d.e", []),
    ):  # fmt: skip
        assert list(paths.find(paths.parse(text), document)) == found, text
    for wrong in (
        "$.a[b]",
        "$.a[",
        "a b",
        "$..a",
        "$[-1]",
        "$[?(@.a)]",
        "__import__('os')",
        "a" * 600,
        "$" + ".a" * 40,
    ):
        with pytest.raises(ValueError, match="path"):
            paths.parse(wrong)
    assert [mask.part for mask in masks_of([Mask.of("a*", "key", "$"), Mask.of("b", "value", "$")], "ab")] == ["key"]
    for wrong_mask in (("t", "class", "$"), ("t", "header", "$.a.b"), ("t", "value", "$.[")):
        with pytest.raises(ValueError, match=r"in =|path"):
            Mask.of(*wrong_mask)
    assert not Filter(text="x").may_fit(Record("t", 0, 0, value=None)) and Filter().is_empty
    assert (
        time_ms("at", "1970-01-01T00:00:01")
        == time_ms("at", "1970-01-01T01:00:01+01:00")
        == 1000
        == time_ms("at", "1000")
    )
    for when in ("", "yesterday", "1950-01-01", "9" * 30):
        with pytest.raises(BadValue):
            time_ms("at", when)


def test_numbers_are_those_of_json_and_texts_can_be_compared_as_texts() -> None:
    def fits(key: bytes, comparison: str, value: str) -> bool:
        row = asyncio.run(Decoder("t", "auto", (), None).row(Record("t", 0, 0, key=key)))
        return Filter(part="key", path=(), comparison=comparison, value=value).fits(row)

    for key in (b"007", b"1_000", "\uff17".encode(), b"+7", b" 7"):
        assert not fits(key, "=", "7") or key == b" 7", key
    assert not fits(b"1_000", "=", "1000") and fits(b"1_000", "=", "1_000") and fits(b"007", "=", "007")
    assert fits(b"7", "=", "7.0") and fits(b"7e0", "=", "7") and not fits(b"7", "!=", "7.0")
    assert not fits(b"7", "text =", "7.0") and fits(b"7", "text !=", "7.0") and fits(b"7", "text =", "7")
    assert fits(b"10", ">", "9") and fits(b"007", "<", "7"), "a number and a text are compared as texts"


def test_json_begins_behind_what_json_takes_for_blank() -> None:
    for before in (b" ", b"\n", b"\r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"):
        found = decode(before + b'{"a": 1}')
        assert (found.kind, found.document) == ("json", {"a": 1}), before
    assert decode(b"\xc2\xa0{}").kind == "text" and decode(b"\n").kind == "text"
    deep = decode(b"\n" + b"[" * 101 + b"]" * 101)
    assert (deep.kind, deep.note) == ("text", "not looked into as JSON: more than 100 levels deep")
    assert decode(b"[" * 200_000).note == deep.note and decode(b"[1,").note == ""
    large = decode(b' {"a": "' + b"x" * JSON_BYTES_MAX + b'"}')
    assert large.kind == "text" and large.note.startswith("not looked into as JSON: 4,194,3")
    assert decode(b"text" * JSON_BYTES_MAX).note == ""
    row = Row(0, 0, 0, decode(None), large, (), 0).to_json()
    assert row["value"]["note"].startswith("the first 20,000 of") and "not looked into" in row["value"]["note"]


def test_what_a_registry_knows_is_decoded() -> None:
    from fastq.schema_registry import AvroSerializer, JsonSchemaSerializer, SchemaRegistryClient
    from fastq.testing import SchemaRegistry

    avro = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "int"}, {"name": "raw", "type": "bytes"}],
    }
    with SchemaRegistry() as server:
        client = SchemaRegistryClient(server.url)
        value = AvroSerializer(client, json.dumps(avro)).serialize("t", {"id": 7, "raw": b"\xff"})
        key = JsonSchemaSerializer(client, '{"type": "object"}', is_key=True).serialize("t", {"a": 1})
        records = [Record("t", 0, 0, key=key, value=value), Record("t", 0, 1, key=b"plain", value=b"\0\0\0\0\x63rest")]

        async def rows(*masks: Mask) -> list[Any]:
            decoder = Decoder("t", "auto", masks, Registry(server.url))
            assert not decoder.is_raw
            return [await decoder.row(record) for record in records]

        first, second = asyncio.run(rows())
        assert (first.value.kind, first.value.document) == ("avro", {"id": 7, "raw": "/w=="})
        assert (first.key.kind, first.key.document) == ("json", {"a": 1})
        assert second.key.text == "plain" and second.value.kind == "hex" and second.value.note.startswith("schema 99: ")
        assert Filter(path=paths.parse("$.id"), value="7").fits(first) and not Filter(text="rest").fits(first)
        first, second = asyncio.run(rows(Mask.of("t", "value", "$.raw")))
        assert first.value.document == {"id": 7, "raw": MASKED}
        assert second.value.kind == "masked" and second.value.document is None
