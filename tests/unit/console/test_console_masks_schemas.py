"""Masks of values in the formats of a schema registry: Avro, Protobuf, and frames of which the schema cannot be had.

Rules: SECRET is where a path leads, or where the shape is another one than the path says; it is nowhere in what a page, a file or a
search says. What else a document has is shown, the same text under another path too.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import decimal
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from console_served import Browser, Served, searched
from google.protobuf import (  # type: ignore[import-untyped, unused-ignore]
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from fastq import Producer
from fastq._native.consume import Record
from fastq.console.config import ClusterConfig
from fastq.console.decoding import VIEWS, Decoder, Field, Registry
from fastq.console.masking import MASKED, Mask
from fastq.schema_registry import AvroSerializer, ProtobufSerializer, SchemaRegistryClient
from fastq.testing import Broker, SchemaRegistry

SECRET = "4111222233334444"
CARD = {
    "type": "record",
    "name": "Card",
    "fields": [{"name": "number", "type": "string"}, {"name": "holder", "type": "string", "default": ""}],
}
CARDS = {"number": SECRET, "holder": "Ann"}
WHEN = datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc)


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


@pytest.fixture(scope="module")
def client(registry: SchemaRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient(registry.url)


def avro(client: SchemaRegistryClient, name: str, kind: Any, value: Any) -> bytes:
    """A record of one field, in a frame; the type Card is known from the field `known` on."""
    fields = [{"name": "known", "type": ["null", CARD], "default": None}, {"name": name, "type": kind}]
    schema = {"type": "record", "name": "Payment", "fields": fields}
    serializer = AvroSerializer(client, schema, subject_name_strategy=lambda *_: str(uuid.uuid4()))
    return serializer.serialize("t", {name: value})


def proto_types() -> tuple[Any, Any]:
    """The message classes Payment and Card, in a pool of their own."""
    known = (any_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
    file = descriptor_pb2.FileDescriptorProto(
        name="pay.proto", package="pay", syntax="proto3", dependency=[one.DESCRIPTOR.name for one in known]
    )
    text, number, message = 9, 3, 11
    card = file.message_type.add(name="Card")
    card.field.add(name="number", number=1, type=text, label=1)
    card.field.add(name="card_code", number=2, type=number, label=1)
    payment = file.message_type.add(name="Payment")
    for name, kind, of in (("ByNameEntry", message, ".pay.Card"), ("ByIdEntry", text, None)):
        entry = payment.nested_type.add(name=name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=text if of else number, label=1)
        entry.field.add(name="value", number=2, type=kind, type_name=of, label=1)
    payment.oneof_decl.add(name="how")
    for place, (name, kind, of, repeated) in enumerate(
        (
            ("card", message, ".pay.Card", False),
            ("iban", text, None, False),
            ("cards", message, ".pay.Card", True),
            ("by_name", message, ".pay.Payment.ByNameEntry", True),
            ("by_id", message, ".pay.Payment.ByIdEntry", True),
            ("detail", message, ".google.protobuf.Any", False),
            ("more", message, ".google.protobuf.Struct", False),
            ("note", message, ".google.protobuf.StringValue", False),
            ("at", message, ".google.protobuf.Timestamp", False),
        ),
        1,
    ):
        field = payment.field.add(name=name, number=place, type=kind, type_name=of, label=3 if repeated else 1)
        if name in ("card", "iban"):
            field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    for one in known:
        pool.AddSerializedFile(one.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    payment_type, card_type = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"pay.{name}")) for name in ("Payment", "Card")
    )
    return payment_type, card_type


Payment, Card = proto_types()
CARD_IN_ANY = {"@type": "type.googleapis.com/pay.Card", "number": MASKED}


def wrapper(value: str) -> Any:
    return wrappers_pb2.StringValue(value=value)


def packed(message: Any) -> Any:
    payment = Payment()
    payment.detail.Pack(message)
    return payment


def wrapped(message: Any) -> Any:
    """It, in an Any."""
    inner = any_pb2.Any()
    inner.Pack(message)
    return inner


def in_any(kind: str, value: Any) -> dict[str, Any]:
    """As JSON has what is in an Any and has a form of its own there."""
    return {"@type": f"type.googleapis.com/google.protobuf.{kind}", "value": value}


def more(values: dict[str, Any]) -> Any:
    payment = Payment()
    payment.more.update(values)
    return payment


def shown(
    registry: SchemaRegistry | str, path: str, data: bytes | None, part: str = "value", view: str = "auto"
) -> Field:
    """What a page, a search and a download have of it, and that none of it says the secret."""
    url = registry if isinstance(registry, str) else registry.url

    async def row() -> Any:
        parts: dict[str, Any] = {"key": None, "value": None, part: data}
        return await Decoder("t", view, (Mask.of("t", part, path),), Registry(url)).row(Record("t", 0, 0, **parts))

    field: Field = getattr(asyncio.run(row()), part)
    told = f"{field!r} {field.text}"
    assert SECRET not in told and base64.b64encode(SECRET.encode()).decode() not in told, told
    return field


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(
    ("path", "kind", "value", "document"),
    [
        ("$.card.number", "Card", CARDS, {"card": {"number": MASKED, "holder": "Ann"}}),
        ("$.card.number", ["null", "Card", "string"], CARDS, {"card": {"number": MASKED, "holder": "Ann"}}),
        ("$.card.number", ["null", "Card", "string"], SECRET, {"card": MASKED}),
        ("$.card.number", ["null", "Card", "string"], None, {"card": None}),
        ("$.card.number", "string", json.dumps(CARDS), {"card": MASKED}),
        ("$.card.number", "long", int(SECRET), {"card": MASKED}),
        ("$.card.number", {"type": "array", "items": "Card"}, [CARDS], {"card": MASKED}),
        ("$.card[*].number", {"type": "array", "items": "Card"}, [CARDS], {"card": [{"number": MASKED, "holder": "Ann"}]}),
        ("$.card[*].number", {"type": "array", "items": ["string", "Card"]}, [SECRET], {"card": [MASKED]}),
        ("$.card[0]", {"type": "map", "values": "string"}, {"0": SECRET}, {"card": MASKED}),
        ("$.card.*.number", {"type": "map", "values": "Card"}, {"a": CARDS}, {"card": {"a": {"number": MASKED, "holder": "Ann"}}}),
        ("$.card['a b']", {"type": "map", "values": "string"}, {"a b": SECRET, "c": "x"}, {"card": {"a b": MASKED, "c": "x"}}),
        ("$.card", {"type": "bytes", "logicalType": "decimal", "precision": 20}, decimal.Decimal(SECRET), {"card": MASKED}),
        ("$.card", "bytes", SECRET.encode(), {"card": MASKED}),
        ("$.card", {"type": "fixed", "name": "F", "size": 16}, SECRET.encode(), {"card": MASKED}),
        ("$.card", {"type": "enum", "name": "E", "symbols": [f"E{SECRET}"]}, f"E{SECRET}", {"card": MASKED}),
        ("$.card.day", {"type": "long", "logicalType": "timestamp-micros"}, WHEN, {"card": MASKED}),
    ],
)  # fmt: skip
def test_avro(
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
    part: str,
    path: str,
    kind: Any,
    value: Any,
    document: dict[str, Any],
) -> None:
    field = shown(registry, path, avro(client, "card", kind, value), part)
    assert (field.kind, field.document) == ("avro", {"known": None, **document})


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(
    ("path", "message", "document"),
    [
        ("$.card.number", Payment(card=Card(number=SECRET, card_code=5)), {"card": {"number": MASKED, "card_code": "5"}}),
        ("$.card.card_code", Payment(card=Card(card_code=int(SECRET))), {"card": {"card_code": MASKED}}),
        ("$.iban", Payment(iban=SECRET), {"iban": MASKED}),
        ("$.card.number", Payment(iban="x"), {"iban": "x"}),
        ("$.cards[*].number", Payment(cards=[Card(number=SECRET)] * 2), {"cards": [{"number": MASKED}] * 2}),
        ("$.cards.number", Payment(cards=[Card(number=SECRET)]), {"cards": MASKED}),
        ("$.by_name.*.number", Payment(by_name={"a": Card(number=SECRET)}), {"by_name": {"a": {"number": MASKED}}}),
        ("$.by_id['5']", Payment(by_id={5: SECRET, 6: "x"}), {"by_id": {"5": MASKED, "6": "x"}}),
        ("$.by_id[5]", Payment(by_id={5: SECRET}), {"by_id": MASKED}),
        ("$.note", Payment(note={"value": SECRET}), {"note": MASKED}),
        ("$.note.value", Payment(note={"value": SECRET}), {"note": MASKED}),
        ("$.at.seconds", Payment(at={"seconds": 1}), {"at": MASKED}),
        ("$.detail.number", packed(Card(number=SECRET)), {"detail": {"@type": "type.googleapis.com/pay.Card", "number": MASKED}}),
        ("$.detail.number", packed(wrapped(Card(number=SECRET))), {"detail": in_any("Any", CARD_IN_ANY)}),
        ("$.detail.number", packed(wrapped(wrapper(SECRET))), {"detail": in_any("Any", in_any("StringValue", MASKED))}),
        ("$.detail.number", packed(wrapper(SECRET)), {"detail": in_any("StringValue", MASKED)}),
        ("$.detail.value", packed(wrappers_pb2.Int64Value(value=int(SECRET))), {"detail": in_any("Int64Value", MASKED)}),
        ("$.detail.number", packed(more({"number": SECRET, "x": "y"}).more), {"detail": in_any("Struct", {"number": MASKED, "x": "y"})}),
        ("$.detail.value", packed(more({"value": SECRET}).more), {"detail": in_any("Struct", MASKED)}),
        ("$.detail.*", packed(more({"value": SECRET}).more), {"detail": {"@type": MASKED, "value": MASKED}}),
        ("$.detail.number", packed(struct_pb2.ListValue(values=[{"string_value": SECRET}])), {"detail": in_any("ListValue", MASKED)}),
        ("$.detail.seconds", packed(timestamp_pb2.Timestamp(seconds=1)), {"detail": in_any("Timestamp", MASKED)}),
        ("$.more.number", more({"number": SECRET, "x": [1]}), {"more": {"number": MASKED, "x": [1.0]}}),
        ("$.more.list.number", more({"list": [SECRET]}), {"more": {"list": MASKED}}),
    ],
)  # fmt: skip
def test_protobuf(
    registry: SchemaRegistry, client: SchemaRegistryClient, part: str, path: str, message: Any, document: Any
) -> None:
    field = shown(registry, path, ProtobufSerializer(client, Payment).serialize("t", message), part)
    assert (field.kind, field.document) == ("protobuf", document)


def test_the_same_name_under_another_path_is_shown(registry: SchemaRegistry, client: SchemaRegistryClient) -> None:
    fields = [{"name": "number", "type": "string"}, {"name": "card", "type": CARD}]
    schema = {"type": "record", "name": "Both", "fields": fields}
    data = AvroSerializer(client, schema).serialize("both", {"number": SECRET, "card": {"number": "5", "holder": ""}})
    assert shown(registry, "$.number", data).document == {"number": MASKED, "card": {"number": "5", "holder": ""}}


@pytest.mark.parametrize("view", VIEWS)
def test_what_cannot_be_decoded_is_hidden_as_a_whole(
    registry: SchemaRegistry, client: SchemaRegistryClient, view: str
) -> None:
    of_avro = avro(client, "card", "string", SECRET)
    of_protobuf = ProtobufSerializer(client, Payment).serialize("t", Payment(card=Card(number=SECRET)))
    stranger = packed(Card())
    stranger.detail.type_url, stranger.detail.value = "type.googleapis.com/pay.Unknown", SECRET.encode()
    for data in (
        b"\0\0\0\x63\x63" + of_avro[5:],  # a schema that nobody has registered
        of_protobuf[:5] + of_avro[5:],  # of another format than its schema
        of_avro[:5] + of_protobuf[5:],
        of_avro[:-1],  # cut off
        of_protobuf[:-1],
        of_avro[5:],  # without the frame
        of_protobuf[5:],
        b"\1" + of_avro[1:],  # of a frame that there is not
        of_protobuf[:5] + b"\2\x10" + of_protobuf[6:],  # a message that the file has not
        ProtobufSerializer(client, Payment).serialize("t", stranger),  # holds a type that nobody knows
    ):
        for part in ("key", "value"):
            assert shown(registry, "$.card.number", data, part, view).kind == "masked", data
    for data in (of_avro, of_protobuf):
        assert shown("http://127.0.0.1:1", "$.card.number", data, view=view).kind == "masked"
        assert shown(registry, "$", data, view=view).kind == "masked"
    assert shown(registry, "$.card.number", None, view=view).kind == "null"


def test_a_part_without_masks_is_shown_as_it_is_asked_for(
    registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    data = avro(client, "card", "string", "x")

    def value(view: str, *mask: str) -> Field:
        record: Any = Record("t", 0, 0, key=b"k", value=data)
        decoder = Decoder("t", view, (Mask.of("t", *mask),), Registry(registry.url))
        found: Field = asyncio.run(decoder.row(record)).value
        return found

    for mask in (("key", "$.card"), ("header", "trace")):
        assert [value(view, *mask).kind for view in ("auto", "text", "hex")] == ["avro", "hex", "hex"]
    assert [value(view, "value", "$.card").kind for view in VIEWS] == ["avro"] * 3


@pytest.mark.parametrize("part", ["key", "value"])
def test_no_search_no_file_no_form_tells_what_is_masked(
    served: Callable[..., Served],
    shared_broker: Broker,
    make_topic: Callable[..., str],
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
    part: str,
) -> None:
    servers = shared_broker.bootstrap_servers
    topic, aside = make_topic(servers), make_topic(servers)
    frames = [
        avro(client, "card", "Card", CARDS),
        ProtobufSerializer(client, Payment).serialize(topic, Payment(card=Card(number=SECRET, card_code=7))),
        b"\0\0\0\x63\x63" + SECRET.encode(),
        None,
    ]
    with Producer(bootstrap_servers=servers) as producer:
        for frame in frames:
            producer.send(topic, **{"value": None, part: frame})
    masks = tuple(Mask.of(name, part, "$.card.number") for name in (topic, aside))
    cluster = ClusterConfig("test", {"bootstrap.servers": servers}, registry.url)
    page = f"/c/test/topics/{topic}"
    every = {"from": "earliest", "part": part}
    with Browser(served(clusters=(cluster,), masks=masks).url) as browser:

        def found(**asked: str) -> list[int]:
            rows, end = searched(browser, topic, **every, **asked)
            assert SECRET not in json.dumps(rows) and end["ended"] == "all was looked at"
            return [row["offset"] for row in rows]

        assert found() == [0, 1, 2, 3] and found(text="Ann") == [0] and found(text=MASKED) == [0, 1, 2]
        assert found(path="$.card.card_code", comparison="=", value="7") == [1]
        assert found(path="$.card.number", comparison="exists") == [0, 1]
        # What is masked is one text for all, so that no comparison tells one value from another.
        for cut in (SECRET, SECRET[:4], SECRET[-1:], SECRET.encode().hex(" ")):
            for view in VIEWS:
                assert found(text=cut, view=view) == []
            for comparison in ("=", "text =", "contains"):
                assert found(path="$.card.number", comparison=comparison, value=cut) == []
            assert found(path="$.card.number", comparison="!=", value=cut) == [0, 1]
        for bound in ("0", "3", "5", SECRET, str(int(SECRET) + 1), "~"):
            assert found(path="$.card.number", comparison=">", value=bound) == [0, 1]
            assert found(path="$.card.number", comparison="<", value=bound) == []
        for kind in ("jsonl", "csv"):
            text = browser.get(f"{page}/records/download", params={**every, "format": kind}).text
            assert SECRET not in text and text.count(MASKED) == 3 and "Ann" in text
            assert base64.b64encode(frames[2] or b"").decode() not in text
        plan = browser.submit(f"{page}/copy", f"{page}/copy/plan", target=aside, **every)
        assert plan.status_code == 200 and SECRET not in plan.text and MASKED in plan.text
        for offset in range(len(frames)):
            answer = browser.get(f"{page}/produce", params={"partition": 0, "offset": offset})
            assert answer.status_code == 403 and "masked" in answer.text and SECRET not in answer.text


def test_what_is_no_number_of_json_is_its_name(registry: SchemaRegistry, client: SchemaRegistryClient) -> None:
    """The lines of a download were no JSON to anybody but Python."""
    data = avro(client, "rates", {"type": "array", "items": "double"}, [1.5, float("nan"), float("-inf")])
    field = shown(registry, "$.nothing", data)
    assert field.document["rates"] == [1.5, "NaN", "-Infinity"]
