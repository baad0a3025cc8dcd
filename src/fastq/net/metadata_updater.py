"""When to ask for metadata, whom, and for what (Kafka's NetworkClient.DefaultMetadataUpdater and Metadata).

Rules of this file:
- One request at a time. After a failure, or an answer that leaves a watched topic without a leader, the next one waits for
  the back-off; after `metadata_max_age_ms` metadata is asked for without any reason.
- While a broker that is needed cannot be reached, who leads in its place is asked for after each eighth of the time that it has been away:
  often at first, when it may have just been fenced. Failed attempts to connect ask too.
- A topic that is only looked at for a while (`look_at`) is not made for that: while there is one, a request makes none.
- Asking needs a broker: the least loaded of those that are connected, else one of those that may be connected now.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastq.errors import ErrorCode, FastqError, UnsupportedVersion
from fastq.metadata import check_topic_name
from fastq.net.backoff import backoff_s
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import MetadataRequest

if TYPE_CHECKING:
    from fastq.net.core import ClientCore

logger = logging.getLogger("fastq.net")
NEVER = float("inf")
_RETRIABLE_CODES = frozenset(int(code) for code in ErrorCode if code.retriable)


class MetadataUpdater:
    """The refresh policy of one core; its thread rule is the core's.

    Invariants: `_wanted` says why metadata is needed now, or is None; `_in_flight` while a request is out.
    `successes` and `failures` count answers and failed attempts, so that who waits can tell that something happened. `requests` counts
    what was sent, and `answered` is the number of the one that was answered last: what is asked for now is known by a later one's answer.
    """

    def __init__(self, core: ClientCore, allow_auto_topic_creation: bool, is_on: bool) -> None:
        self._core = core
        self._is_on = is_on
        self._allow_auto_topic_creation = allow_auto_topic_creation
        self._topics: dict[str, None] = {}
        self._looked_at: Counter[str] = Counter()  # by how many
        self._left: set[str] = set()  # looked at, and known until the next answer
        self._all_topics = False
        self._wanted: str | None = "start"
        self._in_flight = False
        self._not_before = 0.0
        self._failures_in_row = 0
        self._max_age_s = core.config.metadata_max_age_ms / 1000
        self._refresh_at = NEVER
        self._answered_at = 0.0
        self.deadline = 0.0
        self.successes = 0
        self.requests = self.answered = 0
        self.failures = 0
        self.last_error: FastqError | None = None
        self.is_overdue = False  # KIP-1102: no answer for so long that the known brokers are given up
        self._wanted_since = NEVER
        self._overdue_s = core.config.metadata_recovery_rebootstrap_trigger_ms / 1000

    @property
    def topics(self) -> Iterable[str]:
        """The watched topics, and those that are looked at."""
        return self._topics | dict.fromkeys(self._looked_at)

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be asked for: what is known may be of before whatever that is for."""
        return self._wanted is not None

    def watch(self, names: Iterable[str]) -> None:
        """Add topics; those not known yet are asked for at once. Raises TypeError and InvalidTopic for what names none."""
        new = [name for name in names if name not in self._topics]
        self._ask_for(new)
        self._topics.update(dict.fromkeys(new))

    def _ask_for(self, names: Sequence[str]) -> None:
        for name in names:
            check_topic_name(name)  # one that cannot be encoded would end every request from now on
        if any(self._core.metadata.topic(name) is None for name in names):
            self._failures_in_row, self._not_before = 0, 0.0
            self._want("new topics")

    def unwatch(self, names: Iterable[str]) -> None:
        """Forget topics."""
        self._forget([name for name in names if self._topics.pop(name, self) is not self])

    def keep(self, names: Collection[str]) -> None:
        """Forget the watched topics but these."""
        self.unwatch([name for name in self._topics if name not in names])

    def look_at(self, names: Collection[str]) -> None:
        """Add topics until `look_away`, which are not made for that. Raises as `watch` does."""
        self._ask_for(list(names))
        self._looked_at.update(names)

    def look_away(self, names: Collection[str]) -> None:
        """The end of one `look_at`. What is well stays known until the next answer: who looks often asks once."""
        self._looked_at.subtract(names)
        bad = []
        for name in names:
            if self._looked_at[name] <= 0:
                del self._looked_at[name]
                found = self._core.metadata.topic(name)
                if found is not None and found.error == 0:
                    self._left.add(name)
                else:
                    bad.append(name)
        self._forget(bad)

    def _forget(self, names: Iterable[str]) -> None:
        """Drop what is known of topics, unless somebody still needs them."""
        if not self._all_topics:
            self._core.metadata.forget([name for name in names if not self._needs(name)])

    def watch_all(self) -> None:
        """Ask for all topics from now on."""
        if not self._all_topics:
            self._all_topics = True
            self._want("all topics")

    def request(self, reason: str) -> None:
        """Metadata is needed. Who asks again changes nothing about the time of the request, which `tick` has set: a sender asks in each of
        its turns, and would have the driver turn without an end while no broker can be asked."""
        if self._wanted is None:
            self._want(reason)

    def _want(self, reason: str) -> None:
        """The same, and `tick` is to look at once when that may be."""
        if self._wanted is None:
            logger.debug("metadata wanted: %s", reason)
        self._wanted = reason
        if not self._in_flight:
            self.deadline = min(self.deadline, self._not_before)
            self._core.deadline = min(self._core.deadline, self._not_before)

    def seek(self, now: float, away_s: float) -> None:
        """Somebody needs a broker that has not been reached for so long: another one may have its place by now."""
        if self._wanted is None and not self._in_flight and now >= self._answered_at + away_s / 8:
            self.request("a broker that is needed cannot be reached")

    def tick(self, now: float) -> None:
        """Send a request when one is due and a broker can take it."""
        if not self._is_on:
            self.deadline = NEVER
            return
        if self._wanted is None and now >= self._refresh_at:
            self._wanted = "metadata_max_age_ms"
        if self._wanted is not None or self._in_flight:
            self._wanted_since = min(self._wanted_since, now)
            self.is_overdue = now - self._wanted_since > self._overdue_s
        if self._in_flight:
            self.deadline = NEVER
        elif self._wanted is None:
            self.deadline = self._refresh_at
        elif now < self._not_before:
            self.deadline = self._not_before
        else:
            self._try_send(now)

    def _try_send(self, now: float) -> None:
        core = self._core
        node_id = core.least_loaded(now)
        if node_id is None:
            self.deadline = core.next_attempt_at()
        elif core.can_send(node_id, now):
            self._send(node_id)
            self.deadline = NEVER
        else:
            # The connection is being made: its readiness or its failure gives the core a turn. A throttled or full one
            # is looked at again soon.
            self.deadline = NEVER if core.is_connecting(node_id) else now + 0.05

    def _send(self, node_id: int) -> None:
        try:
            request = self._build(self._core.api_version(node_id, ApiKey.METADATA))
        except UnsupportedVersion as error:
            self._done(node_id, None, error, self._all_topics, ())
            return
        all_topics, asked, count = self._all_topics, tuple(self.topics), self.requests + 1
        self._core.send(
            node_id, request, lambda response, error: self._done(node_id, response, error, all_topics, asked)
        )
        # Once it is on its way: there may be no memory for it. Topics watched while it is out are wanted again by `watch`.
        self._wanted, self._in_flight, self.requests = None, True, count

    def _build(self, version: int) -> MetadataRequest:
        topics: list[MetadataRequest.MetadataRequestTopic] | None
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in self.topics]
        if self._all_topics:
            # "All" is an empty list in version 0 and null later.
            topics = [] if version == 0 else None
        creates = self._allow_auto_topic_creation and self._looked_at.keys() <= self._topics.keys()
        # Before version 4 the broker's own configuration alone decides on creation.
        return MetadataRequest(topics=topics, allow_auto_topic_creation=creates or version < 4)

    def _done(
        self, node_id: int, response: Any, error: FastqError | None, all_topics: bool, asked: tuple[str, ...]
    ) -> None:
        core = self._core
        now = core.clock()
        self._in_flight = False
        if core.closed:
            return
        core.metadata_answered(now)
        if error is not None:
            self.failures += 1
            self.last_error = error
            self._again("the last request failed", now)
            return
        self.successes += 1
        self.answered = self.requests
        self.last_error, self.is_overdue, self._wanted_since = None, False, NEVER
        changed = core.metadata.update(response, all_topics=all_topics)
        self._forget(self._left.union(asked))
        self._left.clear()
        if changed:
            core.metadata_changed(now)
        self._answered_at = now
        self._refresh_at = now + self._max_age_s
        if response.throttle_time_ms > 0:
            core.throttle(node_id, response.throttle_time_ms / 1000, now)
        unsettled = [name for name in asked if self._needs(name) and self._is_unsettled(name)]
        if unsettled:
            self._again(f"no leader yet: {', '.join(unsettled[:5])}", now)
        else:
            self._failures_in_row, self._not_before = (
                0,
                now + backoff_s(core.config.retry_backoff_ms, 1e9, 1, core.random),
            )
            if any(core.metadata.topic(name) is None for name in self.topics):
                self._not_before = now  # watched while the request was out
            if self._wanted is not None:
                self._want(self._wanted)
        core.deadline = min(core.deadline, now)

    def _needs(self, name: str) -> bool:
        return name in self._topics or name in self._looked_at

    def _is_unsettled(self, name: str) -> bool:
        topic = self._core.metadata.topic(name)
        if topic is None:
            return True
        if topic.error:
            return topic.error in _RETRIABLE_CODES
        return any(partition.leader_id < 0 for partition in topic.partitions)

    def _again(self, reason: str, now: float) -> None:
        config = self._core.config
        self._failures_in_row += 1
        self._not_before = now + backoff_s(
            config.retry_backoff_ms, config.retry_backoff_max_ms, self._failures_in_row, self._core.random
        )
        self._want(reason)
