"""The committed offsets of the groups of one shard, and those that open transactions are about to commit.

Rules
- The state changes by `replay` and `end_transaction` alone; the rest makes records or answers questions.
- An offset of a transaction is pending until the marker says so; of two commits of a partition the one written later wins, also
  where the earlier one was pending longer.
- Records: key type 1 (0 in old logs), value version 4, which says the topic's id, or 1 where the client has asked for a retention of its
  own (`_native/commit_path`).
Source: OffsetMetadataManager, GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from fastq._native.commit_path import decode_offset_key, decode_offset_value, encode_offset_key
from fastq.values import NamedTuple

if TYPE_CHECKING:
    from fastq_broker.controller.image import TopicImage
    from fastq_broker.coordinator.shard import CoordinatorRecord

    from .group import Group

TopicPartition = tuple[str, int]

NamedId = tuple[str, bytes]
"""A topic's name and id; the id is zeros where a record did not say it (before version 4, and version 1)."""

NO_ID = bytes(16)


class CommittedOffset(NamedTuple):
    """What a group has committed for a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    """-1: the broker's retention applies."""
    topic_id: bytes = NO_ID
    sequence: int = -1
    """Its place among the shard's records."""


class Offsets:
    """Committed and pending offsets of one shard. Loop thread only.

    Invariants: no empty table is kept; `_pending` (by producer) and `_waiting` (by group and partition) hold the same transactions.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[int, dict[str, dict[TopicPartition, CommittedOffset]]] = {}
        self._waiting: dict[str, dict[TopicPartition, set[int]]] = {}
        self._sequence = 0

    # --- questions ---

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def group_ids(self) -> list[str]:
        """The groups that have committed offsets."""
        return list(self._groups)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """A committed offset; None when there is none."""
        found = self._groups.get(group_id)
        return None if found is None else found.get((topic, partition))

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All committed offsets of a group."""
        return self._groups.get(group_id, {})

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset for the partition."""
        waiting = self._waiting.get(group_id)
        return waiting is not None and (topic, partition) in waiting

    def has_pending(self, group_id: str) -> bool:
        """Whether an open transaction has offsets of the group."""
        return group_id in self._waiting

    # --- records ---

    def tombstones(self, group_id: str, partitions: Iterable[TopicPartition] | None = None) -> list[CoordinatorRecord]:
        """Records that delete offsets (those that are committed or pending; None: all) of a group."""
        known = {**self._groups.get(group_id, {}), **dict.fromkeys(self._waiting.get(group_id, {}))}
        wanted = known if partitions is None else [item for item in partitions if item in known]
        return [(encode_offset_key(group_id, *item), None) for item in wanted]

    def topics(self) -> set[NamedId]:
        """The topics of all offsets, pending ones too."""
        return {(item[0], committed.topic_id) for _, item, committed in self._all()}

    def tombstones_of_topics(self, topics: Container[str]) -> list[CoordinatorRecord]:
        """Records that delete all offsets of topics that are gone."""
        return self._tombstones_where(lambda item, committed: item[0] in topics)

    def tombstones_of_ids(self, topics: Container[NamedId]) -> list[CoordinatorRecord]:
        """Records that delete all offsets of topics that are gone, and leave those of younger ones of the same names."""
        return self._tombstones_where(lambda item, committed: (item[0], committed.topic_id) in topics)

    def _tombstones_where(self, gone: Callable[[TopicPartition, CommittedOffset], bool]) -> list[CoordinatorRecord]:
        found: dict[str, set[TopicPartition]] = {}
        for group_id, item, committed in self._all():
            if gone(item, committed):
                found.setdefault(group_id, set()).add(item)
        return [record for group_id, items in found.items() for record in self.tombstones(group_id, items)]

    def _all(self) -> Iterator[tuple[str, TopicPartition, CommittedOffset]]:
        """What is committed, then what is pending."""
        for table in (self._groups, *self._pending.values()):
            for group_id, items in table.items():
                for item, committed in items.items():
                    yield group_id, item, committed

    def expired(
        self, group_id: str, group: Group, now_ms: int, retention_ms: int
    ) -> tuple[list[CoordinatorRecord], bool]:
        """Tombstones of a group's offsets whose time is over, and whether nothing of it is left then."""
        records: list[CoordinatorRecord] = []
        left = self.has_pending(group_id)
        for item, committed in self.of_group(group_id).items():
            if (
                not group.is_subscribed_to(item[0])
                and not self.is_pending(group_id, *item)
                and _is_expired(committed, group.offsets_expire_after, now_ms, retention_ms)
            ):
                records.append((encode_offset_key(group_id, *item), None))
            else:
                left = True
        return records, not left

    # --- changes ---

    def replay(self, key: bytes, value: bytes | None, producer_id: int) -> tuple[str, bool]:
        """Take a record in; answers its group, and whether it has been a tombstone. Raises DecodeError."""
        self._sequence += 1
        group_id, item = decode_offset_key(key)
        if value is None:
            self._forget(group_id, item)
            return group_id, True
        committed = CommittedOffset(*decode_offset_value(value), self._sequence)
        if producer_id < 0:
            known = self._groups.get(group_id)
            if known is None:
                known = self._groups[group_id] = {}
            known[item] = committed
        else:
            self._pending.setdefault(producer_id, {}).setdefault(group_id, {})[item] = committed
            self._waiting.setdefault(group_id, {}).setdefault(item, set()).add(producer_id)
        return group_id, False

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """A producer's transaction has ended: what it was to commit is committed, or forgotten."""
        for group_id, items in self._pending.pop(producer_id, {}).items():
            for item, pending in items.items():
                self._no_longer_waits(group_id, item, producer_id)
                if committed:
                    current = self._groups.get(group_id, {}).get(item)
                    if current is None or current.sequence < pending.sequence:
                        self._groups.setdefault(group_id, {})[item] = pending

    def _forget(self, group_id: str, item: TopicPartition) -> None:
        known = self._groups.get(group_id)
        if known is not None:
            known.pop(item, None)
            if not known:
                del self._groups[group_id]
        for producer_id in list(self._waiting.get(group_id, {}).get(item, ())):
            self._no_longer_waits(group_id, item, producer_id)
            of_producer = self._pending[producer_id]
            del of_producer[group_id][item]
            if not of_producer[group_id]:
                del of_producer[group_id]
            if not of_producer:
                del self._pending[producer_id]

    def _no_longer_waits(self, group_id: str, item: TopicPartition, producer_id: int) -> None:
        waiting = self._waiting[group_id]
        waiting[item].discard(producer_id)
        if not waiting[item]:
            del waiting[item]
        if not waiting:
            del self._waiting[group_id]

    def __iter__(self) -> Iterator[tuple[str, TopicPartition, CommittedOffset]]:
        for group_id, items in self._groups.items():
            for item, committed in items.items():
                yield group_id, item, committed


def _is_expired(committed: CommittedOffset, base: Callable[[int], int | None], now_ms: int, retention_ms: int) -> bool:
    since = base(committed.commit_timestamp_ms)
    if since is None:
        return False
    if committed.expire_timestamp_ms >= 0:
        return now_ms >= committed.expire_timestamp_ms
    return now_ms - since >= retention_ms


def is_of_another(committed: CommittedOffset, topic: TopicImage | None) -> bool:
    """Whether it was committed in a topic that had this one's name before; of what no id is known, nobody can tell."""
    return topic is not None and committed.topic_id not in (NO_ID, topic.topic_id)
