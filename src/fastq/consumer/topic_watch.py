"""What the metadata says of the topics that a consumer reads: its assignment without a group, and what is not there.

Rules
- Nothing is asked for here but by watching topics; what is missing is reported once, after a while, and read as soon as it is there.
- A topic is watched for as long as somebody needs it (`tidy`): one that was deleted would be asked for without an end, and made anew by a
  broker that makes topics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from fastq.consumer.config import EARLIEST_TIMESTAMP
from fastq.consumer.fetcher import Fetcher
from fastq.consumer.group.session import GroupSession
from fastq.consumer.offsets import UNKNOWN_GRACE_S, unknown_topic
from fastq.errors import ErrorCode, FastqError, UnknownTopicOrPartition, error_for_code
from fastq.metadata import TopicPartition
from fastq.net.core import ClientCore


class TopicWatch:
    """Invariants: with `names` and no group, the assignment is all their partitions, as of the metadata last looked at; with a group that
    divides them, what its rebalances gave; without `names`, it is what the user assigned. Thread rule: that of the consumer.
    """

    def __init__(self, core: ClientCore, fetcher: Fetcher, group: GroupSession | None) -> None:
        self.names: tuple[str, ...] = ()  # subscribed to; those that match the pattern too
        self._core, self._fetcher, self._group = core, fetcher, group
        self._by_hand: frozenset[str] = frozenset()  # topics of partitions that the user has assigned
        self._seen: set[str] = set()
        self._unknown_since: dict[str | TopicPartition, float] = {}
        self._generation = -1

    def read(self, names: tuple[str, ...], pattern: re.Pattern[str] | None = None) -> None:
        """Watch these topics in place of those before."""
        self._seen.intersection_update(names)  # what is subscribed to once more begins as it did at first
        self.names, self._by_hand = names, frozenset()
        if pattern is not None:
            self._core.watch_all_topics()
        self._changed(names)
        self.tidy()

    def read_assigned(self, topics: Iterable[str]) -> None:
        """Watch the topics of partitions that the user assigns."""
        self._seen.clear()
        self.names, self._by_hand = (), frozenset(topics)
        self._changed(self._by_hand)
        self._core.metadata_updater.keep(self._by_hand)

    def tidy(self) -> None:
        """Watch no topic any more that is neither read nor subscribed to, and that no group which this member leads has."""
        needed = {*self.names, *self._by_hand, *(tp.topic for tp in self._fetcher.partitions)}
        member = None if self._group is None else self._group.membership
        if member is not None:
            needed.update(member.group_topics)
        self._core.metadata_updater.keep(needed)

    def _changed(self, topics: Iterable[str]) -> None:
        self._unknown_since.clear()
        self._core.watch_topics(topics)
        self._generation = -1

    def follow(self, now: float) -> bool:
        """Bring the assignment in step with the metadata; whether all topics are in it."""
        metadata = self._core.metadata
        if metadata.generation != self._generation:
            self._generation = metadata.generation
            if self._group is not None and self._group.subscribed:
                self._follow_subscription(self._group, now)
            elif self.names:
                self._assign_all(now)
            else:
                self._check_assigned(now)
            self.tidy()
        return not any(metadata.topic(topic) is None for topic in self.names)

    def missing(self, now: float, grace_s: float | None = None) -> FastqError | None:
        """Of a topic or partition that has not been there for `grace_s` (None: UNKNOWN_GRACE_S), once."""
        for subject, since in self._unknown_since.items():
            if now >= since + (UNKNOWN_GRACE_S if grace_s is None else grace_s):
                self._unknown_since[subject] = math.inf  # once
                if isinstance(subject, str):
                    return unknown_topic(subject)
                what = "the topic has no such partition; it is read as soon as it has"
                return UnknownTopicOrPartition(what, topic=subject.topic, partition=subject.partition)
        return None

    def next_reports(self, now: float) -> Iterator[float]:
        """Seconds until each thing that is missing is to be reported."""
        reports = (since + UNKNOWN_GRACE_S for since in self._unknown_since.values())
        return (report - now for report in reports if now < report < math.inf)

    def _assign_all(self, now: float) -> None:
        metadata, assigned = self._core.metadata, self._fetcher.partitions
        wanted: list[TopicPartition] = []
        for topic in self.names:
            found = metadata.topic(topic)
            if found is None or found.error != 0:
                wanted.extend(tp for tp in assigned if tp.topic == topic)
                if found is not None:
                    self._topic_error(topic, found.error, now)
                continue
            self._unknown_since.pop(topic, None)
            wanted.extend(TopicPartition(topic, part.index) for part in found.partitions)
        fresh = [tp for tp in wanted if tp not in assigned and tp.topic in self._seen]
        self._seen.update(tp.topic for tp in wanted)
        self._fetcher.assign(wanted)
        for tp in fresh:
            # Made while this consumer was reading: all of it is new, so "latest" must not pass over it.
            self._fetcher.reset(tp, EARLIEST_TIMESTAMP)

    def _follow_subscription(self, group: GroupSession, now: float) -> None:
        """The metadata of topics that the group divides: report those that are not there, follow the pattern."""
        if group.pattern is not None:
            found = group.follow_pattern()
            if found is not None:
                self.names = tuple(found)
                self._core.watch_topics(found)
        for topic in self.names:
            entry = self._core.metadata.topic(topic)
            if entry is not None and entry.error != 0 and group.pattern is None:
                self._topic_error(topic, entry.error, now)
            elif entry is not None:
                self._unknown_since.pop(topic, None)

    def _check_assigned(self, now: float) -> None:
        """What the user assigned may not be there, or not yet: other clients may hear of new partitions first."""
        for topic in {tp.topic for tp in self._fetcher.partitions}:
            found = self._core.metadata.topic(topic)
            if found is not None and found.error != 0:
                self._topic_error(topic, found.error, now)
            elif found is not None:
                self._unknown_since.pop(topic, None)
        for tp in self._fetcher.partitions:
            found = self._core.metadata.topic(tp.topic)
            if found is not None and found.error == 0 and tp.partition >= len(found.partitions):
                self._unknown_since.setdefault(tp, now)
            else:
                self._unknown_since.pop(tp, None)

    def _topic_error(self, topic: str, code: int, now: float) -> None:
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or code == ErrorCode.LEADER_NOT_AVAILABLE:
            self._unknown_since.setdefault(topic, now)
        else:
            self._fetcher.add_error(error_for_code(code, topic=topic))
