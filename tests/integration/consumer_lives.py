"""Consumers of a group on a broker that loses patience soon: how they are made, and what they have committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastq import Consumer, Producer, TopicPartition
from fastq.testing import Broker, Cluster

SESSION_MS = 1500
CONFIG = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.min.session.timeout.ms": 100,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.assignment.interval.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
}
PROTOCOLS = ("classic", "consumer")


def options(broker: Broker, topic: str, protocol: str, **more: Any) -> dict[str, Any]:
    """What all consumers here are made with."""
    given: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": f"group-{topic}",
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": 100,
    }
    return {**given, **more}


def committed(broker: Broker, topic: str, group: str | None = None) -> dict[TopicPartition, int]:
    """What the group has committed."""
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=group or f"group-{topic}") as consumer:
        found = consumer.committed([TopicPartition(topic, index) for index in range(2)])
    return {tp: place.offset for tp, place in found.items() if place is not None}


def filled(broker: Broker | Cluster, make_topic: Callable[..., str]) -> str:
    """A topic of two partitions with 20 records, 10 of each."""
    name = make_topic(broker.bootstrap_servers, 2)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(20):
            producer.send(name, b"%d" % number, partition=number % 2)
    return name
