"""Every generated message in every version against the oracle: bytes out, values in, and what must be refused."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import protocol_oracle as oracle
import pytest
from protocol_oracle import DEFINITIONS

from fastq.protocol import DecodeError, EncodeError

every_message = pytest.mark.parametrize("message", DEFINITIONS, ids=lambda message: message.name)


def samples(message: Any, count: int, salt: str) -> Any:
    """(version, values) for each version, `count` times, the same in every run."""
    for version in message.versions:
        source = random.Random(f"{message.name} {version} {salt}")
        for _ in range(count):
            yield version, oracle.random_values(message, version, source)


@every_message
def test_bytes_and_values_are_those_of_the_oracle(message: Any) -> None:
    cls = oracle.class_of(message)
    for version, values in samples(message, 4, "round trip"):
        expected = oracle.encode(message, values, version)
        built = oracle.build(message, values)
        assert built.to_bytes(version) == expected
        decoded = cls.from_bytes(expected, version)
        assert oracle.as_values(message, decoded) == values
        assert decoded == built


@every_message
def test_an_empty_instance_has_the_defaults_of_the_definition(message: Any) -> None:
    cls = oracle.class_of(message)
    assert oracle.as_values(message, cls()) == oracle.default_values(message, message.fields)
    assert (
        message.key,
        message.versions.first,
        message.versions.last,
        message.flexible_version,
    ) == (cls.API_KEY, cls.MIN_VERSION, cls.MAX_VERSION, cls.FLEXIBLE_VERSION)


@every_message
def test_every_truncation_is_a_decode_error(message: Any) -> None:
    cls = oracle.class_of(message)
    for version, values in samples(message, 1, "truncated"):
        data = oracle.encode(message, values, version)
        step = max(1, len(data) // 400)
        for size in {*range(min(len(data), 64)), *range(0, len(data), step)}:
            try:  # pytest.raises would take longer than what it looks at
                cls.from_bytes(data[:size], version)
            except DecodeError:
                continue
            raise AssertionError((version, size))


@every_message
def test_mutated_bytes_decode_or_are_a_decode_error(message: Any, soak: bool) -> None:
    """About 22,000 mutated messages in all, ten times as many in a soak run."""
    cls = oracle.class_of(message)
    for version, values in samples(message, 1, "mutated"):
        data = oracle.encode(message, values, version)
        source = random.Random(f"{message.name} {version} bytes")
        for _ in range(300 if soak else 30):
            mutated = bytearray(data)
            for _ in range(source.randint(1, 4)):
                if mutated:
                    mutated[source.randrange(len(mutated))] = source.choice(
                        (0, 1, 0x7F, 0x80, 0xFF, source.randrange(256))
                    )
            if source.random() < 0.2:
                mutated += source.randbytes(source.randint(1, 9))
            try:
                decoded = cls.from_bytes(bytes(mutated), version)
            except DecodeError as error:
                assert 0 <= error.position <= len(mutated)
                assert str(error.position) in str(error)
            else:
                decoded.to_bytes(version)


@every_message
def test_unknown_tagged_fields_are_skipped(message: Any) -> None:
    cls = oracle.class_of(message)
    for version, values in samples(message, 1, "tags"):
        if not message.flexible(version):
            continue
        for size in (0, 1, 300):
            data = oracle.encode(message, values, version, extra_tag=(9000, bytes(size)))
            assert oracle.as_values(message, cls.from_bytes(data, version)) == values


@every_message
def test_versions_outside_of_the_range_are_refused(message: Any) -> None:
    cls = oracle.class_of(message)
    for version in (message.versions.first - 1, message.versions.last + 1):
        with pytest.raises(EncodeError, match=f"{message.name} has no version {version}"):
            cls().to_bytes(version)
        with pytest.raises(DecodeError, match=message.name):
            cls.from_bytes(bytes(100), version)


@every_message
def test_bytes_left_over_are_refused(message: Any) -> None:
    cls = oracle.class_of(message)
    for version, values in samples(message, 1, "left over"):
        with pytest.raises(DecodeError, match="end of the message"):
            cls.from_bytes(oracle.encode(message, values, version) + b"\0", version)


def top_level(choose: Any) -> Any:
    """(message, field) of the fields of messages (not of their structs) that `choose` likes."""
    chosen = [(message, field) for message in DEFINITIONS for field in message.fields if choose(message, field)]
    return pytest.mark.parametrize(("message", "field"), chosen, ids=lambda item: item.name)


def another_value(message: Any, field: Any) -> Any:
    source = random.Random(field.name)
    version = field.versions.last
    while True:
        value = oracle.random_value(message, field, version, source)
        if value != oracle.default_value(message, field):
            return value


def absent_versions(message: Any, field: Any) -> list[int]:
    return [version for version in message.versions if version not in field.versions]


@top_level(lambda message, field: absent_versions(message, field) and field.versions)
def test_a_value_for_a_version_without_its_field(message: Any, field: Any) -> None:
    for version in absent_versions(message, field):
        values = oracle.random_values(message, version, random.Random(version))
        plain = oracle.build(message, values).to_bytes(version)
        values[field.name] = another_value(message, field)
        built = oracle.build(message, values)
        if field.ignorable:
            assert built.to_bytes(version) == plain
        else:
            with pytest.raises(EncodeError, match=rf"{message.name}\.{field.name} is set, but version {version} "):
                built.to_bytes(version)


@top_level(lambda message, field: field.nullable and field.nullable != field.versions)
def test_a_null_in_a_version_that_does_not_allow_it(message: Any, field: Any) -> None:
    for version in field.versions:
        values = oracle.random_values(message, version, random.Random(version))
        values[field.name] = None
        built = oracle.build(message, values)
        if version in field.nullable:
            assert getattr(oracle.class_of(message).from_bytes(built.to_bytes(version), version), field.name) is None
        else:
            with pytest.raises(EncodeError, match=rf"{message.name}\.{field.name} is None"):
                built.to_bytes(version)


@every_message
def test_messages_copy_pickle_and_compare(message: Any) -> None:
    version = message.versions.last
    values = oracle.random_values(message, version, random.Random(message.name))
    built = oracle.build(message, values)
    assert pickle.loads(pickle.dumps(built)) == built
    other = copy.deepcopy(built)
    assert other == built
    assert repr(other) == repr(built)
    assert repr(built).startswith(f"{message.name}(")
    assert built != object()
    for field in message.fields:
        setattr(other, field.name, object())
        assert other != built
        break


def test_a_huge_count_is_refused_before_anything_is_made() -> None:
    cls = oracle.class_of(oracle.BY_NAME["MetadataRequest"])
    for version, count in ((1, b"\x7f\xff\xff\xf0"), (12, b"\xf0\xff\xff\xff\x07")):
        with pytest.raises(DecodeError, match="do not fit"):
            cls.from_bytes(count + bytes(50), version)


def test_the_oracle_knows_a_frame_written_by_hand() -> None:
    """Guards against the oracle and the generator being wrong in the same way: bytes counted off from the KIPs."""
    message = oracle.BY_NAME["ApiVersionsRequest"]
    values = {"client_software_name": "ab", "client_software_version": "1"}
    assert oracle.encode(message, values, 3) == b"\x03ab\x021\x00"
    message = oracle.BY_NAME["FetchRequest"]
    values = oracle.default_values(message, message.fields) | {"replica_id": 5, "max_bytes": 6}
    assert oracle.encode(message, values, 4) == bytes.fromhex("00000005 00000000 00000000 00000006 00 00000000")
    values["replica_id"] = -1
    values["cluster_id"] = "c"
    values["replica_state"] = {"replica_id": 5, "replica_epoch": 6}
    assert oracle.encode(message, values, 15) == bytes.fromhex(
        "00000000 00000000 00000006 00 00000000 ffffffff 01 01 0102 00 02 0263 01 0d 00000005 0000000000000006 00"
    )
