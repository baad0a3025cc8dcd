"""Nodes that share a partition, in one process and without sockets: real logs, real handlers, real fetchers; frames go over as bytes.

The controller is the test: it sets the metadata of all nodes at once, and answers what leaders ask.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastq_broker.config import BrokerConfig
from fastq_broker.controller.image import BrokerImage, Endpoint, MetadataImage, PartitionImage, TopicImage
from fastq_broker.fetch_session import FetchSessionCache
from fastq_broker.handlers import fetch, list_offsets, produce
from fastq_broker.log import LogConfig, LogManager
from fastq_broker.log.files import Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.scan import CorruptSegment
from fastq_broker.purgatory import Purgatory
from fastq_broker.replicas import Replica, ReplicaTable
from fastq_broker.replication.fetcher import AwaitDurable, FetcherConfig, ReplicaFetcher, SendFetch
from fastq_broker.replication.fetcher_session import ReplicaPartition
from fastq_broker.replication.fetcher_wire import fetch_request
from fastq_broker.replication.shared import Replication
from fastq_broker.router import Deferred
from fastq_broker.throttles import ReplicationThrottles

from fastq._native.records import build_batch, decode_records, iter_headers
from fastq._native.wire import Writer
from fastq.net.requests import EncodedRequest
from fastq.protocol.frames import decode_response
from fastq.protocol.messages import AlterPartitionResponse, FetchRequest, ListOffsetsRequest, ProduceRequest

TOPIC, TOPIC_ID = "events", bytes(range(16))
LAG_MS = 30_000
METADATA_VERSION = 30


class Timer:
    def __init__(self, at: float, run: Callable[[], None]) -> None:
        self.at, self.run, self.cancelled = at, run, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop on virtual time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> Timer:
        timer = Timer(self.now + delay_s, lambda: call(*args))
        self.timers.append(timer)
        return timer

    def call_soon(self, call: Callable[..., None], *args: Any) -> Timer:
        return self.call_later(0.0, call, *args)

    def pass_time(self, seconds: float = 0.0) -> None:
        self.now += seconds
        while due := [timer for timer in self.timers if timer.at <= self.now]:
            self.timers = [timer for timer in self.timers if timer not in due]
            for timer in due:
                if not timer.cancelled:
                    timer.run()


class Bench:
    """Node 1 leads at first; the topic lies on all nodes."""

    def __init__(
        self, directory: Path, nodes: int = 2, config: LogConfig | None = None, min_isr: int = 1, **fetcher: Any
    ) -> None:
        """`fetcher`: settings of the followers' fetchers, as FetcherConfig's."""
        self.loop = Loop()
        self.fetcher = fetcher
        self.config = config or LogConfig()
        self.min_isr = min_isr
        ids = tuple(range(1, nodes + 1))
        self.brokers = {
            n: BrokerImage(n, 100 + n, b"", (Endpoint("L", f"h{n}", n, 0),), (), f"r{n}", False, False, ()) for n in ids
        }
        self.placed = PartitionImage(1, 0, 0, ids, ids, ())
        self.nodes = {n: Node(self, n, directory / str(n)) for n in ids}
        self.publish()

    def publish(self, **changes: Any) -> None:
        """All nodes learn the metadata, with these changes of the partition."""
        self.placed = self.placed._replace(partition_epoch=self.placed.partition_epoch + 1, **changes)
        topic = TopicImage(TOPIC, TOPIC_ID, (self.placed,))
        self.image = MetadataImage(brokers=self.brokers, topics_by_name={TOPIC: topic}, topics_by_id={TOPIC_ID: topic})
        for node in self.nodes.values():
            node.ports.image = self.image
            if node.replica.apply(self.placed):
                node.ports.purgatory.changed(node.replica)
        self.loop.pass_time()

    def elect(self, leader: int, isr: tuple[int, ...]) -> None:
        self.publish(leader=leader, isr=isr, leader_epoch=self.placed.leader_epoch + 1)

    def restart(self, node_id: int, *, checkpoint: bool) -> None:
        """A node is killed and comes back, after others have taken its place; what was written stays. Checkpoints are of now, or older."""
        old = self.nodes[node_id]
        old.ports.purgatory.end_all()
        if checkpoint:
            old.logs.write_checkpoints(old.logs.dirs[0], wait=True)
        old.logs.release_locks()
        for node in self.nodes.values():
            for fetcher, number, _, deferred in node.answers:
                if node is not old and fetcher is node.fetchers.get(node_id):
                    deferred.cancelled = True
                    fetcher.failed(number, self.loop.now)
            node.answers = [answer for answer in node.answers if not answer[3].cancelled]
        self.brokers[node_id] = self.brokers[node_id]._replace(epoch=self.brokers[node_id].epoch + 1000)
        isr = tuple(n for n in self.placed.isr if n != node_id)
        self.nodes[node_id] = Node(self, node_id, old.directory)
        if self.placed.leader == node_id:
            self.elect(isr[0], isr)
        else:
            self.publish(isr=isr)

    def settle(self) -> None:
        """Followers fetch, and what is asked of the controller is granted, until all wait for something new."""
        for _ in range(8):
            for node in self.nodes.values():
                node.turn()
            self.loop.pass_time()
        self.loop.pass_time(0.6)  # idle followers hear of the high watermark when their wait is over
        for node in self.nodes.values():
            node.turn()


class Node:
    def __init__(self, bench: Bench, node_id: int, directory: Path) -> None:
        self.bench = bench
        self.node_id = node_id
        self.directory = directory
        self.fetchers: dict[int, ReplicaFetcher] = {}
        self.answers: list[tuple[ReplicaFetcher, int, EncodedRequest, Deferred]] = []
        settings = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
        config = BrokerConfig.from_mapping(settings)
        self.throttles = ReplicationThrottles(config, lambda: int(bench.loop.now * 1000))
        self.replication = Replication(
            node_id,
            lambda node: bench.brokers.get(node),
            lambda: int(bench.loop.now * 1000),
            lag_max_ms=LAG_MS,
            follow=self._follow,
        )
        files = Files()
        self.logs = LogManager(
            [directory], default_config=bench.config, clock=lambda: 0, files=files, flusher=ManualFlusher(files)
        )
        self.logs.start()
        self.log = self.logs.get(TOPIC, 0) or self.logs.create(TOPIC, 0, TOPIC_ID, bench.config)
        self.table = ReplicaTable(node_id, self.replication)
        self.replica = Replica(self.log, TOPIC, TOPIC_ID, 0, self.replication)
        self.replica.apply_config(bench.config, bench.min_isr)
        self.table.add(self.replica)
        loop: Any = bench.loop
        purgatory = Purgatory(loop)
        self.log.on_advance(lambda log: purgatory.advanced(self.replica))
        self.ports: Any = SimpleNamespace(
            node_id=node_id,
            loop=loop,
            clock=lambda: 0,
            monotonic_ms=lambda: int(bench.loop.now * 1000),
            config=config,
            throttles=self.throttles,
            replicas=self.table,
            purgatory=purgatory,
            fetch_sessions=FetchSessionCache(10),
            read_ahead=SimpleNamespace(run=lambda work, done: (work(), done())),  # memory may be short, and pages cold
            router=SimpleNamespace(partition_failed=lambda api, code: None, counts_fetches=False),
        )

    def _follow(self, replica: Replica, leader: int, epoch: int) -> None:
        partition = ReplicaPartition(TOPIC, TOPIC_ID, 0)
        for fetcher in self.fetchers.values():
            fetcher.remove([partition.key])
        if leader >= 0:
            config = FetcherConfig(replica_id=self.node_id, **self.bench.fetcher)
            quota = self.throttles.follower
            fetcher = self.fetchers.setdefault(leader, ReplicaFetcher(config, str(leader), lambda: 0, quota))
            fetcher.add(partition, epoch, self.log, self.bench.loop.now)

    def turn(self) -> None:
        """Take the answers that have come, fetch, sync, and have the controller grant what is asked."""
        self.take_answers()
        now = self.bench.loop.now
        for leader, fetcher in self.fetchers.items():
            for effect in fetcher.poll(now):
                if isinstance(effect, SendFetch):
                    self._send(fetcher, leader, effect)
                elif isinstance(effect, AwaitDurable):
                    effect.log.wait_durable(effect.offset, lambda error: None)
        self.logs.flusher.wait()
        self.grant()

    def take_answers(self) -> None:
        """Take the answers that have come."""
        waiting, self.answers = self.answers, []
        for fetcher, number, request, deferred in waiting:
            if deferred.answered:
                self._take(fetcher, number, request, deferred.answer)
            else:
                self.answers.append((fetcher, number, request, deferred))

    def _send(self, fetcher: ReplicaFetcher, leader: int, effect: SendFetch) -> None:
        request = fetch_request(effect, fetcher.config, METADATA_VERSION, self.bench.brokers[self.node_id].epoch)
        answer = self.bench.nodes[leader].serve(fetch, bytearray(b"".join(request.buffers)), request.version)
        if isinstance(answer, Deferred) and not answer.answered:
            self.answers.append((fetcher, effect.number, request, answer))
        else:
            self._take(fetcher, effect.number, request, answer.answer if isinstance(answer, Deferred) else answer)

    def _take(self, fetcher: ReplicaFetcher, number: int, request: EncodedRequest, answer: Any) -> None:
        """An answer is sent when it is taken, not when it is made: the leader's log may have been cut meanwhile (KAFKA-18723)."""
        try:
            frame = memoryview(whole(answer))
        except CorruptSegment:  # the leader closes the connection
            fetcher.failed(number, self.bench.loop.now)
        else:
            fetcher.fetched(number, request.decode(frame[9:]), self.bench.loop.now)

    def grant(self) -> None:
        """Have the controller carry out what this leader asks."""
        alter = self.replication.alter
        for asked in (alter.take(int(self.bench.loop.now * 1000)) or {}).values():
            assert (asked.leader_epoch, asked.partition_epoch) == self.bench.placed[1:3]
            isr = tuple(asked.nodes)
            told = AlterPartitionResponse.PartitionData(
                leader_id=self.node_id,
                leader_epoch=asked.leader_epoch,
                isr=list(isr),
                partition_epoch=asked.partition_epoch + 1,
            )
            topic = AlterPartitionResponse.TopicData(topic_id=TOPIC_ID, partitions=[told])
            for answer in alter.answered(AlterPartitionResponse(topics=[topic]), 0):
                self.replication.answered(*answer)
            self.bench.publish(isr=isr)

    # -- clients

    def serve(self, handler: Any, body: bytearray, version: int) -> Any:
        connection: Any = SimpleNamespace(listener="L", peer=("", 0))
        return handler.handle_frame(connection, self.ports, body, (handler.API_KEY, version, 3, None, 0, len(body)))

    def call(self, handler: Any, request: Any, version: int) -> Answer:
        writer = Writer()
        request.encode(writer, version)
        return Answer(handler, version, self.serve(handler, bytearray(writer.getvalue()), version))

    def produce(self, *values: bytes, acks: int = -1, timeout_ms: int = 1000) -> Answer:
        data = ProduceRequest.PartitionProduceData(
            index=0, records=bytes(build_batch([(0, None, v, []) for v in values]))
        )
        topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
        return self.call(produce, ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic]), 9)

    def fetch(self, offset: int, version: int = 12, rack: str = "", **more: Any) -> Any:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, **more)
        topics = [FetchRequest.FetchTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])]
        if version < 13:
            topics[0].topic_id = bytes(16)
        else:
            topics[0].topic = ""
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics, rack_id=rack)
        return self.call(fetch, request, version).value.responses[0].partitions[0]

    def values(self) -> list[bytes]:
        """What a consumer reads here."""
        records = self.fetch(self.log.log_start_offset).records or b""
        return [r.value or b"" for at, _ in iter_headers(records) for r in decode_records(records, at)]

    def latest(self, version: int = 5, replica_id: int = -1) -> tuple[int, int]:
        """What a client is told, or who debugs (-2): error code and offset."""
        asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=replica_id, topics=[ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[asked])]
        )
        context: Any = SimpleNamespace(replicas=self.table, api_version=version)
        answer: Any = list_offsets.handle(context, request)
        told = answer.topics[0].partitions[0]
        return told.error_code, told.offset


def whole(answer: Any) -> bytes:
    """An answer as bytes: parts are bytes, or slices of a log."""
    if isinstance(answer, bytes):
        return answer
    return b"".join(bytes(part.read()) if hasattr(part, "read") else bytes(part) for part in answer)


class Answer:
    """What a handler has answered, or will."""

    def __init__(self, handler: Any, version: int, result: Any) -> None:
        self._handler, self._version, self._result = handler, version, result

    @property
    def done(self) -> bool:
        return not isinstance(self._result, Deferred) or self._result.answered

    @property
    def value(self) -> Any:
        result = self._result.answer if isinstance(self._result, Deferred) else self._result
        _, response = decode_response(whole(result)[4:], self._handler.API_KEY, self._version)
        return response

    @property
    def code(self) -> int:
        """Of a Produce."""
        return int(self.value.responses[0].partition_responses[0].error_code)
