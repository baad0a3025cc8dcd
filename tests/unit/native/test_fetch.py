"""The hand-made fetch response decoder against the generated one, and against damage."""

import random

import pytest

from fastq._native.fetch import decode_fetch_response
from fastq._native.records import build_batch
from fastq._native.wire import DecodeError
from fastq.protocol.messages import FetchResponse

VERSIONS = range(FetchResponse.MIN_VERSION, FetchResponse.MAX_VERSION + 1)


def random_response(rng: random.Random, version: int) -> FetchResponse:
    """A response with something in every field of its version."""
    names = [rng.choice(["a", "logs", "é" * 9]) + str(n) for n in range(rng.randrange(4))]
    topics = []
    for name in names:
        topic = FetchResponse.FetchableTopicResponse(
            partitions=[partition(rng, version) for _ in range(rng.randrange(4))]
        )
        if version < 13:
            topic.topic = name
        else:
            topic.topic_id = rng.randbytes(16)
        topics.append(topic)
    response = FetchResponse(throttle_time_ms=rng.randrange(1000), responses=topics)
    if version >= 7:
        response.error_code, response.session_id = rng.choice([0, 70]), rng.randrange(2**31)
    if version >= 16 and rng.random() < 0.5:
        response.node_endpoints = [
            FetchResponse.NodeEndpoint(node_id=n, host=f"h{n}", port=9000 + n, rack=rng.choice([None, "r"]))
            for n in range(3)
        ]
    return response


def partition(rng: random.Random, version: int) -> FetchResponse.PartitionData:
    part = FetchResponse.PartitionData(
        partition_index=rng.randrange(100),
        error_code=rng.choice([0, 0, 1, 6]),
        high_watermark=rng.randrange(2**40),
        last_stable_offset=rng.randrange(-1, 2**40),
        aborted_transactions=rng.choice([None, [], [(1, 2), (3, 2**40)]]),
        records=rng.choice([None, b"", rng.randbytes(40), batches(rng)]),
    )
    if part.aborted_transactions:
        part.aborted_transactions = [
            FetchResponse.AbortedTransaction(producer_id=pid, first_offset=first)
            for pid, first in part.aborted_transactions
        ]
    if version >= 5:
        part.log_start_offset = rng.randrange(100)
    if version >= 11:
        part.preferred_read_replica = rng.randrange(-1, 3)
    if version >= 12 and rng.random() < 0.5:
        part.diverging_epoch = FetchResponse.EpochEndOffset(epoch=3, end_offset=77)
        part.current_leader = FetchResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
        part.snapshot_id = FetchResponse.SnapshotId(end_offset=5, epoch=1)
    return part


def batches(rng: random.Random) -> bytes:
    out, offset = b"", rng.randrange(1000)
    for _ in range(rng.randrange(1, 4)):
        count = rng.randrange(1, 4)
        out += build_batch([(1, None, b"v")] * count, base_offset=offset, leader_epoch=7)
        offset += count
    return out + rng.choice([b"", b"\0" * 30])


@pytest.mark.parametrize("version", VERSIONS)
def test_equals_the_generated_decoder(version: int) -> None:
    rng = random.Random(version)
    for _ in range(50):
        response = random_response(rng, version)
        body = response.to_bytes(version)
        oracle = FetchResponse.from_bytes(body, version)
        got = decode_fetch_response(b"\xff" * 5 + body, version, 5)
        assert got.throttle_time_ms == oracle.throttle_time_ms
        assert (got.error_code, got.session_id) == (oracle.error_code, oracle.session_id)
        assert got.nodes == [(n.node_id, n.host, n.port, n.rack) for n in oracle.node_endpoints]
        flat = [(topic, part) for topic in oracle.responses for part in topic.partitions]
        assert len(flat) == len(got.partitions)
        for mine, (topic, part) in zip(got.partitions, flat, strict=True):
            assert mine.topic == (topic.topic if version < 13 else None)
            assert mine.topic_id == (None if version < 13 else topic.topic_id)
            for name in ("error_code", "high_watermark", "last_stable_offset", "log_start_offset"):
                assert getattr(mine, name) == getattr(part, name), name
            assert mine.partition == part.partition_index
            assert mine.preferred_read_replica == part.preferred_read_replica
            assert (mine.diverging_epoch, mine.diverging_end_offset) == (
                part.diverging_epoch.epoch,
                part.diverging_epoch.end_offset,
            )
            assert (mine.current_leader_id, mine.current_leader_epoch) == (
                part.current_leader.leader_id,
                part.current_leader.leader_epoch,
            )
            aborted = part.aborted_transactions
            assert mine.aborted == (None if aborted is None else [(a.producer_id, a.first_offset) for a in aborted])
            assert bytes(mine.records) == bytes(part.records or b"")


