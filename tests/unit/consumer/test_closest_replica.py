"""Fetching from the replica that the leader recommends (KIP-392): when, for how long, and what sends the consumer back."""

from __future__ import annotations

import random
from typing import Any

from consumer_fakes import FakeCluster

from fastq._native.fetch import decode_fetch_response
from fastq._native.wire import Writer
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.fetcher import REPLICA_PATIENCE_S, Fetcher
from fastq.errors import ConnectionClosed
from fastq.metadata import ClusterMetadata, TopicPartition
from fastq.protocol.messages import FetchRequest, FetchResponse

TP = TopicPartition("t", 0)
LEADER, FOLLOWER = 1, 2
ROWS: list[tuple[Any, ...]] = [(None, b"a"), (None, b"b")]


class World:
    """A partition led by node 1 with a replica on node 2, which the leader recommends to the rack of the consumer."""

    def __init__(self) -> None:
        self.cluster = FakeCluster((LEADER, FOLLOWER))
        self.log = self.cluster.create("t")[0]
        self.log.append(ROWS)
        self.metadata = ClusterMetadata()
        self.metadata.update(self.cluster.metadata())
        config = ConsumerConfig(auto_offset_reset="earliest", client_rack="near", metadata_max_age_ms=60_000)
        self.fetcher = Fetcher(config, self.metadata, wall_clock_ms=lambda: 0, rng=random.Random(0))
        self.fetcher.assign([TP])
        self.fetcher.seek(TP, 0)
        self.now = 100.0
        self.down: set[int] = set()

    def ask(self) -> Any:
        """The fetch that goes out now, or None."""
        out = self.fetcher.requests(self.now, lambda node: node not in self.down)
        assert len(out) <= 1
        return out[0] if out else None

    def fetch(self, code: int = 0, preferred: int = -1, rows: bool = False, throttle_ms: int = 0) -> int:
        """One fetch, answered so; the node it went to."""
        outgoing = self.ask()
        request = FetchRequest.from_bytes(outgoing.build(17), 17)
        assert request.rack_id == "near"
        part = FetchResponse.PartitionData(
            partition_index=0,
            error_code=code,
            high_watermark=self.log.end,
            last_stable_offset=self.log.end,
            preferred_read_replica=preferred,
            records=self.log.entries[-1].data if rows else b"",
            aborted_transactions=None,
        )
        topic = FetchResponse.FetchableTopicResponse(topic="t", topic_id=self.cluster.topic_id("t"), partitions=[part])
        writer = Writer()
        FetchResponse(throttle_time_ms=throttle_ms, session_id=0, responses=[topic]).encode(writer, 17)
        outgoing.done(decode_fetch_response(memoryview(writer.getvalue()), 17), None, self.now)
        return int(outgoing.node_id)


def recommended() -> World:
    """A world whose leader has sent the consumer to the follower."""
    world = World()
    assert world.fetch(preferred=FOLLOWER) == LEADER
    return world


def test_reads_from_the_recommended_replica() -> None:
    world = recommended()
    assert world.fetch(rows=True) == FOLLOWER
    chunk = world.fetcher.next_chunk()
    assert chunk is not None
    assert [record.value for record in chunk.take(10)] == [b"a", b"b"]
    assert world.fetch() == FOLLOWER


def test_asks_the_leader_again_after_the_metadatas_age() -> None:
    world = recommended()
    world.now += 59
    assert world.fetch() == FOLLOWER
    world.now += 2
    assert world.fetch() == LEADER


def test_a_follower_that_lags_sends_the_consumer_to_the_leader() -> None:
    world = recommended()
    assert world.fetch(code=1) == FOLLOWER  # OFFSET_OUT_OF_RANGE
    assert world.fetcher.take_error() is None
    assert world.fetch(rows=True) == LEADER
    assert world.fetcher.partitions[TP].fetch_offset == 2


def test_errors_send_the_consumer_to_the_leader() -> None:
    for code in (6, 78, 56):  # NOT_LEADER_OR_FOLLOWER, OFFSET_NOT_AVAILABLE, KAFKA_STORAGE_ERROR
        world = recommended()
        assert world.fetch(code=code) == FOLLOWER
        world.now += 5
        assert world.fetch() == LEADER


def test_a_lost_connection_sends_the_consumer_to_the_leader() -> None:
    world = recommended()
    world.ask().done(None, ConnectionClosed("gone"), world.now)
    world.now += 5
    assert world.fetch() == LEADER


def test_a_replica_that_cannot_be_reached_is_given_up() -> None:
    world = recommended()
    world.down.add(FOLLOWER)
    assert world.ask() is None
    world.now += REPLICA_PATIENCE_S / 2
    assert world.ask() is None
    world.now += REPLICA_PATIENCE_S
    assert world.ask() is None
    assert world.fetcher.wants_metadata is not None
    assert world.fetch() == LEADER


def test_a_replica_that_left_the_cluster_is_given_up() -> None:
    world = recommended()
    del world.cluster.nodes[FOLLOWER]
    world.metadata.update(world.cluster.metadata())
    assert world.fetch() == LEADER


def test_a_leader_that_recommends_itself_is_read_from() -> None:
    world = World()
    assert world.fetch(preferred=LEADER, rows=True) == LEADER
    assert world.fetcher.next_chunk() is not None


def test_a_replica_that_a_quota_keeps_from_being_asked_is_not_given_up() -> None:
    """It was, every two seconds: each time the metadata was asked for, and the leader, who recommends it again."""
    world = recommended()
    world.fetcher.wants_metadata = None
    assert world.fetch(rows=True, throttle_ms=30_000) == FOLLOWER
    world.down.add(FOLLOWER)
    for _ in range(3):
        world.now += 9
        assert world.ask() is None
        assert world.fetcher.wants_metadata is None
    world.now += 4
    world.down.clear()
    assert world.fetch() == FOLLOWER
    world.down.add(FOLLOWER)
    for _ in range(3):
        world.now += REPLICA_PATIENCE_S
        world.ask()
    assert world.fetcher.wants_metadata is not None, "nor waited for without an end"
