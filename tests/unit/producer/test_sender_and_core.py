"""The sender on the real core, over a network in memory: two machines that have only met by their fakes.

Connections break with bytes half written, requests time out in the client while the broker still has them, brokers append and
refuse, topics are made anew, leaders move. Every byte goes through the real connection, framing and decoders.
"""

import heapq
import itertools
from random import Random

import pytest
from fake_cluster import FakePartition, failures_of

from fastq._native.accumulator import Accumulator
from fastq._native.producer_core import SyncProducerCore
from fastq._native.wire import Reader
from fastq.config import ClientConfig
from fastq.net.addresses import Endpoint
from fastq.net.connection import State
from fastq.net.core import ClientCore
from fastq.net.peers import Close, Connect
from fastq.producer.sender import Sender, SenderSettings
from fastq.protocol.api import APIS, ApiKey
from fastq.protocol.frames import decode_request, decode_request_header, encode_response
from fastq.protocol.messages import (
    ApiVersionsResponse,
    InitProducerIdResponse,
    MetadataResponse,
    ProduceResponse,
)

NODES = 3
TOPIC_ID = bytes(range(16))


class Link:
    """One connection: bytes that go to the broker, which handles whole requests in order, even when the client is gone."""

    def __init__(self, cluster, connection, node):
        self.cluster, self.connection, self.node = cluster, connection, node
        self.received, self.to_client = bytearray(), bytearray()
        self.open = True
        self.free_at = 0.0

    def write(self, data):
        self.received += data
        while len(self.received) >= 4:
            size = int.from_bytes(self.received[:4], "big")
            if len(self.received) < 4 + size:
                return
            frame = bytes(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            random = self.cluster.random
            slow = 3.0 if random.random() < self.cluster.slow else 0.0  # longer than the client's time-out
            self.free_at = max(self.free_at, self.cluster.now) + 0.001 + random.random() * 0.004 + slow
            self.cluster.at(self.free_at, lambda frame=frame: self.handle(frame))

    def handle(self, frame):
        random, trouble = self.cluster.random, self.cluster.trouble
        lost = random.random() < trouble
        if lost and random.random() < 0.5:
            self.drop()
            return
        reader = Reader(frame)
        header = decode_request_header(reader)
        response = self.cluster.respond(self.node, header, decode_request(header, reader))
        if lost:
            self.drop()
        elif self.open and response is not None:
            self.to_client += encode_response(header.correlation_id, response, header.api_version)
            self.cluster.at(self.cluster.now + 0.0005, self.deliver)

    def deliver(self):
        while self.open and self.to_client and self.connection.state is not State.CLOSED:
            buffer = self.connection.get_buffer()
            count = min(len(buffer), len(self.to_client), self.cluster.random.choice((3, 64, 4096)))
            buffer[:count] = self.to_client[:count]
            del self.to_client[:count]
            self.connection.buffer_updated(count, self.cluster.now)

    def drop(self):
        if self.open:
            self.open = False
            self.connection.connection_lost(ConnectionResetError("reset"), self.cluster.now)


class Cluster:
    """Brokers, their logs, time, and the driver of one core."""

    def __init__(self, seed, trouble, after_append=0.0, slow=0.0, partitions=3):
        self.random = Random(seed)
        self.trouble, self.after_append, self.slow = trouble, after_append, slow
        self.now, self.events, self.ids = 1000.0, [], itertools.count()
        self.producer_ids = itertools.count(9000)
        self.links = {}
        self.logs = {index: FakePartition() for index in range(partitions)}
        self.leaders = {index: index % NODES for index in self.logs}
        self.epochs = dict.fromkeys(self.logs, 0)
        self.topic_id, self.past = TOPIC_ID, []  # logs that the topic had before it was made anew
        config = ClientConfig.from_mapping(
            {"bootstrap_servers": "10.0.0.0:9092", "request_timeout_ms": 1000, "reconnect_backoff_ms": 5,
             "reconnect_backoff_max_ms": 50, "retry_backoff_ms": 5, "retry_backoff_max_ms": 50}
        )  # fmt: skip
        self.core = ClientCore(config, random=Random(seed + 1), clock=lambda: self.now)

    def at(self, when, call):
        heapq.heappush(self.events, (when, next(self.ids), call))

    def step(self, until):
        """To the next event, deadline, or `until`."""
        self.settle()
        when = min(self.events[0][0] if self.events else until, self.core.deadline, until)
        self.now = max(self.now, when)
        while self.events and self.events[0][0] <= self.now:
            heapq.heappop(self.events)[2]()
        self.settle()

    def settle(self):
        core = self.core
        for _ in range(1000):
            if self.now >= core.deadline:
                core.tick(self.now)
            for effect in core.take_effects():
                if isinstance(effect, Close):
                    link = self.links.pop(effect.connection, None)
                    if link is not None:
                        link.open = False
                elif isinstance(effect, Connect):
                    self.at(self.now + 0.001, lambda effect=effect: self.connect(effect))
                else:
                    core.resolved(effect, [Endpoint(2, (effect.address.host, 9092))], None)
            writable, core.writable = core.writable, {}
            for connection in writable:
                self.write(connection)
            core.run_callbacks()
            if not (core.effects or core.writable or core.completions) and core.deadline > self.now:
                return
        raise AssertionError("the core does not settle")

    def connect(self, effect):
        if effect.connection.state is State.CLOSED:
            return
        if self.random.random() < self.trouble / 4:
            effect.connection.connection_lost(ConnectionRefusedError("refused"), self.now)
            return
        node = int(effect.endpoint.sockaddr[0].rsplit(".", 1)[1])
        self.links[effect.connection] = Link(self, effect.connection, node)
        effect.connection.connected(self.now)

    def write(self, connection):
        link = self.links.get(connection)
        if link is None or not link.open or connection.state is State.CLOSED:
            return
        data = b"".join(bytes(buffer) for buffer in connection.outgoing)
        count = min(len(data), self.random.choice((5, 100, 1 << 20)))
        connection.data_sent(count)
        if count < len(data):
            self.at(self.now + 0.0002, lambda: self.core.writable.setdefault(connection))
        self.at(self.now, lambda: link.write(data[:count]))

    # -- the brokers

    def respond(self, node, header, request):
        key = ApiKey(header.api_key)
        if key is ApiKey.API_VERSIONS:
            versions = [
                ApiVersionsResponse.ApiVersion(api_key=k, min_version=i.min_version, max_version=i.max_stable_version)
                for k, i in APIS.items()
            ]
            return ApiVersionsResponse(api_keys=versions)
        if key is ApiKey.METADATA:
            return self.metadata()
        if key is ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(error_code=0, producer_id=next(self.producer_ids), producer_epoch=0)
        assert key is ApiKey.PRODUCE
        return self.produce(node, request)

    def metadata(self):
        partitions = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=index, leader_id=self.leaders[index], leader_epoch=self.epochs[index],
                replica_nodes=[0], isr_nodes=[0],
            )
            for index in self.logs
        ]  # fmt: skip
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node, host=f"10.0.0.{node}", port=9092)
                for node in range(NODES)
            ],
            controller_id=0,
            topics=[MetadataResponse.MetadataResponseTopic(name="t", topic_id=self.topic_id, partitions=partitions)],
        )

    def produce(self, node, request):
        answers = []
        for topic in request.topic_data:
            for part in topic.partition_data:
                error, offset = self.append(node, topic.topic_id, part)
                answers.append(
                    ProduceResponse.PartitionProduceResponse(
                        index=part.index,
                        error_code=error,
                        base_offset=offset,
                        log_append_time_ms=-1,
                        log_start_offset=0,
                    )
                )
        return ProduceResponse(
            responses=[ProduceResponse.TopicProduceResponse(topic_id=topic.topic_id, partition_responses=answers)]
        )

    def append(self, node, topic_id, part):
        if topic_id != self.topic_id:
            return 100, -1
        if self.leaders[part.index] != node:
            return 6, -1
        if self.random.random() < self.trouble / 2:
            return self.random.choice([7, 19]), -1
        error, offset = self.logs[part.index].append(bytes(part.records), 1 << 20, [])
        if not error and self.random.random() < self.after_append:
            return self.random.choice([7, 20]), -1
        return error, offset

    def make_anew(self, partitions):
        """Delete the topic and make it again, with so many partitions; the client does not know yet."""
        self.past.append(self.logs)
        self.topic_id = self.random.randbytes(16)
        self.logs = {index: FakePartition() for index in range(partitions)}
        self.leaders = {index: self.random.randrange(NODES) for index in self.logs}
        self.epochs = dict.fromkeys(self.logs, 0)

    def move_leaders(self):
        for index in self.logs:
            self.leaders[index] = self.random.randrange(NODES)
            self.epochs[index] += 1