def one_partition(records: bytes) -> FetchResponse:
    part = FetchResponse.PartitionData(
        high_watermark=0, last_stable_offset=0, aborted_transactions=None, records=records
    )
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[part])])


def test_hops_over_whole_batches_only() -> None:
    first = build_batch([(1, None, b"v")] * 3, base_offset=10, leader_epoch=4)
    second = build_batch([(1, None, b"v")] * 2, base_offset=20, leader_epoch=5, last_offset_delta=9)
    body = one_partition(bytes(first + second + first[:70])).to_bytes(12)
    part = decode_fetch_response(body, 12).partitions[0]
    assert (part.next_offset, part.last_leader_epoch) == (30, 5)
    assert part.whole_bytes == len(first) + len(second) < part.size_bytes
    none = decode_fetch_response(one_partition(bytes(first[:70])).to_bytes(12), 12).partitions[0]
    assert (none.next_offset, none.whole_bytes, none.size_bytes) == (-1, 0, 70)


def test_records_are_a_view_of_the_buffer_and_keep_it() -> None:
    buffer = bytearray(one_partition(b"0123456789").to_bytes(4))
    part = decode_fetch_response(buffer, 4).partitions[0]
    view = part.records
    buffer[-1:] = b"!"
    assert bytes(view) == b"012345678!"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_is_an_error(version: int) -> None:
    body = random_response(random.Random(3), version).to_bytes(version)
    for end in range(len(body)):
        with pytest.raises(DecodeError):
            decode_fetch_response(body[:end], version)
    with pytest.raises(DecodeError):
        decode_fetch_response(body + b"\0", version)


def test_other_versions_and_starts_are_refused() -> None:
    for version in (3, 19):
        with pytest.raises(ValueError, match=f"version {version}"):
            decode_fetch_response(b"", version)
    with pytest.raises(ValueError, match="start 5"):
        decode_fetch_response(b"abc", 4, 5)


def test_huge_counts_are_refused_without_memory() -> None:
    with pytest.raises(DecodeError):
        decode_fetch_response(bytes(10) + b"\x7f\xff\xff\xff" + bytes(40), 7)
    with pytest.raises(DecodeError):
        decode_fetch_response(bytes(10) + b"\xff\xff\xff\xff\x07" + bytes(40), 12)


@pytest.mark.parametrize("version", VERSIONS)
def test_mutations_decode_or_raise_decode_error(version: int) -> None:
    rng = random.Random(1000 + version)
    for _ in range(60):
        body = bytearray(random_response(rng, version).to_bytes(version))
        for _ in range(20):
            mutant = bytearray(body)
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(mutant))
                kind = rng.randrange(3)
                if kind == 0:
                    mutant[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
                elif kind == 1:
                    del mutant[at : at + rng.randrange(1, 9)]
                    mutant += b"\0"
                else:
                    mutant[at:at] = rng.randbytes(rng.randrange(1, 5))
            try:
                response = decode_fetch_response(mutant, version)
            except DecodeError:
                continue
            for part in response.partitions:
                assert 0 <= part.whole_bytes <= part.size_bytes <= len(mutant)
                assert len(part.records) == part.size_bytes
