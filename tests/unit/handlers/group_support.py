"""A whole broker in this process, and requests to its handlers through the bytes of every version."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.topics import OFFSETS_TOPIC, NewTopic
from fastq_broker.router import HANDLERS

from fastq._native.wire import Reader, Writer
from fastq.protocol.api import APIS
from fastq.protocol.messages import (
    ConsumerProtocolSubscription,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

T = TypeVar("T")


def subscription(*topics: str) -> bytes:
    """A consumer's metadata, as clients write it."""
    return b"\0\1" + ConsumerProtocolSubscription(topics=list(topics), owned_partitions=[]).to_bytes(1)


def through_bytes(message: Any, kind: Any, version: int) -> Any:
    writer = Writer()
    message.encode(writer, version)
    return kind.decode(Reader(writer.getvalue()), version)


class GroupHandlers:
    """The handlers of one running broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def call(self, request: Any, version: int) -> Any:
        """Through the bytes of `version` both ways; waits for the answer."""
        info = APIS[request.API_KEY]
        handler = import_module(f"fastq_broker.handlers.{HANDLERS[request.API_KEY]}")
        assert handler.VERSIONS[0] <= version <= handler.VERSIONS[1]
        context = SimpleNamespace(
            broker=self.broker, api_version=version, listener="PLAINTEXT", client_id="test", peer=("127.0.0.1", 1)
        )
        answer = handler.handle(context, through_bytes(request, info.request_class(), version))
        if inspect.isawaitable(answer):
            answer = await answer
        return through_bytes(answer, info.response_class(), version)

    async def ready(self) -> None:
        """Have the offsets topic there and loaded."""
        await self.call(FindCoordinatorRequest(key="g"), 0)
        for _ in range(10_000):
            if not self.broker.groups.runtime.loading:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the coordinator does not load")

    def topics(self, *names: str, partitions: int = 4) -> None:
        self.broker.controller.create_topics([NewTopic(name, partitions, 1) for name in names])

    def topic_id(self, name: str) -> bytes:
        topic = self.broker.controller.image.topic(name)
        assert topic is not None
        return topic.topic_id

    # --- requests ---

    async def join(self, version: int = 9, member_id: str = "", **fields: Any) -> Any:
        protocols = fields.pop("protocols", [("range", subscription("t"))])
        request = JoinGroupRequest(
            group_id=fields.pop("group_id", "g"),
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
            group_id=fields.pop("group_id", "g"),
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
            **{**named, **fields},
        )
        return await self.call(request, version)

    async def stable(self, group_id: str = "g", **fields: Any) -> Any:
        """A group of one member with an assignment; answers its JoinGroup."""
        joined = await self.member(group_id=group_id, **fields)
        assert joined.error_code == 0
        synced = await self.sync(5, joined, {joined.member_id: b"all"}, group_id=group_id)
        assert (synced.error_code, synced.assignment) == (0, b"all")
        return joined

    async def heartbeat(self, version: int, member_id: str, generation: int, group_id: str = "g") -> int:
        request = HeartbeatRequest(group_id=group_id, generation_id=generation, member_id=member_id)
        return int((await self.call(request, version)).error_code)

    async def leave(self, member_id: str, group_id: str = "g") -> Any:
        members = [LeaveGroupRequest.MemberIdentity(member_id=member_id)]
        return await self.call(LeaveGroupRequest(group_id=group_id, members=members), 5)

    async def commit(
        self,
        version: int,
        offsets: dict[tuple[str, int], int],
        *,
        group_id: str = "g",
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
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=topics,
            **fields,
        )
        answer = await self.call(request, version)
        return {item: topic.partitions[0].error_code for item, topic in zip(offsets, answer.topics, strict=True)}

    async def fetch(
        self,
        version: int,
        partitions: list[tuple[str, int]] | None,
        *,
        group_id: str = "g",
        require_stable: bool = False,
    ) -> dict[tuple[str, int], tuple[int, int, str]]:
        """Fetch; answers offset, error and metadata of each partition."""
        if version < 8:
            request = OffsetFetchRequest(
                group_id=group_id,
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
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=named)
        answer = await self.call(OffsetFetchRequest(groups=[group], topics=[], require_stable=require_stable), version)
        image = self.broker.controller.image
        found = {}
        for topic in answer.groups[0].topics:
            known = image.topic_of_id(topic.topic_id) if version >= 10 else None
            for item in topic.partitions:
                name = topic.name if known is None else known.name
                found[name, item.partition_index] = (item.committed_offset, item.error_code, item.metadata)
        return found


class HandlerBroker:
    """Starts a broker on a directory for each piece of work, and stops it cleanly; the data stays."""

    def __init__(self, data_dir: Path) -> None:
        self.settings = {
            "log.dirs": str(data_dir),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "0",
        }

    def run(self, work: Callable[[GroupHandlers], Awaitable[T]], *, ready: bool = True, **settings: str) -> T:
        async def main() -> T:
            named = {name.replace("_", "."): value for name, value in settings.items()}
            config = BrokerConfig.from_mapping({**self.settings, **named})
            broker = Broker(config, asyncio.get_running_loop())
            handlers = GroupHandlers(broker)
            try:
                await broker.start()
                if ready:
                    await handlers.ready()
                return await work(handlers)
            finally:
                assert await broker.close()

        return asyncio.run(asyncio.wait_for(main(), 60))


__all__ = ["OFFSETS_TOPIC", "GroupHandlers", "HandlerBroker", "subscription"]
