"""Serializers with a schema registry: Confluent's bytes, round trips, evolution, and everything that goes wrong."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from fastq.errors import DeserializationError, LoadingWouldBlock, SchemaRegistryError, SerializationError
from fastq.producer import AsyncProducer, Producer
from fastq.schema_registry import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    record_name,
    topic_record_name,
    wire,
)
from fastq.serializers import serialize
from fastq.testing import SchemaRegistry

AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"number": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["number"],
}
# What confluent-kafka 2.16's serializers wrote for these schemas and values, the Protobuf files being as below.
THEIRS = {
    "avro": "000000000154020a6772c3bc6e",
    "json": "00000000017b226e756d626572223a34322c226e6f7465223a226772c3bc6e227d",
    "order": "00000000020202080712070a0374656110021a080a0345555210cf0f22060880e2cfaa06",
    "line": "00000000020402000a017810ffffffffffffffffff01",
    "header": "0000000002000a0173",
}
VALUE = {"number": 42, "note": "grün"}


def proto_file(name, package, messages, imports=()):
    """A .proto file from {message: [(field, number, type, type name, repeated)]}; nested types by a dict among the fields."""

    def fill(message, fields):
        for entry in fields:
            if isinstance(entry, dict):
                for inner, its_fields in entry.items():
                    fill(message.nested_type.add(name=inner), its_fields)
                continue
            field, number, kind, type_name, repeated = entry
            message.field.add(name=field, number=number, type=kind, type_name=type_name, label=3 if repeated else 1)

    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
    for message, fields in messages.items():
        fill(file.message_type.add(name=message), fields)
    return file


INT64, INT32, STRING, MESSAGE = 3, 5, 9, 11
COMMON = proto_file(
    "common.proto", "shop", {"Money": [("currency", 1, STRING, None, False), ("cents", 2, INT64, None, False)]}
)
ORDER_FIELDS = [
    {"Line": [("article", 1, STRING, None, False), ("count", 2, INT32, None, False)]},
    ("number", 1, INT64, None, False),
    ("lines", 2, MESSAGE, ".shop.Order.Line", True),
    ("total", 3, MESSAGE, ".shop.Money", False),
    ("at", 4, MESSAGE, ".google.protobuf.Timestamp", False),
]


def protobuf_types(fields=tuple(ORDER_FIELDS)):
    """The message classes of orders.proto, in a pool of their own."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(COMMON)
    messages = {"Header": [("source", 1, STRING, None, False)], "Order": list(fields)}
    pool.Add(proto_file("orders.proto", "shop", messages, ["google/protobuf/timestamp.proto", "common.proto"]))
    names = ["shop.Order", "shop.Order.Line", "shop.Header", "shop.Money"]
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]


Order, Line, Header, Money = protobuf_types()


def an_order():
    order = Order(number=7, total=Money(currency="EUR", cents=1999))
    order.lines.add(article="tea", count=2)
    order.at.seconds = 1700000000
    return order


# -- bytes


def test_avro_bytes_are_those_of_confluent(client):
    assert AvroSerializer(client, AVRO).serialize("a", VALUE).hex() == THEIRS["avro"]
    assert AvroDeserializer(client).deserialize("a", (), bytes.fromhex(THEIRS["avro"])) == VALUE


def test_json_bytes_are_those_of_confluent(client):
    assert JsonSchemaSerializer(client, JSON).serialize("j", VALUE).hex() == THEIRS["json"]
    assert JsonSchemaDeserializer(client).deserialize("j", (), bytes.fromhex(THEIRS["json"])) == VALUE


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("validate", [True, False])
def test_numbers_that_json_does_not_have_are_refused(client, number, validate):
    """Python writes and reads them, other languages' readers end with an error."""
    serializer = JsonSchemaSerializer(client, {"type": "number"}, validate=validate)
    with pytest.raises(ValueError, match="JSON"):
        serializer.serialize("rates", number)


@pytest.mark.parametrize(
    ("name", "message"), [("order", an_order()), ("line", Line(article="x", count=-1)), ("header", Header(source="s"))]
)
def test_protobuf_bytes_are_those_of_confluent(client, name, message):
    data = ProtobufSerializer(client, type(message)).serialize("p", message)
    assert data.hex() == THEIRS[name]
    assert ProtobufDeserializer(client, type(message)).deserialize("p", (), data) == message
    made = ProtobufDeserializer(client).deserialize("p", (), data)
    assert (made.DESCRIPTOR.full_name, str(made)) == (message.DESCRIPTOR.full_name, str(message))


