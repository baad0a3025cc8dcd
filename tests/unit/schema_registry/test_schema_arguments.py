"""Arguments of the client of schema registries that cannot be meant are refused at once, without a word of a secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from fastq.errors import ConfigError
from fastq.schema_registry import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    Schema,
    SchemaRegistryClient,
)

NOWHERE = "http://127.0.0.1:1"
NAN = float("nan")
MADE: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"url": url}, TypeError, "url is a str") for url in (None, 5, True, b"http://h:1", [None], [b"http://h:1"])),
    *(
        ({"url": url}, ValueError, "url is http://host:port")
        for url in ("", [], "h:1", "ftp://h", "http://", "http://h:x")
    ),
    *(({"url": url}, ValueError, "url is http://host:port") for url in ("http://h:99999", "http://[::1", "http://:80")),
    ({"url": "me:hush@h:8081"}, ValueError, r"got '\*\*\*@h:8081'"),
    ({"url": ["http://a:1", "http://me:hush@h:x"]}, ValueError, r"got \['http://a:1', '\*\*\*@h:x'\]"),
    *(
        ({"basic_auth": pair}, TypeError, "basic_auth is a pair of str")
        for pair in ("me:hush", ("me",), ("me", b"hush"), 5)
    ),
    *(({"bearer_token": token}, TypeError, "bearer_token is a str") for token in (b"hush", 5, True)),
    ({"bearer_token": "hush\n"}, ValueError, "bearer_token is printable"),
    ({"headers": "X-Tenant: hush"}, TypeError, "headers is a mapping"),
    ({"headers": {"X-Tenant": b"hush"}}, TypeError, "the header X-Tenant is a str"),
    ({"headers": {"X-Tenant": "hush\r\nA: b"}}, ValueError, "the header X-Tenant is printable"),
    ({"headers": {5: "a"}}, TypeError, "the name of a header is a str"),
    *(({"timeout_s": given}, TypeError, "timeout_s is a number") for given in (None, True, "10", b"1")),
    *(({"timeout_s": given}, ValueError, "timeout_s is 0.001 to") for given in (0, -1, NAN, float("inf"), 2**70)),
    *(({"retries": given}, TypeError, "retries is an int") for given in (None, True, "2", 1.0, NAN)),
    *(({"retries": given}, ValueError, "retries is 0 to 100") for given in (-1, 2**70)),
    *(({"latest_ttl_s": given}, TypeError, "latest_ttl_s is a number") for given in (None, True, "10")),
    *(({"latest_ttl_s": given}, ValueError, "latest_ttl_s is 0 or more") for given in (-1, NAN)),
    *(({"ssl_context": given}, TypeError, "ssl_context is an ssl.SSLContext") for given in (True, "ca.pem")),
]


@pytest.mark.parametrize(("options", "kind", "words"), MADE)
def test_what_a_client_cannot_be_made_with(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        SchemaRegistryClient(**{"url": NOWHERE, **options})
    assert "hush" not in str(caught.value)


SCHEMA = Schema("{}")
ASKED: list[tuple[Callable[[SchemaRegistryClient, Any], Any], tuple[Any, ...], str]] = [
    (lambda client, given: client.register(given, SCHEMA), (None, 5, True, b"s", ""), "a subject is a str"),
    (lambda client, given: client.lookup(given, SCHEMA), (None, 5, True, b"s", ""), "a subject is a str"),
    (lambda client, given: client.latest(given), (None, 5, True, b"s", ""), "a subject is a str"),
    (lambda client, given: client.versions(given), (None, 5, True, b"s", ["s"], ""), "a subject is a str"),
    (lambda client, given: client.delete_subject(given), (None, 5, True, b"s", ["s"], ""), "a subject is a str"),
    (lambda client, given: client.compatibility(given), (5, True, b"s", ["s"], ""), "a subject is a str"),
    (lambda client, given: client.set_compatibility(given), (None, 5, True, b"NONE", ""), "a level is a str"),
    (lambda client, given: client.register("s", given), (None, "{}", b"{}"), "a Schema is needed"),
    (lambda client, given: client.lookup("s", given), (None, "{}", b"{}"), "a Schema is needed"),
    (lambda client, given: client.compatible("s", given), (None, "{}", {}), "a Schema is needed"),
    (lambda client, given: client.schema(given), (None, True, "1", 1.0, NAN, -1, 2**31), "the id of a schema is"),
    (
        lambda client, given: client.version("s", given),
        (None, True, "latest", 1.0, 0, -1, 2**31),
        "a version of a subject is",
    ),
    (
        lambda client, given: client.compatible("s", SCHEMA, given),
        (None, True, "1", 0, 2**31),
        "a version of a subject is",
    ),
]


@pytest.mark.parametrize(("call", "given", "words"), ASKED)
def test_what_a_client_cannot_ask(call: Callable[[SchemaRegistryClient, Any], Any], given: Any, words: str) -> None:
    client = SchemaRegistryClient(NOWHERE, retries=0)
    for one in given:
        with pytest.raises((TypeError, ValueError), match=words):
            call(client, one)


SERDES: list[Callable[[Any], Any]] = [
    lambda registry: AvroSerializer(registry, '"string"'),
    AvroDeserializer,
    lambda registry: JsonSchemaSerializer(registry, {}),
    JsonSchemaDeserializer,
    lambda registry: ProtobufSerializer(registry, StringValue),
    lambda registry: ProtobufDeserializer(registry, StringValue),
]


@pytest.mark.parametrize("make", SERDES)
@pytest.mark.parametrize("registry", [None, "http://me:hush@h:8081", b"", 5, {}])
def test_what_is_no_client_of_a_registry_makes_no_serializer(make: Callable[[Any], Any], registry: Any) -> None:
    with pytest.raises(TypeError, match="registry is a SchemaRegistryClient") as caught:
        make(registry)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "schema"),
    [(AvroSerializer, '"string"'), (JsonSchemaSerializer, "{}"), (ProtobufSerializer, StringValue)],
)
def test_a_schema_that_comes_before_its_registry_is_told_by_what_is_expected(kind: Any, schema: Any) -> None:
    """As confluent-kafka's serializers have them; what was told was what the registry is not."""
    with pytest.raises(TypeError, match="registry is a SchemaRegistryClient"):
        kind(schema, SchemaRegistryClient(NOWHERE))


@pytest.mark.parametrize("strategy", [None, "topic_name", 5])
def test_what_names_no_subject_is_refused(strategy: Any) -> None:
    with pytest.raises(ConfigError, match="subject_name_strategy is a function"):
        AvroSerializer(SchemaRegistryClient(NOWHERE), '"string"', subject_name_strategy=strategy)


def test_what_a_client_may_be_made_with() -> None:
    client = SchemaRegistryClient(
        ("http://me:hush@a", "HTTPS://b:8081/registry/"),
        headers={"X-Tenant": "\xe9"},
        latest_ttl_s=float("inf"),
        timeout_s=1,
    )
    assert client.urls == ["http://a", "HTTPS://b:8081/registry"]
