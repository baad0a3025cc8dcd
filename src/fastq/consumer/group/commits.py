"""Offsets of a group: commits, in their order, and questions about what is committed. Sans-I/O.

Rules
- One OffsetCommit at a time: what waits meanwhile goes out as one request, the latest offset of a partition counting, so a commit
  that is sent again never undoes a later one. Its bytes are made and read natively, as an application may commit every record.
- A commit is sent again while the coordinator moves, loads or lacks replicas, until its deadline. What the group refuses (a member
  or generation that is not its own) is final, but for a member epoch that is behind: the newer one may be on its way.
- OffsetFetch asks for stable offsets (KIP-447): what an open transaction may still change is waited for.
- A commit means the topics that were read, by their ids where the coordinator takes them (from version 10 on): offsets of a topic that
  was deleted are not taken for those of one that has its name since.
Sources: Kafka's ConsumerCoordinator, CommitRequestManager and OffsetCommitRequest; OffsetFetch is spoken with topic names (to 9).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile

from fastq._native.commit_path import decode_commit_response, encode_commit_request
from fastq.consumer.effects import Outgoing
from fastq.consumer.group.coordinator import COMMITTED, LEARNED, RETRY_ELSEWHERE, Coordinator
from fastq.consumer.group.membership import CanSend, group_error
from fastq.consumer.group.subscription import by_topic
from fastq.errors import ErrorCode, FastqError, RequestTimedOut
from fastq.metadata import ZERO_UUID, GroupMetadata, OffsetAndMetadata, TopicPartition
from fastq.protocol.messages import OffsetFetchRequest, OffsetFetchResponse

logger = logging.getLogger("fastq.consumer")

OFFSET_COMMIT_API, OFFSET_FETCH_API = 8, 9
COMMIT_VERSIONS, FETCH_VERSIONS = (2, 10), (1, 9)
COMMIT_BY_ID = 10
COMMIT_THROTTLE_FROM = 3
# The coordinator may take it later.
LATER = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Commit:
    """One commit on its way. Finished with `error` None when all of its offsets are committed; `offsets` never change. `ids` are those
    of the topics, zero where they are not known; `sent`: it may have got there."""

    __slots__ = ("deadline", "error", "finished", "ids", "last_error", "offsets", "on_done", "sent", "who")

    def __init__(
        self,
        offsets: Offsets,
        who: GroupMetadata,
        deadline: float,
        on_done: Callable[[Commit], object] | None,
        ids: Mapping[TopicPartition, bytes],
    ) -> None:
        self.offsets = offsets
        self.ids = ids
        self.who = who
        self.deadline = deadline
        self.on_done = on_done
        self.finished = self.sent = False
        self.error: FastqError | None = None
        self.last_error: FastqError | None = None

    def finish(self, error: FastqError | None) -> None:
        """The end of it."""
        if not self.finished:
            self.finished, self.error = True, error
            if self.on_done is not None:
                self.on_done(self)


class Committer:
    """All commits of one consumer. Invariants: `_waiting` are in the order of their calls; a commit is in `_waiting` or on its
    way, or finished. `is_gone(partition)`: the cluster says that there is no such partition. `topic_id(partition)`: of the topic
    that is read under its name, zero where it is not known. `muted(node_id)`: the quota that keeps it from being asked.
    `on_refused(code, who)` hears of what the group refuses, `on_committed(offsets)` of what it has taken, before who waits for it.
    Thread rule: under the driver's lock, or in its loop.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        on_refused: Callable[[int, GroupMetadata], object],
        restamped: Callable[[GroupMetadata, Iterable[TopicPartition]], GroupMetadata | None],
        on_committed: Callable[[Offsets], object],
        is_gone: Callable[[TopicPartition], bool],
        topic_id: Callable[[TopicPartition], bytes],
        muted: Callable[[int], FastqError | None],
    ) -> None:
        self.coordinator = coordinator
        self._muted = muted
        self._is_gone = is_gone
        self._topic_id = topic_id
        self._on_refused = on_refused
        self._restamped = restamped
        self._on_committed = on_committed
        self._waiting: deque[Commit] = deque()
        self._under_way: Sequence[Commit] = ()
        self._retry_at = 0.0
        self._failures = 0

    @property
    def busy(self) -> bool:
        """Whether a commit is not finished."""
        return bool(self._waiting or self._under_way)

    def add(
        self,
        offsets: Offsets,
        who: GroupMetadata,
        deadline: float,
        on_done: Callable[[Commit], object] | None = None,
    ) -> Commit:
        """Commit offsets; without any, it is finished at once."""
        commit = Commit(offsets, who, deadline, on_done, {tp: self._topic_id(tp) for tp in offsets})
        if commit.offsets:
            self._waiting.append(commit)
        else:
            commit.finish(None)
        return commit

    def asked(self) -> dict[TopicPartition, int]:
        """What the group will have when all that is not finished is committed."""
        return {
            tp: place.offset for commit in (*self._under_way, *self._waiting) for tp, place in commit.offsets.items()
        }

    def next_wakeup(self, now: float) -> float | None:
        """Seconds until a commit is to be sent again, or given up."""
        if not self._waiting:
            return None
        due = min(commit.deadline for commit in self._waiting)
        if self._retry_at > now:
            due = min(due, self._retry_at)
        return max(0.0, due - now)

    def requests(self, now: float, can_send: CanSend) -> list[Outgoing]:
        """The next commit, when the one before is done."""
        waiting = self._waiting
        if not waiting:
            return []
        for commit in [commit for commit in waiting if commit.deadline <= now]:
            error = commit.last_error or self._timed_out(commit)
            waiting.remove(commit)
            commit.finish(error)
            self.coordinator.given_up(COMMITTED)
        coordinator = self.coordinator
        if self._under_way or not waiting or now < self._retry_at or not coordinator.known:
            return []
        if not can_send(coordinator.node_id):
            return []
        who, offsets, ids = waiting[0].who, waiting[0].offsets, waiting[0].ids
        commits = list(takewhile(lambda commit: commit.who == who, waiting))
        for commit in commits[1:]:
            offsets, ids = {**offsets, **commit.offsets}, {**ids, **commit.ids}
        left = deque(islice(waiting, len(commits), None))
        low, high = COMMIT_VERSIONS
        by_id = ZERO_UUID not in ids.values()
        out = [
            Outgoing(
                coordinator.node_id,
                OFFSET_COMMIT_API,
                partial(commit_body, offsets, who, ids),
                partial(codes_answered, ids),
                self._done,
                None,
                (low, high if by_id else COMMIT_BY_ID - 1),
            )
        ]
        for commit in commits:
            commit.sent = True
        self._under_way, self._waiting = commits, left  # once it is made: there may be no memory for it
        return out

    def fail_all(self, error: FastqError) -> None:
        """Nothing of what waits or is on its way will be heard of."""
        commits = [*self._under_way, *self._waiting]
        self._under_way, self._waiting = (), deque()
        for commit in commits:
            commit.finish(error)

    def _timed_out(self, commit: Commit) -> FastqError:
        then = "they may be, as the answer of the coordinator is not known" if commit.sent else "they were not sent"
        return RequestTimedOut(
            f"the offsets were not committed in time; {then}",
            group=commit.who.group_id,
            broker=self.coordinator.label,
            cause=self._muted(self.coordinator.node_id) if self.coordinator.known else None,
            hint="Commit again",
        )

    def _done(self, codes: Mapping[TopicPartition, int] | None, error: FastqError | None, now: float) -> None:
        """The error of each partition that the answer names, or that there was none. What fails inside is told again, as an error: all
        that is not finished by then ends with that."""
        again = self._unfinished(codes, error, now)
        if again:
            self._again(again, error, now)
        self._under_way = ()

    def _unfinished(
        self, codes: Mapping[TopicPartition, int] | None, error: FastqError | None, now: float
    ) -> Sequence[Commit]:
        """Finish what is on its way, but for what is to be sent again."""
        commits = self._under_way
        if codes is None:
            self.coordinator.lost(now, f"OffsetCommit failed: {error}")
            if error is None or error.retriable:
                return commits
            for commit in commits:
                commit.finish(error)
            return ()
        all_good = not any(codes.values())
        if all_good:
            self._failures = 0
            self.coordinator.worked()
            self.coordinator.came_through(COMMITTED, now)
        again = []
        for commit in commits:
            if all_good and commit.offsets.keys() <= codes.keys():
                self._on_committed(commit.offsets)
                commit.finish(None)
            elif self._judge(commit, codes, now):
                again.append(commit)
        return again

    def _judge(self, commit: Commit, codes: Mapping[TopicPartition, int], now: float) -> bool:
        """Finish a commit, or answer True for one that is to be sent again."""
        bad = [(tp, code) for tp in commit.offsets if (code := codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)) != 0]
        if not bad:
            self._on_committed(commit.offsets)
            commit.finish(None)
            return False
        tp, code = next(((tp, code) for tp, code in bad if code not in LATER and code not in RETRY_ELSEWHERE), bad[0])
        what = f"offset {commit.offsets[tp].offset} could not be committed"
        error = group_error(
            code, what, commit.who, broker=self.coordinator.label, topic=tp.topic, partition=tp.partition
        )
        if code in RETRY_ELSEWHERE:
            self.coordinator.lost(now, error.name)
        elif code == ErrorCode.STALE_MEMBER_EPOCH:
            fresh = self._restamped(commit.who, commit.offsets)
            self._on_refused(code, commit.who)
            if fresh is None:
                commit.finish(error)
                return False
            commit.who = fresh
        elif code not in LATER or (code in UNKNOWN and (self._is_gone(tp) or self._topic_id(tp) != commit.ids[tp])):
            self._on_refused(code, commit.who)
            commit.finish(error)
            return False
        commit.last_error = error
        self.coordinator.refused(COMMITTED, error, now)
        return True

    def _again(self, commits: Sequence[Commit], error: FastqError | None, now: float) -> None:
        self._failures += 1
        self._retry_at = now + self.coordinator.pause_s(self._failures)
        for commit in commits:
            commit.last_error = error or commit.last_error
        self._waiting = deque((*commits, *self._waiting))


