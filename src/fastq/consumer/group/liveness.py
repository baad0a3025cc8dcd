"""Whether the application is alive, and who speaks for a member whose application is busy.

Rules
- Signs of life are calls that ask for records, and records that an iterator hands out in between (`Progress`). Those are counted and not
  timed, which would cost each record: when they came is known but for the time between two looks, as heartbeats are.
- On plain connections a native thread stands in for Python's heartbeats when they stay away, as while an extension holds the GIL.
  It cannot do TLS or SASL: there only the thread of the blocking consumer, or the event loop, sends heartbeats.
- What the native thread hears is never acted upon: it makes the member's own next heartbeat due, or say more. So does what it should have
  heard and did not: a coordinator of the consumer protocol tells an assignment once, and takes it for told.
- A member that left because its application was too slow makes the next call for records raise MaxPollIntervalExceeded, which names the
  record that took so long: iterators are stopped before the farewell is sent, for what they hold is somebody else's then. When it left
  while the application waited for records, as nobody could run, it joins again and nobody is to blame.
"""

from __future__ import annotations

import logging
import os
import weakref
from typing import Any

from fastq._native.heartbeat import HeartbeatThread, Progress, supported
from fastq._native.wire import DecodeError
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.group.classic import BEATING, ClassicMember
from fastq.consumer.group.consumer_protocol import ConsumerProtocolMembership
from fastq.consumer.group.coordinator import Coordinator
from fastq.consumer.group.membership import CanSend, Membership
from fastq.errors import FastqError, MaxPollIntervalExceeded
from fastq.metadata import TopicPartition
from fastq.net.core import ClientCore
from fastq.protocol.api import ApiKey, response_header_version
from fastq.protocol.frames import decode_response, encode_request
from fastq.protocol.message import Message
from fastq.protocol.messages import HeartbeatRequest, LeaveGroupRequest

logger = logging.getLogger("fastq.consumer")

HEARTBEAT_APIS = frozenset({int(ApiKey.HEARTBEAT), int(ApiKey.CONSUMER_GROUP_HEARTBEAT)})
TIMEOUT_MS_MIN = 1000
IN_HAND = tuple[TopicPartition, int, bool]  # partition, offset, and whether it is the one record that is in hand


