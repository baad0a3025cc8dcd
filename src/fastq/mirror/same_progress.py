"""How far a mirror with the same offsets is, in the form that the rest of the mirror knows: `Progress`.

Rules: what is copied is what the target has below its high watermark. One run of the same offsets on both sides translates each offset to
itself, and one that is not copied yet to the end of what is: who goes on there misses nothing, and asks for nothing that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastq.admin import Admin
from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig
from fastq.mirror.names import Names
from fastq.mirror.progress import Progress, Run
from fastq.mirror.same_failover import mirrored_topics
from fastq.mirror.state import State, Stopped, consumer_at, offsets_of


def progress_of(config: MirrorConfig, target: Admin, state: State) -> Mapping[TopicPartition, Progress]:
    """What is copied, by partition of the source: what the state says, or where offsets are the same, the target."""
    if config.options.offsets != "same":
        return state.progress
    return ended_progress(config, state.stopped) if state.stopped else _copied(config, target)


def ended_progress(config: MirrorConfig, stopped: Mapping[int, Stopped]) -> dict[TopicPartition, Progress]:
    """What was copied when the mirror was failed over."""
    names = Names.of(config)
    return {
        TopicPartition(names.in_source(tp.topic) or tp.topic, tp.partition): _up_to(end, "", "")
        for lane in stopped.values()
        for tp, end in lane.ends.items()
    }


def _copied(config: MirrorConfig, target: Admin) -> dict[TopicPartition, Progress]:
    names = Names.of(config)
    topics = mirrored_topics(target, config.source.alias)
    there = [TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)]
    with consumer_at(config.target, isolation_level="read_uncommitted") as consumer:
        ends = offsets_of(consumer, there).ends
    return {
        TopicPartition(names.in_source(tp.topic) or tp.topic, tp.partition): _up_to(
            end, topics[tp.topic].source.split("/")[2], topics[tp.topic].topic_id.hex()
        )
        for tp, end in ends.items()
        if end  # else nothing was copied yet
    }


def _up_to(end: int, topic_id: str, target_id: str) -> Progress:
    return Progress(end, topic_id, (Run(0, 0, end),) if end else (), None, target_id)
