"""Requests of classic groups and their offsets as a client makes them, through whatever `call` goes through; answers as plain values."""

from __future__ import annotations

from typing import Any

from fastq.protocol.messages import (
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)


def subscription(*topics: str) -> bytes:
    """A consumer's metadata, as clients write it."""
    return b"\0\1" + ConsumerProtocolSubscription(topics=list(topics), owned_partitions=[]).to_bytes(1)


class GroupCalls:
    """Calls for one group, `group_id`, where they do not name another."""

    group_id = "g"

    async def call(self, request: Any, version: int) -> Any:
        """Send a request, and wait for its answer."""
        raise NotImplementedError

    def topic_id(self, name: str) -> bytes:
        """The id of a topic that exists."""
        raise NotImplementedError

    def topic_name(self, topic_id: bytes) -> str:
        """The name of a topic that exists."""
        raise NotImplementedError

    async def join(self, version: int = 9, member_id: str = "", **fields: Any) -> Any:
        protocols = fields.pop("protocols", [("range", subscription("t"))])
        request = JoinGroupRequest(
            group_id=fields.pop("group_id", self.group_id),
            member_id=member_id,
            session_timeout_ms=fields.pop("session_timeout_ms", 10_000),
            rebalance_timeout_ms=60_000,
            protocol_type=fields.pop("protocol_type", "consumer"),
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols],
            **fields,
        )
        return await self.call(request, version)

    async def member(self, version: int = 9, **fields: Any) -> Any:
        """Join as a new member; answers the JoinGroup that let it in."""
        joined = await self.join(version, **fields)
        return await self.join(version, joined.member_id, **fields) if joined.error_code == 79 else joined

    async def sync(self, version: int, joined: Any, assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
        named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
        request = SyncGroupRequest(
            group_id=fields.pop("group_id", self.group_id),
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
            **{**named, **fields},
        )
        return await self.call(request, version)

    async def stable(self, group_id: str | None = None, **fields: Any) -> Any:
        """A group of one member with an assignment; answers its JoinGroup."""
        joined = await self.member(group_id=group_id or self.group_id, **fields)
        assert joined.error_code == 0
        synced = await self.sync(5, joined, {joined.member_id: b"all"}, group_id=group_id or self.group_id)
        assert (synced.error_code, synced.assignment) == (0, b"all")
        return joined

    async def heartbeat(self, version: int, member_id: str, generation: int, group_id: str | None = None) -> int:
        request = HeartbeatRequest(
            group_id=self.group_id if group_id is None else group_id, generation_id=generation, member_id=member_id
        )
        return int((await self.call(request, version)).error_code)

    async def leave(self, member_id: str, group_id: str | None = None) -> Any:
        members = [LeaveGroupRequest.MemberIdentity(member_id=member_id)]
        return await self.call(LeaveGroupRequest(group_id=group_id or self.group_id, members=members), 5)

    async def commit(
        self,
        version: int,
        offsets: dict[tuple[str, int], int],
        *,
        group_id: str | None = None,
        member_id: str = "",
        generation: int = -1,
        metadata: str | None = "m",
        **fields: Any,
    ) -> dict[tuple[str, int], int]:
        """Commit; answers the error of each partition."""
        topics = [
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                topic_id=self.topic_id(topic) if version >= 10 else bytes(16),
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=metadata
                    )
                ],
            )
            for (topic, partition), offset in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=group_id or self.group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=topics,
            **fields,
        )
        answer = await self.call(request, version)
        return {
            (topic.name if version < 10 else self.topic_name(topic.topic_id), item.partition_index): item.error_code
            for topic in answer.topics
            for item in topic.partitions
        }

    async def fetch(
        self,
        version: int,
        partitions: list[tuple[str, int]] | None,
        *,
        group_id: str | None = None,
        require_stable: bool = False,
    ) -> dict[tuple[str, int], tuple[int, int, str]]:
        """Fetch; answers offset, error and metadata of each partition."""
        if version < 8:
            request = OffsetFetchRequest(
                group_id=group_id or self.group_id,
                topics=None
                if partitions is None
                else [OffsetFetchRequest.OffsetFetchRequestTopic(name=t, partition_indexes=[p]) for t, p in partitions],
                require_stable=require_stable,
                groups=[],
            )
            answer = await self.call(request, version)
            return {
                (topic.name, item.partition_index): (item.committed_offset, item.error_code, item.metadata)
                for topic in answer.topics
                for item in topic.partitions
            }
        named = None
        if partitions is not None:
            named = [
                OffsetFetchRequest.OffsetFetchRequestTopics(
                    name=t, topic_id=self.topic_id(t) if version >= 10 else bytes(16), partition_indexes=[p]
                )
                for t, p in partitions
            ]
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id or self.group_id, topics=named)
        answer = await self.call(OffsetFetchRequest(groups=[group], topics=[], require_stable=require_stable), version)
        return {
            (topic.name if version < 10 else self.topic_name(topic.topic_id), item.partition_index): (
                item.committed_offset,
                item.error_code,
                item.metadata,
            )
            for topic in answer.groups[0].topics
            for item in topic.partitions
        }
