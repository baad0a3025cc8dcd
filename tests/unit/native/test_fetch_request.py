"""The hand-made Fetch request against the generated message, in every version."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fastq._native.fetch_request import encode_fetch_request
from fastq._native.wire import EncodeError
from fastq.protocol.messages import FetchRequest

VERSIONS = range(4, 19)
Key = tuple[str, int]


def message_of(version: int, fields: dict[str, Any], send: dict[Key, Any], forgotten: dict[Key, bytes]) -> FetchRequest:
    topics: dict[str, FetchRequest.FetchTopic] = {}
    for (name, index), (topic_id, offset, leader_epoch, bytes_max) in send.items():
        topic = topics.setdefault(name, FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=[]))
        part = FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=bytes_max)
        if version >= 9:
            part.current_leader_epoch = leader_epoch
        topic.partitions.append(part)
    gone: dict[tuple[str, bytes], FetchRequest.ForgottenTopic] = {}
    for (name, index), topic_id in forgotten.items():
        entry = FetchRequest.ForgottenTopic(topic=name, topic_id=topic_id, partitions=[])
        gone.setdefault((name, topic_id), entry).partitions.append(index)
    return FetchRequest(topics=list(topics.values()), forgotten_topics_data=list(gone.values()), **fields)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_equals_the_generated_message(version: int) -> None:
    rng = random.Random(version)
    ids = {f"t{i}" + "é" * (i * 30): rng.randbytes(16) for i in range(4)}
    for _ in range(80):
        keys = [(name, rng.randint(0, 2**31 - 1)) for name in rng.choices(list(ids), k=rng.randint(0, 150))]
        send = {
            key: (ids[key[0]], rng.randint(-1, 2**63 - 1), rng.randint(-1, 2**31 - 1), rng.randint(0, 2**31 - 1))
            for key in keys
        }
        forgotten = {}
        if version >= 7:
            names = rng.choices(list(ids), k=rng.randint(0, 20))
            forgotten = {(name, number): rng.choice([ids[name], b"o" * 16]) for number, name in enumerate(names)}
        fields: dict[str, Any] = {
            "max_wait_ms": rng.randint(0, 10**6),
            "min_bytes": rng.randint(0, 10**6),
            "max_bytes": rng.randint(0, 2**31 - 1),
            "isolation_level": rng.choice([0, 1]),
        }
        session = {"session_id": 0, "session_epoch": -1}
        if version >= 7:
            session = {"session_id": rng.randint(0, 2**31 - 1), "session_epoch": rng.randint(-1, 2**31 - 1)}
        rack_id = rng.choice(["", "near", "é" * 100]) if version >= 11 else ""
        body = encode_fetch_request(
            version, *fields.values(), *session.values(), send=send, forgotten=forgotten, rack_id=rack_id
        )
        assert body == message_of(version, {**fields, **session, "rack_id": rack_id}, send, forgotten).to_bytes(version)


@pytest.mark.parametrize(
    ("version", "send", "forgotten"),
    [
        (3, {}, {}),
        (19, {}, {}),
        (5, {}, {("t", 0): bytes(16)}),
        (12, {("t" * 40_000, 0): (bytes(16), 0, -1, 1)}, {}),
        (13, {("t", 0): (b"short", 0, -1, 1)}, {}),
        (13, {("t", 2**31): (bytes(16), 0, -1, 1)}, {}),
        (13, {("t", 0): (bytes(16), 2**63, -1, 1)}, {}),
        (13, {("t", 0): (bytes(16), 0, 2**31, 1)}, {}),
        (13, {("t", 0): (bytes(16), None, 0, 1)}, {}),
        (13, {}, {("t", 2**31): bytes(16)}),
    ],
)
def test_what_a_version_cannot_carry_is_refused(version: int, send: Any, forgotten: Any) -> None:
    with pytest.raises(EncodeError):
        encode_fetch_request(version, 0, 0, 0, 0, 0, 0, send, forgotten, "")
