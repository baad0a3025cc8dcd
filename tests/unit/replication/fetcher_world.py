"""Leaders and logs for the follower's side of replication: slow, obvious, and in memory.

`MemoryLog` is a FollowerLog of batches in a list. `Leader` answers Fetch and ListOffsets from such logs as Kafka's leader does, from the
bytes of a request to the bytes of an answer, with fetch sessions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from fastq_broker.replication.fetcher import (
    AwaitDurable,
    Effect,
    FetcherConfig,
    ReplicaFetcher,
    SendFetch,
    SendListOffsets,
)
from fastq_broker.replication.fetcher_session import ReplicaPartition
from fastq_broker.replication.fetcher_wire import fetch_request, list_offsets_request
from fastq_broker.replication.follower_log import FollowerLog
from fastq_broker.replication.follower_quota import FollowerQuota

from fastq._native.records import build_batch, iter_headers, verify_crc
from fastq._native.wire import Reader, Writer
from fastq.errors import CorruptMessage, ErrorCode, InvalidRecord, KafkaError
from fastq.net.requests import EncodedRequest
from fastq.protocol.messages import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse

LATEST_LEVEL = 30
BROKER_EPOCH = 77
T0 = ReplicaPartition("t", bytes([7]) * 16, 0)
T1 = ReplicaPartition("t", bytes([7]) * 16, 1)
U0 = ReplicaPartition("u", bytes([8]) * 16, 0)


class Batch(NamedTuple):
    base: int
    last: int
    epoch: int
    data: bytes


class MemoryLog:
    """A FollowerLog. With `fsync`, `durable_end` follows `sync`."""

    def __init__(self, *, fsync: bool = False) -> None:
        self.batches: list[Batch] = []
        self.epochs: list[tuple[int, int]] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.gap_offset: int | None = None
        self.fsync = fsync
        self.synced = 0
        self.waiters: list[tuple[int, Callable[[KafkaError | None], None]]] = []
        self.on_cut: Callable[[list[Batch]], None] = lambda gone: None
        self.writes = 0
        self.gently: list[bool] = []

    @property
    def durable_end(self) -> int:
        return self.synced if self.fsync else self.log_end_offset

    @property
    def leader_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        if leader_epoch == -1 or leader_epoch > self.leader_epoch:
            return -1, -1
        later = [start for epoch, start in self.epochs if epoch > leader_epoch]
        known = [epoch for epoch, _ in self.epochs if epoch <= leader_epoch]
        return (known[-1] if known else leader_epoch), (later[0] if later else self.log_end_offset)

    def assign_epoch(self, epoch: int, start: int) -> None:
        if epoch > self.leader_epoch:
            self.epochs = [entry for entry in self.epochs if entry[1] < start] + [(epoch, start)]

    def append_as_follower(self, batches: memoryview, *, now_ms: int, gently: bool = False) -> int:
        self.gently.append(gently)
        taken, end = [], self.log_end_offset
        for position, header in iter_headers(batches, strict=True):
            if header.base_offset < end:
                raise InvalidRecord(f"offset {header.base_offset} below {end}")
            if not verify_crc(batches, position):
                raise CorruptMessage("crc")
            data = bytes(batches[position : position + header.size_bytes])
            taken.append(Batch(header.base_offset, header.last_offset, header.partition_leader_epoch, data))
            end = header.next_offset
        self.writes += 1
        for batch in taken:
            self.assign_epoch(batch.epoch, batch.base)
        self.batches += taken
        self.log_end_offset = end
        return end

    def append(self, epoch: int, *values: bytes) -> None:
        """As a leader."""
        base = self.log_end_offset
        self.assign_epoch(epoch, base)
        data = build_batch([(1, None, value) for value in values], base_offset=base, leader_epoch=epoch)
        self.batches.append(Batch(base, base + len(values) - 1, epoch, bytes(data)))
        self.log_end_offset = base + len(values)

    def truncate_to(self, offset: int) -> bool:
        gone = [batch for batch in self.batches if batch.last >= offset]
        self.on_cut(gone)
        self.gap_offset = None if self.gap_offset is None or offset <= self.gap_offset else self.gap_offset
        self.batches = [batch for batch in self.batches if batch.last < offset]
        if gone:
            self.log_end_offset = self.batches[-1].last + 1 if self.batches else gone[0].base
        end = min(self.log_end_offset, offset)
        self.epochs = [entry for entry in self.epochs if entry[1] < end]
        self._cut()
        return bool(gone)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.batches, self.epochs = [], []
        self.log_start_offset = self.log_end_offset = self.high_watermark = offset
        self.synced = offset

    def _cut(self) -> None:
        end = self.log_end_offset
        self.synced, self.high_watermark = min(self.synced, end), min(self.high_watermark, end)
        self.log_start_offset = min(self.log_start_offset, end)

    def advance_as_follower(self, high_watermark: int, log_start_offset: int) -> None:
        assert self.log_start_offset <= high_watermark <= self.log_end_offset, "the high watermark lies within the log"
        assert log_start_offset <= high_watermark
        self.high_watermark = high_watermark
        self.delete_before(log_start_offset)

    def delete_before(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.batches = [batch for batch in self.batches if batch.last >= offset]
            below = [entry for entry in self.epochs if entry[1] <= offset]
            if below:
                self.epochs = [(below[-1][0], offset), *(entry for entry in self.epochs if entry[1] > offset)]

    def wait_durable(self, offset: int, callback: Callable[[KafkaError | None], None]) -> None:
        self.waiters.append((offset, callback))
        self._tell()

    def sync(self) -> None:
        self.synced = self.log_end_offset
        self._tell()

    def _tell(self) -> None:
        told = [waiter for waiter in self.waiters if waiter[0] <= self.durable_end]
        self.waiters = [waiter for waiter in self.waiters if waiter[0] > self.durable_end]
        for _, callback in told:
            callback(None)

    def crash(self) -> None:
        """The power goes: what was not synced is gone."""
        if self.fsync:
            self.batches = [batch for batch in self.batches if batch.last < self.synced]
            self.log_end_offset = self.batches[-1].last + 1 if self.batches else min(self.synced, self.log_end_offset)
            self.epochs = [entry for entry in self.epochs if entry[1] < self.log_end_offset]
            self._cut()
        self.waiters.clear()

    def read(self, offset: int, bytes_max: int) -> bytes:
        found = b""
        for batch in self.batches:
            if batch.last >= offset and (not found or len(found) + len(batch.data) <= bytes_max):
                found += batch.data
            elif found:
                break
        return found

    @property
    def data(self) -> bytes:
        return b"".join(batch.data for batch in self.batches)


class Led:
    """A partition as its leader has it. `on_fetch(replica, offset)` hears how far followers are."""

    def __init__(self, log: MemoryLog, epoch: int) -> None:
        self.log = log
        self.epoch = epoch
        self.on_fetch: Callable[[int, int], None] = lambda replica, offset: None


class Leader:
    """A broker's answers. `led` has what it leads; `names` its topics. `failures` by key are answered in place of anything else."""

    def __init__(self, ids: Iterator[int] | None = None) -> None:
        """`ids`: of sessions; who restarts has others than before, as real ones are drawn."""
        self._ids = ids or itertools.count(1)
        self.led: dict[tuple[bytes, int], Led] = {}
        self.names: dict[str, bytes] = {}
        self.failures: dict[tuple[bytes, int], int] = {}
        self.sessions: dict[int, tuple[int, dict[tuple[bytes, int], Any]]] = {}
        self.keeps_sessions = True
        self.requests: list[Any] = []

    def lead(self, partition: ReplicaPartition, log: MemoryLog, epoch: int) -> Led:
        self.names[partition.topic] = partition.topic_id
        self.led[partition.key] = led = Led(log, epoch)
        return led

    def answer(self, request: EncodedRequest) -> Any:
        """What the sender makes of the answer."""
        return request.decode(memoryview(self.answer_bytes(request)))

    def answer_bytes(self, request: EncodedRequest) -> bytes:
        body = Reader(b"".join(bytes(buffer) for buffer in request.buffers))  # type: ignore[arg-type]
        writer = Writer()
        if request.api_key == FetchRequest.API_KEY:
            self.fetch(FetchRequest.decode(body, request.version), request.version).encode(writer, request.version)
        else:
            self.list_offsets(ListOffsetsRequest.decode(body, request.version)).encode(writer, request.version)
        return writer.getvalue()

    # -- Fetch

    def fetch(self, request: FetchRequest, version: int) -> FetchResponse:
        self.requests.append(request)
        replica = request.replica_state.replica_id if version >= 15 else request.replica_id
        changed = {
            (topic.topic_id, wanted.partition): wanted for topic in request.topics for wanted in topic.partitions
        }
        if request.session_epoch == 0:
            self.sessions.pop(request.session_id, None)
            session_id = next(self._ids) if self.keeps_sessions else 0
            wanted = changed
        else:
            session_id = request.session_id
            if session_id not in self.sessions:
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            epoch, wanted = self.sessions[session_id]
            if epoch != request.session_epoch:
                return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            wanted = {**wanted, **changed}
            for topic in request.forgotten_topics_data:
                for number in topic.partitions:
                    del wanted[topic.topic_id, number]
        if self.keeps_sessions:
            self.sessions[session_id] = request.session_epoch + 1, wanted
        parts = {key: self._read(replica, key, asked) for key, asked in wanted.items()}
        answers = [
            FetchResponse.FetchableTopicResponse(topic_id=key[0], partitions=[part]) for key, part in parts.items()
        ]
        return FetchResponse(session_id=session_id, responses=answers)

    def _read(self, replica: int, key: tuple[bytes, int], asked: Any) -> FetchResponse.PartitionData:
        led = self.led.get(key)
        answer = FetchResponse.PartitionData(partition_index=key[1], high_watermark=-1)
        answer.error_code = self.failures.get(key) or self._epoch_error(led, asked.current_leader_epoch)
        if answer.error_code or led is None:
            return answer
        log, offset = led.log, asked.fetch_offset
        if asked.last_fetched_epoch >= 0:
            epoch, end = log.epoch_end_offset(asked.last_fetched_epoch)
            if epoch < 0:
                answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                return answer
            if epoch < asked.last_fetched_epoch or end < offset:
                answer.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end)
                return answer
        if not log.log_start_offset <= offset <= log.log_end_offset:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return answer
        led.on_fetch(replica, offset)
        answer.high_watermark, answer.log_start_offset = log.high_watermark, log.log_start_offset
        answer.records = log.read(offset, asked.partition_max_bytes)
        return answer

    @staticmethod
    def _epoch_error(led: Led | None, epoch: int) -> int:
        if led is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if epoch < led.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > led.epoch else 0

    # -- ListOffsets

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        self.requests.append(request)
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                key = self.names.get(topic.name, b""), asked.partition_index
                led = self.led.get(key)
                answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=key[1])
                answer.error_code = self.failures.get(key) or self._epoch_error(led, asked.current_leader_epoch)
                if led is not None and not answer.error_code:
                    log = led.log
                    answer.offset = log.log_end_offset if asked.timestamp == -1 else log.log_start_offset
                answers.append(answer)
            topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return ListOffsetsResponse(topics=topics)


