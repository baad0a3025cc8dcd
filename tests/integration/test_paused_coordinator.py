"""A group coordinator that stood still (a paused virtual machine, a swapped-out process) for longer than its session: another node
coordinates by then, and what lay in the sockets of the old one, when it goes on, is not answered as if nothing had been."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from raw_kafka import RawConnection

from fastq import Admin, TopicPartition
from fastq.admin import NewTopic
from fastq.errors import ErrorCode
from fastq.protocol.messages import OffsetCommitRequest, OffsetFetchRequest
from fastq.testing import Cluster

PLACE = TopicPartition("orders", 0)
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "broker.session.timeout.ms": 2500,
    "broker.heartbeat.interval.ms": 200,
    "offsets.commit.timeout.ms": 500,
}
# What sends a client to look for the coordinator anew, or has it ask again.
ELSEWHERE = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
}
FETCH = OffsetFetchRequest(
    group_id="g", topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
)
COMMITTED = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=6)
COMMIT = OffsetCommitRequest(
    group_id="g", topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=[COMMITTED])]
)


def leader_of_offsets(admin: Admin) -> int | None:
    leader = admin.describe_topic("__consumer_offsets").partitions[0].leader
    return None if leader is None else leader.node_id


def test_what_lay_in_its_sockets_is_not_answered_with_what_was(tmp_path: Path) -> None:
    with Cluster(3, tmp_path, SETTINGS) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers, default_api_timeout_ms=60_000) as admin:
            admin.create_topics([NewTopic(name="orders", partitions=1)]).results()
            admin.alter_group_offsets("g", {PLACE: 5}).results()
            cluster.wait_in_sync()
            old = cluster.leader("__consumer_offsets")
        others = ",".join(node.bootstrap_servers for node in cluster.nodes if node is not old)
        with RawConnection(old.bootstrap_servers) as reader, RawConnection(old.bootstrap_servers) as writer:
            assert old.pid is not None
            os.kill(old.pid, signal.SIGSTOP)
            try:
                reader.send(FETCH, 7)
                writer.send(COMMIT, 8)
                with Admin(bootstrap_servers=others, default_api_timeout_ms=60_000) as admin:
                    while leader_of_offsets(admin) in (None, old.node_id):
                        time.sleep(0.05)
                    admin.alter_group_offsets("g", {PLACE: 9}).results()
            finally:
                os.kill(old.pid, signal.SIGCONT)
            told = reader.receive()
            if told.error_code == ErrorCode.NONE:
                assert told.topics[0].partitions[0].committed_offset == 9
            else:
                assert told.error_code in ELSEWHERE
            (partition,) = writer.receive().topics[0].partitions
            assert partition.error_code in ELSEWHERE
        with Admin(bootstrap_servers=others, default_api_timeout_ms=60_000) as admin:
            assert admin.list_group_offsets("g").results()[PLACE].offset == 9
