"""A cluster in memory for tests of the sender: seeded, with a clock of its own, losses, delays and leader changes.

It checks what a broker checks of an idempotent producer (Kafka's ProducerStateManager): epochs, sequence gaps, the window
of five batches. Requests of one connection are handled in order; a lost connection loses requests or only answers.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from functools import partial
from random import Random
from types import SimpleNamespace

from fastq._native.records import decode_records, read_header, verify_crc
from fastq._native.wire import Reader, Writer
from fastq.errors import ConnectionClosed, ProtocolError, UnsupportedVersion
from fastq.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from fastq.net.requests import EncodedRequest
from fastq.protocol.messages import InitProducerIdResponse, ProduceRequest, ProduceResponse

TOPIC_ID = bytes(range(16))


def failures_of(deliveries, stored):
    """How many of a partition's (value, delivery) failed, once it is sure that what the log stored and what each delivery says agree.

    Values are numbers in the order in which they were sent: none is there twice, none out of order, none missing or elsewhere though
    it was acknowledged, none there though its error rules that out.
    """
    assert len(set(stored)) == len(stored)
    assert stored == sorted(stored, key=int)
    failed = 0
    for value, delivery in deliveries:
        error = delivery.exception()
        failed += error is not None
        if error is None:
            offset = delivery.result().offset
            assert (stored[offset] == value) if offset >= 0 else (value in stored)
        elif not error.maybe_written:
            assert value not in stored, (value, error)
    return failed


class FakePartition:
    """A log and the producers that wrote to it."""

    first_is_zero = False
    """Whether a producer that is not known here has to begin at sequence 0: under transaction version 2 (KIP-890)."""

    def __init__(self):
        self.records = []  # (value, key, headers, timestamp)
        self.producers = {}  # producer id -> [epoch, deque of (first sequence, last sequence, base offset)]
        self.batches = 0

    def append(self, data, max_bytes, refuse):
        """(error code, base offset) for one batch."""
        header = read_header(data)
        assert verify_crc(data), "a batch with a bad checksum was sent"
        assert header.size_bytes == len(data)
        if len(data) > max_bytes:
            return 10, -1
        if header.producer_id >= 0:
            error, offset = self._check_sequence(header)
            if error or offset is not None:
                return error, -1 if offset is None else offset
        if refuse:  # a duplicate is recognised before that: what is in the log is not refused afterwards
            return refuse.popleft(), -1
        base = len(self.records)
        records = decode_records(data)
        assert [record.offset - records[0].offset for record in records] == list(range(header.record_count))
        self.records.extend((r.value, r.key, r.headers, r.timestamp_ms) for r in records)
        self.batches += 1
        if header.producer_id >= 0:
            state = self.producers[header.producer_id]
            last = (header.base_sequence + header.record_count - 1) % 2**31
            state[1].append((header.base_sequence, last, base))
        return 0, base

    def _check_sequence(self, header):
        state = self.producers.get(header.producer_id)
        if state is None or header.producer_epoch > state[0]:
            if header.base_sequence != 0 and (state is not None or self.first_is_zero):
                return 45, None
            self.producers[header.producer_id] = [header.producer_epoch, deque(maxlen=5)]
            return 0, None
        if header.producer_epoch < state[0]:
            return 47, None
        last = (header.base_sequence + header.record_count - 1) % 2**31
        for first, end, base in state[1]:
            if (first, end) == (header.base_sequence, last):
                return 0, base
        expected = (state[1][-1][1] + 1) % 2**31 if state[1] else 0
        return (0, None) if header.base_sequence == expected else (45, None)


class FakeCore:
    """What a Sender needs of a ClientCore, over an imaginary network and an imaginary clock."""

    make_partition = FakePartition

    def __init__(
        self, seed=0, *, topics=None, nodes=2, trouble=0.0, after_append=0.0, late=0.0, version=13, max_bytes=1 << 20
    ):
        self.random = Random(seed)
        self.topic_ids = {}
        self.now = 1000.0
        self.clock = lambda: self.now
        self.metadata = ClusterMetadata()
        self.metadata.nodes = {i: Node(i, "h", 9000 + i) for i in range(nodes)}
        self.metadata.generation = 1
        self.metadata_updater = SimpleNamespace(requests=0, answered=0)
        self.trouble = trouble  # how often a connection breaks, or a request is refused before anything is written
        self.after_append = after_append  # how often what was written is answered with an error
        self.late = late  # how often a client's time-out ends a connection whose requests the broker handles afterwards
        self.version = version
        self.max_bytes = max_bytes
        self.logs = {}
        self.leaders = {}
        self.refuse = deque()  # error codes for the next batches
        self.names_leaders = False  # whether who leads no more says who does (KIP-951)
        self.updates = 0
        self.down_until = {}
        self.requests = {node: [] for node in self.metadata.nodes}
        self.events = []
        self._order = itertools.count()
        self._next_free = {}
        self.producer_ids = itertools.count(7000)
        self.produced = []
        for name, count in (topics or {"t": 1}).items():
            for index in range(count):
                self.logs[name, index] = self.make_partition()
                self.leaders[name, index] = index % nodes
        self.publish()

    def publish(self):
        """Let the client see the leaders as they are."""
        names = {name for name, _ in self.logs}
        for name in names:
            partitions = [PartitionMetadata(i, self.leaders[n, i], 0) for n, i in sorted(self.logs) if n == name]
            self.metadata.topics[name] = TopicMetadata(
                name, self.topic_id(name) if self.version >= 13 else bytes(16), tuple(partitions)
            )
        self.metadata.generation += 1
        self.metadata_updater.requests += 1
        self.metadata_updater.answered += 1

    def topic_id(self, name):
        return self.topic_ids.get(name, TOPIC_ID)

    def recreate(self, name, partitions):
        """Delete the topic and make it again, with as many partitions; the client does not know yet."""
        self.logs = {key: log for key, log in self.logs.items() if key[0] != name}
        self.topic_ids[name] = self.random.randbytes(16)
        for index in range(partitions):
            self.logs[name, index] = self.make_partition()
            self.leaders[name, index] = index % len(self.metadata.nodes)

    # -- what the sender calls

    def watch_topics(self, names):
        pass

    def request_metadata_update(self, reason):
        self.updates += 1
        self.at(0.02 + self.random.random() * 0.05, self.publish)

    def can_send(self, node, now):
        return self.now >= self.down_until.get(node, 0)

    def why_not(self, node):
        return ConnectionClosed(broker=f"h:{9000 + node}") if self.now < self.down_until.get(node, 0) else None

    def in_flight(self, node):
        return len(self.requests[node])

    def least_loaded(self, now):
        return self.random.choice(list(self.metadata.nodes))

    def broker_label(self, node):
        return f"h:{9000 + node}"

    def api_version(self, node, key, *, min_version=None, max_version=None):
        version = min(self.version, max_version)
        if version < (min_version or 0):
            raise UnsupportedVersion()
        return version

    def throttle(self, node, seconds, now):
        self.down_until[node] = now + seconds

    def send(self, node, request, on_done, *, timeout_s=None, versions=None, anywhere=False):
        entry = [request, on_done, False, versions]
        self.requests[node].append(entry)
        # One connection: handled in order of sending.
        when = max(self._next_free.get(node, 0), self.now + 0.001 + self.random.random() * 0.004)
        self._next_free[node] = when
        self.at(when - self.now, lambda: self._handle(node, entry))

    # -- the network

    def at(self, delay, action):
        heapq.heappush(self.events, (self.now + delay, next(self._order), action))

    def step(self, until):
        """Move the clock to the next event, or to `until`."""
        if self.events and self.events[0][0] <= until:
            when, _, action = heapq.heappop(self.events)
            self.now = max(self.now, when)
            action()
        else:
            self.now = max(self.now, until)

    def _handle(self, node, entry):
        if entry[2]:
            return
        if self.random.random() < self.late:
            self._time_out(node)
            return
        lost = self.random.random() < self.trouble
        if lost and self.random.random() < 0.5:
            self._drop(node)
            return
        request = entry[0]
        answer = self._produce(node, request) if hasattr(request, "buffers") else self._other(node, request, entry[3])
        if lost:
            self._drop(node)
        else:
            self.at(0.0005, lambda: self._answer(node, entry, answer))

    def _answer(self, node, entry, answer):
        if not entry[2]:
            entry[2] = True
            self.requests[node].remove(entry)
            try:
                entry[1](answer, None)
            except MemoryError as error:  # as the core does
                entry[1](None, ProtocolError("an answer could not be made use of", cause=error))

    def _drop(self, node):
        """The connection breaks: everything that waits for an answer fails."""
        entries, self.requests[node] = self.requests[node], []
        self.down_until[node] = self.now + self.random.random() * 0.2
        for entry in entries:
            entry[2] = True
            entry[1](None, ConnectionClosed(broker=self.broker_label(node)))

    def _time_out(self, node):
        """The client gives the connection up; what it has written is handled all the same, later and in order."""
        delay = 0.0
        for request, *_ in self.requests[node]:
            if hasattr(request, "buffers"):
                body = b"".join(bytes(buffer) for buffer in request.buffers)
                written = EncodedRequest(request.api_key, request.version, [body], request.decode)
                delay += 0.01 + self.random.random() * 0.2
                self.at(delay, partial(self._produce, node, written))
        self._drop(node)

    def move_leaders(self):
        """Every partition gets a random leader, which the client does not know yet."""
        for key in self.leaders:
            self.leaders[key] = self.random.choice(list(self.metadata.nodes))

    def _other(self, node, request, versions):
        """The answer to anything that is no Produce."""
        return self._init_producer_id()

    def _init_producer_id(self):
        if self.random.random() < self.trouble:
            return InitProducerIdResponse(error_code=14)
        return InitProducerIdResponse(error_code=0, producer_id=next(self.producer_ids), producer_epoch=0)

    def _produce(self, node, encoded):
        body = b"".join(bytes(buffer) for buffer in encoded.buffers)
        request = ProduceRequest.decode(Reader(body), encoded.version)
        topics = []
        for data in request.topic_data:
            name = data.name if encoded.version < 13 else "t"
            partitions = []
            for part in data.partition_data:
                error, offset = self._append(node, name, part, data.topic_id if encoded.version >= 13 else None)
                answer = ProduceResponse.PartitionProduceResponse(
                    index=part.index,
                    error_code=error,
                    base_offset=offset,
                    log_append_time_ms=-1,
                    log_start_offset=0,
                )
                if error == 6 and self.names_leaders:
                    leader = self.leaders[name, part.index]
                    answer.current_leader = ProduceResponse.LeaderIdAndEpoch(leader_id=leader, leader_epoch=1)
                partitions.append(answer)
            kwargs = {"topic_id": data.topic_id} if encoded.version >= 13 else {"name": name}
            topics.append(ProduceResponse.TopicProduceResponse(partition_responses=partitions, **kwargs))
        writer = Writer()
        ProduceResponse(responses=topics).encode(writer, encoded.version)
        return encoded.decode(memoryview(writer.getvalue())) if encoded.expects_response else None

    def _append(self, node, name, part, topic_id=None):
        if topic_id not in (None, self.topic_id(name)):
            return 100, -1
        if (name, part.index) not in self.logs:
            return 3, -1
        if self.leaders[name, part.index] != node:
            return 6, -1
        if self.random.random() < self.trouble / 2:
            return self.random.choice([7, 19]), -1
        error, offset = self.logs[name, part.index].append(bytes(part.records), self.max_bytes, self.refuse)
        if not error and self.random.random() < self.after_append:
            return self.random.choice([6, 7, 20]), -1
        return error, offset
