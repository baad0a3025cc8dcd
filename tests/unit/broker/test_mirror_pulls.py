"""A pull of a mirror, in the target's broker: what is fetched is appended as it is, and what else happens ends it with a word for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker import mirror_pulls
from fastq_broker.controller.image import PartitionImage
from fastq_broker.handlers import mirror_pull
from fastq_broker.log import LogConfig
from fastq_broker.log.log_manager import LogManager
from fastq_broker.mirror_sources import MirrorSources
from fastq_broker.replicas import Replica, ReplicaTable

from fastq._native.records import build_batch, iter_headers
from fastq.errors import (
    ConnectionRefused,
    ErrorCode,
    FastqError,
    InvalidRequest,
    ResourceNotFound,
    UnsupportedVersion,
)
from fastq.net.requests import VersionedRequest
from fastq.protocol.messages import FetchResponse, MetadataRequest, MetadataResponse, MirrorPullRequest

ID, THERE = b"t" * 16, b"s" * 16
SOURCE = f"A/cluster/{THERE.hex()}"
EPOCH = 7
"""In which this node leads."""


def batch(offset: int, *values: bytes, epoch: int = 3) -> bytes:
    return bytes(
        build_batch([(1_000 + n, None, v) for n, v in enumerate(values)], base_offset=offset, leader_epoch=epoch)
    )


class Cluster:
    """The source: logs as lists of batches, of which an answer has `batches_max`."""

    def __init__(self) -> None:
        self.cluster_id, self.topic_id, self.name = "cluster", THERE, "t"
        self.logs: dict[int, list[bytes]] = {}
        self.start = 0
        self.batches_max = 1
        self.leader = 1
        self.codes: dict[int, int] = {}
        self.diverges = False
        self.error: FastqError | None = None
        self.is_silent = False
        self.throttle_ms = self.metadata_throttle_ms = 0
        self.asked: list[Any] = []

    def end(self, index: int) -> int:
        return max((header.next_offset for data in self.logs[index] for _, header in iter_headers(data)), default=0)

    def outcome(self, operation: Any) -> Any:
        effect = next(operation)
        while True:
            try:
                if isinstance(effect, list):
                    effect = operation.send([self.answer(call.request) for call in effect])
                elif self.error is not None:
                    effect = operation.throw(self.error)
                else:
                    effect = operation.send(self.answer(effect.request))
            except StopIteration as stop:
                return stop.value

    def answer(self, request: Any) -> Any:
        if self.error is not None:
            return self.error
        if isinstance(request, MetadataRequest):
            partitions = [
                MetadataResponse.MetadataResponsePartition(partition_index=index, leader_id=self.leader)
                for index in self.logs
            ]
            topic = MetadataResponse.MetadataResponseTopic(
                name=self.name, topic_id=self.topic_id, partitions=partitions
            )
            return MetadataResponse(
                throttle_time_ms=self.metadata_throttle_ms, cluster_id=self.cluster_id, topics=[topic]
            )
        assert isinstance(request, VersionedRequest)
        asked: Any = request.build(17)
        self.asked.append(asked)
        left, topics = self.batches_max, []
        for topic in asked.topics:
            found = []
            for part in topic.partitions:
                data = FetchResponse.PartitionData(
                    partition_index=part.partition,
                    error_code=self.codes.get(part.partition, 0),
                    high_watermark=self.end(part.partition),
                    log_start_offset=self.start,
                )
                if self.diverges:
                    data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=2, end_offset=5)
                else:
                    fits = [
                        b
                        for b in self.logs[part.partition]
                        if next(iter_headers(b))[1].last_offset >= part.fetch_offset
                    ]
                    data.records = b"".join(fits[:left])
                    left -= len(fits[:left])
                found.append(data)
            topics.append(FetchResponse.FetchableTopicResponse(topic_id=topic.topic_id, partitions=found))
        return FetchResponse(throttle_time_ms=self.throttle_ms, responses=topics)


class Client:
    """In the place of a SourceClient."""

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster, self.loop = cluster, loop
        self.timer: Any = None
        self.running: list[asyncio.Future[Any]] = []
        self.is_closed = self.muted = False

    @property
    def may_be_kept(self) -> bool:
        return not self.running and not self.muted

    def start(self, operation: Any, timeout_s: float) -> asyncio.Future[Any]:
        assert 0 < timeout_s <= 10
        future: asyncio.Future[Any] = self.loop.create_future()
        self.running.append(future)
        if not self.cluster.is_silent:
            self.loop.call_soon(self._end, operation, future)
        return future

    def _end(self, operation: Any, future: asyncio.Future[Any]) -> None:
        self.running.remove(future)
        try:
            result = self.cluster.outcome(operation)
        except FastqError as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    def close(self) -> None:
        self.is_closed = True


class Node:
    """The target: two partitions that the mirror has begun, up to offset 2."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster()
        self.manager = LogManager([str(folder)], clock=lambda: 1_700_000_000_000)
        self.manager.start()
        self.replicas = ReplicaTable(node_id=1)
        self.clients: list[Client] = []
        for index in range(2):
            log = self.manager.create("A.t", index, ID, LogConfig(mirror_source=SOURCE))
            log.append_as_follower(batch(0, b"a", b"b", epoch=1), now_ms=0)
            replica = Replica(log, "A.t", ID, index)
            replica.apply_config(log.config, 1)
            replica.apply(PartitionImage(1, EPOCH, 0, (1,), (1,), (b"d" * 16,)))
            self.replicas.add(replica)
            self.cluster.logs[index] = [batch(0, b"a", b"b")]

    def of(self, index: int) -> Replica:
        return self.replicas.by_id[ID][index]

    def stored(self, index: int) -> list[tuple[int, int, bytes]]:
        """What lies there: base offset, epoch, and the bytes behind that."""
        path = Path(self.of(index).log.path)
        data = b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))
        return [
            (header.base_offset, header.partition_leader_epoch, data[position + 16 : position + header.size_bytes])
            for position, header in iter_headers(data)
        ]

    async def served(self, request: MirrorPullRequest, meanwhile: Any = None) -> Any:
        """The answer; `meanwhile(pull)` is called once what can be done without the source has been."""
        loop = asyncio.get_running_loop()

        class Lent(MirrorSources):
            pass

        sources = Lent({"A": Any}, loop, SimpleNamespace(client=lambda *_, **__: None))  # type: ignore[arg-type,dict-item]

        def made(_core: object, _loop: object) -> Client:
            self.clients.append(Client(self.cluster, loop))
            return self.clients[-1]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("fastq_broker.source_client.SourceClient", made)
            context: Any = SimpleNamespace(
                loop=loop, replicas=self.replicas, mirror_sources=sources, clock=lambda: 1_700_000_000_000
            )
            pull: Any = mirror_pull.handle(context, request)

            async def wait() -> Any:
                return await pull

            task = loop.create_task(wait())
            if meanwhile is not None:
                for _ in range(5):
                    await asyncio.sleep(0)
                meanwhile(pull, task)
            try:
                return await task
            finally:
                sources.close()

    def pull(self, *partitions: tuple[int, int, int], meanwhile: Any = None, **more: Any) -> Any:
        return asyncio.run(self.served(asking(*partitions, **more), meanwhile))

    def close(self) -> None:
        self.manager.close()


