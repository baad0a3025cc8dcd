"""The API table, version negotiation, ids, and that importing the protocol stays cheap."""

from __future__ import annotations

import base64
import random
import subprocess
import sys
import uuid as stdlib_uuid
from dataclasses import dataclass

import pytest
from kafka.protocol.api_key import ApiKey as TheirKey

from fastq.errors import UnsupportedVersion
from fastq.protocol import APIS, ApiKey, BrokerVersions
from fastq.protocol.api import api_name, group_record_classes, metadata_record_class
from fastq.protocol.uuid import METADATA_TOPIC_ID, ZERO_UUID, random_uuid, uuid_from_str, uuid_to_str


@dataclass
class Entry:
    api_key: int
    min_version: int
    max_version: int


def test_the_table_has_every_api_of_kafka_4_3() -> None:
    ours = [10000, 10001]
    assert sorted(APIS) == [*(key for key in range(93) if key not in (4, 5, 6, 7)), *ours]
    assert sorted(ApiKey) == [*range(93), *ours]
    assert (APIS[0].min_version, APIS[0].max_version, APIS[0].flexible_version) == (3, 13, 9)
    assert APIS[ApiKey.FETCH].listeners == ("broker", "controller")
    assert (APIS[22].latest_version_unstable, APIS[22].max_version, APIS[22].max_stable_version) == (True, 6, 5)
    assert sum(info.latest_version_unstable for info in APIS.values()) == 1
    assert (api_name(3), api_name(4), api_name(12345)) == ("Metadata", "api 4", "api 12345")


def test_key_names_agree_with_kafka_python() -> None:
    ours = {int(key): key.name.replace("_", "") for key in ApiKey}
    for key in TheirKey:
        if int(key) in ours:
            assert ours[int(key)] == key.name.upper().replace("_", ""), key


def test_classes_belong_to_their_keys() -> None:
    for key, info in APIS.items():
        for cls in (info.request_class(), info.response_class()):
            assert (key, info.min_version, info.max_version) == (cls.API_KEY, cls.MIN_VERSION, cls.MAX_VERSION)
            assert info.flexible_version == cls.FLEXIBLE_VERSION


def test_record_types() -> None:
    assert metadata_record_class(2).__name__ == "TopicRecord"
    assert metadata_record_class(3).__name__ == "PartitionRecord"
    with pytest.raises(KeyError):
        metadata_record_class(1000)
    key, value = group_record_classes(2)
    assert (key.__name__, value.__name__) == ("GroupMetadataKey", "GroupMetadataValue")


def test_the_highest_shared_version_is_picked() -> None:
    versions = BrokerVersions(
        [Entry(0, 0, 10), Entry(1, 4, 99), Entry(3, 20, 21), Entry(22, 0, 6), Entry(9, 0, 0)], "h:1"
    )
    assert versions.pick(0) == 10
    assert versions.pick(0) == 10
    assert versions.pick(0, max_version=8) == 8
    assert versions.pick(1) == APIS[1].max_version
    assert versions.pick(22) == 5, "the unstable version is left alone"
    assert versions.supports(0)
    assert versions.supports(0, 10)
    assert not versions.supports(0, 11)
    assert not versions.supports(3)
    assert not versions.supports(2)
    assert not versions.supports(4000)
    assert versions.ranges[0] == (0, 10)


@pytest.mark.parametrize(
    ("key", "bounds", "words"),
    [
        (3, {}, ["Metadata", "0 to 13", "20 to 21", "h:1", "client is too old"]),
        (9, {}, ["OffsetFetch", "1 to 10", "0 to 0", "broker is too old"]),
        (0, {"min_version": 11}, ["Produce", "11 to 13", "0 to 10", "broker is too old"]),
        (2, {}, ["ListOffsets", "does not offer"]),
    ],
)
def test_no_shared_version(key: int, bounds: dict[str, int], words: list[str]) -> None:
    versions = BrokerVersions([Entry(0, 0, 10), Entry(3, 20, 21), Entry(9, 0, 0)], "h:1")
    with pytest.raises(UnsupportedVersion) as caught:
        versions.pick(key, **bounds)
    for word in words:
        assert word in str(caught.value)


def test_ids() -> None:
    source = random.Random(5)
    for _ in range(300):
        value = random_uuid(source)
        text = uuid_to_str(value)
        assert len(text) == 22
        assert text[0] != "-"
        assert text == base64.urlsafe_b64encode(value).decode()[:22]
        assert uuid_from_str(text) == value == uuid_from_str(text + "==")
        assert stdlib_uuid.UUID(bytes=value).version == 4
    assert random_uuid(random.Random(1)) == random_uuid(random.Random(1))
    assert len({random_uuid() for _ in range(100)}) == 100
    assert uuid_to_str(ZERO_UUID) == "A" * 22
    assert uuid_to_str(METADATA_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAQ"
    for text in ("", "abc", "A" * 21, "A" * 23, "A" * 21 + "!", "A" * 21 + "+", "é" * 22):
        with pytest.raises(ValueError, match="no id"):
            uuid_from_str(text)
    with pytest.raises(ValueError, match="15 bytes"):
        uuid_to_str(bytes(15))


def test_importing_the_protocol_loads_no_messages() -> None:
    code = (
        "import sys, fastq.protocol, fastq.protocol.frames\n"
        "loaded = [name for name in sys.modules if name.startswith('fastq.protocol.messages.')]\n"
        "assert loaded == [], loaded\n"
        "from fastq.protocol.messages import ProduceRequest\n"
        "loaded = [name for name in sys.modules if name.startswith('fastq.protocol.messages.')]\n"
        "assert loaded == ['fastq.protocol.messages.produce'], loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_messages_are_listed_and_unknown_ones_refused() -> None:
    from fastq.protocol import messages

    assert "ProduceRequest" in dir(messages)
    with pytest.raises(AttributeError, match="NoSuchRequest"):
        _ = messages.NoSuchRequest  # type: ignore[attr-defined]