def commit_body(offsets: Offsets, who: GroupMetadata, ids: Mapping[TopicPartition, bytes], version: int) -> bytes:
    """The body of OffsetCommit, which from version 10 on has the ids of topics. Raises EncodeError for what the version cannot carry."""
    by_id = version >= COMMIT_BY_ID
    return encode_commit_request(
        version,
        who.group_id,
        who.generation_id,
        who.member_id,
        who.group_instance_id if who.member_id else None,
        [
            (ids[tp] if by_id else tp.topic, tp.partition, place.offset, place.leader_epoch, place.metadata)
            for tp, place in sorted(offsets.items())
        ],
    )


class Throttled(dict[TopicPartition, int]):
    """The codes of an answer whose broker asks to be left alone for a while (KIP-219)."""

    def __init__(self, codes: Mapping[TopicPartition, int], throttle_time_ms: int) -> None:
        super().__init__(codes)
        self.throttle_time_ms = throttle_time_ms


def codes_answered(ids: Mapping[TopicPartition, bytes], data: bytearray, version: int) -> dict[TopicPartition, int]:
    """The error code of each partition that an answer names; Throttled where it comes with a quota. Raises DecodeError."""
    codes, throttle_ms = decode_commit_response(data, version), 0
    if version >= COMMIT_THROTTLE_FROM:  # the answer begins with it
        throttle_ms = int.from_bytes(data[:4], "big", signed=True)
    by_id = version >= COMMIT_BY_ID
    found = {
        tp: code
        for tp, topic_id in ids.items()
        if (code := codes.get((topic_id if by_id else tp.topic, tp.partition))) is not None
    }
    return Throttled(found, throttle_ms) if throttle_ms > 0 else found