class Liveness:
    """Of one consumer with a group. Invariant: `_armed` says what the native thread sends, None for nothing; `_asked_at` is the last
    sign of life, or when it was noticed (`_noticed`). Thread rule: under the driver's lock, or in its loop.
    """

    def __init__(self, config: ConsumerConfig, core: ClientCore, coordinator: Coordinator) -> None:
        self.config = config
        self.progress = Progress()
        self._core = core
        self._coordinator = coordinator
        self._seen = 0
        self._asked_at = core.clock()
        self._noticed = False
        self._plain = config.security_protocol == "PLAINTEXT" and supported()
        self._thread: HeartbeatThread | None = None
        self._armed: tuple[Any, ...] | None = None
        self._token = 0
        self._unheard = 0
        self._gave_up = False
        self._version = self._api_key = -1
        self._classic_interval_s = config.heartbeat_interval_ms / 1000
        _alive.add(self)

    # -- signs of life

    def asked(self, member: Membership, in_hand: IN_HAND | None) -> MaxPollIntervalExceeded | None:
        """The application asks for records, having had `in_hand`. Answers the error to raise when it comes too late."""
        now, count = self._core.clock(), self.progress.count
        # What was handed out since the last look began some time after it.
        at_least = self._noticed or count != self._seen
        elapsed_s = now - self._asked_at if count == self._seen else self.config.max_poll_interval_ms / 1000
        self._asked_at, self._seen, self._noticed = now, count, False
        if self._thread is not None:
            self._thread.alive()  # first: it may give up until it has heard of this, and no later
        gave_up = self._thread_gave_up() or self.progress.stopped
        if not (member.too_slow or gave_up):
            return None
        if not member.too_slow:
            member.overdue()  # it has not heard of it yet
        if at_least and self._thread is not None:
            elapsed_s = max(elapsed_s, self._thread.overdue_s)  # its looks may have been closer
        self._disarm()  # and the native thread begins again
        member.too_slow = self._gave_up = self.progress.stopped = False
        return self._too_slow(member, in_hand, elapsed_s, at_least)

    def waiting(self, member: Membership | None) -> None:
        """The application waits for records, perhaps (None) for a member first, whose time counts from here then."""
        self._asked_at, self._seen, self._noticed = self._core.clock(), self.progress.count, False
        if self._thread is not None:
            self._thread.alive()
        if member is None:
            return
        if self.progress.stopped and not member.too_slow:
            self._stood_still(member)
        member.poll(self._asked_at)

    def _stood_still(self, member: Membership) -> None:
        """The native thread has said farewell for an application that waits for records: nobody could run to say that."""
        logger.warning(
            "group %s: this process stood still for max_poll_interval_ms=%d: member %s has left, and joins again",
            self._coordinator.group_id,
            self.config.max_poll_interval_ms,
            member.member_id,
        )
        member.overdue()
        self._disarm()
        self._gave_up = self.progress.stopped = False

    def _thread_gave_up(self) -> bool:
        """Whether the native thread has said farewell, since the application was last told."""
        if self._armed is not None and self._thread is not None and self._thread.overdue_s > 0:
            self._gave_up = True
        return self._gave_up

    def observe(self, member: Membership) -> None:
        """Take in records that were handed out since; to be called before heartbeats. When there were none for too long there will be
        none, as the member's place is given up next."""
        count, now = self.progress.count, self._core.clock()
        if count == self._seen and now >= self._asked_at + self.config.max_poll_interval_ms / 1000:
            self.progress.stopped = True
            count = self.progress.count  # one may have been handed out before
            self.progress.stopped = count == self._seen
        if count != self._seen:
            self._seen, self._asked_at, self._noticed = count, now, True
            member.poll(now)

    def settle(self, member: Membership, can_send: CanSend) -> list[Outgoing]:
        """Before the member leaves: have it know of a farewell that the native thread has said. Answers what is due, such as one that
        nobody has said yet."""
        self.observe(member)
        if self._thread_gave_up():
            member.overdue()
        return member.heartbeats(self._core.clock(), can_send)

    def _too_slow(
        self, member: Membership, in_hand: IN_HAND | None, elapsed_s: float, at_least: bool
    ) -> MaxPollIntervalExceeded:
        limit_ms = self.config.max_poll_interval_ms
        what, where = "no record in hand", {}
        if in_hand is not None:
            (topic, partition), offset, alone = in_hand
            what = f"{'the record' if alone else 'the records polled together, from the one'} of {topic}-{partition} at offset {offset}"
            where = {"topic": topic, "partition": partition, "offset": offset}
        took = f"{'at least ' if at_least else ''}{elapsed_s:.1f} s"
        return MaxPollIntervalExceeded(
            f"{what} took {took}, more than max_poll_interval_ms={limit_ms}: the member left the group meanwhile, and what "
            "it had not committed is read again by whoever has its partitions now",
            group=self._coordinator.group_id,
            member=member.member_id or None,
            elapsed_s=elapsed_s,
            hint="Go on polling to join again; take fewer records at a time (max_poll_records), hand them to a ConsumerPool, or raise "
            "max_poll_interval_ms",
            **where,
        )

    # -- the native thread

    def sent(self) -> None:
        """Python has sent a heartbeat itself."""
        if self._thread is not None:
            self._thread.postpone()

    def follow(self, member: Membership | None) -> None:
        """Have the native thread say what the member would, and take in what it was told."""
        if self._plain:
            self._follow(member)
        if member is None:  # another one is not told of the end of this
            self.progress.stopped = self._gave_up = False

    def _follow(self, member: Membership | None) -> None:
        coordinator = self._coordinator
        if self._thread is not None:
            self._listen(self._thread, member)
        key = None
        if member is not None and coordinator.known and _beats(member):
            key = (member.member_id, member.generation, coordinator.node_id, self._interval_s(member), type(member))
        if key == self._armed:
            return
        self._disarm()
        if key is not None and member is not None:
            try:
                self._arm(member)
                self._armed = key
            except FastqError:
                pass  # not connected at the moment: the next turn tries again
            except (OSError, ValueError) as error:
                logger.warning("group %s: no native heartbeats: %s", coordinator.group_id, error)
                self._plain = False

    def _interval_s(self, member: Membership) -> float:
        """Between its heartbeats. A coordinator of the consumer protocol asks for shorter ones for a while, as somebody waits."""
        return member.interval_s if isinstance(member, ConsumerProtocolMembership) else self._classic_interval_s

    def _disarm(self) -> None:
        """Have the thread send nothing. What it has heard or hears yet is of settings that are no more; whether it gave up is known."""
        if self._thread is not None:
            self._thread.disarm()
        self._thread_gave_up()
        self._armed = None
        self._token += 1

    def _arm(self, member: Membership) -> None:
        request, farewell = _messages(member, self.config)
        core, node_id = self._core, self._coordinator.node_id
        ip, port = core.peer_address(node_id)
        version = core.api_version(node_id, request.API_KEY)
        client_id = self.config.client_id
        frame = encode_request(0, client_id, request, version)
        leave = None
        if farewell is not None:
            leave = encode_request(0, client_id, farewell, core.api_version(node_id, farewell.API_KEY))
        if self._thread is None:
            self._thread, self._unheard = HeartbeatThread(self.progress), 0
        self._thread.connect_to(ip, port)
        self._token += 1
        self._version, self._api_key = version, request.API_KEY
        interval_ms = max(1, round(self._interval_s(member) * 1000))
        self._thread.arm(
            self._token,
            frame,
            error_at=_error_at(request.API_KEY, version),
            epoch_at=_epoch_at(request, client_id, version),
            interval_ms=interval_ms,
            timeout_ms=min(self.config.request_timeout_ms, max(TIMEOUT_MS_MIN, interval_ms)),
            poll_limit_ms=self.config.max_poll_interval_ms,
            leave=leave,
        )

    def _listen(self, thread: HeartbeatThread, member: Membership | None) -> None:
        unheard = thread.unheard
        heard: list[Message | None] = [] if unheard == self._unheard else [None]
        self._unheard = -1  # until all is said: what fails in between is heard of by nobody, either
        for token, is_farewell, answer in thread.take():
            if not is_farewell:
                heard.append(self._read(answer) if token == self._token else None)
        if member is not None:
            now = self._core.clock()
            for response in heard:
                member.overheard(response, now)
                if getattr(response, "error_code", 0) and not thread.armed and not self._thread_gave_up():
                    self._disarm()  # which it may be of no more, by the time that the member has asked: it begins again
        self._unheard = unheard

    def _read(self, answer: bytes) -> Message | None:
        """What the coordinator said, as far as it can be read."""
        try:
            return decode_response(memoryview(answer), self._api_key, self._version)[1]
        except DecodeError as error:
            logger.warning("group %s: a heartbeat's answer cannot be read: %s", self._coordinator.group_id, error)
            return None

    def close(self) -> None:
        """End the native thread."""
        thread, self._thread, self._armed, self._plain = self._thread, None, None, False
        if thread is not None:
            thread.close()