def asking(*partitions: tuple[int, int, int], source: str = SOURCE, name: str = "t", **more: Any) -> MirrorPullRequest:
    topic = MirrorPullRequest.PulledTopic(
        topic_id=more.pop("topic_id", ID),
        source=source,
        name=name,
        partitions=[MirrorPullRequest.PulledPartition(index=i, offset=o, epoch=e) for i, o, e in partitions],
    )
    return MirrorPullRequest(**{"timeout_ms": 10_000, "bytes_max": 1 << 20, "topics": [topic], **more})


def parts(answer: Any) -> list[Any]:
    assert (answer.error_code, answer.error_message) == (0, None)
    return [part for topic in answer.topics for part in topic.partitions]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(mirror_pulls, "LITTLE_BYTES", 0)
    made = Node(tmp_path)
    yield made
    made.close()


def test_what_is_fetched_lies_there_as_in_the_source_in_this_nodes_epoch(node: Node) -> None:
    more = [batch(2, b"c"), batch(5, b"d", b"e"), batch(7, b"f")]  # compaction has taken what was between
    node.cluster.logs[0] += more
    node.cluster.logs[1] += [batch(2, b"g")]
    node.cluster.start = 1
    one, two = parts(node.pull((0, 2, 3), (1, 2, 3)))
    assert node.stored(0)[1:] == [(offset, EPOCH, data[16:]) for offset, data in zip((2, 5, 7), more, strict=True)]
    assert node.stored(1)[1:] == [(2, EPOCH, batch(2, b"g")[16:])]
    assert (one.error_code, one.source_error, one.error_message, one.diverged, one.later_epoch) == (
        0,
        0,
        None,
        False,
        -1,
    )
    assert (one.log_start_offset, one.log_end_offset, one.high_watermark, one.next_offset) == (0, 8, 8, 8)
    assert (one.source_log_start_offset, one.source_high_watermark) == (1, 8)
    assert (one.records, one.bytes, one.newest_timestamp) == (4, sum(map(len, more)), 1_000)
    assert (two.next_offset, two.records) == (3, 1)
    asked = [
        (p.partition, p.fetch_offset, p.last_fetched_epoch)
        for f in node.cluster.asked
        for t in f.topics
        for p in t.partitions
    ]
    assert asked[:2] == [(0, 2, 3), (1, 2, 3)]
    assert {t.topic_id for f in node.cluster.asked for t in f.topics} == {THERE}
    assert [f.replica_id for f in node.cluster.asked] == [-1] * len(node.cluster.asked)
    assert node.clients[0].may_be_kept


