"""A topic that is deleted and made again while its groups' coordinator is down: another node does not give the new one the offsets of the
older one."""

from __future__ import annotations

from pathlib import Path

from fastq import Admin, Producer, TopicPartition
from fastq.admin import NewTopic
from fastq.testing import Cluster

PLACE = TopicPartition("orders", 0)
SETTINGS = {"offsets.topic.num.partitions": 1, "broker.session.timeout.ms": 4000}


def test_a_coordinator_that_was_not_there_when_a_topic_was_made_again_leaves_its_old_offsets(tmp_path: Path) -> None:
    with (
        Cluster(3, tmp_path, SETTINGS) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers, default_api_timeout_ms=60_000) as admin,
    ):
        admin.create_topics([NewTopic(name=name, partitions=1) for name in ("orders", "others")]).results()
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number).result(20)
        admin.alter_group_offsets("g", {PLACE: 7, TopicPartition("others", 0): 5}).results()
        assert admin.list_group_offsets("g").results()[PLACE].offset == 7
        cluster.wait_in_sync()
        gone = cluster.leader("__consumer_offsets")
        gone.kill()
        admin.delete_topics(["orders"]).results()
        admin.create_topics([NewTopic(name="orders", partitions=1, replication_factor=2)]).results()
        found = admin.list_group_offsets("g").results()
        assert {str(place): offset.offset for place, offset in found.items()} == {"others-0": 5}
        assert cluster.leader("__consumer_offsets") is not gone
