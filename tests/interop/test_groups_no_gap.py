"""A rebalance leaves what does not move alone: held up in each of its steps, the others' partitions are read on.

Rules: no clock decides. A step of the rebalance is held, records are written, and who is not part of the step has to read them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from group_members import commits

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.consumer import RebalanceListener
from fastq.testing import Broker

PARTITIONS, ROUND, WAIT_S = 20, 10, 60.0


@pytest.fixture(scope="module")
def fastq_servers(quick_broker: Broker) -> str:
    return quick_broker.bootstrap_servers


class Member(RebalanceListener, threading.Thread):
    """A consumer in a thread of its own. `gate` holds its listener up in a revocation, `handler` what it does with records."""

    def __init__(self, options: dict[str, Any], topic: str, gate: threading.Event) -> None:
        threading.Thread.__init__(self, daemon=True)
        self.gate, self.handler, self.stopping = gate, threading.Event(), threading.Event()
        self.handler.set()
        self.revoking = self.busy = False
        self.seen: set[tuple[int, int]] = set()
        self.doubled: list[tuple[int, int]] = []
        self.revoked: list[int] = []
        self.failed: BaseException | None = None
        self.consumer = Consumer(**options)
        self.consumer.subscribe(topic, listener=self)
        self.start()

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.revoked += [tp.partition for tp in partitions]
        self.revoking = True
        assert self.gate.wait(WAIT_S)
        self.revoking = False

    def run(self) -> None:
        try:
            with self.consumer:
                while not self.stopping.is_set() or not commits(self.consumer):
                    for record in self.consumer.poll(timeout=0.1):
                        place = record.partition, record.offset
                        (self.doubled.append if place in self.seen else self.seen.add)(place)
                    self.busy = True
                    assert self.handler.wait(WAIT_S)
                    self.busy = False
        except BaseException as error:
            self.failed = error

    @property
    def partitions(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}

    def read_up_to(self, end: int, partitions: set[int]) -> bool:
        return all((partition, offset) in self.seen for partition in partitions for offset in range(end - ROUND, end))

    def stop(self) -> None:
        self.handler.set()
        self.stopping.set()
        self.join(WAIT_S)
        assert not self.is_alive() and self.failed is None, self.failed


class Group:
    """Members of one group, and a topic that is written in rounds: so many records in each partition."""

    def __init__(self, servers: str, topic: str, protocol: str) -> None:
        self.servers, self.topic, self.end = servers, topic, 0
        self.gate = threading.Event()
        self.gate.set()
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.options: dict[str, Any] = {
            "bootstrap_servers": servers,
            "group_id": f"group-of-{topic}",
            "group_protocol": protocol,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 30_000,
            "heartbeat_interval_ms": 200,
        }
        if protocol == "classic":
            self.options["partition_assignment_strategy"] = "cooperative-sticky"

    def join(self) -> Member:
        self.members.append(Member(self.options, self.topic, self.gate))
        return self.members[-1]

    def leave(self, member: Member) -> None:
        """A member commits and leaves; the others take over what it had."""
        self.members.remove(member)
        self.gone.append(member)
        member.stop()
        everything = set(range(PARTITIONS)) if self.members else set()
        self.until(lambda: set().union(*(member.partitions for member in self.members)) == everything)

    def write(self) -> None:
        """A round of records."""
        with Producer(bootstrap_servers=self.servers) as producer:
            for partition in range(PARTITIONS):
                producer.send_many(self.topic, [b"x"] * ROUND, partition=partition)
            producer.flush()
        self.end += ROUND

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            failed = [member.failed for member in self.members if member.failed is not None]
            assert not failed and time.monotonic() < deadline, (failed, [sorted(m.partitions) for m in self.members])
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until the members have divided the partitions, and read what there is."""
        count = len(self.members)
        shares = sorted(PARTITIONS // count + (index < PARTITIONS % count) for index in range(count))
        self.until(lambda: sorted(len(member.partitions) for member in self.members) == shares)
        total = PARTITIONS * self.end
        self.until(lambda: len(set().union(*(member.seen for member in [*self.gone, *self.members]))) == total)

    def read_on(self, held: dict[Member, set[int]]) -> None:
        """What is written now is read by those who hold the partitions; a member may give up one, which is another's to read."""
        self.write()
        self.until(
            lambda: all(member.read_up_to(self.end, mine - set(member.revoked)) for member, mine in held.items())
        )
        assert all(len(set(member.revoked)) <= 1 for member in held)

    def close(self) -> None:
        self.gate.set()
        for member in self.members:
            member.handler.set()
            member.stopping.set()
        for member in self.members:
            member.join(WAIT_S)


@pytest.fixture
def group_of(make_topic: Callable[..., str]) -> Iterator[Callable[[str, str], Group]]:
    """`group_of(servers, protocol)` makes a group and its topic."""
    groups: list[Group] = []

    def make(servers: str, protocol: str) -> Group:
        groups.append(Group(servers, make_topic(servers, partitions=PARTITIONS), protocol))
        return groups[-1]

    yield make
    for group in groups:
        group.close()


def assert_read_once(group: Group) -> None:
    """Every record once, by somebody."""
    classic = group.options["group_protocol"] == "classic"
    for member in list(group.members):
        if classic:  # a group that rebalances takes no commits
            group.leave(member)
        else:
            group.gone.append(member)
            member.stop()
    places = [place for member in group.gone for place in [*member.seen, *member.doubled]]
    assert sorted(places) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(group.end)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_what_does_not_move_is_read_on(servers: str, group_of: Callable[[str, str], Group], protocol: str) -> None:
    group = group_of(servers, protocol)
    for _ in range(4):
        group.join()
    group.settle()
    held = {member: member.partitions for member in group.members}
    for member in held:
        member.revoked.clear()
    slow = group.members[0]
    slow.handler.clear()
    group.until(lambda: slow.busy)
    # One member's handler takes its time: who joins has to wait, the others do not.
    group.join()
    if protocol == "classic":
        with Admin(bootstrap_servers=servers) as admin:
            group.until(lambda: admin.describe_group(group.options["group_id"]).state == "PreparingRebalance")
    group.read_on({member: mine for member, mine in held.items() if member is not slow})
    group.gate.clear()
    slow.handler.set()
    # Those who have to give up a partition take their time about it.
    group.until(lambda: any(member.revoking for member in held))
    kept = {member: member.partitions for member in held if not member.revoking}
    group.write()
    group.until(lambda: all(member.revoking or member.read_up_to(group.end, mine) for member, mine in kept.items()))
    group.gate.set()
    group.settle()
    assert_read_once(group)
    assert sum(len(set(member.revoked)) for member in held) >= 4


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rolling_restart_of_ten(quick_broker: Broker, group_of: Callable[[str, str], Group], protocol: str) -> None:
    """Each of ten members is replaced: what it had goes to others, and as many to its successor; nothing else moves."""
    group = group_of(quick_broker.bootstrap_servers, protocol)
    for _ in range(10):
        group.join()
    group.settle()
    for _ in range(10):
        for member in group.members:
            member.revoked.clear()
        leaver = group.members[0]
        stay = {member: member.partitions for member in group.members[1:]}
        group.write()
        group.leave(leaver)
        for member, mine in stay.items():
            assert mine <= member.partitions and not member.revoked
        group.write()
        group.join()
        group.settle()
        assert sum(len(member.revoked) for member in group.members) == PARTITIONS // 10
    assert_read_once(group)
