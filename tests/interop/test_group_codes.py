"""The APIs of classic groups over sockets, on each kind of broker: the same calls must have the same answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_cluster import connect
from raw_groups import GroupCalls, subscription
from raw_kafka import create_topic, topic_id_of

from fastq.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
)
from fastq.testing import Broker


@pytest.fixture(scope="module")
def fastq_servers(one_coordinator: Broker) -> str:
    return one_coordinator.bootstrap_servers


class WireGroups(GroupCalls):
    """Calls over one connection, and over a second one for those that wait."""

    def __init__(self, servers: str, name: str) -> None:
        self.connection, self.second = connect(servers), connect(servers)
        self.group_id = self.topic = name
        create_topic(self.connection, name, 4)
        create_topic(self.connection, f"{name}-u", 4)
        self.ready()

    def ready(self) -> None:
        """Have the coordinator found and loaded, and the topics led."""
        deadline = time.monotonic() + 60
        while True:
            found = self.connection.call(FindCoordinatorRequest(key=self.group_id), 0)
            listed = self.connection.call(ListGroupsRequest(), 0)
            (described,) = self.connection.call(DescribeGroupsRequest(groups=[self.group_id]), 0).groups
            named = [MetadataRequest.MetadataRequestTopic(name=name) for name in (self.topic, f"{self.topic}-u")]
            topics = self.connection.call(MetadataRequest(topics=named), 9).topics
            codes = [found.error_code, listed.error_code, described.error_code]
            codes += [topic.error_code for topic in topics]
            codes += [partition.error_code for topic in topics for partition in topic.partitions]
            if not any(codes):
                return
            assert time.monotonic() < deadline, codes
            time.sleep(0.05)

    async def call(self, request: Any, version: int) -> Any:
        return self.connection.call(request, version)

    def topic_id(self, name: str) -> bytes:
        return topic_id_of(self.connection, name)

    def topic_name(self, topic_id: bytes) -> str:
        return next(name for name in (self.topic, f"{self.topic}-u") if self.topic_id(name) == topic_id)

    def close(self) -> None:
        self.connection.close()
        self.second.close()


@pytest.fixture
def groups(servers: str, new_topic_name: Callable[[], str]) -> Iterator[WireGroups]:
    groups = WireGroups(servers, new_topic_name())
    yield groups
    groups.close()


@pytest.mark.parametrize("version", range(10))
def test_join(groups: WireGroups, version: int) -> None:
    async def work() -> None:
        first = await groups.join(version)
        if version >= 4:
            assert (first.error_code, first.generation_id, first.leader) == (79, -1, "")
            first = await groups.join(version, first.member_id)
        assert (first.error_code, first.generation_id, first.leader) == (0, 1, first.member_id)
        assert (first.protocol_name, len(first.members)) == ("range", 1)
        answer = await groups.join(version, "nobody")
        assert (answer.error_code, answer.member_id, answer.generation_id) == (25, "nobody", -1)
        assert answer.protocol_name == (None if version >= 7 else "")
        assert (await groups.join(version, "nobody", group_id=f"{groups.group_id}-new")).error_code == 25
        assert (await groups.join(version, group_id="")).error_code == 24
        assert (await groups.join(version, protocols=[("other", b"")])).error_code == 23
        assert (await groups.join(version, protocol_type="connect")).error_code == 23
        assert (await groups.join(version, protocols=[])).error_code == 23
        assert (await groups.join(version, session_timeout_ms=5999)).error_code == 26
        assert (await groups.join(version, session_timeout_ms=1_800_001)).error_code == 26

    asyncio.run(work())


@pytest.mark.parametrize("version", range(6))
def test_sync_heartbeat_and_leave(groups: WireGroups, version: int) -> None:
    beat = min(version, 4)

    async def work() -> None:
        joined = await groups.member()
        member_id = joined.member_id
        synced = await groups.sync(version, joined, {member_id: b"mine"})
        assert (synced.error_code, synced.assignment) == (0, b"mine")
        assert (await groups.sync(version, joined, group_id="")).error_code == 24
        assert (await groups.sync(version, joined, group_id=f"{groups.group_id}-new")).error_code == 25
        assert [
            await groups.heartbeat(beat, member_id, 1),
            await groups.heartbeat(beat, member_id, 2),
            await groups.heartbeat(beat, "nobody", 2),
            await groups.heartbeat(beat, member_id, 1, f"{groups.group_id}-new"),
            await groups.heartbeat(beat, member_id, 1, ""),
        ] == [0, 22, 25, 25, 24]
        if version >= 5:
            assert (await groups.sync(version, joined, protocol_name=None)).error_code == 23
            assert (await groups.sync(version, joined, protocol_name="other")).error_code == 23
        identity = LeaveGroupRequest.MemberIdentity
        if version < 3:
            for name, code in (("nobody", 25), (member_id, 0), (member_id, 25)):
                request = LeaveGroupRequest(group_id=groups.group_id, member_id=name)
                assert (await groups.call(request, version)).error_code == code
        else:
            leaving = [identity(member_id="nobody"), identity(member_id="", group_instance_id="i")]
            leaving += [identity(member_id=member_id), identity(member_id=member_id, group_instance_id="i")]
            request = LeaveGroupRequest(group_id=groups.group_id, members=leaving)
            answer = await groups.call(request, version)
            assert answer.error_code == 0
            assert [item.error_code for item in answer.members] == [25, 25, 0, 25]
        assert await groups.heartbeat(beat, member_id, 1) == 25

    asyncio.run(work())


def test_rebalances(groups: WireGroups) -> None:
    async def work() -> None:
        leader = await groups.stable()
        new = (await groups.join()).member_id
        waiting, groups.connection, groups.second = groups.connection, groups.second, groups.connection
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription("t"))
        waiting.send(
            JoinGroupRequest(
                group_id=groups.group_id,
                member_id=new,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            9,
        )
        for _ in range(1000):  # the join is on its way on another connection
            if await groups.heartbeat(4, leader.member_id, 1):
                break
            await asyncio.sleep(0.01)
        assert await groups.heartbeat(4, leader.member_id, 1) == 27
        assert await groups.heartbeat(4, leader.member_id, 0) == 22
        assert (await groups.sync(5, leader)).error_code == 27
        early = await groups.commit(9, {(groups.topic, 0): 1}, member_id=leader.member_id, generation=1)
        assert early == {(groups.topic, 0): 0}, "the old generation commits until the new one begins"
        led = await groups.join(9, leader.member_id)
        followed = waiting.receive()
        assert (led.generation_id, followed.generation_id, len(led.members), followed.members) == (2, 2, 2, [])
        late = await groups.commit(9, {(groups.topic, 0): 1}, member_id=new, generation=2)
        assert late == {(groups.topic, 0): 27}
        again = await groups.join(9, new)
        assert (again.error_code, again.generation_id, again.members) == (0, 2, [])
        synced = await groups.sync(5, led, {new: b"new"})
        assert (synced.error_code, synced.assignment) == (0, b"")
        assert (await groups.sync(5, followed)).assignment == b"new"
        unchanged = await groups.join(9, new)
        assert (unchanged.error_code, unchanged.generation_id, unchanged.leader) == (0, 2, leader.member_id)
        assert await groups.heartbeat(4, leader.member_id, 2) == 0

    asyncio.run(work())


def test_static_members(groups: WireGroups) -> None:
    async def work() -> None:
        first = await groups.join(5, group_instance_id="i")
        assert (first.error_code, first.generation_id) == (0, 1)
        await groups.sync(3, first, {first.member_id: b"mine"}, group_instance_id="i")
        again = await groups.join(9, group_instance_id="i")
        assert (again.error_code, again.generation_id, again.skip_assignment) == (0, 1, True)
        assert (again.leader, len(again.members)) == (again.member_id, 1)
        older = await groups.join(8, group_instance_id="i")
        assert (older.error_code, older.generation_id, older.leader) == (0, 1, again.member_id)
        assert older.members == []
        assert (await groups.sync(3, older, group_instance_id="i")).assignment == b"mine"
        assert (await groups.sync(3, first, group_instance_id="i")).error_code == 82
        assert (await groups.sync(3, older, group_instance_id="j")).error_code == 25
        item = (groups.topic, 0)
        fenced = await groups.commit(7, {item: 1}, member_id=first.member_id, generation=1, group_instance_id="i")
        assert fenced == {item: 82}
        rejoined = await groups.join(9, first.member_id, group_instance_id="i")
        assert (rejoined.error_code, rejoined.member_id) == (82, first.member_id)

    asyncio.run(work())


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_and_fetch(groups: WireGroups, version: int) -> None:
    topic, other = groups.topic, f"{groups.topic}-u"
    fetch_version = version

    async def work() -> None:
        assert await groups.commit(version, {(topic, 0): 7, (other, 1): 8}) == {(topic, 0): 0, (other, 1): 0}
        assert await groups.commit(version, {(topic, 9): 7, (topic, 1): 9}) == {(topic, 9): 3, (topic, 1): 0}
        assert await groups.commit(version, {(topic, 2): 7}, metadata="m" * 4097) == {(topic, 2): 12}
        assert await groups.commit(version, {(topic, 3): 7}, metadata=None) == {(topic, 3): 0}
        new = f"{groups.group_id}-new"
        unknown = await groups.commit(version, {(topic, 0): 7}, group_id=new, member_id="m", generation=1)
        assert unknown == {(topic, 0): 69 if version >= 9 else 22}
        live: dict[str, Any] = {"group_id": f"{groups.group_id}-live"}
        joined = await groups.member(**live)
        live["member_id"] = joined.member_id
        assert await groups.commit(version, {(topic, 0): 1}, **live, generation=1) == {(topic, 0): 27}
        await groups.sync(5, joined, {}, group_id=live["group_id"])
        assert await groups.commit(version, {(topic, 0): 1}, **live, generation=1) == {(topic, 0): 0}
        assert await groups.commit(version, {(topic, 0): 1}, **live, generation=2) == {(topic, 0): 22}
        live["member_id"] = "x"
        assert await groups.commit(version, {(topic, 0): 1}, **live, generation=1) == {(topic, 0): 25}
        live["member_id"] = ""
        assert await groups.commit(version, {(topic, 0): 1}, **live) == {(topic, 0): 25}
        asked = [(topic, 0), (other, 1), (topic, 1), (topic, 2), (topic, 3)]
        found = await groups.fetch(fetch_version, asked)
        assert found == dict(zip(asked, [(7, 0, "m"), (8, 0, "m"), (9, 0, "m"), (-1, 0, ""), (7, 0, "")], strict=True))
        del found[topic, 2]
        assert await groups.fetch(fetch_version, None) == found
        assert await groups.fetch(fetch_version, [(topic, 0)], group_id=new) == {(topic, 0): (-1, 0, "")}
        assert await groups.fetch(fetch_version, None, group_id=new) == {}

    asyncio.run(work())


def test_unknown_topics(groups: WireGroups) -> None:
    async def work() -> None:
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_metadata="")
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        by_name = [topic(name=f"{groups.topic}-nowhere", partitions=[partition])]
        request = OffsetCommitRequest(group_id=groups.group_id, member_id="", topics=by_name)
        assert (await groups.call(request, 9)).topics[0].partitions[0].error_code == 3
        request.topics = [topic(topic_id=b"0123456789abcdef", partitions=[partition])]
        assert (await groups.call(request, 10)).topics[0].partitions[0].error_code == 100

    asyncio.run(work())


@pytest.mark.parametrize("version", range(7))
def test_describe(groups: WireGroups, version: int) -> None:
    async def work() -> None:
        joined = await groups.stable()
        waiting = f"{groups.group_id}-waiting"
        await groups.member(group_id=waiting)
        named = [groups.group_id, waiting, f"{groups.group_id}-none"]
        request = DescribeGroupsRequest(groups=named, include_authorized_operations=version >= 3)
        described = {group.group_id: group for group in (await groups.call(request, version)).groups}
        stable, completing, none = (described[name] for name in named)
        assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
        (member,) = stable.members
        assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "raw", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"all")
        assert (completing.group_state, completing.protocol_data) == ("CompletingRebalance", "")
        assert (completing.members[0].member_metadata, completing.members[0].member_assignment) == (b"", b"")
        assert (none.group_state, none.error_code) == ("Dead", 69 if version >= 6 else 0)
        if version >= 3:
            assert stable.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11

    asyncio.run(work())


def test_list_and_delete(groups: WireGroups) -> None:
    simple = f"{groups.group_id}-simple"
    item = (groups.topic, 0)

    async def listed(version: int, **filters: Any) -> set[tuple[str, str, str, str]]:
        answer = await groups.call(ListGroupsRequest(**filters), version)
        return {
            (group.group_id, group.protocol_type, group.group_state, group.group_type)
            for group in answer.groups
            if group.group_id in (groups.group_id, simple)
        }

    async def work() -> None:
        joined = await groups.stable()
        await groups.commit(9, {item: 1}, member_id=joined.member_id, generation=1)
        await groups.commit(9, {item: 1}, group_id=simple)
        mine = (groups.group_id, "consumer", "Stable", "classic")
        other = (simple, "", "Empty", "classic")
        assert await listed(5) == {mine, other}
        assert await listed(5, states_filter=["stable"]) == {mine}
        assert await listed(5, states_filter=["EMPTY"], types_filter=["Classic"]) == {other}
        assert await listed(5, types_filter=["consumer"]) == set()
        request = DeleteGroupsRequest(groups_names=[groups.group_id, simple, f"{simple}-none"])
        answer = await groups.call(request, 2)
        assert {r.group_id: r.error_code for r in answer.results} == {
            groups.group_id: 68,
            simple: 0,
            f"{simple}-none": 69,
        }
        assert (await groups.leave(joined.member_id)).members[0].error_code == 0
        assert await listed(5) == {(groups.group_id, "consumer", "Empty", "classic")}
        answer = await groups.call(request, 2)
        assert {r.group_id: r.error_code for r in answer.results}[groups.group_id] == 0
        assert await listed(5) == set()
        assert await groups.fetch(9, None) == {}

    asyncio.run(work())


def test_offset_delete(groups: WireGroups) -> None:
    topic, other = groups.topic, f"{groups.topic}-u"

    async def delete(group_id: str, *items: tuple[str, int]) -> tuple[int, list[int]]:
        named = [
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition)]
            )
            for name, partition in items
        ]
        answer = await groups.call(OffsetDeleteRequest(group_id=group_id, topics=named), 0)
        codes = {(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}
        return answer.error_code, [codes[item] for item in items if item in codes]

    async def work() -> None:
        joined = await groups.stable(protocols=[("range", subscription(topic))])
        await groups.commit(9, {(topic, 0): 1, (other, 0): 2}, member_id=joined.member_id, generation=1)
        assert await delete("", (topic, 0)) == (24, [])
        assert await delete(f"{groups.group_id}-none", (topic, 0)) == (69, [])
        assert await delete(groups.group_id, (topic, 0)) == (0, [86])
        assert await delete(groups.group_id, (other, 0)) == (0, [0])
        assert await delete(groups.group_id, (other, 0), (other, 99)) == (0, [0, 3])
        assert await delete(groups.group_id, (f"{topic}-nowhere", 0)) == (0, [3])
        assert await groups.fetch(9, None) == {(topic, 0): (1, 0, "m")}
        connect = f"{groups.group_id}-connect"
        member = await groups.member(group_id=connect, protocol_type="connect")
        await groups.sync(4, member, group_id=connect)
        assert await delete(connect, (topic, 0)) == (68, [])

    asyncio.run(work())


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator(groups: WireGroups, version: int) -> None:
    async def work() -> None:
        asked: dict[str, Any] = {"coordinator_keys": ["a", "b"]} if version >= 4 else {"key": "a"}
        answer = await groups.call(FindCoordinatorRequest(**asked), version)
        found = answer.coordinators if version >= 4 else [answer]
        assert [(item.error_code, item.host) for item in found] == [(0, "127.0.0.1")] * len(found)
        if version >= 1:
            asked = {"coordinator_keys": ["a"]} if version >= 4 else {"key": "a"}
            answer = await groups.call(FindCoordinatorRequest(key_type=9, **asked), version)
            refused = answer.coordinators[0] if version >= 4 else answer
            assert (refused.error_code, refused.node_id, refused.port) == (42, -1, -1)

    asyncio.run(work())
