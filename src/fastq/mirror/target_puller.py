"""The target of a mirror with the same offsets, asked to fetch from the source by itself (MirrorPull).

Rules
- It is a client of its own: a broker answers what comes on a connection in order, and no append is to wait behind a pull.
- A request goes to who leads the first partition in it, as `target_writer` does it. One whose answer is lost is sent again: what it has
  appended is there, and the second is told that the log ends elsewhere.
- Thread rule: `pull` belongs to one thread at a time, `close` to any.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastq.admin.config import AdminConfig
from fastq.errors import FastqError, LeaderNotAvailable, UnknownServerError, error_for_code
from fastq.metadata import TopicPartition
from fastq.mirror.config import Side
from fastq.mirror.source_reader import ask_for_leaders, leaders_of
from fastq.net.client import BlockingClient
from fastq.net.operations import Call, Leader, Operation, ask_nodes
from fastq.protocol import messages as m
from fastq.values import NamedTuple

CALL_S = 30.0
TIMEOUT_MS = 10_000
"""Half of it is for fetching, so that a lane hears of each pull about so often."""


class Pull(NamedTuple):
    """What is asked of a partition of the target: its topic's id there, which topic of the source that is, by `mirror.source` and by its
    name, where both go on, and the epoch up to which batches are taken."""

    topic_id: bytes
    source: str
    name: str
    offset: int
    epoch: int


class Pulled(NamedTuple):
    """What has come of it: how much is in the target now, up to `next_offset`, and where the source's log begins and ends (-1: not told).
    `later_epoch` is that of the batch that comes next, where it is a later one than was asked for, else -1; `diverged`: the source has
    another history. `error` is why the target took no more, or has it not everywhere in time; `source_error` is the source's."""

    next_offset: int
    log_start: int
    source_start: int
    source_end: int
    records: int
    bytes: int
    newest_ms: int
    later_epoch: int = -1
    diverged: bool = False
    error: FastqError | None = None
    source_error: FastqError | None = None


Outcomes = dict[TopicPartition, "Pulled | FastqError"]


class TargetPuller:
    """A client of the target."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.client = BlockingClient(AdminConfig.from_mapping(side.common), CALL_S)

    def close(self) -> None:
        """End a pull that is waited for, with ClientClosed. Idempotent."""
        self.client.close()

    def pull(self, wanted: Mapping[TopicPartition, Pull], bytes_max: int) -> Outcomes:
        """Have so many bytes fetched by each node that leads some of them; by the target's names of topics. An error in a partition's
        place is one of the whole request. Raises why nobody has answered in time."""
        leaders = leaders_of(self.client, wanted)
        by_node: dict[int, dict[TopicPartition, Pull]] = {}
        found: Outcomes = {}
        for tp, asked in wanted.items():
            if tp in leaders:
                by_node.setdefault(leaders[tp], {})[tp] = asked
            else:
                found[tp] = LeaderNotAvailable(f"{tp} has no known leader in {self.side.alias}")
        if by_node:
            timeout_ms = min(self.client.core.config.request_timeout_ms // 2, TIMEOUT_MS)
            found |= self.client.run(_pull(list(by_node.values()), bytes_max, timeout_ms))
        if any(isinstance(pulled, FastqError) or pulled.error is not None for pulled in found.values()):
            ask_for_leaders(self.client, "the mirror's target has refused to pull")
        return found


def _pull(of_nodes: list[dict[TopicPartition, Pull]], bytes_max: int, timeout_ms: int) -> Operation[Outcomes]:
    calls = []
    for wanted in of_nodes:
        topics: dict[bytes, m.MirrorPullRequest.PulledTopic] = {}
        for tp, asked in wanted.items():
            topic = topics.setdefault(
                asked.topic_id,
                m.MirrorPullRequest.PulledTopic(topic_id=asked.topic_id, source=asked.source, name=asked.name),
            )
            topic.partitions.append(
                m.MirrorPullRequest.PulledPartition(index=tp.partition, offset=asked.offset, epoch=asked.epoch)
            )
        request = m.MirrorPullRequest(timeout_ms=timeout_ms, bytes_max=bytes_max, topics=list(topics.values()))
        calls.append(Call(Leader(*next(iter(wanted))), request))
    answers = yield from ask_nodes(calls)
    found: Outcomes = {}
    for wanted, answer in zip(of_nodes, answers, strict=True):
        if isinstance(answer, FastqError):
            found.update(dict.fromkeys(wanted, answer))
            continue
        if answer.error_code:
            found.update(dict.fromkeys(wanted, error_for_code(answer.error_code, answer.error_message)))
            continue
        names = {asked.topic_id: tp.topic for tp, asked in wanted.items()}
        for topic in answer.topics:
            for part in topic.partitions:
                tp = TopicPartition(names.get(topic.topic_id, ""), part.index)
                if tp not in wanted:
                    continue
                found[tp] = _read(tp, part)
        for tp in wanted:
            found.setdefault(tp, UnknownServerError(f"the answer leaves {tp} out"))
    return found


def _read(tp: TopicPartition, part: m.MirrorPullResponse.PulledPartitionResult) -> Pulled:
    def error_of(code: int) -> FastqError | None:
        return error_for_code(code, part.error_message, topic=tp.topic, partition=tp.partition) if code else None

    return Pulled(
        part.next_offset,
        part.log_start_offset,
        part.source_log_start_offset,
        part.source_high_watermark,
        part.records,
        part.bytes,
        part.newest_timestamp,
        part.later_epoch,
        part.diverged,
        error_of(part.error_code),
        error_of(part.source_error),
    )