class CommittedQuery:
    """What is committed for some partitions. `results` is complete when `finished` is True and `error` None; None stands for
    nothing committed. Thread rule: under the driver's lock, or in its loop.
    """

    def __init__(self, coordinator: Coordinator, partitions: Iterable[TopicPartition]) -> None:
        self.coordinator = coordinator
        self.partitions = tuple(dict.fromkeys(partitions))
        self.results: dict[TopicPartition, OffsetAndMetadata | None] = {}
        self.error: FastqError | None = None
        self.wants_metadata: str | None = None
        self._asked = False
        self._retry_at = 0.0
        self._failures = 0

    @property
    def finished(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.error is not None or len(self.results) == len(self.partitions)

    def next_wakeup(self, now: float) -> float | None:
        """Seconds until it is asked again."""
        return self._retry_at - now if self._retry_at > now else None

    def requests(self, now: float, can_send: CanSend) -> list[Outgoing]:
        """The question, when it is to be asked."""
        coordinator = self.coordinator
        if self._asked or self.finished or now < self._retry_at or not coordinator.known:
            return []
        if not can_send(coordinator.node_id):
            return []
        out = [Outgoing(coordinator.node_id, OFFSET_FETCH_API, self._build, None, self._done, versions=FETCH_VERSIONS)]
        self._asked = True  # once it is made: there may be no memory for it
        return out

    def _build(self, version: int) -> OffsetFetchRequest:
        topics = by_topic(self.partitions).items()
        stable = version >= 7
        if version < 8:
            old = [
                OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                for name, indexes in topics
            ]
            return OffsetFetchRequest(group_id=self.coordinator.group_id, topics=old, require_stable=stable)
        new = [
            OffsetFetchRequest.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
            for name, indexes in topics
        ]
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.coordinator.group_id, topics=new)
        return OffsetFetchRequest(groups=[group], require_stable=stable)

    def _done(self, response: OffsetFetchResponse | None, error: FastqError | None, now: float) -> None:
        self._asked = False
        if response is None:
            self.coordinator.lost(now, f"OffsetFetch failed: {error}")
            if error is not None and not error.retriable:
                self.error = error
            self._again(now)
            return
        answer: OffsetFetchResponse | OffsetFetchResponse.OffsetFetchResponseGroup = response
        if response.groups:
            answer = response.groups[0]
        if answer.error_code != 0:
            self._refused(answer.error_code, None, now)
            return
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for topic in answer.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.error_code != 0:
                    self._refused(part.error_code, tp, now)
                    return
                known = part.committed_offset >= 0
                place = OffsetAndMetadata(part.committed_offset, part.metadata or "", part.committed_leader_epoch)
                found[tp] = place if known else None
        self.coordinator.worked()
        self.coordinator.came_through(LEARNED, now)
        self.results = {tp: found.get(tp) for tp in self.partitions}

    def _refused(self, code: int, tp: TopicPartition | None, now: float) -> None:
        error = group_error(
            code,
            "the committed offsets could not be learned",
            GroupMetadata(self.coordinator.group_id),
            broker=self.coordinator.label,
            topic=None if tp is None else tp.topic,
            partition=None if tp is None else tp.partition,
        )
        if code in RETRY_ELSEWHERE:
            self.coordinator.lost(now, error.name)
        elif code not in LATER or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self.error = error
        if self.error is None:
            self.coordinator.refused(LEARNED, error, now)
        self._again(now)

    def _again(self, now: float) -> None:
        self._failures += 1
        self._retry_at = now + self.coordinator.pause_s(self._failures)
