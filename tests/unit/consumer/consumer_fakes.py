"""A cluster of a few lines for the tests of the consumer: logs, leaders, fetch sessions checked to the letter, and sockets.

`FakeLog` keeps the plain rows it was given, so that what a consumer must see can be said without decoding anything.
"""

from __future__ import annotations

import random
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from fastq._native.records import CONTROL_ABORT, CONTROL_COMMIT, build_batch, build_transaction_marker
from fastq._native.wire import Reader
from fastq.metadata import TopicPartition
from fastq.protocol.api import APIS, ApiKey
from fastq.protocol.frames import decode_request, decode_request_header, encode_response
from fastq.protocol.messages import (
    ApiVersionsResponse,
    FetchResponse,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetForLeaderEpochResponse,
)

Row = tuple[int, bytes | None, bytes | None]  # offset, key, value
NO_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER, FENCED, UNKNOWN_EPOCH = 0, 1, 3, 6, 74, 75
UNKNOWN_SESSION, BAD_SESSION_EPOCH, UNKNOWN_TOPIC_ID = 70, 71, 100
T0_MS = 1_700_000_000_000


@dataclass
class Entry:
    """One batch: its bytes, its offsets, and the rows that a reader sees under either isolation level."""

    base: int
    last: int
    data: bytes
    rows: list[Row]
    committed: bool = True
    epoch: int = 0


@dataclass
class FakeLog:
    """The log of one partition. `aborted` are (producer id, first offset, last offset) of aborted transactions."""

    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    end: int = 0
    leader: int = 1
    epoch: int = 0
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    def append(
        self, rows: list[tuple[Any, ...]], *, codec: int = 0, gaps: list[int] | None = None, **more: Any
    ) -> Entry:
        """Append rows of (key, value[, headers]); `gaps` are the offset deltas that are left of a compacted batch."""
        deltas = gaps if gaps is not None else list(range(len(rows)))
        last = more.pop("last_offset_delta", deltas[-1])
        committed = more.pop("committed", True)
        data = build_batch(
            [(T0_MS + self.end + d, *row) for d, row in zip(deltas, rows, strict=True)],
            base_offset=self.end,
            leader_epoch=self.epoch,
            codec=codec,
            offset_deltas=deltas,
            last_offset_delta=last,
            **more,
        )
        seen = [(self.end + d, row[0], row[1]) for d, row in zip(deltas, rows, strict=True)]
        return self._add(Entry(self.end, self.end + last, bytes(data), seen, committed, self.epoch))

    def _add(self, entry: Entry) -> Entry:
        self.entries.append(entry)
        self.end = entry.last + 1
        return entry

    def marker(self, producer_id: int, commit: bool) -> None:
        """End a transaction."""
        data = build_transaction_marker(
            CONTROL_COMMIT if commit else CONTROL_ABORT,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=T0_MS,
            base_offset=self.end,
            leader_epoch=self.epoch,
        )
        self._add(Entry(self.end, self.end, bytes(data), [], epoch=self.epoch))

    def transaction(self, producer_id: int, batches: list[list[tuple[Any, ...]]], commit: bool) -> None:
        """A transaction of some batches and its marker."""
        first = self.end
        for rows in batches:
            self.append(
                rows, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True, committed=commit
            )
        if not commit:
            self.aborted.append((producer_id, first, self.end))
        self.marker(producer_id, commit)

    def visible(self, read_committed: bool) -> list[Row]:
        """Every row that a reader from the start sees."""
        return [
            row for e in self.entries if e.committed or not read_committed for row in e.rows if row[0] >= self.start
        ]

    def read(self, offset: int, bytes_max: int, rng: random.Random | None = None) -> bytes:
        """Whole batches from the one that holds `offset`, at least one; sometimes the next one cut off."""
        out = bytearray()
        for entry in self.entries:
            if entry.last < offset:
                continue
            if out and len(out) + len(entry.data) > bytes_max:
                if rng is not None and rng.random() < 0.5:
                    out += entry.data[: rng.randrange(len(entry.data))]
                break
            out += entry.data
        return bytes(out)