class Bench(SyncProducerCore):
    """A producer without threads on the real core."""

    def __init__(self, cluster, retries):
        super().__init__(
            Accumulator(
                buffer_memory=1 << 22, batch_size=800, batch_size_max=800, max_request_size=1 << 20,
                clock=lambda: cluster.now, seed=3,
            )
        )  # fmt: skip
        self.cluster = cluster
        settings = SenderSettings(
            acks=-1, idempotent=True, max_in_flight=5, max_request_size=1 << 20, request_timeout_s=1.0,
            delivery_timeout_s=1e6, retries=retries, retry_backoff_ms=5, retry_backoff_max_ms=50,
        )  # fmt: skip
        self.sender = Sender(cluster.core, self.accumulator, settings)
        cluster.core.watch_topics(["t"])
        while self.sender.topic_ready("t") is None:
            cluster.step(cluster.now + 0.1)

    def _attend(self):
        pass

    def turn(self, until):
        self.accumulator.close_due(self.cluster.now, 0.005)
        due = self.sender.run(self.cluster.now)
        self.cluster.step(min(self.cluster.now + until, due if due is not None else 1e12))

    def drain(self):
        end = self.cluster.now + 1e4
        while self.accumulator.incomplete:
            self.accumulator.close_all()
            assert self.cluster.now < end, f"stuck: {list(self.accumulator.incomplete)}"
            self.turn(0.05)


