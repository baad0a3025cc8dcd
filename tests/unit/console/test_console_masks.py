"""Masks: what nobody is to see is not seen, whatever shape a record has and wherever it is copied to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from console_served import Browser, Served, searched

from fastq import Consumer, Producer
from fastq._native.consume import Record
from fastq.console.decoding import VIEWS, Decoder
from fastq.console.masking import MASKED, Mask, not_masked_in
from fastq.testing import Broker

SECRET = "4111222233334444"


def seen(mask: Mask, data: bytes, view: str = "auto") -> str:
    """What a page has of a record's value, or of its key."""
    parts: dict[str, Any] = {"key": None, "value": None, mask.part: data}
    row = asyncio.run(Decoder("t", view, (mask,), None).row(Record("t", 0, 0, **parts)))
    return json.dumps(row.to_json())


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(
    "path, document",
    [
        ("$.card.number", {"card": {"number": SECRET}}),
        ("$.card.number", {"card": SECRET}),  # the shape of before a schema was changed
        ("$.card.number", {"card": int(SECRET)}),
        ("$.card.number", {"card": json.dumps({"number": SECRET})}),  # JSON in a text
        ("$.card.number", {"card": [{"number": SECRET}]}),
        ("$.card.number", [{"card": {"number": SECRET}}]),
        ("$.card.number", json.dumps({"card": {"number": SECRET}})),
        ("$.card.number", int(SECRET)),
        ("$.cards[0]", {"cards": {"0": SECRET}}),
        ("$.cards[*].number", {"cards": {"a": {"number": SECRET}, "b": SECRET}}),
        ("$[0]", {"a": SECRET}),
    ],
)
def test_a_path_that_meets_another_shape_hides_it(view: str, part: str, path: str, document: Any) -> None:
    text = seen(Mask.of("t", part, path), json.dumps(document).encode(), view)
    assert SECRET not in text and json.dumps(MASKED)[1:-1] in text


@pytest.mark.parametrize(
    "data",
    [
        SECRET.encode(),
        b"\0\0\0\0\7" + json.dumps({"card": SECRET}).encode(),  # of a registry that the console does not know
        json.dumps({"card": SECRET}).encode("utf-16"),
        b'{"card": 1}\n{"card": %s}' % SECRET.encode(),
        b'{"card": "%s", "card": "%s"}' % (SECRET.encode(), SECRET.encode()),
        b'{"c\\u0061rd": "%s"}' % SECRET.encode(),
        b"\xef\xbb\xbf" + json.dumps({"card": SECRET}).encode(),
        b'{"card": "%s", "deep": %s}' % (SECRET.encode(), b"[" * 200 + b"]" * 200),
    ],
)
def test_bytes_that_are_written_otherwise_are_hidden(data: bytes) -> None:
    for view in VIEWS:
        text = seen(Mask.of("t", "value", "$.card"), data, view)
        assert SECRET not in text and SECRET.encode().hex(" ")[:23] not in text, view


def test_what_a_path_does_not_lead_to_is_shown() -> None:
    mask = Mask.of("t", "value", "$.card.number")
    for document in ({"id": 5}, {"card": {"holder": "a"}}, {"card": None}, {"id": 5, "card": {}}):
        assert mask.hide(document) == document
    assert mask.hide({"id": 5, "card": {"number": 1, "x": 2}}) == {"id": 5, "card": {"number": MASKED, "x": 2}}
    assert Mask.of("t", "value", "$.a[*].b").hide({"a": [{"b": 1}, {"c": 2}]}) == {"a": [{"b": MASKED}, {"c": 2}]}
    assert Mask.of("t", "value", "$.a[1]").hide({"a": [1, 2, 3]}) == {"a": [1, MASKED, 3]}


def test_a_mask_covers_what_it_hides_as_well() -> None:
    def uncovered(there: tuple[str, str], here: tuple[str, str] = ("value", "$.card.number")) -> bool:
        return not_masked_in([Mask.of("here", *here), Mask.of("there", *there)], "here", "there") is not None

    assert not uncovered(("value", "$.card.number")) and not uncovered(("value", "$['card']['number']"))
    assert not uncovered(("value", "$.card")) and not uncovered(("value", "$"))
    assert uncovered(("value", "$.card.number.x")) and uncovered(("value", "$.card.holder"))
    assert uncovered(("value", "$.*.number")) and uncovered(("key", "$.card.number"))
    assert not uncovered(("header", "*"), ("header", "trace")) and uncovered(("header", "trace"), ("header", "*"))
    everywhere = [Mask.of("*", "value", "$.card"), Mask.of("a", "key", "$")]
    assert not_masked_in(everywhere, "b", "a") is None and not_masked_in(everywhere, "a", "b") == everywhere[1]


def test_masked_records_are_copied_to_where_the_same_is_masked(
    served: Callable[..., Served], shared_broker: Broker, make_topic: Callable[..., str]
) -> None:
    servers = shared_broker.bootstrap_servers
    source, open_one, aside = (make_topic(servers) for _ in range(3))
    value = json.dumps({"id": 1, "card": SECRET}).encode()
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(source, value, key=b"k")
    masks = (Mask.of(source, "value", "$.card"), Mask.of(aside, "value", "$.card"), Mask.of(aside, "key", "$"))
    page = f"/c/test/topics/{source}/copy"
    with Browser(served(masks=masks).url) as browser:
        assert (
            "the same is masked" in browser.get(page).text
            and f'data-url="{page}"' in browser.get(f"/c/test/topics/{source}/records").text
        )
        for action, values in ((page, {"places": "0:0"}), (f"{page}/plan", {"from": "earliest"})):
            answer = browser.submit(page, action, target=open_one, **values)
            assert answer.status_code == 403 and f"value $.card of {source} is masked" in answer.text, action
        plan = browser.submit(page, f"{page}/plan", target=aside, **{"from": "earliest"})
        assert plan.status_code == 200 and "Copy 1 record to" in plan.text and SECRET not in plan.text
        assert f"{aside}-0 at offset 0" in browser.submit(page, page, target=aside, places="0:0").text
        rows, _ = searched(browser, aside, **{"from": "earliest"})
        assert SECRET not in json.dumps(rows) and len(rows) == 1
        # And back only to where the key is masked too.
        back = f"/c/test/topics/{aside}/copy"
        assert f"key $ of {aside} is masked" in browser.submit(back, back, target=source, places="0:0").text
    with Consumer(open_one, aside, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        assert [(record.topic, record.value) for record in consumer.read_to_end()] == [(aside, value)]