class FakeCluster:
    """Answers requests as brokers `nodes` would. `log[tp]` are the partitions; topic ids are made of the names."""

    def __init__(self, nodes: tuple[int, ...] = (1,), rng: random.Random | None = None) -> None:
        self.nodes = {node: ("127.0.0.1", 9000 + node) for node in nodes}
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.sessions: dict[tuple[int, int], dict[str, Any]] = {}
        self.session_ids = iter(range(1, 1_000_000))
        self.rng = rng
        self.full_fetches = self.incremental_fetches = 0
        self.tells_epochs = False  # whether ListOffsets tells the leader's epoch
        self.names_leaders = False  # whether who leads no more says who does (KIP-951)
        self.bad_topics: dict[str, int] = {}
        self.remade: dict[str, int] = {}

    def topic_id(self, name: str) -> bytes:
        """A made-up id."""
        return name.encode().ljust(16, b"-")[:15] + b"%d" % self.remade.get(name, 0)

    def make_anew(self, topic: str, partitions: int) -> list[FakeLog]:
        """Delete a topic, and create another of its name."""
        self.logs = {tp: log for tp, log in self.logs.items() if tp.topic != topic}
        self.remade[topic] = self.remade.get(topic, 0) + 1
        return self.create(topic, partitions)

    def create(self, topic: str, partitions: int = 1) -> list[FakeLog]:
        """New partitions, their leaders spread over the nodes."""
        nodes = list(self.nodes)
        have = sum(tp.topic == topic for tp in self.logs)
        for index in range(have, have + partitions):
            self.logs[TopicPartition(topic, index)] = FakeLog(leader=nodes[index % len(nodes)])
        return [self.logs[TopicPartition(topic, index)] for index in range(have + partitions)]

    def metadata(self, topics: list[str] | None = None) -> MetadataResponse:
        """The answer to a Metadata request."""
        names = sorted({tp.topic for tp in self.logs}) if topics is None else topics
        return MetadataResponse(
            cluster_id="fake",
            controller_id=min(self.nodes),
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node, host=host, port=port)
                for node, (host, port) in self.nodes.items()
            ],
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponse.MetadataResponseTopic:
        logs = {tp.partition: log for tp, log in self.logs.items() if tp.topic == name}
        code = self.bad_topics.get(name, NO_ERROR if logs else UNKNOWN_TOPIC_OR_PARTITION)
        return MetadataResponse.MetadataResponseTopic(
            name=name,
            error_code=code,
            topic_id=self.topic_id(name) if logs else bytes(16),
            partitions=[
                MetadataResponse.MetadataResponsePartition(
                    partition_index=index,
                    leader_id=log.leader,
                    leader_epoch=log.epoch,
                    replica_nodes=list(self.nodes),
                    isr_nodes=list(self.nodes),
                    offline_replicas=[],
                )
                for index, log in sorted(logs.items())
            ],
        )

    def handle(self, node: int, request: Any, version: int) -> Any:
        """The answer of one broker."""
        handler = {1: self._fetch, 2: self._list_offsets, 3: self._metadata, 18: self._versions, 23: self._epochs}
        return handler[request.API_KEY](node, request, version)

    def _metadata(self, node: int, request: Any, version: int) -> Any:
        return self.metadata(None if request.topics is None else [topic.name for topic in request.topics])

    def _versions(self, node: int, request: Any, version: int) -> Any:
        return ApiVersionsResponse(
            error_code=0,
            api_keys=[
                ApiVersionsResponse.ApiVersion(
                    api_key=key, min_version=api.min_version, max_version=api.max_stable_version
                )
                for key, api in APIS.items()
            ],
        )

    def _refusal(self, node: int, log: FakeLog | None, epoch: int) -> int:
        if log is None:
            return UNKNOWN_TOPIC_OR_PARTITION
        if log.leader != node:
            return NOT_LEADER
        if epoch >= 0 and epoch != log.epoch:
            return FENCED if epoch < log.epoch else UNKNOWN_EPOCH
        return NO_ERROR

    def _list_offsets(self, node: int, request: Any, version: int) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            parts = []
            for ask in topic.partitions:
                log = self.logs.get(TopicPartition(topic.name, ask.partition_index))
                code = self._refusal(node, log, ask.current_leader_epoch)
                offset, time_ms = (-1, -1) if code or log is None else self._find(log, ask.timestamp)
                parts.append(
                    ListOffsetsResponse.ListOffsetsPartitionResponse(
                        partition_index=ask.partition_index,
                        error_code=code,
                        offset=offset,
                        timestamp=time_ms,
                        leader_epoch=log.epoch if self.tells_epochs and log is not None and not code else -1,
                    )
                )
            topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)

    @staticmethod
    def _find(log: FakeLog, timestamp: int) -> tuple[int, int]:
        if timestamp == -1:
            return log.end, -1
        if timestamp == -2:
            return log.start, -1
        return next(((row[0], T0_MS + row[0]) for row in log.visible(False) if T0_MS + row[0] >= timestamp), (-1, -1))

    def _epochs(self, node: int, request: Any, version: int) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            parts = []
            for ask in topic.partitions:
                log = self.logs[TopicPartition(topic.topic, ask.partition)]
                code = self._refusal(node, log, ask.current_leader_epoch)
                known = [entry for entry in log.entries if entry.epoch <= ask.leader_epoch]
                parts.append(
                    OffsetForLeaderEpochResponse.EpochEndOffset(
                        partition=ask.partition,
                        error_code=code,
                        leader_epoch=known[-1].epoch if known else -1,
                        end_offset=known[-1].last + 1 if known else -1,
                    )
                )
            topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=parts))
        return OffsetForLeaderEpochResponse(topics=topics)

    # -- fetch

    def _name(self, topic: str | bytes) -> str | None:
        if isinstance(topic, str):
            return topic
        assert topic[:15] in {name.encode().ljust(16, b"-")[:15] for name, _ in self.logs}, (
            "a topic id that nobody was told"
        )
        return next((tp.topic for tp in self.logs if self.topic_id(tp.topic) == topic), None)

    def _fetch(self, node: int, request: Any, version: int) -> FetchResponse:
        asked: dict[tuple[str | bytes, int], Any] = {}
        for topic in request.topics:
            for ask in topic.partitions:
                asked[topic.topic if version < 13 else topic.topic_id, ask.partition] = ask
        incremental = request.session_epoch > 0
        if incremental:
            session = self.sessions.get((node, request.session_id))
            if session is None:
                return FetchResponse(error_code=UNKNOWN_SESSION, responses=[])
            if session["epoch"] != request.session_epoch:
                return FetchResponse(error_code=BAD_SESSION_EPOCH, responses=[])
            self.incremental_fetches += 1
            for topic in request.forgotten_topics_data:
                for index in topic.partitions:
                    # Forgetting what was never asked is an error.
                    del session["asked"][topic.topic if version < 13 else topic.topic_id, index]
            session["asked"].update(asked)
            session["epoch"] += 1
        else:
            self.sessions.pop((node, request.session_id), None)
            session = {"asked": asked, "epoch": 1}
            session_id = 0
            if request.session_epoch == 0:
                self.full_fetches += 1
                session_id = next(self.session_ids)
                self.sessions[node, session_id] = session
        answer_id = request.session_id if incremental else session_id
        return self._answer(node, session["asked"], request, answer_id, incremental)

    def _answer(
        self,
        node: int,
        asked: dict[tuple[str | bytes, int], Any],
        request: Any,
        session_id: int,
        incremental: bool,
    ) -> FetchResponse:
        topics: dict[str | bytes, list[FetchResponse.PartitionData]] = {}
        budget = request.max_bytes
        for (topic, index), ask in asked.items():
            tp = TopicPartition(self._name(topic) or "", index)
            part = self._partition(node, tp, ask, request.isolation_level == 1, min(budget, ask.partition_max_bytes))
            if not tp.topic:
                part.error_code = UNKNOWN_TOPIC_ID
            if incremental and part.error_code == 0 and not part.records:
                continue
            budget = max(0, budget - len(part.records or b""))
            topics.setdefault(topic, []).append(part)
        return FetchResponse(
            session_id=session_id,
            responses=[
                FetchResponse.FetchableTopicResponse(topic=topic, partitions=parts)
                if isinstance(topic, str)
                else FetchResponse.FetchableTopicResponse(topic_id=topic, partitions=parts)
                for topic, parts in topics.items()
            ],
        )

    def _partition(
        self, node: int, tp: TopicPartition, ask: Any, read_committed: bool, bytes_max: int
    ) -> FetchResponse.PartitionData:
        log = self.logs.get(tp)
        code = self._refusal(node, log, ask.current_leader_epoch)
        if code == 0 and not log.start <= ask.fetch_offset <= log.end:
            code = OFFSET_OUT_OF_RANGE
        if code:
            part = FetchResponse.PartitionData(
                partition_index=tp.partition, error_code=code, high_watermark=-1, records=b"", aborted_transactions=None
            )
            if code == NOT_LEADER and self.names_leaders:
                part.current_leader = FetchResponse.LeaderIdAndEpoch(leader_id=log.leader, leader_epoch=log.epoch)
            return part
        data = log.read(ask.fetch_offset, bytes_max, self.rng) if bytes_max > 0 else b""
        aborted = [
            FetchResponse.AbortedTransaction(producer_id=pid, first_offset=first)
            for pid, first, last in log.aborted
            if last >= ask.fetch_offset
        ]
        return FetchResponse.PartitionData(
            partition_index=tp.partition,
            high_watermark=log.end,
            last_stable_offset=log.end,
            log_start_offset=log.start,
            aborted_transactions=aborted if read_committed else None,
            records=data,
        )


