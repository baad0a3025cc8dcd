"""Bad frames: seeded, structure-aware fuzz of every served API, and the classics of a hostile network.

Rules: whatever comes, the broker answers with the protocol's error or closes that connection, and goes on; its memory
stays bounded; what was stored before is untouched. A failure names the seed and prints the frame.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.broker import Broker as Node
from fastq_broker.config import BrokerConfig
from fastq_broker.connection import ProtocolViolation
from fastq_broker.router import HANDLERS, Deferred
from fastq_broker.server import flexible_versions
from raw_kafka import RawConnection, batch, create_topic, fetch, produce

from fastq._native.produce_path import scan_request
from fastq._native.records import build_batch, iter_headers, verify_crc
from fastq._native.wire import DecodeError, EncodeError
from fastq.compression import Codec, compress
from fastq.protocol.frames import encode_request
from fastq.protocol.messages import (
    CreateTopicsRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from fastq.testing import Broker

IN_PROCESS_FRAMES = 100_000 if os.environ.get("FASTQ_SOAK") == "1" else 30_000
SOCKET_FRAMES = 10_000
TOPICS = ("plain", "keyed", "packed")
WITNESS = "witness-of-the-fuzz"
REQUEST_BYTES_MAX = 1 << 20
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


# --- frames: valid ones, then broken ---


def some_batch(rng: random.Random) -> bytes:
    """A batch of any codec, good or with one header field set to something else, its checksum right or not."""
    count = rng.randint(1, 5)
    rows = [
        (int(time.time() * 1000), rng.choice([None, b"k"]), rng.randbytes(rng.randint(0, 60)), []) for _ in range(count)
    ]
    data = build_batch(
        rows,
        codec=rng.choice([0, 0, 1, 2, 3, 4]),
        compress=compress,
        producer_id=rng.choice([-1, -1, 5, 2**62]),
        producer_epoch=rng.choice([-1, 0, 3]),
        base_sequence=rng.choice([-1, 0, 7, 2**31 - 1]),
        transactional=rng.random() < 0.1,
    )
    kind = rng.random()
    if kind < 0.4:
        return bytes(data)
    position, size = rng.choice(
        [(0, 8), (8, 4), (12, 4), (16, 1), (17, 4), (21, 2), (23, 4), (27, 8), (35, 8), (57, 4)]
    )
    data[position : position + size] = rng.choice([rng.randbytes(size), b"\xff" * size, bytes(size), b"\x7f" * size])
    if kind < 0.7 and position != 17:
        fix_checksum(data)
    return bytes(data) if kind < 0.9 else bytes(data[: rng.randint(0, len(data))])


def fix_checksum(data: bytearray) -> None:
    from fastq._native.crc32c import crc32c

    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))


def topic_of(rng: random.Random) -> str:
    return rng.choice([*TOPICS, "no-such-topic", "", "x" * 300, "__consumer_offsets", "..", "é"])


def prototype(rng: random.Random, api_key: int) -> Any:
    """A request with something in it; APIs without a form of their own are sent as they come out of the box."""
    index = rng.choice([0, 0, 1, -1, 2**31 - 1])
    if api_key == 0:
        parts = [
            ProduceRequest.PartitionProduceData(index=index, records=some_batch(rng)) for _ in range(rng.randint(0, 3))
        ]
        topics = [ProduceRequest.TopicProduceData(name=topic_of(rng), partition_data=parts)]
        return ProduceRequest(transactional_id=None, acks=rng.choice([0, 1, -1, 7]), timeout_ms=100, topic_data=topics)
    if api_key == 1:
        asked = FetchRequest.FetchPartition(
            partition=index, fetch_offset=rng.choice([0, 1, -1, 2**62]), partition_max_bytes=500
        )
        fetch_topics = [FetchRequest.FetchTopic(topic=topic_of(rng), partitions=[asked] * rng.randint(0, 3))]
        session = {"session_id": rng.choice([0, 1]), "session_epoch": rng.choice([-1, 0, 1])}
        return FetchRequest(
            max_wait_ms=rng.choice([0, 0, 1]), min_bytes=1, max_bytes=10**6, topics=fetch_topics, **session
        )
    if api_key == 2:
        offsets = [
            ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=rng.choice([-1, -2, -3, 0, 2**62]))
        ]
        return ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic_of(rng), partitions=offsets)]
        )
    if api_key == 3:
        return MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic_of(rng))], allow_auto_topic_creation=False
        )
    if api_key == 19:
        new = CreateTopicsRequest.CreatableTopic(name="bad name!", num_partitions=index, replication_factor=1)
        return CreateTopicsRequest(topics=[new], timeout_ms=100, validate_only=True)
    if api_key == 23:
        epochs = [
            OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=index, leader_epoch=rng.choice([-1, 0, 99]))
        ]
        return OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic_of(rng), partitions=epochs)]
        )
    from fastq.protocol.api import APIS

    return APIS[api_key].request_class()()


def valid_frames(rng: random.Random) -> Iterator[bytes]:
    """Requests of all served APIs in all their versions, without end; the hot ones more often."""
    from fastq.protocol.api import APIS

    keys = [*HANDLERS, *[0, 1] * len(HANDLERS)]
    while True:
        info = APIS[rng.choice(keys)]
        version = rng.randint(info.min_version, info.max_stable_version)
        try:
            yield encode_request(
                rng.randint(0, 2**31 - 1), rng.choice([None, "", "fuzz"]), prototype(rng, info.key), version
            )
        except EncodeError:
            continue  # this version cannot carry what the prototype holds


def mutate(rng: random.Random, frame: bytes) -> bytes:
    """Break a frame behind its size field; the size is put right again, so that the damage gets past the framing."""
    body = bytearray(frame[4:])
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(body)) if body else 0
        kind = rng.randrange(7)
        if kind == 0 and body:
            body[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del body[at:]
        elif kind == 2:
            body[at:at] = rng.randbytes(rng.randint(1, 8))
        elif kind == 3:
            del body[at : at + rng.randint(1, 8)]
        elif kind == 4:
            width = rng.choice([1, 2, 4])
            body[at : at + width] = (rng.choice(EXTREMES) & ((1 << 8 * width) - 1)).to_bytes(width, "big")
        elif kind == 5:
            body[at : at + 5] = b"\xff\xff\xff\xff" + rng.choice([b"\x0f", b"\x7f", b"\xff"])  # a huge varint
        else:
            other = rng.randrange(len(body)) if body else 0
            body[at : at + 8] = body[other : other + 8]
    return len(body).to_bytes(4, "big") + body


class FakeConnection:
    """As much of a connection as handlers see."""

    def __init__(self) -> None:
        self.peer = ("127.0.0.1", 1)
        self.listener = "PLAINTEXT"
        self.software = ("", "")
        self.state: dict[str, Any] = {}
        self.answers = 0

    def complete(self, deferred: Deferred, response: Any) -> None:
        self.answers += 1

    def fail(self, reason: str) -> None:
        self.answers += 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fuzz_of_the_request_path(tmp_path: Path) -> None:
    """IN_PROCESS_FRAMES mutated requests through scan, decode, handler and encode; only the two agreed errors may come out."""
    seed = 20261121
    rng = random.Random(seed)
    flexible = flexible_versions()

    async def fuzz() -> tuple[int, int]:
        config = BrokerConfig.from_mapping(
            {
                "log.dirs": str(tmp_path / "data"),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.flush.interval.messages": 10**9,
            }
        )
        node = Node(config, asyncio.get_running_loop())
        await node.start()
        try:
            port = node.advertised_listeners[0].port
            await asyncio.to_thread(prepare, f"127.0.0.1:{port}")
            closed = answered = 0
            frames = valid_frames(rng)
            for number in range(IN_PROCESS_FRAMES):
                frame = bytearray(mutate(rng, next(frames)))
                connection = FakeConnection()
                try:
                    header = scan_request(frame, 0, len(frame), flexible, REQUEST_BYTES_MAX)
                    if header is not None:
                        node.router.dispatch(connection, frame, header)  # type: ignore[arg-type]
                    answered += 1
                except (DecodeError, ProtocolViolation):
                    closed += 1
                except Exception as error:
                    raise AssertionError(f"seed {seed}, frame {number}: {bytes(frame).hex()}") from error
                if number % 1000 == 0:
                    await asyncio.sleep(0)
            await asyncio.to_thread(check_stored, f"127.0.0.1:{port}")
            return answered, closed
        finally:
            await node.close()

    answered, closed = asyncio.run(fuzz())
    assert answered + closed == IN_PROCESS_FRAMES
    assert min(answered, closed) > IN_PROCESS_FRAMES // 20, "the mutations should neither all pass nor all be refused"


def prepare(servers: str) -> None:
    """Topics to be hit, and one whose content must not change."""
    with RawConnection(servers) as connection:
        create_topic(connection, "plain", partitions=2)
        create_topic(connection, "keyed", partitions=2, cleanup_policy="compact")
        create_topic(connection, "packed", partitions=2, compression_type="lz4")
        create_topic(connection, WITNESS)
        for i in range(20):
            assert produce(connection, WITNESS, batch(b"witness %d" % i)).error_code == 0


def check_stored(servers: str) -> None:
    """The witness is whole, and everything that got in is a good batch at the next offset."""
    with RawConnection(servers) as connection:
        witness = bytes(fetch(connection, WITNESS, 0).records)
        assert [header.base_offset for _, header in iter_headers(witness, strict=True)] == list(range(20))
        for name in TOPICS:
            for partition in range(2):
                check_partition(connection, name, partition)


def check_partition(connection: RawConnection, name: str, partition: int) -> None:
    offset = 0
    while True:
        answer = fetch(connection, name, offset, partition=partition)
        assert answer.error_code == 0
        records = bytes(answer.records)
        if not records:
            assert offset == answer.high_watermark
            return
        for position, header in iter_headers(records, strict=True):
            assert header.base_offset == offset
            assert verify_crc(records, position)
            offset = header.next_offset


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fuzz_over_sockets() -> None:
    """SOCKET_FRAMES mutated frames at a broker process; it lives, its memory stays bounded, its data is whole."""
    seed = 42
    rng = random.Random(seed)
    with Broker(config={"socket.request.max.bytes": REQUEST_BYTES_MAX}) as broker:
        prepare(broker.bootstrap_servers)
        before = resident_kib(broker)
        frames = valid_frames(rng)
        sent = 0
        while sent < SOCKET_FRAMES:
            sent += send_until_closed(broker, [mutate_all(rng, next(frames)) for _ in range(50)], rng)
            assert broker.running, f"seed {seed}, after {sent} frames"
        check_stored(broker.bootstrap_servers)
        assert resident_kib(broker) - before < 64 << 10
        assert "Traceback" not in broker.log


def mutate_all(rng: random.Random, frame: bytes) -> bytes:
    """Break a frame anywhere, its size included; some stay whole."""
    kind = rng.random()
    if kind < 0.2:
        return frame
    if kind < 0.9:
        return mutate(rng, frame)
    size = rng.choice([len(frame) - 4 + rng.randint(-9, 9), rng.choice(EXTREMES), rng.getrandbits(32)]) & 0xFFFFFFFF
    return size.to_bytes(4, "big") + frame[4:]


def send_until_closed(broker: Broker, frames: list[bytes], rng: random.Random) -> int:
    """Send frames on one connection until the broker closes it; answers how many were tried."""
    with socket.create_connection((broker.host, broker.port), 10) as sock:
        sock.setblocking(False)
        for number, frame in enumerate(frames, 1):
            try:
                sock.send(frame)
                while sock.recv(1 << 16):
                    pass
                return number
            except BlockingIOError:
                continue
            except OSError:
                return number
    return len(frames)


def resident_kib(broker: Broker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


# --- the classics ---


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_decompression_bombs_are_bounded(codec: Codec) -> None:
    """A megabyte that becomes a gigabyte, where the broker has to look inside: it is refused, and memory stays bounded."""
    with (
        Broker(config={"message.max.bytes": 8 << 20}) as broker,
        RawConnection(broker.bootstrap_servers, 60) as connection,
    ):
        create_topic(connection, "keyed", cleanup_policy="compact")
        create_topic(connection, "packed", compression_type="snappy" if codec != Codec.SNAPPY else "lz4")
        produce(connection, "keyed", batch(b"warm", key=b"k"))
        before = resident_kib(broker)
        bomb = bytearray(build_batch([(0, b"k", b"v", [])], codec=int(codec), compress=lambda *_: bomb_of(codec)))
        for topic in ("keyed", "packed"):
            answer = produce(connection, topic, bytes(bomb))
            assert answer.error_code in (2, 10, 87), answer
        assert resident_kib(broker) - before < 700 << 10
        assert produce(connection, "keyed", batch(b"after", key=b"k")).base_offset == 1


def bomb_of(codec: Codec) -> bytes:
    zeros = bytes(256 << 20)
    return gzip.compress(zeros, 1) if codec == Codec.GZIP else compress(int(codec), zeros)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n", "HTTP"),
    ],
)
def test_other_protocols_on_the_port(data: bytes, word: str) -> None:
    with Broker() as broker:
        with socket.create_connection((broker.host, broker.port), 10) as sock:
            sock.sendall(data)
            assert sock.recv(1) == b""
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, "alive")
        broker.stop()
        assert sum(word in line for line in broker.log.splitlines()) == 1


def test_trickled_and_half_closed_connections() -> None:
    with Broker() as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        request = encode_request(5, "slow", MetadataRequest(topics=[]), 9)
        with socket.create_connection((broker.host, broker.port), 10) as slow:
            for byte in request:
                slow.send(bytes([byte]))
                time.sleep(0.001)
            assert len(slow.recv(1 << 16)) > 8
        with socket.create_connection((broker.host, broker.port), 10) as half:
            half.sendall(request * 3)
            half.shutdown(socket.SHUT_WR)
            answers = b""
            while piece := half.recv(1 << 16):
                answers += piece
            assert len(answers) == 3 * (4 + int.from_bytes(answers[:4], "big"))
        assert produce(connection, "t", batch(b"x")).error_code == 0


def test_many_connections_that_claim_much_take_little() -> None:
    with Broker() as broker:
        time.sleep(0.2)
        before = resident_kib(broker)
        peers = [socket.create_connection((broker.host, broker.port), 10) for _ in range(200)]
        for peer in peers:
            peer.sendall(struct.pack(">i", 100_000_000) + bytes(100))
        time.sleep(0.5)
        assert resident_kib(broker) - before < 64 << 10
        for peer in peers:
            peer.close()
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, "alive")