_alive: weakref.WeakSet[Liveness] = weakref.WeakSet()


def _forked() -> None:
    """In a child: the threads stayed with the parent, and so did whoever may hold their locks."""
    for liveness in list(_alive):
        liveness._thread, liveness._armed, liveness._plain = None, None, False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _beats(member: Membership) -> bool:
    """Whether heartbeats keep this member alive now."""
    if isinstance(member, ClassicMember):
        return member.generation >= 0 and member.state in BEATING
    return member.may_commit


def _messages(member: Membership, config: ConsumerConfig) -> tuple[Message, Message | None]:
    """The heartbeat, and the farewell."""
    if isinstance(member, ConsumerProtocolMembership):
        return member.minimal(), member.farewell()
    assert config.group_id is not None
    instance = config.group_instance_id
    beat = HeartbeatRequest(
        group_id=config.group_id,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=instance,
    )
    leave = None
    if instance is None:
        # Both forms of the field: the version decides which one is written.
        identity = LeaveGroupRequest.MemberIdentity(member_id=member.member_id, reason="max_poll_interval_ms passed")
        leave = LeaveGroupRequest(group_id=config.group_id, members=[identity])
    return beat, leave


def _error_at(api_key: int, version: int) -> int:
    """Where the error code lies in an answer, from the correlation id on: behind the tags of the header, and the throttle time."""
    tags = 1 if response_header_version(api_key, version) >= 1 else 0
    throttle = 0 if api_key == ApiKey.HEARTBEAT and version == 0 else 4
    return 4 + tags + throttle


def _epoch_at(request: Message, client_id: str, version: int) -> int:
    """Where the member epoch lies in the frame, -1 where there is none: where frames of two epochs begin to differ."""
    if request.API_KEY != ApiKey.CONSUMER_GROUP_HEARTBEAT:
        return -1
    one: Any = request
    epoch = one.member_epoch
    frames = []
    for other in (0, -1):
        one.member_epoch = other
        frames.append(encode_request(0, client_id, one, version))
    one.member_epoch = epoch
    return next(at for at, (a, b) in enumerate(zip(*frames, strict=True)) if a != b)