@pytest.mark.parametrize("indexes", [(0,), (1,), (0, 0), (3, 200, 0), (2**20, 1)])
def test_message_indexes_come_back(indexes):
    data = wire.encode_indexes(indexes)
    assert wire.decode_indexes(memoryview(data + b"rest")) == (indexes, b"rest")
    for end in range(len(data)):
        with pytest.raises(DeserializationError):
            wire.decode_indexes(memoryview(data[:end]))


@pytest.mark.parametrize("data", [b"\x01", b"\x03\x00", b"\xff\xff\xff\xff\xff\x01", b"\x80\x80\x01"])
def test_bad_message_indexes(data):
    with pytest.raises(DeserializationError):
        wire.decode_indexes(memoryview(data))


# -- registry calls


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [1000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_after_the_first_value_nothing_is_asked(server, client, count):
    writers = [
        (AvroSerializer(client, AVRO), VALUE),
        (JsonSchemaSerializer(client, JSON), VALUE),
        (ProtobufSerializer(client, Order), an_order()),
    ]
    readers = [AvroDeserializer(client), JsonSchemaDeserializer(client), ProtobufDeserializer(client, Order)]
    for (writer, value), reader in zip(writers, readers, strict=True):
        topic = type(reader).__name__
        assert reader.deserialize(topic, (), writer.serialize(topic, value)) == value
        asked = len(server.requests)
        for _ in range(count):
            assert reader.deserialize(topic, (), writer.serialize(topic, value)) == value
        assert len(server.requests) == asked


def test_another_serializer_of_the_same_client_asks_nothing(server, client):
    AvroSerializer(client, AVRO).serialize("a", VALUE)
    asked = len(server.requests)
    AvroSerializer(client, AVRO).serialize("a", VALUE)
    assert len(server.requests) == asked


def test_threads_that_start_together_ask_once(server, client):
    serializer = AvroSerializer(client, AVRO)
    threads = [threading.Thread(target=serializer.serialize, args=("a", VALUE)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.requests == ["POST /subjects/a-value/versions"]


def test_subjects_by_strategy(server, client):
    AvroSerializer(client, AVRO).warm_up("t")
    AvroSerializer(client, AVRO, is_key=True).warm_up("t")
    AvroSerializer(client, AVRO, subject_name_strategy=record_name).warm_up("t")
    AvroSerializer(client, AVRO, subject_name_strategy=topic_record_name).warm_up("t")
    JsonSchemaSerializer(client, JSON, subject_name_strategy=topic_record_name).warm_up("t")
    ProtobufSerializer(client, Line, subject_name_strategy=record_name).warm_up("t")
    AvroSerializer(client, AVRO, subject_name_strategy=lambda topic, name, key: f"{topic}/{name}/{key}").warm_up("t")
    assert set(client.subjects()) == {
        "t-value", "t-key", "shop.Order", "t-shop.Order", "t-Order", "shop.Order.Line", "t/shop.Order/False",
        "common.proto",
    }  # fmt: skip
    with pytest.raises(ValueError, match="no name"):
        AvroSerializer(client, '"long"', subject_name_strategy=record_name).warm_up("t")


def test_without_auto_register_the_schema_must_be_there(server, client):
    serializer = AvroSerializer(client, AVRO, auto_register=False)
    with pytest.raises(SchemaRegistryError, match=r"40401|not found") as caught:
        serializer.serialize("t", VALUE)
    assert (caught.value.status, caught.value.error_code, caught.value.subject) == (404, 40401, "t-value")
    client.register("t-value", Schema(json.dumps(AVRO)))
    assert serializer.serialize("t", VALUE).hex() == THEIRS["avro"]


def test_the_latest_version_is_written_with(client):
    wider = {**AVRO, "fields": [*AVRO["fields"], {"name": "rush", "type": "boolean", "default": False}]}
    client.register("t-value", Schema(json.dumps(AVRO)))
    client.register("t-value", Schema(json.dumps(wider)))
    data = AvroSerializer(client, use_latest_version=True).serialize("t", {"number": 1, "note": None, "rush": True})
    assert AvroDeserializer(client).deserialize("t", (), data) == {"number": 1, "note": None, "rush": True}
    with pytest.raises(ValueError, match="use_latest_version"):
        AvroSerializer(client)


# -- evolution


def test_avro_readers_resolve_older_and_newer_writers(client):
    wider = {**AVRO, "fields": [*AVRO["fields"], {"name": "rush", "type": "boolean", "default": False}]}
    old, new = AvroSerializer(client, AVRO), AvroSerializer(client, wider)
    first, second = old.serialize("t", {"number": 1}), new.serialize("t", {"number": 2, "rush": True})
    assert wire.split(first)[0] != wire.split(second)[0]
    assert AvroDeserializer(client, wider).deserialize("t", (), first) == {"number": 1, "note": None, "rush": False}
    assert AvroDeserializer(client, AVRO).deserialize("t", (), second) == {"number": 2, "note": None}
    assert AvroDeserializer(client).deserialize("t", (), second)["rush"] is True
    assert client.versions("t-value") == [1, 2]


def test_protobuf_readers_keep_what_they_know(client):
    wider = protobuf_types((*ORDER_FIELDS, ("rush", 9, INT32, None, False)))[0]
    data = ProtobufSerializer(client, wider).serialize("t", wider(number=3, rush=1))
    assert ProtobufDeserializer(client, Order).deserialize("t", (), data).number == 3
    older = ProtobufSerializer(client, Order).serialize("t", Order(number=4))
    assert ProtobufDeserializer(client, wider).deserialize("t", (), older) == wider(number=4)


def test_schemas_that_do_not_follow_are_refused(client):
    AvroSerializer(client, AVRO).warm_up("t")
    strict = {**AVRO, "fields": [*AVRO["fields"], {"name": "must", "type": "string"}]}
    assert not client.compatible("t-value", Schema(json.dumps(strict)))
    with pytest.raises(SchemaRegistryError, match=r"HTTP 409.*t-value") as caught:
        AvroSerializer(client, strict).warm_up("t")
    assert "compatib" in caught.value.hint
    client.set_compatibility("NONE", "t-value")
    assert client.compatibility("t-value") == "NONE"
    AvroSerializer(client, strict).warm_up("t")
    JsonSchemaSerializer(client, JSON).warm_up("j")
    assert not client.compatible("j-value", Schema(json.dumps({**JSON, "required": ["number", "note"]}), "JSON"))


def test_references(client):
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    client.register("money", Schema(json.dumps(money)))
    order = {**AVRO, "fields": [{"name": "total", "type": "shop.Money"}]}
    serializer = AvroSerializer(client, order, references=(SchemaReference("shop.Money", "money", 1),))
    data = serializer.serialize("t", {"total": {"cents": 5}})
    fresh = SchemaRegistryClient(client.urls[0])
    assert AvroDeserializer(fresh).deserialize("t", (), data) == {"total": {"cents": 5}}

    client.register("cents.json", Schema('{"type": "integer", "minimum": 0}', "JSON"))
    schema = {"type": "object", "properties": {"cents": {"$ref": "cents.json"}}}
    checked = JsonSchemaSerializer(client, schema, references=(SchemaReference("cents.json", "cents.json", 1),))
    data = checked.serialize("j", {"cents": 3})
    assert JsonSchemaDeserializer(fresh).deserialize("j", (), data) == {"cents": 3}
    with pytest.raises(ValueError, match=r"\$\.cents.*minimum"):
        checked.serialize("j", {"cents": -3})


def test_logical_types_and_objects_of_the_program(client):
    schema = {
        "type": "record",
        "name": "At",
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
    }
    when = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc)
    data = AvroSerializer(client, schema, to_dict=lambda at: {"at": at}).serialize("t", when)
    assert AvroDeserializer(client, from_dict=lambda found: found["at"]).deserialize("t", (), data) == when


# -- what goes wrong


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00\x00\x01", b'{"json": 1}', b"\x01\x00\x00\x00\x01x"])
def test_what_is_no_frame(client, data):
    for reader in (AvroDeserializer(client), JsonSchemaDeserializer(client), ProtobufDeserializer(client, Order)):
        with pytest.raises(DeserializationError, match="magic byte 0") as caught:
            reader.deserialize("t", (), data)
        assert caught.value.raw == data


@pytest.mark.parametrize("reader", [AvroDeserializer, JsonSchemaDeserializer, ProtobufDeserializer])
def test_an_unknown_id_names_id_and_url(client, reader):
    with pytest.raises(SchemaRegistryError, match=r"404.*Schema 777 not found") as caught:
        reader(client).deserialize("t", (), b"\x00\x00\x00\x03\x09\x00")
    assert (caught.value.schema_id, caught.value.error_code) == (777, 40403)
    assert "/schemas/ids/777" in caught.value.url
    assert caught.value.hint


def test_a_schema_of_another_format(client):
    data = AvroSerializer(client, AVRO).serialize("t", VALUE)
    with pytest.raises(DeserializationError, match="schema 1 is AVRO, expected JSON") as caught:
        JsonSchemaDeserializer(client).deserialize("t", (), data)
    assert caught.value.url == client.urls[0] and client.urls[0] in str(caught.value)


def test_a_message_of_another_type(client):
    data = ProtobufSerializer(client, Header).serialize("t", Header(source="s"))
    with pytest.raises(DeserializationError, match=r"expected a shop\.Order, got a shop\.Header"):
        ProtobufDeserializer(client, Order).deserialize("t", (), data)
    with pytest.raises(DeserializationError, match="has no message at 9"):
        ProtobufDeserializer(client).deserialize("t", (), data[:5] + wire.encode_indexes((9,)))
    with pytest.raises(DeserializationError, match=r"the bytes are no shop\.Header"):
        ProtobufDeserializer(client, Header).deserialize("t", (), data[:-1])
    with pytest.raises(TypeError, match=r"expected a shop\.Order, got Header"):
        ProtobufSerializer(client, Order).serialize("t", Header())


def test_values_that_do_not_fit(client):
    with pytest.raises(SerializationError, match=r"value serializer failed on dict.*topic t"):
        serialize(AvroSerializer(client, AVRO), "t", {"number": "many"}, "value")
    with pytest.raises(ValueError, match=r"at \$\.number: 'many' is not of type 'integer'"):
        JsonSchemaSerializer(client, JSON).serialize("j", {"number": "many"})
    loose = JsonSchemaSerializer(client, JSON, validate=False).serialize("j", {"number": "many"})
    with pytest.raises(ValueError, match="does not fit"):
        JsonSchemaDeserializer(client).deserialize("t", (), loose)
    assert JsonSchemaDeserializer(client, validate=False).deserialize("t", (), loose) == {"number": "many"}


def test_a_registry_that_is_down_says_where(server):
    url = server.url
    server.close()
    with pytest.raises(SchemaRegistryError, match=r"cannot be reached.*subject t-value.*refused") as caught:
        AvroSerializer(SchemaRegistryClient(url, retries=1), AVRO).serialize("t", VALUE)
    assert caught.value.url.startswith(url)
    assert caught.value.retriable


def test_a_registry_that_fails_is_asked_again_and_another_one_too(server):
    server.fail(503, times=2)
    assert SchemaRegistryClient(server.url, retries=2).register("s", Schema('"long"')) == 1
    server.fail(500, times=3)
    with pytest.raises(SchemaRegistryError, match="HTTP 500: told to fail"):
        SchemaRegistryClient(server.url, retries=2).subjects()
    with SchemaRegistry() as other:
        server.fail(500)
        assert SchemaRegistryClient([server.url, other.url], retries=0).subjects() == []


def test_passwords_are_sent_and_never_shown():
    with SchemaRegistry(auth=("me", "s3cret")) as server:
        good = SchemaRegistryClient(server.url.replace("//", "//me:s3cret@"))
        assert good.subjects() == []
        assert SchemaRegistryClient(server.url, basic_auth=("me", "s3cret")).subjects() == []
        with pytest.raises(SchemaRegistryError, match=r"HTTP 401.*basic_auth") as caught:
            SchemaRegistryClient(server.url, basic_auth=("me", "wr0ng")).subjects()
        for text in (str(caught.value), repr(good)):
            assert "s3cret" not in text and "wr0ng" not in text


def test_answers_that_are_no_json_and_bad_urls(server, client, monkeypatch):
    with pytest.raises(ValueError, match="http://host:port"):
        SchemaRegistryClient("localhost:8081")
    monkeypatch.setattr(json, "loads", lambda text: (_ for _ in ()).throw(ValueError("no JSON")))
    with pytest.raises(SchemaRegistryError, match="not JSON"):
        client._ask(0, "GET", "/subjects", None, list, {})


def test_what_is_registered_while_its_subject_is_deleted_is_registered_again(client, monkeypatch):
    """Its id was kept for good: values went out by a schema that nobody has in the subject."""
    deletes = client._request

    def request(method, *arguments, **more):
        if method == "DELETE":
            client.register("a", Schema('"long"'))  # another thread, before the registry has read it
        return deletes(method, *arguments, **more)

    monkeypatch.setattr(client, "_request", request)
    assert client.delete_subject("a") == [1]
    client.register("a", Schema('"long"'))
    assert client.subjects() == ["a"]


def test_the_registry_itself(server, client):
    assert client.register("a", Schema('"long"')) == client.register("b", Schema('"long"')) == 1
    assert client.lookup("b", Schema('"long"')).version == 1
    assert client.latest("a").schema.text == '"long"'
    assert client.delete_subject("a") == [1]
    assert client.subjects() == ["b"]
    with pytest.raises(SchemaRegistryError, match="Version 9 not found"):
        client.version("b", 9)
    with pytest.raises(SchemaRegistryError, match="Invalid compatibility level"):
        client.set_compatibility("MAYBE")
    with pytest.raises(SchemaRegistryError, match="Invalid schema"):
        client.register("c", Schema("{"))
    reference = SchemaReference("x", "nowhere", 1)
    with pytest.raises(SchemaRegistryError, match="no nowhere version 1"):
        client.register("c", Schema('"int"', references=(reference,)))


@pytest.mark.parametrize(
    ("level", "add", "remove"),
    [("BACKWARD", False, True), ("FORWARD", True, False), ("FULL", False, False), ("NONE", True, True)],
)
def test_compatibility_levels_of_the_registry(server, client, level, add, remove):
    def record(*names):
        fields = [{"name": name, "type": "long"} for name in names]
        return Schema(json.dumps({"type": "record", "name": "R", "fields": fields}))

    client.set_compatibility(level)
    client.register("s", record("a", "b"))
    assert client.compatible("s", record("a", "b", "c")) is add
    assert client.compatible("s", record("a")) is remove


# -- event loops and producers


def test_in_an_event_loop_nothing_blocks(client):
    serializer = AvroSerializer(client, AVRO)

    async def main():
        with pytest.raises(LoadingWouldBlock, match=r"warm_up") as caught:
            serializer.serialize("t", VALUE)
        await asyncio.to_thread(caught.value.load)
        first = serializer.serialize("t", VALUE)
        with pytest.raises(LoadingWouldBlock):
            AvroDeserializer(client).deserialize("t", (), first)
        reader = AvroDeserializer(client)
        await asyncio.to_thread(reader.warm_up, 1)
        assert reader.deserialize("t", (), first) == VALUE
        assert await AvroDeserializer(SchemaRegistryClient(client.urls[0])).deserialize_async("t", (), first) == VALUE
        assert await AvroSerializer(SchemaRegistryClient(client.urls[0]), AVRO).serialize_async("t", VALUE) == first

    asyncio.run(main())


def stored_values(broker, topic):
    from fastq._native.records import decode_records, iter_headers

    found = []
    for segment in sorted(broker.data_dir.glob(f"{topic}-*/*.log")):
        data = segment.read_bytes()
        for position, _header in iter_headers(data):
            found += [record.value for record in decode_records(data, position)]
    return found


def test_through_both_producers(server, client, shared_broker, new_topic_name):
    topic, expected = new_topic_name(), []
    with Producer(
        bootstrap_servers=shared_broker.bootstrap_servers, value_serializer=AvroSerializer(client, AVRO)
    ) as producer:
        producer.send(topic, VALUE).result(10)
        expected.append(VALUE)

    async def main():
        fresh = SchemaRegistryClient(server.url)
        async with AsyncProducer(
            bootstrap_servers=shared_broker.bootstrap_servers,
            value_serializer=ProtobufSerializer(fresh, Order, subject_name_strategy=record_name),
        ) as producer:
            await (await producer.send(topic, an_order()))
        writer = AvroSerializer(SchemaRegistryClient(server.url), AVRO)
        async with AsyncProducer(
            bootstrap_servers=shared_broker.bootstrap_servers, value_serializer=writer
        ) as producer:
            await (await producer.send_many(topic, [VALUE, VALUE]))
        broken = AvroSerializer(SchemaRegistryClient("http://127.0.0.1:1", retries=0), AVRO)
        async with AsyncProducer(
            bootstrap_servers=shared_broker.bootstrap_servers, value_serializer=broken
        ) as producer:
            with pytest.raises(SerializationError, match="cannot be reached"):
                await producer.send(topic, VALUE)
            with pytest.raises(SerializationError, match="cannot be reached"):
                await producer.send_many(topic, [VALUE])

    asyncio.run(main())
    first, second, *many = stored_values(shared_broker, topic)
    assert [AvroDeserializer(client).deserialize(topic, (), data) for data in (first, *many)] == [VALUE] * 3
    assert ProtobufDeserializer(client, Order).deserialize(topic, (), second) == an_order()


def test_descriptors_are_what_confluents_client_registers(server, client):
    ProtobufSerializer(client, Order).warm_up("t")
    registered = client.latest("t-value").schema
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(registered.text))
    assert (file.name, [message.name for message in file.message_type]) == ("orders.proto", ["Header", "Order"])
    assert registered.references == (SchemaReference("common.proto", "common.proto", 1),)


@pytest.mark.parametrize("schema", [{"type": "recrd"}, "{no json", {"type": "record", "fields": []}, "[" * 100_000])
def test_an_avro_schema_that_is_none_says_so(schema: object) -> None:
    client = SchemaRegistryClient("http://127.0.0.1:1")
    for use in (AvroSerializer, AvroDeserializer):
        with pytest.raises(ValueError, match=r"the Avro schema (cannot be used|is no JSON)"):
            use(client, schema)


@pytest.mark.parametrize(
    "schema", ["{no json", "[]", "5", '{"type": "recrd"}', "[" * 100_000, '{"$schema": 5}', '{"$schema": []}']
)
def test_a_json_schema_that_is_none_says_so(schema: str) -> None:
    client = SchemaRegistryClient("http://127.0.0.1:1")
    for use in (JsonSchemaSerializer, JsonSchemaDeserializer):
        with pytest.raises(ValueError, match=r"JSON schema (cannot be used|is no JSON|is an object)"):
            use(client, schema)
    assert JsonSchemaSerializer(client, "true").serialize is not None, "true is a schema that all values fit"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\n{", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "not JSON"),
        (b"HTTP/1.1 200 OK\r\n\r\nnull", "not what a schema registry says"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"id": "x", "schema": 5, "subject": "s", "version": 1}', "not what a schema registry says"),
    ],
)  # fmt: skip
def test_an_answer_of_something_else_is_told_as_that(answer: bytes, told: str) -> None:
    """Another port than the registry's, or a proxy before it."""

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        client = SchemaRegistryClient(f"http://127.0.0.1:{server.server_address[1]}", retries=0)
        asks = (
            lambda: client.register("s", Schema('"int"')),
            lambda: client.latest("s"),
            lambda: client.schema(1),
            client.subjects,
            client.compatibility,
        )
        for ask in asks:
            with pytest.raises(SchemaRegistryError, match=told) as raised:
                ask()
            assert not raised.value.retriable
        server.shutdown()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_leads_nowhere(status: int) -> None:
    """Else a registry could have whoever asks it, the console among them, ask other servers, and be followed with its login."""

    class Moved(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", elsewhere.url + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with SchemaRegistry() as elsewhere, ThreadingHTTPServer(("127.0.0.1", 0), Moved) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        client = SchemaRegistryClient(f"http://127.0.0.1:{server.server_address[1]}", basic_auth=("me", "secret"))
        with pytest.raises(SchemaRegistryError, match="not followed") as raised:
            client.subjects()
        server.shutdown()
        assert raised.value.status == status and elsewhere.requests == []
