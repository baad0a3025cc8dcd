"""The hand-made codec of committed offsets against the generated messages, in every version."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fastq._native.commit_path import (
    decode_commit_request,
    decode_commit_response,
    decode_offset_key,
    decode_offset_value,
    encode_commit_request,
    encode_commit_response,
    encode_offset_key,
    encode_offset_value,
)
from fastq._native.wire import DecodeError, EncodeError, Reader, Writer
from fastq.protocol.frames import decode_response
from fastq.protocol.messages import OffsetCommitKey, OffsetCommitRequest, OffsetCommitResponse, OffsetCommitValue

REQUEST_VERSIONS = range(2, 11)
STRING_BYTES_MAX = 32767
Entry = tuple[Any, int, int, int, str | None]


def some_text(rng: random.Random) -> str:
    return "é" * rng.choice([0, 1, 63, 64, 130]) + str(rng.randint(0, 10**6))


def some_entries(rng: random.Random, version: int) -> list[Entry]:
    entries: list[Entry] = []
    for _ in range(rng.randint(0, 3)):
        topic: Any = rng.randbytes(16) if version >= 10 else some_text(rng)
        for index in rng.sample(range(2**31), rng.randint(1, 140)):
            leader_epoch = rng.randint(-1, 2**31 - 1) if version >= 6 else -1
            metadata = rng.choice([None, "", some_text(rng)])
            entries.append((topic, index, rng.randint(-(2**63), 2**63 - 1), leader_epoch, metadata))
    return entries


def message_of(
    version: int, group_id: str, generation: int, member_id: str, instance_id: str | None, entries: list[Entry]
) -> OffsetCommitRequest:
    topics: list[Any] = []
    for topic, index, offset, leader_epoch, metadata in entries:
        named = {"topic_id": topic} if version >= 10 else {"name": topic}
        made = OffsetCommitRequest.OffsetCommitRequestTopic(**named)
        if not topics or (topics[-1].name, topics[-1].topic_id) != (made.name, made.topic_id):
            topics.append(made)
        topics[-1].partitions.append(
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=topics,
    )


def encoded(message: Any, version: int) -> bytes:
    writer = Writer()
    message.encode(writer, version)
    return bytes(writer.getvalue())


@pytest.mark.parametrize("version", REQUEST_VERSIONS)
def test_a_request_equals_the_generated_message(version: int) -> None:
    rng = random.Random(version)
    for _ in range(60):
        instance_id = rng.choice([None, "", some_text(rng)]) if version >= 7 else None
        fields = some_text(rng), rng.randint(-1, 2**31 - 1), some_text(rng), instance_id
        entries = some_entries(rng, version)
        body = encode_commit_request(version, *fields, entries)
        assert body == encoded(message_of(version, *fields, entries), version)
        assert decode_commit_request(b"??" + body + b"more", 2, 2 + len(body), version) == (*fields, -1, entries)
        # Bytes behind the body, as librdkafka has sent some, are let pass.
        assert decode_commit_request(body + b"\0\0", 0, len(body) + 2, version)[5] == entries


@pytest.mark.parametrize("version", range(2, 5))
def test_a_retention_of_the_clients_own_is_read(version: int) -> None:
    request = OffsetCommitRequest(group_id="g", member_id="m", retention_time_ms=86_400_000)
    body = encoded(request, version)
    assert decode_commit_request(body, 0, len(body), version) == ("g", -1, "m", None, 86_400_000, [])


@pytest.mark.parametrize("version", REQUEST_VERSIONS)
def test_a_request_that_is_cut_short_is_refused(version: int) -> None:
    entries: list[Entry] = [(b"i" * 16 if version >= 10 else "topic", 1, 5, -1, "note")]
    body = encode_commit_request(version, "group", 3, "member", None, entries)
    for end in range(len(body)):
        with pytest.raises(DecodeError):
            decode_commit_request(body, 0, end, version)


@pytest.mark.parametrize("version", REQUEST_VERSIONS)
def test_a_request_of_noise_is_refused_or_read_never_more_than_it_holds(version: int) -> None:
    rng = random.Random(version)
    for _ in range(3000):
        noise = rng.randbytes(rng.randint(0, 60))
        try:
            offsets = decode_commit_request(noise, 0, len(noise), version)[5]
        except DecodeError:
            continue
        assert len(offsets) * 13 <= len(noise)


def test_a_name_that_is_no_text_is_refused() -> None:
    body = bytearray(encode_commit_request(9, "group", 3, "member", None, [("topic", 1, 5, -1, "note")]))
    body[body.index(b"topic")] = 0xFF
    with pytest.raises(DecodeError):
        decode_commit_request(body, 0, len(body), 9)


@pytest.mark.parametrize(
    ("version", "entry"),
    [
        (7, ("t", 0, 0, -1, "m" * 32768)),
        (7, ("t" * 32768, 0, 0, -1, "")),
        (9, ("t", 2**31, 0, -1, "")),
        (9, ("t", 0, 2**63, -1, "")),
        (9, ("t", 0, 0, 2**31, "")),
        (9, (5, 0, 0, -1, "")),
        (10, ("t", 0, 0, -1, "")),
        (10, (b"short", 0, 0, -1, "")),
        (1, ("t", 0, 0, -1, "")),
        (11, ("t", 0, 0, -1, "")),
    ],
)
def test_what_a_version_cannot_carry_is_refused(version: int, entry: Any) -> None:
    with pytest.raises(EncodeError):
        encode_commit_request(version, "g", -1, "", None, [entry])


def string_fields(version: int, size: int) -> list[tuple[str, list[Any]]]:
    """Requests with one string of `size` bytes (two to a character, all but one) each: what it is, and all arguments of the encoder."""
    text = "é" * (size // 2) + "x" * (size % 2)
    topic: Any = b"i" * 16 if version >= 10 else "t"
    entry = (topic, 0, 0, -1, "")
    found: list[tuple[str, list[Any]]] = [
        ("group", [text, -1, "m", None, [entry]]),
        ("member", ["g", -1, text, None, [entry]]),
        ("metadata", ["g", -1, "m", None, [(topic, 0, 0, -1, text)]]),
    ]
    if version >= 7:
        found.append(("instance", ["g", -1, "m", text, [entry]]))
    if version < 10:
        found.append(("topic", ["g", -1, "m", None, [(text, 0, 0, -1, "")]]))
    return found


@pytest.mark.parametrize("version", REQUEST_VERSIONS)
def test_strings_of_a_request_have_at_most_32767_bytes(version: int) -> None:
    for name, fields in string_fields(version, STRING_BYTES_MAX):
        body = encode_commit_request(version, *fields)
        assert body == encoded(message_of(version, *fields), version), name
        assert decode_commit_request(body, 0, len(body), version) == (*fields[:4], -1, fields[4]), name
    for _, fields in string_fields(version, STRING_BYTES_MAX + 1):
        with pytest.raises(EncodeError, match="32768 bytes, where 32767 are the most"):
            encode_commit_request(version, *fields)
        with pytest.raises(EncodeError, match="32767"):  # and so says the oracle
            encoded(message_of(version, *fields), version)


def with_longer_string(data: bytes) -> bytes:
    """The same bytes with the compact string of 32,767 bytes in them made one byte longer: the encoders write none such."""
    length, longer = Writer(), Writer()
    length.write_uvarint(STRING_BYTES_MAX + 1)
    longer.write_uvarint(STRING_BYTES_MAX + 2)
    assert data.count(length.getvalue()) == 1
    return data.replace(length.getvalue(), longer.getvalue() + b"x")


@pytest.mark.parametrize("version", [8, 9, 10])
def test_a_compact_string_of_a_request_that_is_longer_is_refused(version: int) -> None:
    for _, fields in string_fields(version, STRING_BYTES_MAX):
        body = with_longer_string(encode_commit_request(version, *fields))
        with pytest.raises(DecodeError):  # the oracle
            OffsetCommitRequest.from_bytes(body, version)
        with pytest.raises(DecodeError, match="a whole body"):
            decode_commit_request(body, 0, len(body), version)


@pytest.mark.parametrize("version", [8, 9])
def test_a_topic_of_a_response_that_is_longer_is_refused(version: int) -> None:
    topic = "t" * STRING_BYTES_MAX
    body = encode_commit_response(version, 77, [(topic, 3, 0)])[9:]
    assert decode_commit_response(body, version) == {(topic, 3): 0}
    with pytest.raises(DecodeError):
        decode_commit_response(with_longer_string(body), version)
    with pytest.raises(EncodeError):
        encode_commit_response(version, 77, [(topic + "t", 3, 0)])


def test_metadata_of_a_value_that_is_longer_is_refused() -> None:
    message = OffsetCommitValue(metadata="m" * STRING_BYTES_MAX, topic_id=bytes(16))
    value = (4).to_bytes(2, "big") + encoded(message, 4)
    assert decode_offset_value(value)[2] == message.metadata
    with pytest.raises(DecodeError):
        decode_offset_value(with_longer_string(value))


@pytest.mark.parametrize("version", REQUEST_VERSIONS)
def test_a_response_equals_the_generated_message(version: int) -> None:
    rng = random.Random(version)
    part = OffsetCommitResponse.OffsetCommitResponsePartition
    for _ in range(60):
        codes: list[Any] = [(topic, index, rng.choice([0, 3, 27])) for topic, index, *_ in some_entries(rng, version)]
        topics: list[Any] = []
        for topic, index, code in codes:
            named = {"topic_id": topic} if version >= 10 else {"name": topic}
            made = OffsetCommitResponse.OffsetCommitResponseTopic(**named)
            if not topics or (topics[-1].name, topics[-1].topic_id) != (made.name, made.topic_id):
                topics.append(made)
            topics[-1].partitions.append(part(partition_index=index, error_code=code))
        frame = encode_commit_response(version, 77, codes)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert decode_response(frame[4:], 8, version) == (77, OffsetCommitResponse(topics=topics))
        body = frame[9 if version >= 8 else 8 :]
        assert decode_commit_response(memoryview(body), version) == {(topic, i): code for topic, i, code in codes}
        for bad in (body + b"\0", body[:-1]):
            with pytest.raises(DecodeError):
                decode_commit_response(bad, version)


def test_keys_and_values_equal_the_generated_messages() -> None:
    rng = random.Random(1)
    for _ in range(300):
        group_id, topic, partition = some_text(rng), some_text(rng), rng.randint(0, 2**31 - 1)
        key = encode_offset_key(group_id, topic, partition)
        assert key == b"\0\1" + encoded(OffsetCommitKey(group=group_id, topic=topic, partition=partition), 0)
        assert decode_offset_key(key) == (group_id, (topic, partition))
        offset, leader_epoch, metadata = rng.randint(0, 2**63 - 1), rng.randint(-1, 9), some_text(rng)
        committed_ms, expires_ms = rng.randint(0, 2**40), rng.choice([-1, rng.randint(0, 2**40)])
        topic_id = rng.choice([bytes(16), rng.randbytes(16)])
        value = encode_offset_value(offset, leader_epoch, metadata, committed_ms, expires_ms, topic_id)
        version = 4 if expires_ms < 0 else 1
        message = OffsetCommitValue(
            offset=offset,
            leader_epoch=leader_epoch if version == 4 else -1,
            metadata=metadata,
            commit_timestamp=committed_ms,
            expire_timestamp=expires_ms,
            topic_id=topic_id if version == 4 else bytes(16),
        )
        assert value == version.to_bytes(2, "big") + encoded(message, version)


@pytest.mark.parametrize("version", range(5))
def test_values_of_every_version_are_read(version: int) -> None:
    topic_id = b"i" * 16 if version == 4 else bytes(16)
    leader_epoch, expires_ms = 7 if version >= 3 else -1, 99 if version == 1 else -1
    message = OffsetCommitValue(
        offset=5,
        leader_epoch=leader_epoch,
        metadata="m",
        commit_timestamp=42,
        expire_timestamp=expires_ms,
        topic_id=topic_id,
    )
    value = version.to_bytes(2, "big") + encoded(message, version)
    assert decode_offset_value(value) == (5, leader_epoch, "m", 42, expires_ms, topic_id)
    assert decode_offset_value(value)[:1] == (OffsetCommitValue.decode(Reader(value, 2), version).offset,)
    for end in range(len(value)):
        with pytest.raises(DecodeError):
            decode_offset_value(value[:end])


def test_tags_of_a_value_that_are_not_known_are_passed_over_and_a_topic_id_has_sixteen_bytes() -> None:
    head = encode_offset_value(5, 7, "m", 42, -1)[:-1]
    topic_id = bytes(range(16))
    assert decode_offset_value(head + b"\x03\x05\x02ab\x00\x10" + topic_id + b"\x07\x00")[5] == topic_id
    with pytest.raises(DecodeError):
        decode_offset_value(head + b"\x01\x00\x0f" + topic_id[:15])
    with pytest.raises(EncodeError):
        encode_offset_value(5, 7, "m", 42, -1, topic_id[:15])


def test_a_key_that_is_cut_short_is_refused() -> None:
    key = encode_offset_key("g", "t", 1)
    for end in range(len(key)):
        with pytest.raises(DecodeError):
            decode_offset_key(key[:end])


def test_group_and_topic_of_a_key_are_bounded() -> None:
    with pytest.raises(EncodeError):
        encode_offset_key("g" * 32768, "t", 0)
    with pytest.raises(EncodeError):
        encode_offset_value(0, -1, "m" * 32768, 0, -1)
