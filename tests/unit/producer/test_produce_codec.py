"""The hand-made Produce codec equals the generated messages, and refuses what is damaged."""

from random import Random

import pytest

from fastq._native.accumulator import Accumulator
from fastq._native.producer_core import SyncProducerCore
from fastq._native.wire import DecodeError, Reader, Writer
from fastq.metadata import Node
from fastq.producer.produce_codec import decode_produce, encode_produce
from fastq.protocol.messages import ProduceRequest, ProduceResponse

VERSIONS = range(3, 14)


class Core(SyncProducerCore):
    def _attend(self):
        pass


def batches(random, topics):
    accumulator = Accumulator(
        buffer_memory=1 << 22, batch_size=1000, batch_size_max=1000, max_request_size=1 << 20, clock=lambda: 0.0, seed=1
    )
    core, found = Core(accumulator), []
    for name, count in topics.items():
        state = accumulator.update_topic(name, count, codec=random.choice([0, 4]))
        state.topic_id = random.randbytes(16)
        for index in range(count):
            core.send(name, random.randbytes(random.randrange(500)), partition=index)
    accumulator.close_all()
    for name in topics:
        for partition in accumulator.topic(name).partitions:
            if partition.queue[0].codec:
                from fastq.compression import compress

                partition.queue[0].compress(compress)
            found.append(accumulator.take_head(partition))
            found[-1].stamp(5, 1, 9)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_request_equals_the_generated_one(version):
    random = Random(version)
    members = batches(random, {"a": 3, "topic-with-a-longer-name-" + "x" * 130: 1, "ü": 2})
    for transactional_id in (None, "tx"):
        body = b"".join(bytes(b) for b in encode_produce(version, -1, 30000, members, transactional_id))
        topics = {}
        for batch in members:
            topics.setdefault(batch.partition.topic, []).append(
                ProduceRequest.PartitionProduceData(
                    index=batch.partition.index, records=b"".join(bytes(b) for b in batch.buffers())
                )
            )
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=30000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    partition_data=parts, **({"topic_id": t.topic_id} if version >= 13 else {"name": t.name})
                )
                for t, parts in topics.items()
            ],
        )
        writer = Writer()
        request.encode(writer, version)
        assert body == bytes(writer.getvalue())


def response(random, version):
    r = ProduceResponse

    def partition(index):
        made = r.PartitionProduceResponse(
            index=index,
            error_code=random.choice([0, 6, 10]),
            base_offset=random.randrange(-1, 1 << 40),
            log_append_time_ms=random.randrange(-1, 1 << 40),
        )
        if version >= 5:
            made.log_start_offset = random.randrange(1 << 30)
        if version >= 8:
            made.record_errors = [
                r.BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=random.choice([None, "bad"]))
                for i in range(random.randrange(3))
            ]
            made.error_message = random.choice([None, "", "trouble " * 30])
        if version >= 10 and random.random() < 0.5:
            made.current_leader = r.LeaderIdAndEpoch(leader_id=random.randrange(9), leader_epoch=random.randrange(9))
        return made

    def topic(i):
        kwargs = {"topic_id": random.randbytes(16)} if version >= 13 else {"name": f"topic-{i}"}
        return r.TopicProduceResponse(partition_responses=[partition(p) for p in range(random.randrange(4))], **kwargs)

    made = r(responses=[topic(i) for i in range(random.randrange(4))], throttle_time_ms=random.randrange(100))
    if version >= 10 and random.random() < 0.5:
        made.node_endpoints = [r.NodeEndpoint(node_id=4, host="h", port=9, rack=random.choice([None, "r"]))]
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_response_equals_the_generated_one(version):
    random = Random(version)
    for _ in range(50):
        made = response(random, version)
        writer = Writer()
        made.encode(writer, version)
        data = bytes(writer.getvalue())
        expected = ProduceResponse.decode(Reader(data), version)
        answer = decode_produce(memoryview(data), version)
        flat = [
            (
                t.topic_id if version >= 13 else t.name, p.index, p.error_code, p.base_offset, p.log_append_time_ms,
                p.log_start_offset, tuple((e.batch_index, e.batch_index_error_message) for e in p.record_errors),
                p.error_message, p.current_leader.leader_id, p.current_leader.leader_epoch,
            )
            for t in expected.responses
            for p in t.partition_responses
        ]  # fmt: skip
        got = [
            (
                p.topic, p.partition, p.error_code, p.base_offset, p.log_append_time_ms, p.log_start_offset, p.record_errors,
                p.message, p.leader_id, p.leader_epoch,
            )
            for p in answer.partitions
        ]  # fmt: skip
        assert got == flat
        assert answer.throttle_time_ms == expected.throttle_time_ms
        assert answer.nodes == tuple(Node(n.node_id, n.host, n.port, n.rack) for n in expected.node_endpoints)


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_damaged_responses_raise_decode_error_only(version):
    random = Random(version)
    refused = 0
    for _ in range(2000):
        writer = Writer()
        response(random, version).encode(writer, version)
        data = bytearray(writer.getvalue())
        if random.random() < 0.5:
            del data[random.randrange(len(data)) :]
        else:
            for _ in range(random.randrange(1, 4)):
                data[random.randrange(len(data))] = random.randrange(256)
        try:
            decode_produce(data, version)
        except DecodeError:
            refused += 1
    assert refused > 500
