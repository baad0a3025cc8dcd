"""Partitions that a mirror alone writes: who may, and what it is told of their logs (MirrorAppend, MirrorPull)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from fastq.errors import ErrorCode, error_for_code

if TYPE_CHECKING:
    from .replicas import Replica, ReplicaTable


class Told(Protocol):
    """What an answer has of each partition."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int


def led_replica(replicas: ReplicaTable, topic_id: bytes, partition: int) -> Replica | int:
    """The replica that this node leads, or the error code."""
    replica = replicas.by_id.get(topic_id, {}).get(partition)
    if replica is None:
        return replicas.missing_error(topic_id, partition, by_id=True)
    return replica if replica.leader_id == replicas.node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER


def check_writes(replica: Replica, source: str) -> None:
    """Raises PolicyViolation where a mirror of this `mirror.source` may not write, NotEnoughReplicas where nobody may who asks for all."""
    log = replica.log
    if not replica.mirrored or log.config.mirror_source != source:
        refuse(
            replica,
            ErrorCode.POLICY_VIOLATION,
            f"it is not mirrored from {source!r}: its mirror.source is {log.config.mirror_source!r}",
        )
    if replica.under_min_isr:
        refuse(replica, ErrorCode.NOT_ENOUGH_REPLICAS, "fewer replicas are in sync than min.insync.replicas demands")


def refuse(replica: Replica, code: ErrorCode, message: str) -> NoReturn:
    """Raise the error of a partition."""
    raise error_for_code(code, message, topic=replica.topic, partition=replica.partition)


def tell_offsets(answer: Told, replica: Replica) -> None:
    """Where the log begins and ends now, of one that is loaded."""
    log = replica.log
    answer.log_start_offset = log.log_start_offset
    answer.log_end_offset = log.log_end_offset
    answer.high_watermark = log.high_watermark
