"""Serializers against kafka's formats, and how configurations name them."""

import struct
import uuid

import pytest

from fastq.errors import SerializationError
from fastq.serializers import BY_NAME, find_serializer, serialize


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("bytes", bytearray(b"x"), bytearray(b"x")),
        ("str", "ü", b"\xc3\xbc"),
        ("json", {"a": [1, "ü"]}, '{"a":[1,"ü"]}'.encode()),
        ("int", -2, struct.pack(">q", -2)),
        ("float", 1.5, struct.pack(">d", 1.5)),
        ("uuid", uuid.UUID(int=5), b"00000000-0000-0000-0000-000000000005"),
        ("org.apache.kafka.common.serialization.LongSerializer", 7, struct.pack(">q", 7)),
        ("kafka.serializer.StringEncoder", "a", b"a"),
        (int, 7, struct.pack(">q", 7)),
        (str, "a", b"a"),
        ("json.dumps", [1], "[1]"),
    ],
)
def test_known_serializers(name, value, expected):
    assert serialize(find_serializer(name), "t", value, "value") == expected


def test_null_stays_null_and_none_is_no_serializer():
    assert all(serialize(found, "t", None, "value") is None for found in BY_NAME.values())
    assert find_serializer(None) is None
    assert serialize(None, "t", b"x", "key") == b"x"


def test_one_that_knows_the_topic():
    class ByTopic:
        def serialize(self, topic, value):
            return f"{topic}:{value}".encode()

    assert serialize(find_serializer(ByTopic()), "t", 1, "value") == b"t:1"
    assert serialize(find_serializer(ByTopic), "t", 1, "value") == b"t:1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("str", b"x"),
        ("int", "x"),
        ("int", 2**63),
        ("int", True),
        ("bytes", "x"),
        ("uuid", "zz"),
        ("json", {"rates": [1.5, float("nan")]}),
        ("json", float("-inf")),
    ],
)
def test_what_does_not_fit(name, value):
    with pytest.raises(SerializationError, match="the key serializer failed"):
        serialize(find_serializer(name), "t", value, "key")


@pytest.mark.parametrize("bad", ["no-such", "no.such.module", 5])
def test_what_is_no_serializer(bad):
    with pytest.raises(ValueError, match="bytes"):
        find_serializer(bad)