class Follower:
    """One fetcher, and the leader that it asks; time stands still but for `now`."""

    def __init__(self, leader: Leader | None = None, *, quota: FollowerQuota | None = None, **settings: Any) -> None:
        self.leader = leader or Leader()
        self.config = FetcherConfig(replica_id=2, **{"catch_up_pause_s": 0.0, **settings})  # as time stands still
        self.machine = ReplicaFetcher(self.config, "leader:9092 (node 1)", lambda: 5, quota)
        self.now = 100.0
        self.level = LATEST_LEVEL
        self.asked: list[tuple[int, Any, EncodedRequest]] = []
        self.woken = 0

    def follow(self, name: ReplicaPartition, log: FollowerLog, epoch: int, *, in_sync: bool = False) -> None:
        self.machine.add(name, epoch, log, self.now, in_sync=in_sync)

    def poll(self) -> None:
        """Do what is due; requests stay in `asked`."""
        self.do(self.machine.poll(self.now))

    def do(self, effects: Iterable[Effect]) -> None:
        """Do these."""
        for effect in effects:
            if isinstance(effect, AwaitDurable):
                effect.log.wait_durable(effect.offset, self._woken)
            elif isinstance(effect, SendFetch):
                request = fetch_request(effect, self.config, self.level, BROKER_EPOCH)
                self.asked.append((effect.number, self.machine.fetched, request))
            else:
                assert isinstance(effect, SendListOffsets)
                request = list_offsets_request(effect, self.config, self.level)
                self.asked.append((effect.number, self.machine.listed, request))

    def _woken(self, error: KafkaError | None) -> None:
        self.woken += 1

    def step(self) -> bool:
        """One request and its answer; whether there was one."""
        self.poll()
        if not self.asked:
            return False
        number, take, request = self.asked.pop(0)
        take(number, self.leader.answer(request), self.now)
        return True

    def steps(self, count: int = 20) -> None:
        for _ in range(count):
            self.step()


def log_of(*epochs: int, fsync: bool = False) -> MemoryLog:
    """One record of each epoch."""
    log = MemoryLog(fsync=fsync)
    for offset, epoch in enumerate(epochs):
        log.append(epoch, b"value %d of epoch %d" % (offset, epoch))
    return log


def pair(leader_log: MemoryLog, follower_log: MemoryLog, epoch: int, **settings: Any) -> Follower:
    """A follower of one partition."""
    follower = Follower(**settings)
    follower.leader.lead(T0, leader_log, epoch)
    leader_log.high_watermark = leader_log.log_end_offset
    follower.follow(T0, follower_log, epoch)
    return follower


def fetches(follower: Follower) -> list[FetchRequest]:
    return [request for request in follower.leader.requests if isinstance(request, FetchRequest)]


def named(request: FetchRequest) -> list[tuple[bytes, int]]:
    return [(topic.topic_id, wanted.partition) for topic in request.topics for wanted in topic.partitions]
