"""ListOffsets: where partitions begin and end, and their first offsets of a time; an operation by the rules of `core.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastq.admin.core import (
    LEADS,
    Answers,
    _error,
    _group_by_topic,
    _leader_of,
    asked_for,
    look_for_leaders,
    of_leaders,
    per_item,
)
from fastq.admin.types import OffsetResult, OffsetSpec, Outcomes, TopicDescription
from fastq.arguments import int_of, mapping_of
from fastq.errors import FastqError
from fastq.metadata import TopicPartition, partition_of
from fastq.net.operations import Call, Found, Operation
from fastq.net.requests import VersionedRequest
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey

MIN_TIME = min(OffsetSpec)
NEEDED = {OffsetSpec.MAX_TIMESTAMP: 7, OffsetSpec.EARLIEST_LOCAL: 8, OffsetSpec.LATEST_TIERED: 9}


class _Asked(NamedTuple):
    """A partition in one of several mappings."""

    place: int
    partition: TopicPartition


def list_offsets(
    times: Mapping[TopicPartition, int], *, read_committed: bool, timeout_ms: int
) -> Operation[Outcomes[TopicPartition, OffsetResult]]:
    """The first offset at or after a time in milliseconds, or a special one of `OffsetSpec`."""
    (found,) = yield from list_several([times], read_committed=read_committed, timeout_ms=timeout_ms)
    return found


def list_several(
    several: Sequence[Mapping[TopicPartition, int]],
    *,
    read_committed: bool,
    timeout_ms: int,
    known: Outcomes[str, TopicDescription] | None = None,
) -> Operation[list[Outcomes[TopicPartition, OffsetResult]]]:
    """Several times of partitions: one look at their topics, then requests side by side, one to each leader for each mapping, as a request
    names a partition once. `known` are the topics as they have just been described: they are looked at for what is asked again alone."""
    times = [
        {
            partition_of(tp): int_of(time, f"the time of {tp[0]}-{tp[1]}", MIN_TIME)
            for tp, time in mapping_of(one, "times", '{TopicPartition("logs", 0): OffsetSpec.LATEST}').items()
        }
        for one in several
    ]

    def send(left: list[_Asked]) -> Operation[Answers[_Asked, OffsetResult]]:
        nonlocal known
        described: Answers[str, TopicDescription]
        if known is None:
            described = yield from look_for_leaders(list(_group_by_topic([asked.partition for asked in left])))
        else:
            described = {name: outcome.error or outcome.result() for name, outcome in known.items()}
        known = None
        answers: dict[_Asked, OffsetResult | FastqError] = {}
        groups: dict[tuple[int, int], list[TopicPartition]] = {}
        for asked in left:
            found = _leader_of(asked.partition, described)
            if isinstance(found, FastqError):
                answers[asked] = found
            else:
                groups.setdefault((asked.place, found.node_id), []).append(asked.partition)
        responses = yield [
            Call(
                Found(node, LEADS),
                _request({tp: times[place][tp] for tp in group}, read_committed=read_committed, timeout_ms=timeout_ms),
                (_min_version(times[place]), 32767),
            )
            for (place, node), group in groups.items()
        ]
        for ((place, _), group), response in zip(groups.items(), responses, strict=True):
            told = asked_for(group, response if isinstance(response, FastqError) else _read(response))
            answers.update({_Asked(place, tp): answer for tp, answer in of_leaders(told).items()})
        return answers

    outcomes = yield from per_item(
        [_Asked(place, tp) for place, one in enumerate(times) for tp in one], send, finds=True
    )
    return [Outcomes({tp: outcomes[_Asked(place, tp)] for tp in one}) for place, one in enumerate(times)]


def _min_version(times: Mapping[TopicPartition, int]) -> int:
    return max((NEEDED.get(OffsetSpec(time), 1) for time in times.values() if -5 <= time < 0), default=1)


def _request(times: Mapping[TopicPartition, int], *, read_committed: bool, timeout_ms: int) -> VersionedRequest:
    topic, partition = m.ListOffsetsRequest.ListOffsetsTopic, m.ListOffsetsRequest.ListOffsetsPartition

    def build(version: int) -> m.ListOffsetsRequest:
        topics = [
            topic(
                name=name,
                partitions=[
                    partition(partition_index=index, timestamp=int(times[TopicPartition(name, index)]))
                    for index in indexes
                ],
            )
            for name, indexes in _group_by_topic(times).items()
        ]
        request = m.ListOffsetsRequest(replica_id=-1, topics=topics)
        if version >= 2:
            request.isolation_level = int(read_committed)
        if version >= 10:
            request.timeout_ms = timeout_ms
        return request

    return VersionedRequest(ApiKey.LIST_OFFSETS, build)


def _read(response: m.ListOffsetsResponse) -> Answers[TopicPartition, OffsetResult]:
    return {
        TopicPartition(topic.name, p.partition_index): _error(
            p.error_code, None, topic=topic.name, partition=p.partition_index
        )
        if p.error_code
        else OffsetResult(p.offset, p.timestamp, p.leader_epoch)
        for topic in response.topics
        for p in topic.partitions
    }
