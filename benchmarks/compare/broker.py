"""The fastq broker against Apache Kafka: pre-encoded frames on plain sockets, so that no client is what is measured.

    python benchmarks/compare/broker.py [--rounds 5] [--quick]

Rules: bulk frames are of the clients' mix (client_values.py): real log lines, random text and JSON, with keys, at times that differ;
beside them frames whose records are all alike, which a broker may check faster. Both brokers run at once and idle while the other is
loaded; the same frames go to both (Produce v7 and Fetch v4: versions without topic ids, which every broker speaks); CPU is the broker
process's own. On a virtual machine every page that the page cache takes for the first time costs several times what a broker does with
it, and would be what is measured: so before each bulk round memory for more than it is touched and given back. Before that dirty pages
are written out, and both brokers have a second for what they still do about the round before: deleting its topic, compiling,
collecting garbage.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import struct
import time
from contextlib import ExitStack

import client_values
from support import Target, apache_kafka, cpu_seconds, fastq_broker, interleave, medians, rss_bytes, save, touch_memory

from fastq import Admin
from fastq._native.records import build_batch
from fastq.protocol.frames import encode_request
from fastq.protocol.messages import ApiVersionsRequest, FetchRequest, ProduceRequest

VALUE = b"v" * 100
GONE_AT_ONCE = {"file.delete.delay.ms": "0"}
LOADED_BYTES = 1 << 30
TOUCHED_TIMES = 9
"""What is touched before a bulk round, of what the round writes."""
SETTLE_S = 1.0
ALIKE_RECORDS = 8_250
"""Of VALUE: a batch of 900 kB."""
BATCH_BYTES = 900_000
BATCHES = 8
"""So many different ones, in turn."""
IN_FLIGHT = 5
MIX_LOAD, ALIKE_LOAD = "produce 900 kB of the mix, 5 in flight", "produce 900 kB of records alike, 5 in flight"


def bulk_batches(shape: str) -> list[bytes]:
    """Batches of 900 kB: "mix", or "alike" where all records are the same."""
    now_ms = time.time_ns() // 1_000_000
    if shape == "alike":
        return [bytes(build_batch([(now_ms, None, VALUE, ())] * ALIKE_RECORDS))]
    values = client_values.mix()
    pairs = zip(client_values.keys(len(values)), values, strict=True)
    batches = []
    for _ in range(BATCHES):
        records, size = [], 0
        while size < BATCH_BYTES:
            key, value = next(pairs)
            records.append((now_ms + len(records) // 3, key, value, ()))  # some three a millisecond
            size += len(key) + len(value) + 8
        batches.append(bytes(build_batch(records)))
    return batches


def produce_frame(topic: str, batch: bytes, acks: int = 1, partition_index: int = 0) -> bytes:
    partition = ProduceRequest.PartitionProduceData(index=partition_index, records=batch)
    topic_data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[topic_data])
    return bytes(encode_request(1, "bench", request, 7))


def fetch_frame(topic: str, offset: int, size_bytes: int, partition_index: int = 0) -> bytes:
    partition = FetchRequest.FetchPartition(
        partition=partition_index, fetch_offset=offset, partition_max_bytes=size_bytes
    )
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=size_bytes,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )
    return bytes(encode_request(2, "bench", request, 4))


def receive_exactly(sock: socket.socket, view: memoryview) -> None:
    done = 0
    while done < len(view):
        count = sock.recv_into(view[done:])
        if count == 0:
            raise ConnectionError("the broker closed the connection")
        done += count


def receive_frame(sock: socket.socket, room: bytearray) -> memoryview:
    view = memoryview(room)
    receive_exactly(sock, view[:4])
    (size,) = struct.unpack_from(">i", room)
    receive_exactly(sock, view[:size])
    return view[:size]


def read_fetched(body: memoryview, offset: int) -> tuple[int, int, int, int]:
    """Of a one-partition Fetch v4 response: high watermark, bytes and count of its records, offset to go on at."""
    name_size = struct.unpack_from(">h", body, 12)[0]
    at = 12 + 2 + name_size + 4 + 4  # to the partition's error code
    code, high_watermark = struct.unpack_from(">hq", body, at)
    aborted = struct.unpack_from(">i", body, at + 18)[0]
    size = struct.unpack_from(">i", body, at + 22 + max(aborted, 0) * 16)[0]
    if code != 0 or size <= 0:
        raise RuntimeError(f"fetch at {offset} of {high_watermark}: error code {code}, {size} bytes")
    records = body[at + 26 + max(aborted, 0) * 16 :]
    position = count = 0
    while position + 61 <= size:  # the whole batches at hand; the last may be cut
        base, length = struct.unpack_from(">qi", records, position)
        if position + 12 + length > size:
            break
        offset = base + struct.unpack_from(">i", records, position + 23)[0] + 1
        count += struct.unpack_from(">i", records, position + 57)[0]
        position += 12 + length
    return high_watermark, size, count, offset


def check_produced(response: memoryview) -> int:
    """The error code and base offset of a one-partition Produce v7 response; anything but success raises."""
    name_size = struct.unpack_from(">h", response, 8)[0]
    code, base_offset = struct.unpack_from(">hq", response, 8 + 2 + name_size + 4 + 4)
    if code != 0:
        raise RuntimeError(f"produce was refused with error code {code}")
    return int(base_offset)


def send_frames(address: tuple[str, int], frames: list[bytes], count: int) -> int:
    """So many requests, of these in turn, five in flight on one connection; their bytes."""
    room = bytearray(1 << 16)
    size = 0
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for sent in range(count):
            frame = frames[sent % len(frames)]
            sock.sendall(frame)
            size += len(frame)
            if sent >= IN_FLIGHT - 1:
                check_produced(receive_frame(sock, room))
        for _ in range(min(IN_FLIGHT - 1, count)):
            check_produced(receive_frame(sock, room))
    return size


def bulk_produce(target: Target, topic: str, total_bytes: int, batches: list[bytes]) -> dict[str, float]:
    """Requests of 900 kB, five in flight, one connection, acks=1."""
    os.sync()
    time.sleep(SETTLE_S)
    touch_memory(TOUCHED_TIMES * total_bytes)
    frames = [produce_frame(topic, batch) for batch in batches]
    cpu, start = cpu_seconds(target.pid), time.perf_counter()
    size = send_frames(target.address, frames, total_bytes // BATCH_BYTES)
    seconds = time.perf_counter() - start
    cpu = cpu_seconds(target.pid) - cpu
    return {"MB_per_s": size / 1e6 / seconds, "cpu_s_per_GB": cpu / (size / 1e9)}


def bulk_produce_to_new_topic(target: Target, total_bytes: int, batches: list[bytes]) -> dict[str, float]:
    """The same to a topic that is made for it, and deleted afterwards."""
    topic = f"bulk-{time.monotonic_ns()}"
    make_topic(target, topic, GONE_AT_ONCE)
    try:
        return bulk_produce(target, topic, total_bytes, batches)
    finally:
        with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            admin.delete_topic(topic)


def bulk_fetch(target: Target, topic: str, total_bytes: int) -> dict[str, float]:
    """Fetches of 8 MiB over a log of about 1 GiB, one connection."""
    room = bytearray(9 << 20)
    received = 0
    offset = 0
    with socket.create_connection(target.address) as sock:
        cpu, start = cpu_seconds(target.pid), time.perf_counter()
        while received < total_bytes:
            sock.sendall(fetch_frame(topic, offset, 8 << 20))
            body = receive_frame(sock, room)
            high_watermark, size, _, offset = read_fetched(body, offset)
            received += size
            if offset >= high_watermark:
                offset = 0
        seconds = time.perf_counter() - start
        cpu = cpu_seconds(target.pid) - cpu
    return {"MB_per_s": received / 1e6 / seconds, "cpu_s_per_GB": cpu / (received / 1e9)}


def small_requests(target: Target, frame: bytes, connections: int, total: int) -> dict[str, float]:
    """One request in flight on each of `connections` until `total` are answered; latency is that of one request."""
    selector = selectors.DefaultSelector()
    sent_at: dict[socket.socket, float] = {}
    latencies: list[float] = []
    sockets = [socket.create_connection(target.address) for _ in range(connections)]
    try:
        for sock in sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(sock, selectors.EVENT_READ)
        cpu, start = cpu_seconds(target.pid), time.perf_counter()
        for sock in sockets:
            sent_at[sock] = time.perf_counter()
            sock.send(frame)
        left = total
        started = len(sockets)
        while left:
            for key, _ in selector.select(10):
                sock = key.fileobj  # type: ignore[assignment]
                if not sock.recv(65536):
                    raise ConnectionError("the broker closed the connection")
                now = time.perf_counter()
                latencies.append(now - sent_at[sock])
                left -= 1
                if started < total:
                    started += 1
                    sent_at[sock] = now
                    sock.send(frame)
                if not left:
                    break
        seconds = time.perf_counter() - start
        cpu = cpu_seconds(target.pid) - cpu
    finally:
        for sock in sockets:
            sock.close()
        selector.close()
    latencies.sort()
    return {
        "requests_per_s": total / seconds,
        "cpu_us_per_request": cpu / total * 1e6,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
    }


def make_topic(target: Target, topic: str, configs: dict[str, str] | None = None) -> None:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=1, configs=configs)


def main() -> None:
    parser = argparse.ArgumentParser(description="fastq's broker against Apache Kafka, pre-encoded frames.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of each bulk round")
    parser.add_argument("--requests", type=int, default=60_000, help="of each small round")
    parser.add_argument("--quick", action="store_true", help="to see whether it runs: less of all, nothing is saved")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.gigabytes, options.requests = 1, 0.1, 2_000
    touch_memory()
    total = int(options.gigabytes * 1e9)
    mix, alike = bulk_batches("mix"), bulk_batches("alike")
    document: dict[str, object] = {}
    with ExitStack() as stack:
        targets = [stack.enter_context(start()) for start in (fastq_broker, apache_kafka)]
        time.sleep(3)
        idle = {target.name: {"idle_rss_MiB": rss_bytes(target.pid) / 2**20} for target in targets}
        document["idle"] = idle
        for target in targets:
            make_topic(target, "log")
            make_topic(target, "small")
        time.sleep(1)
        for target in targets:
            bulk_produce(target, "log", min(total, LOADED_BYTES), mix)
        api_versions = bytes(encode_request(3, "bench", ApiVersionsRequest(), 0))
        small = produce_frame("small", bytes(build_batch([(time.time_ns() // 1_000_000, None, VALUE, ())])))
        loads = {
            MIX_LOAD: lambda t: bulk_produce_to_new_topic(t, total, mix),
            ALIKE_LOAD: lambda t: bulk_produce_to_new_topic(t, total, alike),
            "fetch 8 MiB": lambda t: bulk_fetch(t, "log", total),
            "produce 1 record, 50 connections": lambda t: small_requests(t, small, 50, options.requests),
            "produce 1 record, 1 connection": lambda t: small_requests(t, small, 1, options.requests // 5),
            "ApiVersions, 50 connections": lambda t: small_requests(t, api_versions, 50, options.requests),
        }
        for title, load in loads.items():
            print(title)
            for target in targets:
                load(target)  # warm: the JVM compiles, the page cache fills
            sides = {target.name: (lambda target=target, load=load: load(target)) for target in targets}
            rounds = interleave(sides, options.rounds)
            ours, theirs = medians(rounds["fastq"]), medians(rounds["apache-kafka"])
            ratio = {key: ours[key] / theirs[key] if theirs[key] else 0.0 for key in ours}
            document[title] = {"fastq": ours, "apache-kafka": theirs, "ratio": ratio, "rounds": rounds}
            print(f"  => fastq / Apache Kafka: {'  '.join(f'{key} {value:.2f}' for key, value in ratio.items())}")
    if not options.quick:
        print(save("broker", document))


if __name__ == "__main__":
    main()
