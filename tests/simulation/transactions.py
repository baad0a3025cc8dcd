"""Who reads, processes and writes in transactions: members of one group, each with a transactional id that outlives it.

Rules
- A worker's output is `<record>#<worker>.<transaction>`, in the partition of the same number; what its group has committed and what
  is in the output are of one transaction. So the committed output is the input, each record once, in order.
- A worker that does not know how things stand begins anew: InitProducerId ends what it had begun. Now and then another takes its
  transactional id while it goes on, or stands still: that one ends it, by what it is told.
- Offsets are asked of the coordinator that has just let the worker in: one of old could not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raw_groups import subscription
from raw_kafka import batch, produce_request

from fastq._native.records import decode_records, iter_headers
from fastq.errors import ErrorCode
from fastq.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    ConsumerProtocolAssignment,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from simulation.client import Client, Reader, Unreachable
from simulation.world import FIRST_MS, Violation

GROUP = "g"
SESSION_MS, REBALANCE_MS, TRANSACTION_MS = 3000, 4000, 8000
RECORDS_MAX = 50
"""How many records go into one transaction."""
ABORTED, REPLACED = 0.2, 0.05
"""How often a worker aborts, and another takes its place, of its transactions."""
STANDS_STILL_S = 6.0
AGAIN = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
ELSEWHERE = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.FENCED_LEADER_EPOCH,
}
NEVER = {
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_RECORD,
}


class BeginAnew(Exception):
    """What was begun cannot be ended any more."""


class Ledger:
    """What all workers have in common, and what must hold of it."""

    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        """Up to where each partition was committed, at least."""
        self.aborted: set[bytes] = set()
        """The marks of transactions that were aborted by their worker."""
        self.newest: dict[str, Worker] = {}
        self._owners: dict[tuple[int, int], str] = {}

    def owns(self, generation: int, partition: int, member_id: str) -> None:
        other = self._owners.setdefault((generation, partition), member_id)
        if other != member_id:
            raise Violation(f"{GROUP}: partition {partition} is {other}'s and {member_id}'s in generation {generation}")

    def commits(self, partition: int, offset: int) -> None:
        self.committed[partition] = max(offset, self.committed.get(partition, 0))

    def begins_at(self, worker: Worker, partition: int, offset: int, known: int) -> None:
        if offset < known:
            raise Violation(
                f"{worker}: {GROUP} has committed {offset} of partition {partition}, and {known} before that"
            )
        self.commits(partition, offset)


class Worker:
    """One life of a transactional id, a member of a classic group."""

    offset_fetch_version = 8
    again, never = AGAIN, NEVER

    def __init__(
        self, client: Client, name: str, life: int, source: str, target: str, version: int, ledger: Ledger
    ) -> None:
        self.client, self.name, self.life = client, name, life
        self.source, self.target, self.ledger = source, target, ledger
        self.version = version
        """Of transactions: from 2 on, each has an epoch of its own, and partitions are added by the first write."""
        self.stopping = self.ended = False
        self.replace: Callable[[Worker], None] = lambda worker: None
        self.last = "nothing"
        """What it was answered last, and to what."""
        self._random = client.random
        self._coordinators: dict[int, int] = {}
        self._leaders: dict[tuple[str, int], int] = {}
        self._member_id = ""
        self._generation = -1
        self._id = self._epoch = -1
        self._sequences: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._count = 0
        ledger.newest[name] = self

    def __str__(self) -> str:
        return f"{self.name}/{self.life}"

    @property
    def replaced(self) -> bool:
        return self.ledger.newest[self.name] is not self

    async def run(self) -> None:
        while not self.ended:
            try:
                await self._begin()
                while not self.stopping:
                    await self._transact()
                self.ended = True
            except (BeginAnew, Unreachable):
                self.ended = self.replaced
                await self.client.pause(0.1)

    # -- asking

    async def _coordinator(self, kind: int) -> int:
        if kind not in self._coordinators:
            key = self.name if kind else GROUP
            asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            answer = await self.client.ask(self._random.choice(self.client.nodes), asked, 4)
            (found,) = answer.coordinators
            if found.error_code:
                raise Unreachable(f"no coordinator of {key}")
            self._coordinators[kind] = found.node_id
        return self._coordinators[kind]

    async def _call(
        self, kind: int, request: Any, version: int, code_of: Callable[[Any], int], *, moves: bool = True
    ) -> Any:
        """What the coordinator answers in the end. Raises BeginAnew where it is refused, or, unless `moves`, not answered."""
        while True:
            try:
                answer = await self.client.ask(await self._coordinator(kind), request, version, 6.0)
                code = ErrorCode(code_of(answer))
            except Unreachable:
                self._coordinators.pop(kind, None)
                if not moves:
                    raise
                code = ErrorCode.NETWORK_EXCEPTION
            self.last = f"{type(request).__name__} at {self.client.world.now:.3f}: {code.name}"
            if self._is_final(code):
                if code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                    return answer
                raise BeginAnew(code.name)
            if code in ELSEWHERE:
                self._coordinators.pop(kind, None)
                if not moves:
                    raise BeginAnew(code.name)
            await self.client.pause(0.1)

    def _is_final(self, code: ErrorCode) -> bool:
        if code in self.never:
            raise Violation(f"{self} is answered {code.name}")
        return code not in self.again and code not in ELSEWHERE

    async def _at_leader(
        self, topic: str, partition: int, request: Any, version: int, result_of: Callable[[Any], Any]
    ) -> Any:
        place = topic, partition
        while True:
            try:
                if place not in self._leaders:
                    self._leaders[place] = await self.client.leader_of(topic, partition)
                result = result_of(await self.client.ask(self._leaders[place], request, version))
                code = ErrorCode(result.error_code)
            except Unreachable:
                code = ErrorCode.NETWORK_EXCEPTION
            self.last = f"{type(request).__name__} of {topic}-{partition} at {self.client.world.now:.3f}: {code.name}"
            if code is ErrorCode.NONE or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return result
            if self._is_final(code):
                raise BeginAnew(code.name)
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                self._leaders.pop(place, None)
            await self.client.pause(0.1)

    # -- the group

    async def _begin(self) -> None:
        """End what was, join, and take over where the group is."""
        if self.replaced:
            raise BeginAnew("another has the transactional id")
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=TRANSACTION_MS)
        answer = await self._call(1, request, 5, lambda answer: answer.error_code)
        self._id, self._epoch, self._sequences = answer.producer_id, answer.producer_epoch, {}
        await self._join()

    async def _join(self) -> None:
        self._positions = {}
        joined: Any = None
        while joined is None or joined.error_code:
            request = JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription(self.source))],
            )
            try:
                joined = await self._call(0, request, 9, lambda answer: answer.error_code, moves=False)
            except BeginAnew:
                self._member_id = ""
                raise
            self._member_id = joined.member_id
        self._generation = joined.generation_id
        members = sorted(each.member_id for each in joined.members)
        sync = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member, assignment=self._assignment([at, at + len(members)])
                )
                for at, member in enumerate(members)
            ],
        )
        known = dict(self.ledger.committed)
        answer = await self._call(0, sync, 5, lambda answer: answer.error_code, moves=False)
        own = []
        if answer.assignment:
            found = ConsumerProtocolAssignment.from_bytes(bytes(answer.assignment)[2:], 0)
            own = [partition for topic in found.assigned_partitions for partition in topic.partitions]
        await self._take_over(own, known)

    async def _take_over(self, own: list[int], known: dict[int, int]) -> None:
        """Begin with partitions where the group is; `known` was committed before they were given."""
        for partition in own:
            self.ledger.owns(self._generation, partition, self._member_id)
        if not own:
            return
        topics = [OffsetFetchRequest.OffsetFetchRequestTopics(name=self.source, partition_indexes=own)]
        groups = [
            OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=GROUP, member_id=self._member_id, member_epoch=self._generation, topics=topics
            )
        ]
        asked = OffsetFetchRequest(groups=groups, require_stable=True)
        fetched = await self._call(0, asked, self.offset_fetch_version, _offsets_code, moves=False)
        for each in fetched.groups[0].topics[0].partitions:
            offset = max(0, each.committed_offset)
            self.ledger.begins_at(self, each.partition_index, offset, known.get(each.partition_index, 0))
            self._positions[each.partition_index] = offset

    def _assignment(self, partitions: list[int]) -> bytes:
        own = [
            ConsumerProtocolAssignment.TopicPartition(topic=self.source, partitions=[n for n in partitions if n < 2])
        ]
        return b"\0\0" + ConsumerProtocolAssignment(assigned_partitions=own).to_bytes(0)

    async def _is_member(self) -> bool:
        request = HeartbeatRequest(group_id=GROUP, generation_id=self._generation, member_id=self._member_id)
        try:
            await self._call(0, request, 4, lambda answer: answer.error_code, moves=False)
        except BeginAnew as error:
            if str(error) != ErrorCode.REBALANCE_IN_PROGRESS.name:
                raise
            return False
        return True

    # -- a transaction

    async def _transact(self) -> None:
        if not await self._is_member():
            await self._join()
        found = [(partition, await self._read(partition)) for partition in sorted(self._positions)]
        read = {partition: values for partition, values in found if values}
        if not read:
            await self.client.pause(0.1)
            return
        self._count += 1
        mark = b"%s.%d" % (str(self).encode(), self._count)
        replaced_at = self._random.randrange(3) if self._random.random() < REPLACED and not self.replaced else -1
        for step, work in enumerate((self._write, self._commit_offsets)):
            if step == replaced_at:
                await self._is_replaced()
            await work(read, mark)
        if replaced_at == 2:
            await self._is_replaced()
        commits = self._random.random() >= ABORTED
        if not commits:
            self.ledger.aborted.add(mark)
        await self._end(commits)
        for partition, values in read.items():
            if commits:
                self._positions[partition] += len(values)
                self.ledger.commits(partition, self._positions[partition])

    async def _is_replaced(self) -> None:
        """Another begins with the same transactional id; this one may not hear of it for a while."""
        self.replace(self)
        if self._random.random() < 0.5:
            self.client.host.stands_until = self.client.world.now + self._random.uniform(0.0, STANDS_STILL_S)
        await self.client.pause(self._random.choice((0.001, 0.1, 1.0)))

    async def _read(self, partition: int) -> list[bytes]:
        """Some records from the position on, none where there are none yet."""
        position = self._positions[partition]
        asked = FetchRequest.FetchPartition(partition=partition, fetch_offset=position, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=50,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchRequest.FetchTopic(topic=self.source, partitions=[asked])],
        )
        try:
            found = await self._at_leader(
                self.source, partition, request, 12, lambda answer: answer.responses[0].partitions[0]
            )
        except BeginAnew:
            self._leaders.pop((self.source, partition), None)
            return []  # a leader of old may end before it
        values: list[bytes] = []
        data = bytes(found.records or b"")
        for at, header in iter_headers(data):
            if header.next_offset > position:
                values += [bytes(each.value or b"") for each in decode_records(data, at) if each.offset >= position]
        return values[: self._random.randint(1, RECORDS_MAX)]

    async def _write(self, read: dict[int, list[bytes]], mark: bytes) -> None:
        if self.version < 2:
            topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=self.target, partitions=list(read))]
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self._id,
                v3_and_below_producer_epoch=self._epoch,
                v3_and_below_topics=topics,
            )
            await self._call(1, add, 3, _added_code)
        for partition, values in read.items():
            sequence = self._sequences.get(partition, 0)
            records = batch(
                *(value + b"#" + mark for value in values),
                timestamp_ms=FIRST_MS + int(self.client.world.now * 1000),
                transactional=True,
                producer_id=self._id,
                producer_epoch=self._epoch,
                base_sequence=sequence,
            )
            request = produce_request(self.target, records, partition=partition, acks=-1, transactional_id=self.name)
            await self._at_leader(
                self.target,
                partition,
                request,
                12 if self.version >= 2 else 11,
                lambda a: a.responses[0].partition_responses[0],
            )
            self._sequences[partition] = sequence + len(values)

    async def _commit_offsets(self, read: dict[int, list[bytes]], mark: bytes) -> None:
        if self.version < 2:
            add = AddOffsetsToTxnRequest(
                transactional_id=self.name, producer_id=self._id, producer_epoch=self._epoch, group_id=GROUP
            )
            await self._call(1, add, 3, lambda answer: answer.error_code)
        partitions = [
            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=self._positions[partition] + len(values)
            )
            for partition, values in read.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=GROUP,
            producer_id=self._id,
            producer_epoch=self._epoch,
            generation_id=self._generation,
            member_id=self._member_id,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=self.source, partitions=partitions)],
        )
        await self._call(0, request, 5 if self.version >= 2 else 4, _worst_code)

    async def _end(self, commits: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self._id, producer_epoch=self._epoch, committed=commits
        )
        answer = await self._call(1, request, 5 if self.version >= 2 else 4, lambda answer: answer.error_code)
        if self.version >= 2:
            self._id, self._epoch, self._sequences = answer.producer_id, answer.producer_epoch, {}


def _offsets_code(answer: Any) -> int:
    (group,) = answer.groups
    return int(
        group.error_code or next((each.error_code for t in group.topics for each in t.partitions if each.error_code), 0)
    )


def _added_code(answer: Any) -> int:
    codes = [each.partition_error_code for t in answer.results_by_topic_v3_and_below for each in t.results_by_partition]
    return _worst(codes)


def _worst_code(answer: Any) -> int:
    return _worst([each.error_code for topic in answer.topics for each in topic.partitions])


def _worst(codes: list[int]) -> int:
    """One that says more than that something else was refused."""
    bad = [code for code in codes if code]
    return int(next((code for code in bad if code != ErrorCode.OPERATION_NOT_ATTEMPTED), bad[0] if bad else 0))


class CommittedReader(Reader):
    """Reads the output, read_committed. `values` are the input's records again, each once; none is of an aborted transaction."""

    isolation_level = 1

    def __init__(self, client: Client, source: str, topic: str, partition: int, ledger: Ledger) -> None:
        super().__init__(client, topic, partition)
        self.source = source
        self._ledger = ledger
        self._marks: dict[bytes, bytes] = {}

    def _take(self, result: Any) -> None:
        aborted = sorted((each.first_offset, each.producer_id) for each in result.aborted_transactions or ())
        dropping: set[int] = set()
        data = bytes(result.records or b"")
        for at, header in iter_headers(data):
            while aborted and aborted[0][0] <= header.last_offset:
                dropping.add(aborted.pop(0)[1])
            if header.is_control:
                dropping.discard(header.producer_id)
            elif header.producer_id not in dropping and header.base_offset >= self.position:
                for record in decode_records(data, at):
                    self._see(record.offset, bytes(record.value or b""))
            self.position = max(self.position, header.next_offset)

    def _see(self, offset: int, value: bytes) -> None:
        source, _, mark = value.partition(b"#")
        place = f"{self.topic}-{self.partition}, offset {offset}"
        if mark in self._ledger.aborted:
            raise Violation(f"{place}: {value!r} is of an aborted transaction, and was read as committed")
        if source in self._marks:
            raise Violation(
                f"{place}: {source!r} was committed by {mark!r}, and by {self._marks[source]!r} before that"
            )
        self._marks[source] = mark
        self.values.append(source)