class SocketCluster(FakeCluster):
    """The same behind real sockets, one listener a node."""

    def __init__(self, nodes: tuple[int, ...] = (1,)) -> None:
        super().__init__(nodes)
        self.lock = threading.Lock()
        self.rubbish: set[int] = set()  # api keys that are answered with bytes that mean nothing
        self.idle_wait_s = 0.01  # how long an empty fetch is held back
        self._sockets: list[socket.socket] = []
        for node in nodes:
            listener = socket.create_server(("127.0.0.1", 0))
            self.nodes[node] = listener.getsockname()[:2]
            self._sockets.append(listener)
            threading.Thread(target=self._accept, args=(node, listener), daemon=True).start()

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of the first node."""
        host, port = next(iter(self.nodes.values()))
        return f"{host}:{port}"

    def _accept(self, node: int, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            threading.Thread(target=self._serve, args=(node, sock), daemon=True).start()

    def _serve(self, node: int, sock: socket.socket) -> None:
        stream = sock.makefile("rb")
        try:
            while size := stream.read(4):
                reader = Reader(stream.read(int.from_bytes(size, "big")))
                header = decode_request_header(reader)
                request = decode_request(header, reader)
                with self.lock:
                    response = self.handle(node, request, header.api_version)
                if header.api_key == ApiKey.FETCH and not response.responses and not response.error_code:
                    threading.Event().wait(min(self.idle_wait_s, request.max_wait_ms / 1000))
                frame = encode_response(header.correlation_id, response, header.api_version)
                if header.api_key in self.rubbish:
                    frame = frame[:8] + b"\xff" * (len(frame) - 8)
                sock.sendall(frame)
        except (OSError, ValueError):
            pass

    def close(self) -> None:
        """Close everything."""
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
