"""What there is in a cluster: topics with all that is known of their partitions, and brokers with the fenced ones.

Rules of this file: as in `core.py`. What another operation needs of a topic, it takes from `core.look_up_topics`, which is one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastq.admin.core import Answers, _error, describe_cluster, look_up_topics, per_item
from fastq.admin.types import ClusterDescription, Outcomes, PartitionDescription, TopicDescription
from fastq.errors import FastqError, UnknownServerError, UnsupportedVersion
from fastq.metadata import Node
from fastq.net.operations import ANY, Call, Operation
from fastq.protocol import messages as m


def describe_topics(names: Sequence[str]) -> Operation[Outcomes[str, TopicDescription]]:
    """Topics with all that brokers tell of their partitions: DescribeTopicPartitions (KIP-966), before Kafka 3.8 Metadata."""

    def described(left: list[str]) -> Operation[Answers[str, TopicDescription]]:
        cluster = yield from describe_cluster()
        return (yield from describe_pages(left, {node.node_id: node for node in cluster.nodes}))

    try:
        outcomes = yield from per_item(names, described)
    except UnsupportedVersion:
        outcomes = yield from look_up_topics(names)
    return outcomes


def describe_pages(names: list[str], nodes: Mapping[int, Node]) -> Operation[Answers[str, TopicDescription]]:
    """Page by page, as a page has a bounded number of partitions. The nodes' addresses are not told with them: a leader that `nodes` lacks
    is None."""
    answers: dict[str, TopicDescription | FastqError] = {}
    wanted, cursor = sorted(names), None
    while True:
        topic_request = m.DescribeTopicPartitionsRequest.TopicRequest
        response: m.DescribeTopicPartitionsResponse = yield Call(
            ANY,
            m.DescribeTopicPartitionsRequest(topics=[topic_request(name=name) for name in wanted], cursor=cursor),
        )
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code:
                answers[name] = _error(topic.error_code, None, topic=name)
                continue
            before = answers.get(name)
            partitions = before.partitions if isinstance(before, TopicDescription) else ()
            shown = tuple(_page_partition(p, nodes) for p in topic.partitions)
            answers[name] = TopicDescription(name, topic.topic_id, topic.is_internal, partitions + shown)
        following = response.next_cursor
        if following is None:
            return answers
        place = (following.topic_name, following.partition_index)
        if cursor is not None and place <= (cursor.topic_name, cursor.partition_index):
            raise UnknownServerError(f"the pages of a description do not get on: after {place} they go back to it")
        wanted = [name for name in wanted if name >= following.topic_name]
        cursor = m.DescribeTopicPartitionsRequest.Cursor(
            topic_name=following.topic_name, partition_index=following.partition_index
        )


def _page_partition(
    p: m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition, nodes: Mapping[int, Node]
) -> PartitionDescription:
    return PartitionDescription(
        p.partition_index,
        nodes.get(p.leader_id),
        p.leader_epoch,
        tuple(p.replica_nodes),
        tuple(p.isr_nodes),
        tuple(p.offline_replicas),
        None if p.eligible_leader_replicas is None else tuple(p.eligible_leader_replicas),
        None if p.last_known_elr is None else tuple(p.last_known_elr),
    )


def describe_cluster_with_fenced() -> Operation[ClusterDescription]:
    """DescribeCluster of version 2 (KIP-1073): also the brokers that are registered and fenced."""
    request = m.DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
    response: m.DescribeClusterResponse = yield Call(ANY, request, (2, 32767))
    if response.error_code:
        raise _error(response.error_code, response.error_message)
    nodes = {b.broker_id: Node(b.broker_id, b.host, b.port, b.rack) for b in response.brokers}
    fenced = {b.broker_id for b in response.brokers if b.is_fenced}
    return ClusterDescription(
        response.cluster_id,
        nodes.get(response.controller_id),
        tuple(nodes[node_id] for node_id in sorted(nodes.keys() - fenced)),
        tuple(nodes[node_id] for node_id in sorted(fenced)),
    )
