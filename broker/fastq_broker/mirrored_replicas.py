"""Partitions that a mirror alone writes: who may, when all have it, and what is told of their logs (MirrorAppend, MirrorPull)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

from fastq.errors import ErrorCode, KafkaError, error_for_code

from .config_keys import shown

if TYPE_CHECKING:
    import asyncio

    from .replicas import Replica, ReplicaTable
    from .replication.shared import Acknowledgement, SharedPartition


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
            f"it is not mirrored from {shown(source)}: its mirror.source is {shown(log.config.mirror_source)}",
        )
    if replica.under_min_isr:
        refuse(replica, ErrorCode.NOT_ENOUGH_REPLICAS, "fewer replicas are in sync than min.insync.replicas demands")


def refuse(replica: Replica, code: ErrorCode, message: str) -> NoReturn:
    """Raise the error of a partition."""
    raise error_for_code(code, message, topic=replica.topic, partition=replica.partition)


def words_of(error: Exception) -> str:
    """What an answer says of an error beside its code, topic and partition: whoever reads it puts the words of these before it."""
    if not isinstance(error, KafkaError):
        return str(error)
    rest = {name: value for name, value in error.context.items() if name not in ("topic", "partition")}
    return (
        str(type(error)(error.message, **rest)).removeprefix(error.default_message).lstrip(".: ")
        or error.default_message
    )


def tell_offsets(answer: Told, replica: Replica) -> None:
    """Where the log begins and ends now, of one that is loaded."""
    log = replica.log
    answer.log_start_offset = log.log_start_offset
    answer.log_end_offset = log.log_end_offset
    answer.high_watermark = log.high_watermark


def when_kept(
    loop: asyncio.AbstractEventLoop,
    timeout_s: float,
    waiting: Iterable[tuple[Replica, int, Callable[[KafkaError | None], object]]],
    done: Callable[[], object],
) -> Callable[[], None]:
    """Call back for each replica once all who have to have the records below the offset have them, as with acks=all, or with the error:
    after `timeout_s` REQUEST_TIMED_OUT. Then, once all were called, `done`, perhaps at once. What is answered waits no longer."""
    left = 1
    timer: asyncio.TimerHandle | None = None
    acknowledgements: list[tuple[SharedPartition, Acknowledgement]] = []

    def one_less() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if timer is not None:
                timer.cancel()
            done()

    def told(callback: Callable[[KafkaError | None], object], error: KafkaError | None) -> None:
        try:
            callback(error)
        finally:
            one_less()

    def give_up() -> None:
        for shared, acknowledgement in acknowledgements:
            shared.give_up(acknowledgement)

    try:
        for replica, offset, callback in waiting:
            left += 1
            acknowledgement = replica.wait_committed(offset, partial(told, callback))
            if acknowledgement is not None and replica.shared is not None:
                acknowledgements.append((replica.shared, acknowledgement))
        if left > 1 and acknowledgements:
            timer = loop.call_later(timeout_s, give_up)
    except BaseException:
        give_up()  # `done` is not called: who asked hears of the error
        raise
    one_less()
    return give_up