def test_what_comes_next_is_fetched_while_what_came_last_is_appended(node: Node) -> None:
    node.cluster.logs[0] += [batch(offset, b"v") for offset in range(2, 6)]
    asked_by: list[int] = []
    node.of(0).log.on_advance(lambda _: asked_by.append(len(node.cluster.asked)))
    begun: list[int] = []
    start = Client.start

    def started(client: Client, operation: Any, timeout_s: float) -> Any:
        begun.append(1)
        return start(client, operation, timeout_s)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Client, "start", started)
        node.of(0).log.on_advance(lambda _: asked_by.append(len(begun)))
        node.pull((0, 2, 3))
    assert asked_by[1::2] == [3, 4, 5, 5], "metadata, and of the fetches one more than were appended"


def test_batches_of_a_later_epoch_are_left_to_the_mirror(node: Node) -> None:
    node.cluster.batches_max = 9
    node.cluster.logs[0] += [batch(2, b"c"), batch(3, b"d", epoch=4), batch(4, b"e", epoch=5)]
    node.cluster.logs[1] += [batch(2, b"c", epoch=4)]
    one, two = parts(node.pull((0, 2, 3), (1, 2, 3)))
    assert (one.later_epoch, one.next_offset, one.records, one.source_high_watermark) == (4, 3, 1, 5)
    assert (two.later_epoch, two.next_offset, two.records, two.bytes) == (4, 2, 0, 0)
    assert [len(node.stored(index)) for index in (0, 1)] == [2, 1]
    (three,) = parts(node.pull((0, 3, 4)))
    assert (three.later_epoch, three.next_offset) == (5, 4)
    (four,) = parts(node.pull((0, 4, -1)))
    assert (four.later_epoch, four.next_offset) == (5, 4)


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        (asking((0, 1, 3)), ErrorCode.OFFSET_OUT_OF_RANGE),
        (asking((0, 3, 3)), ErrorCode.OFFSET_OUT_OF_RANGE),
        (asking((0, 2**62, 3)), ErrorCode.OFFSET_OUT_OF_RANGE),
        (asking((0, 0, 3)), ErrorCode.INVALID_REQUEST),
        (asking((0, -1, 3)), ErrorCode.INVALID_REQUEST),
        (asking((9, 2, 3)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (asking((-1, 2, 3)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (asking((0, 2, 3), topic_id=bytes(16)), ErrorCode.UNKNOWN_TOPIC_ID),
        (asking((0, 2, 3), source=f"A/cluster/{ID.hex()}"), ErrorCode.POLICY_VIOLATION),
        (asking((0, 2, 3), source=SOURCE + "/ended"), ErrorCode.INVALID_REQUEST),
        (asking((0, 2, 3), source="A/cluster/" + "0" * 32), ErrorCode.INVALID_REQUEST),
        (asking((0, 2, 3), source="A"), ErrorCode.INVALID_REQUEST),
        (asking((0, 2, 3), name=""), ErrorCode.INVALID_REQUEST),
        (asking((0, 2, 3), name="a/b"), ErrorCode.INVALID_REQUEST),
        (asking((0, 2, 3), name="n" * 70_000), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_is_refused_and_nobody_is_asked(node: Node, request_of: MirrorPullRequest, code: int) -> None:
    (part,) = parts(asyncio.run(node.served(request_of)))
    assert part.error_code == code and part.source_error == 0 and len(part.error_message) < 1_000
    assert (node.clients, len(node.stored(0))) == ([], 1)


def test_a_partition_that_comes_twice_is_served_once(node: Node) -> None:
    node.cluster.logs[0] += [batch(2, b"c")]
    one, again = parts(node.pull((0, 2, 3), (0, 2, 3)))
    assert (one.error_code, one.next_offset, again.error_code) == (0, 3, ErrorCode.INVALID_REQUEST)


def test_hostile_numbers_do_no_harm(node: Node) -> None:
    node.cluster.logs[0] += [batch(offset, b"v") for offset in range(2, 6)]
    for number in (-1, -(2**63), 0):
        (part,) = parts(node.pull((0, node.of(0).log.log_end_offset, 3), bytes_max=number))
        assert (part.error_code, part.records) == (0, 1)
    (part,) = parts(node.pull((0, 5, 3), timeout_ms=-(2**31), bytes_max=2**63 - 1))
    assert (part.error_code, part.records) == (0, 0), "there is no time for it"
    many = asking(*[(0, 2, 3)] * 1_000)
    with pytest.raises(InvalidRequest, match="1001 topics and partitions"):
        asyncio.run(node.served(many))
    other = asking((0, 2, 3)).topics + asking((1, 2, 3), source=f"A/another/{THERE.hex()}").topics
    _, two = parts(asyncio.run(node.served(MirrorPullRequest(timeout_ms=100, bytes_max=1, topics=other))))
    assert two.error_code == ErrorCode.INVALID_REQUEST and "of another source" in two.error_message
    assert not parts(asyncio.run(node.served(MirrorPullRequest())))


def test_a_source_that_this_node_was_not_told_of_is_refused_by_its_alias_alone(node: Node) -> None:
    for alias in ("B", "", "A.bootstrap", "x" * 70_000):
        with pytest.raises(ResourceNotFound, match=r"mirror\.pull\.") as caught:
            asyncio.run(node.served(asking((0, 2, 3), source=f"{alias}/cluster/{THERE.hex()}")))
        assert len(str(caught.value)) < 1_000


def changed(cluster: Cluster, **values: Any) -> None:
    for name, value in values.items():
        setattr(cluster, name, value)


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"codes": {0: ErrorCode.OFFSET_OUT_OF_RANGE}}, ErrorCode.OFFSET_OUT_OF_RANGE, ""),
        ({"codes": {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}}, ErrorCode.NOT_LEADER_OR_FOLLOWER, ""),
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID, "'another'"),
        ({"cluster_id": None}, ErrorCode.INCONSISTENT_CLUSTER_ID, ""),
        ({"topic_id": b"x" * 16}, ErrorCode.UNKNOWN_TOPIC_ID, "another topic there now"),
        ({"name": "u"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
        ({"leader": -1}, ErrorCode.LEADER_NOT_AVAILABLE, ""),
        ({"error": ConnectionRefused("nobody is there")}, ErrorCode.NETWORK_EXCEPTION, "nobody is there"),
        ({"error": UnsupportedVersion("too old")}, ErrorCode.UNSUPPORTED_VERSION, "too old"),
    ],
)
def test_what_is_wrong_with_the_source_is_told_as_its_error(node: Node, change: Any, code: int, said: str) -> None:
    node.cluster.logs[0] += [batch(2, b"c")]
    changed(node.cluster, **change)
    (part,) = parts(node.pull((0, 2, 3)))
    assert (part.error_code, part.source_error, part.records) == (0, code, 0)
    assert said in part.error_message
    assert (part.next_offset, part.log_end_offset) == (2, 2)


def test_a_source_that_goes_in_the_middle_leaves_what_came_before(node: Node) -> None:
    node.cluster.logs[0] += [batch(offset, b"v") for offset in range(2, 6)]
    node.of(0).log.on_advance(lambda _: changed(node.cluster, error=ConnectionRefused("gone")))
    (part,) = parts(node.pull((0, 2, 3)))
    assert (part.error_code, part.source_error) == (0, ErrorCode.NETWORK_EXCEPTION)
    assert part.next_offset == part.log_end_offset == 2 + part.records < 6 and part.records > 0


def test_a_source_that_throttles_is_asked_for_no_more(node: Node) -> None:
    node.cluster.throttle_ms, node.cluster.batches_max = 5_000, 2
    node.cluster.logs[0] += [batch(offset, b"v") for offset in range(2, 6)]
    node.cluster.logs[1] += [batch(2, b"v")]
    one, two = parts(node.pull((1, 2, 3), (0, 2, 3)))
    assert (one.error_code, one.source_error, one.next_offset) == (0, 0, 3), "there was no more"
    assert (two.error_code, two.source_error) == (0, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    assert "5000 ms" in two.error_message
    assert (two.next_offset, two.log_end_offset, two.source_high_watermark) == (3, 3, 6), "what came is there"
    assert len(node.cluster.asked) == 1
    assert node.clients[0].is_closed, "its connection is muted for as long"


def test_a_source_that_throttles_as_it_says_who_leads_is_asked_for_no_more(node: Node) -> None:
    """By a quota of requests: its node was waited for, while nobody else copied what it leads."""
    node.cluster.metadata_throttle_ms = 5_000
    node.cluster.logs[0] += [batch(2, b"v")]
    (part,) = parts(node.pull((0, 2, 3)))
    assert (part.error_code, part.source_error) == (0, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    assert "5000 ms" in part.error_message and (part.next_offset, node.cluster.asked) == (2, [])
    assert node.clients[0].is_closed


def test_a_source_with_another_history_says_so(node: Node) -> None:
    node.cluster.diverges = True
    (part,) = parts(node.pull((0, 2, 3)))
    assert (part.error_code, part.source_error, part.diverged, part.next_offset) == (0, 0, True, 2)


def deleted(node: Node) -> None:
    for replica in node.replicas.remove_topic("A.t", ID):
        replica.retire()


def led_anew(node: Node) -> None:
    node.of(0).apply(PartitionImage(1, EPOCH + 1, 1, (1,), (1,), (b"d" * 16,)))


def led_elsewhere(node: Node) -> None:
    node.of(0).apply(PartitionImage(2, EPOCH + 1, 1, (1, 2), (2,), (b"d" * 16, b"e" * 16)))


def ended(node: Node) -> None:
    config = LogConfig(mirror_source=SOURCE + "/ended")
    node.of(0).log.apply_config(config)


def written_by_another(node: Node) -> None:
    node.of(0).log.append_as_follower(batch(node.of(0).log.log_end_offset, b"x", epoch=EPOCH), now_ms=0)


def out_of_sync(node: Node) -> None:
    node.of(0).under_min_isr = True


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (deleted, ErrorCode.UNKNOWN_TOPIC_ID),
        (led_anew, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (led_elsewhere, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ended, ErrorCode.POLICY_VIOLATION),
        (written_by_another, ErrorCode.OFFSET_OUT_OF_RANGE),
        (out_of_sync, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_what_changes_here_meanwhile_ends_it_before_anything_is_appended(node: Node, happens: Any, code: int) -> None:
    node.cluster.logs[0] += [batch(offset, b"v") for offset in range(2, 20)]
    answered = node.cluster.answer
    before: list[list[Any]] = []

    def answer(request: Any) -> Any:
        if len(node.cluster.asked) == 2 and not before:
            before.append(node.stored(0))
            happens(node)
        return answered(request)

    path = Path(node.of(0).log.path)
    node.cluster.answer = answer  # type: ignore[method-assign]
    (part,) = parts(node.pull((0, 2, 3)))
    assert (part.error_code, part.source_error) == (code, 0)
    data = b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))
    mirrored = [header for _, header in iter_headers(data)][len(before[0]) :]
    assert len(mirrored) == (1 if happens is written_by_another else 0) or happens is deleted
    assert len(node.cluster.asked) <= 4


def test_nobody_waits_for_what_was_appended_before_it_was_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.cluster.logs[0] += [batch(offset, b"v") for offset in range(2, 20)]
    node.cluster.logs[1] += [batch(2, b"v")]
    waited: list[int] = []
    wait = Replica.wait_committed

    def wait_committed(replica: Replica, offset: int, callback: Any) -> Any:
        waited.append(replica.partition)
        return wait(replica, offset, callback)

    monkeypatch.setattr(Replica, "wait_committed", wait_committed)
    node.of(0).log.on_advance(lambda log: out_of_sync(node) if log.log_end_offset > 5 else None)
    one, two = parts(node.pull((0, 2, 3), (1, 2, 3)))
    assert one.error_code == ErrorCode.NOT_ENOUGH_REPLICAS and one.bytes > 0
    assert (two.error_code, two.next_offset, waited) == (0, 3, [1])


def test_the_source_has_to_answer_while_there_is_time_to_keep_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.cluster.logs[0] += [batch(offset, b"v") for offset in range(2, 5)]
    given: list[float] = []
    start = Client.start

    def started(client: Client, operation: Any, timeout_s: float) -> Any:
        given.append(timeout_s)
        return start(client, operation, timeout_s)

    monkeypatch.setattr(Client, "start", started)
    (part,) = parts(node.pull((0, 2, 3), timeout_ms=8_000))
    assert part.next_offset == 5
    assert given[0] == mirror_pulls.LOOK_S and all(3.0 < seconds <= 6.0 for seconds in given[1:])


def test_who_asks_and_goes_away_is_served_to_the_end_of_what_came(node: Node) -> None:
    node.cluster.logs[0] += [batch(offset, b"v") for offset in range(2, 5)]
    node.of(0).log.on_advance(lambda _: changed(node.cluster, is_silent=True))

    def hurry(pull: Any, _task: Any) -> None:
        loop = asyncio.get_running_loop()

        def look() -> None:
            if node.clients[0].running and node.cluster.is_silent:
                pull.hurry()
            else:
                loop.call_soon(look)

        look()

    (part,) = parts(node.pull((0, 2, 3), meanwhile=hurry))
    assert (part.error_code, part.source_error) == (0, 0)
    assert part.next_offset == part.log_end_offset and part.records > 0
    assert node.clients[0].is_closed, "it still waits for an answer that nobody wants"


def test_who_hurries_before_it_has_begun_gets_nothing(node: Node) -> None:
    node.cluster.logs[0] += [batch(2, b"c")]
    node.cluster.is_silent = True
    (part,) = parts(node.pull((0, 2, 3), meanwhile=lambda pull, _: pull.hurry()))
    assert (part.error_code, part.source_error, part.records, part.next_offset) == (0, 0, 0, 2)


def test_a_connection_that_goes_leaves_nothing_in_flight(node: Node) -> None:
    node.cluster.is_silent = True
    with pytest.raises(asyncio.CancelledError):
        node.pull((0, 2, 3), meanwhile=lambda _, task: task.cancel())
    (client,) = node.clients
    assert client.is_closed and all(future.done() for future in client.running)


def test_no_memory_for_an_append_ends_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.cluster.logs[0] += [batch(offset, b"v") for offset in range(2, 9)]

    def append(*_: object, **__: object) -> int:
        raise MemoryError

    monkeypatch.setattr(mirror_pulls, "append_mirrored", append)
    (part,) = parts(node.pull((0, 2, 3)))
    assert (part.error_code, part.source_error) == (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    assert (part.records, part.next_offset) == (0, 2)
    assert len(node.cluster.asked) == 2, "the fetch that was under way, and no more"


def test_it_ends_when_it_has_enough_or_little_is_left(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.cluster.logs[0] += [batch(offset, b"v" * 100) for offset in range(2, 12)]
    (part,) = parts(node.pull((0, 2, 3), bytes_max=3 * len(batch(2, b"v" * 100))))
    assert part.next_offset == 5
    monkeypatch.setattr(mirror_pulls, "LITTLE_BYTES", 3 * len(batch(2, b"v" * 100)) + 1)
    (part,) = parts(node.pull((0, 5, 3)))
    assert (part.next_offset, part.source_high_watermark) == (9, 12)
