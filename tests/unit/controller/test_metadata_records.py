"""Bytes of metadata records, control records and snapshots against what Apache Kafka 4.3 wrote."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fastq_broker.controller.image import MetadataDelta, MetadataError, MetadataImage, Record
from fastq_broker.controller.records import (
    BATCH_BYTES_MAX,
    ControlType,
    control_batch,
    data_batches,
    decode_record,
    encode_control,
    encode_record,
    version_of,
)
from fastq_broker.controller.snapshot import (
    SnapshotId,
    decode_batches,
    image_records,
    list_snapshots,
    read_snapshot,
    write_snapshot,
)

from fastq._native.records import decode_records, iter_headers, verify_crc
from fastq.protocol import messages

TOPIC_ID = bytes.fromhex("3d93f5f53835417da94b759475166de9")
DIRECTORY = bytes.fromhex("18d600887af2417f98b82e129cd19e71")

# Values of records in the metadata log of an Apache Kafka 4.3.0 node.
KAFKA_RECORDS = {
    "begin": "01170001001212426f6f747374726170207265636f726473",
    "feature": "010c00116d657461646174612e76657273696f6e001e00",
    "config of all brokers": "0104000401146d696e2e696e73796e632e7265706c69636173023100",
    "end": "01180000",
    "register broker": (
        "010004000000010002b826081ea94b6688d59220ff5a150c000000000000000d020a504c41494e544558540a3132372e302e302e"
        "318ce5000000080e73686172652e76657273696f6e00000001000e6b726166742e76657273696f6e00000001000e67726f75702e"
        "76657273696f6e00000001001073747265616d732e76657273696f6e0000000100147472616e73616374696f6e2e76657273696f"
        "6e000000020021656c696769626c652e6c65616465722e7265706c696361732e76657273696f6e0000000100116d657461646174"
        "612e76657273696f6e0007001e000001000100110218d600887af2417f98b82e129cd19e71"
    ),
    "unfence": "01110000000001000000000000000d010001ff",
    "cordoned directories": "01110300000001000000000000000d01030101",
    "controlled shutdown": "01110100000001000000000000000d01010101",
    "topic": "0102000374313d93f5f53835417da94b759475166de900",
    "config of a topic": "010400020374310f636c65616e75702e706f6c6963790f636f6d706163742c64656c65746500",
    "partition": (
        "010302000000003d93f5f53835417da94b759475166de90200000001020000000101010000000100000000000000000218d600887af2417f"
        "98b82e129cd19e7100"
    ),
    "partition change": "010502000000003d93f5f53835417da94b759475166de9040001010104ffffffff0605020000000107050200000001",
    "remove topic": "01090091ad1875bd45486c9d16cab0a6c3946300",
    "producer ids": "010f0000000001000000000000000d00000000000003e800",
}
KAFKA_CONTROLS = {
    ControlType.LEADER_CHANGE: "00000000000102000000010002000000010000",
    ControlType.KRAFT_VERSION: "0000000100",
    ControlType.KRAFT_VOTERS: (
        "0000020000000118d600887af2417f98b82e129cd19e71020b434f4e54524f4c4c45520a3132372e302e302e31c6530000000001000000"
    ),
}
KAFKA_BOOTSTRAP = bytes.fromhex(
    "00000000000000000000004700000000022e97477b002000000000000001a1fdc53105000001a1fdc53105ffffffffffffffffffffffffffff"
    "000000012a0000000800000003160000000000000000000000000000000000000001000000f100000000029e239ef4000000000005000001a1"
    "fdc53118000001a1fdc53118ffffffffffffffffffffffffffff000000063a000000012e010c00116d657461646174612e76657273696f6e00"
    "1e00005a000002014e010c0021656c696769626c652e6c65616465722e7265706c696361732e76657273696f6e00010000340000040128010c"
    "000e67726f75702e76657273696f6e00010000340000060128010c000e73686172652e76657273696f6e0001000038000008012c010c001073"
    "747265616d732e76657273696f6e000100004000000a0134010c00147472616e73616374696f6e2e76657273696f6e00020000000000000000"
    "00070000003f00000000024cc53897002000000000000001a1fdc53118000001a1fdc53118ffffffffffffffffffffffffffff000000011a00"
    "000008000000040600000000"
)


@pytest.mark.parametrize("name", KAFKA_RECORDS)
def test_records_are_byte_for_byte_kafkas(name: str) -> None:
    value = bytes.fromhex(KAFKA_RECORDS[name])
    assert encode_record(decode_record(value), 30) == value


def test_a_partition_says_what_kafka_said() -> None:
    record = decode_record(bytes.fromhex(KAFKA_RECORDS["partition"]))
    assert record == messages.PartitionRecord(
        partition_id=0,
        topic_id=TOPIC_ID,
        replicas=[1],
        isr=[1],
        removing_replicas=[],
        adding_replicas=[],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=[DIRECTORY],
    )


def test_control_records_are_byte_for_byte_kafkas() -> None:
    voter = messages.LeaderChangeMessage.Voter(voter_id=1)
    endpoint = messages.VotersRecord.Endpoint(name="CONTROLLER", host="127.0.0.1", port=0xC653)
    member = messages.VotersRecord.Voter(
        voter_id=1,
        voter_directory_id=DIRECTORY,
        endpoints=[endpoint],
        kraft_version_feature=messages.VotersRecord.KRaftVersionFeature(
            min_supported_version=0, max_supported_version=1
        ),
    )
    made = {
        ControlType.LEADER_CHANGE: messages.LeaderChangeMessage(leader_id=1, voters=[voter], granting_voters=[voter]),
        ControlType.KRAFT_VERSION: messages.KRaftVersionRecord(kraft_version=1),
        ControlType.KRAFT_VOTERS: messages.VotersRecord(voters=[member]),
    }
    for kind, message in made.items():
        key, value = encode_control(kind, message)
        assert key == b"\x00\x00" + kind.to_bytes(2, "big")
        assert value.hex() == KAFKA_CONTROLS[kind], kind.name


def test_a_snapshot_is_byte_for_byte_kafkas(tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.checkpoint"
    path.write_bytes(KAFKA_BOOTSTRAP)
    batches = list(read_snapshot(path))
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(0, 0), (1, 6), (7, 7)]
    levels = {record.name: record.feature_level for record in batches[1].records}
    assert levels["metadata.version"] == 30
    assert levels["transaction.version"] == 2

    ours = tmp_path / "ours.checkpoint"
    values = [encode_record(record, 30) for record in batches[1].records]
    time = batches[1].timestamp_ms
    write_snapshot(ours, values, epoch=0, timestamp_ms=time, last_timestamp_ms=0, kraft_version=None, voters=None)
    # Kafka took the time of the first batch a little earlier: the rest is the same bytes.
    assert ours.read_bytes()[83:] == KAFKA_BOOTSTRAP[83:]
    assert len(ours.read_bytes()) == len(KAFKA_BOOTSTRAP)


@pytest.mark.parametrize(
    ("level", "partition", "broker"), [(7, 0, 1), (8, 0, 2), (17, 1, 3), (22, 1, 3), (23, 2, 3), (29, 2, 3), (30, 2, 4)]
)
def test_records_are_written_so_that_older_nodes_can_read_them(level: int, partition: int, broker: int) -> None:
    record = decode_record(bytes.fromhex(KAFKA_RECORDS["partition"]))
    record.eligible_leader_replicas = [1]
    assert version_of(record, level) == partition
    back = decode_record(encode_record(record, level))
    assert back.replicas == [1]
    assert back.eligible_leader_replicas == ([1] if partition >= 2 else None)
    assert back.directories == ([DIRECTORY] if partition >= 1 else [])
    assert version_of(decode_record(bytes.fromhex(KAFKA_RECORDS["register broker"])), level) == broker


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "frame version 1"),
        (b"\x02\x02\x00", "frame version 1"),
        (b"\x01\xff\x01\x00", "frame version 1"),
        (b"\x01\x63\x00", "type 99"),
        (b"\x01\x02\x05", "TopicRecord has version 5"),
        (bytes.fromhex(KAFKA_RECORDS["topic"])[:-5], "type 2 does not decode"),
    ],
)
def test_a_value_that_is_no_record_is_refused(value: bytes, words: str) -> None:
    with pytest.raises(MetadataError, match=words):
        decode_record(value)


def test_mutated_records_raise_one_kind_of_error_or_decode() -> None:
    source = random.Random(3)
    values = [bytearray(bytes.fromhex(text)) for text in KAFKA_RECORDS.values()]
    refused = 0
    for _ in range(5000):
        value = bytearray(source.choice(values))
        for _ in range(source.randrange(1, 4)):
            value[source.randrange(len(value))] = source.randrange(256)
        try:
            decode_record(bytes(value[: source.randrange(1, len(value) + 1)]))
        except MetadataError:
            refused += 1
    assert refused > 1000


def test_large_changes_are_split_into_batches_of_at_most_8_mib() -> None:
    values = [bytes([number]) * (3 << 20) for number in range(5)]
    made = list(data_batches(values, base_offset=10, epoch=3, timestamp_ms=5))
    assert [count for _, count in made] == [2, 2, 1]
    offsets = []
    for batch, _ in made:
        assert len(batch) <= BATCH_BYTES_MAX
        (found,) = iter_headers(batch)
        assert verify_crc(batch)
        assert found[1].partition_leader_epoch == 3
        offsets += [record.offset for record in decode_records(batch)]
    assert offsets == [10, 11, 12, 13, 14]
    alone = list(data_batches([b"x" * (9 << 20)], base_offset=0, epoch=1, timestamp_ms=0))
    assert len(alone) == 1


def test_a_batch_keeps_its_controls_apart() -> None:
    pair = encode_control(ControlType.KRAFT_VERSION, messages.KRaftVersionRecord(kraft_version=1))
    (batch,) = decode_batches(bytes(control_batch([pair], base_offset=4, epoch=2, timestamp_ms=9)))
    assert (batch.base_offset, batch.epoch, batch.timestamp_ms) == (4, 2, 9)
    assert (batch.records, batch.controls) == ([], [pair])


def image_of(records: list[Record]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage(cluster_id="c"))
    for record in records:
        delta.replay(record)
    return delta.apply(99, 4, 1234)


def test_an_image_survives_a_snapshot(tmp_path: Path) -> None:
    names = ["feature", "config of all brokers", "register broker", "unfence", "cordoned directories", "topic"]
    names += ["config of a topic", "partition", "partition change", "producer ids"]
    records = [decode_record(bytes.fromhex(KAFKA_RECORDS[name])) for name in names]
    records.append(messages.FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1))
    records.append(messages.AccessControlEntryRecord(id=b"i" * 16, resource_name="x", principal="User:p", host="*"))
    image = image_of(records)
    path = tmp_path / SnapshotId(100, 4).file_name
    write_snapshot(
        path,
        list(image_records(image)),
        epoch=4,
        timestamp_ms=1,
        last_timestamp_ms=1234,
        kraft_version=1,
        voters=messages.VotersRecord(voters=[]),
    )
    assert list_snapshots(tmp_path) == [(100, 4)]
    assert image_of([record for batch in read_snapshot(path) for record in batch.records]) == image
    first = next(iter(read_snapshot(path)))
    assert [key[3] for key, _ in first.controls] == [3, 5, 6]


def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.checkpoint"
    path.write_bytes(KAFKA_BOOTSTRAP[:-1])
    with pytest.raises(MetadataError, match="without a snapshot footer"):
        list(read_snapshot(path))
    damaged = bytearray(KAFKA_BOOTSTRAP)
    damaged[150] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(MetadataError, match="is damaged"):
        list(read_snapshot(path))


def test_names_of_snapshots(tmp_path: Path) -> None:
    for name in (
        "00000000000000000007-0000000002.checkpoint",
        "x.checkpoint",
        "00000000000000000009-0000000002.checkpoint.part",
    ):
        (tmp_path / name).touch()
    assert list_snapshots(tmp_path) == [SnapshotId(7, 2)]
    assert SnapshotId(7, 2).file_name == "00000000000000000007-0000000002.checkpoint"
