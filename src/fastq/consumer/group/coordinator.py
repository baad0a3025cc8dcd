"""Which broker coordinates a group: FindCoordinator, asked again whenever that broker turns out not to be it. Sans-I/O.

Rules: requests to a coordinator go over a connection of their own (`core.separate`), as a JoinGroup may wait there for minutes and
a long poll of the data connection would hold a heartbeat up. Source: Kafka's AbstractCoordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

from fastq.consumer.effects import Outgoing
from fastq.consumer.group.membership import CanSend, group_error
from fastq.errors import ErrorCode, FastqError, ProtocolError
from fastq.metadata import GroupMetadata, Node
from fastq.net.backoff import backoff_s
from fastq.net.coordinators import FIND_COORDINATOR_API, GROUP, coordinator_answers, coordinator_request
from fastq.net.troubles import Troubles
from fastq.protocol.messages import FindCoordinatorResponse
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.consumer")

UNKNOWN = -(2**31)
# The coordinator starts, loads or has moved: whatever was asked was not done.
RETRY_ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
RETRY_HERE = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


class Doing(NamedTuple):
    """What a group asks of its coordinator, as the log says that it cannot be had: of what, and a participle."""

    of: str
    done: str


FOUND = Doing("the coordinator of group", "found")
JOINED = Doing("group", "joined")
KEPT = Doing("the place in group", "kept")
TAKEN = Doing("a topic that was assigned in group", "read")
COMMITTED = Doing("offsets of group", "committed")
LEARNED = Doing("the committed offsets of group", "learned")


class Coordinator:
    """The coordinator of one group, as far as it is known.

    Invariants: `node_id` is the id to send to, of the connection apart, or UNKNOWN; one look-up at a time, the next one after
    the back-off. `found_at` is when it became known. `error` is what ended the last look-up for good. Thread rule: under the
    driver's lock, or in its loop. `troubles` tells of what lasts, the look-up's and what else the group asks of it.
    """

    def __init__(
        self,
        group_id: str,
        *,
        troubles: Troubles,
        any_broker: Callable[[float], int | None],
        separate: Callable[[Node], int],
        backoff_ms: tuple[int, int],
        random: Random,
    ) -> None:
        self.group_id = group_id
        self.node_id = UNKNOWN
        self.node: Node | None = None
        self.error: FastqError | None = None
        self.retry_at = 0.0
        self.found_at = 0.0
        self.troubles = troubles
        self._any_broker = any_broker
        self._separate = separate
        self._backoff_ms = backoff_ms
        self._random = random
        self._asked = False
        self._failures = 0

    @property
    def known(self) -> bool:
        """Whether there is somebody to ask."""
        return self.node_id != UNKNOWN

    @property
    def label(self) -> str | None:
        """The broker, for error messages."""
        return None if self.node is None else str(self.node)

    def pause_s(self, failures: int) -> float:
        """The back-off after so many failures in a row."""
        return backoff_s(*self._backoff_ms, max(1, failures), self._random)

    def lost(self, now: float, why: str) -> None:
        """It is not the coordinator, or cannot be reached: look it up again."""
        if self.known:
            # One that has not worked since it was found is the same one, told again by a broker that has not heard yet.
            level = logging.DEBUG if self._failures else logging.INFO
            logger.log(level, "group %s: coordinator %s is lost: %s", self.group_id, self.label, why)
        self.node_id, self.node = UNKNOWN, None
        self._failures += 1
        self.retry_at = max(self.retry_at, now + self.pause_s(self._failures))

    def refused(self, doing: Doing, error: FastqError, now: float) -> None:
        """What the group asks of it was refused with what may pass: the log says so when that lasts, until `came_through`."""
        self.troubles.failed((self, doing), doing.done, error, now, name=f"{doing.of} {self.group_id}")

    def came_through(self, doing: Doing, now: float) -> None:
        """It was not refused this time."""
        if self.troubles.open:
            self.troubles.over((self, doing), now)

    def given_up(self, *doings: Doing) -> None:
        """These are not asked for any more."""
        for doing in doings:
            self.troubles.forget((self, doing))

    def worked(self) -> None:
        """It answered as a coordinator does."""
        self._failures = 0

    def next_wakeup(self, now: float) -> float | None:
        """Seconds until the next look-up."""
        return max(0.0, self.retry_at - now) if not self.known and not self._asked else None

    def requests(self, now: float, can_send: CanSend) -> list[Outgoing]:
        """The look-up, when it is due."""
        if self.known or self._asked or now < self.retry_at:
            return []
        node_id = self._any_broker(now)
        if node_id is None or not can_send(node_id):
            return []
        build = coordinator_request(GROUP, [self.group_id])
        out = [Outgoing(node_id, FIND_COORDINATOR_API, build, None, self._done)]
        self._asked = True  # once it is made: there may be no memory for it
        return out

    def _done(self, response: FindCoordinatorResponse | None, error: FastqError | None, now: float) -> None:
        self._asked = False
        if response is None:
            self.lost(now, f"FindCoordinator failed: {error}")
            if error is not None and not error.retriable:
                self.error = error
            return
        answer = coordinator_answers(GROUP, response, [self.group_id])[self.group_id]
        if isinstance(answer, ProtocolError):
            self.lost(now, "FindCoordinator was answered without the group")
            self.error = answer
            return
        if answer.error_code == 0:
            self.came_through(FOUND, now)
            self.found_at = now
            self.node = Node(answer.node_id, answer.host, answer.port)
            self.node_id = self._separate(self.node)
            logger.debug("group %s: the coordinator is %s", self.group_id, self.node)
            return
        problem = group_error(answer.error_code, answer.error_message or "", GroupMetadata(self.group_id))
        self.lost(now, problem.name)
        if problem.retriable:
            self.refused(FOUND, problem, now)
        else:
            self.error = problem

    def take_error(self) -> FastqError | None:
        """What ended the last look-up for good, once."""
        error, self.error = self.error, None
        return error