@pytest.mark.parametrize("seed", [*range(24), 31])
def test_nothing_lost_doubled_or_reordered_and_what_a_delivery_says_is_so(seed):
    cluster = Cluster(seed, trouble=0.08, after_append=0.1 * (seed % 2), slow=0.01 * (seed % 3 == 0))
    bench = Bench(cluster, retries=(2**31 - 1, 0, 1, 3)[seed % 4])
    random = Random(seed)
    sent = {index: [] for index in cluster.logs}
    for i in range(1200):
        index, value = random.randrange(3), b"%d" % i
        sent[index].append((value, bench.send("t", value, partition=index)))
        if random.random() < 0.05:
            bench.turn(random.random() * 0.01)
        if random.random() < 0.003:
            cluster.move_leaders()
    bench.drain()
    end = cluster.now + 60
    while cluster.now < end:
        cluster.step(end)
    failed = sum(failures_of(sent[index], [record[0] for record in log.records]) for index, log in cluster.logs.items())
    assert not failed or seed % 4
    assert bench.accumulator.pool.used_bytes == 0


@pytest.mark.parametrize("seed", [*range(24), 140, 243, 407, 447])
def test_topics_that_are_made_anew_with_more_or_fewer_partitions(seed):
    """Again and again, while connections break and brokers append and refuse: each record has its fate, in no log is one twice or out of
    order, and what a delivery says is so of the topic of then or of now. A record whose answer was lost may be in both."""
    cluster = Cluster(seed, trouble=0.12, after_append=0.15 * (seed % 2))
    bench = Bench(cluster, retries=(2**31 - 1, 3)[seed % 2])
    random = Random(seed)
    sent = {index: [] for index in range(4)}
    for i in range(1200):
        index, value = random.randrange(len(bench.accumulator.topic("t").partitions)), b"%d" % i
        sent[index].append((value, bench.send("t", value, partition=index)))
        if random.random() < 0.05:
            bench.turn(random.random() * 0.01)
        if i % 400 == 399 or random.random() < 0.003:
            cluster.make_anew(random.randint(1, 4))
    bench.drain()
    for index, deliveries in sent.items():
        logs = [
            [record[0] for record in logs[index].records] for logs in (*cluster.past, cluster.logs) if index in logs
        ]
        assert [sorted(set(log), key=int) for log in logs] == logs
        for value, delivery in deliveries:
            error = delivery.exception()
            if error is not None:
                assert error.maybe_written or not any(value in log for log in logs)
                continue
            offset = delivery.result().offset
            assert any(value in log if offset < 0 else log[offset : offset + 1] == [value] for log in logs)
    assert bench.accumulator.pool.used_bytes == 0
