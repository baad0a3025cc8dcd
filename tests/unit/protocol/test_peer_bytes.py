"""Our bytes read and written again by kafka-python's and aiokafka's own protocol code: three readings of one definition."""

from __future__ import annotations

import io
import random
import uuid
import warnings
from typing import Any

import protocol_oracle as oracle
import pytest
from protocol_oracle import BY_NAME

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer

from aiokafka.protocol import fetch as aiokafka_fetch
from aiokafka.protocol import metadata as aiokafka_metadata
from aiokafka.protocol import offset as aiokafka_offset
from aiokafka.protocol import produce as aiokafka_produce

PEERS = {
    name: cls
    for module in (
        kafka.protocol.producer,
        kafka.protocol.consumer,
        kafka.protocol.metadata,
        kafka.protocol.admin,
    )
    for name, cls in vars(module).items()
    if name in BY_NAME and BY_NAME[name].kind in ("request", "response")
}


def comparable(value: Any) -> Any:
    """A value of either side as plain data: ids as bytes, views as bytes, sets and tuples as lists."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, str) and len(value) == 36 and value.count("-") == 4:
        return uuid.UUID(value).bytes
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    return value


def same(message: Any, fields: Any, values: dict[str, Any], theirs: Any, version: int) -> None:
    for field in fields:
        if version not in field.versions or field.name.endswith("authorized_operations"):  # which they turn into a set
            continue
        ours, other = values[field.name], getattr(theirs, field.name)
        if other is None and version in field.tagged:  # how they show a field that is not there
            assert ours == oracle.default_value(message, field)
        elif not field.is_struct or ours is None:
            assert comparable(other) == comparable(ours), field.name
        else:
            inner = message.structs[field.type].fields
            for one, another in zip(ours if field.array else [ours], other if field.array else [other], strict=True):
                same(message, inner, one, another, version)


def test_the_peer_knows_the_messages_that_matter() -> None:
    for name in ("Produce", "Fetch", "ListOffsets", "Metadata", "ApiVersions", "InitProducerId", "CreateTopics"):
        assert {f"{name}Request", f"{name}Response"} <= PEERS.keys()
    assert len(PEERS) > 60


@pytest.mark.parametrize("name", sorted(PEERS))
def test_kafka_python_reads_and_writes_the_same_bytes(name: str) -> None:
    message, cls = BY_NAME[name], PEERS[name]
    for version in message.versions:
        if version > cls.max_version:
            continue
        source = random.Random(f"{name} {version} peer")
        for _ in range(2):
            values = oracle.random_values(message, version, source)
            if name == "ApiVersionsResponse":
                values["error_code"] = 0  # with any other they expect version 0
            data = oracle.build(message, values).to_bytes(version)
            theirs = cls.decode(data, version=version)
            same(message, message.fields, values, theirs, version)
            theirs._header = None  # which their decoder leaves unset and their encoder asks for
            assert bytes(theirs.encode(version=version)) == data


AIOKAFKA_MODULES = (aiokafka_produce, aiokafka_fetch, aiokafka_metadata, aiokafka_offset)


def plain(message: Any, fields: Any, values: dict[str, Any], version: int) -> Any:
    """Values as the nested tuples that aiokafka's schemas take."""
    result: list[Any] = []
    for field in fields:
        if version not in field.versions:
            continue
        value = values[field.name]
        if field.is_struct and value is not None:
            inner = message.structs[field.type].fields
            value = [plain(message, inner, item, version) for item in value]
        result.append(value)
    return tuple(result)


AIOKAFKA = [
    pytest.param(message, version, getattr(module, f"{name}_v{version}"), id=f"{name}-{version}")
    for name, message in BY_NAME.items()
    for version in message.versions
    for module in AIOKAFKA_MODULES
    if hasattr(module, f"{name}_v{version}") and not message.flexible(version)
    if name != "MetadataRequest"  # whose structs of one field they write as bare strings
]


@pytest.mark.parametrize(("message", "version", "cls"), AIOKAFKA)
def test_aiokafka_writes_and_reads_the_same_bytes(message: Any, version: int, cls: Any) -> None:
    source = random.Random(f"{message.name} {version} aiokafka")
    for _ in range(3):
        values = oracle.random_values(message, version, source)
        data = oracle.build(message, values).to_bytes(version)
        theirs = plain(message, message.fields, values, version)
        assert cls.SCHEMA.encode(theirs) == data
        assert cls.SCHEMA.decode(io.BytesIO(data)) == theirs


def test_aiokafka_knows_some_of_the_messages() -> None:
    assert len(AIOKAFKA) > 30
