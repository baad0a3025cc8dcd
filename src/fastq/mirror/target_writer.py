"""The target of a mirror with the same offsets: a fastq broker that takes batches with the offsets that they have (MirrorAppend).

Rules
- Every answer has where the log begins and ends now, one with an error too where the broker has looked at it.
- A request goes to who leads the first partition in it, by the metadata of the moment: also when it is sent again, after a leader died.
- A request has REQUEST_BYTES_MAX at most, and one partition's records where those are more: a broker hangs up on one above its
  socket.request.max.bytes, of which what several nodes of the source have sent may be more.
- A request whose answer is lost is sent again: what it has appended is there, and the second is told where the log ends.
- Thread rule: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fastq.admin.config import AdminConfig
from fastq.errors import (
    ConfigError,
    ConnectionClosed,
    FastqError,
    LeaderNotAvailable,
    UnknownServerError,
    UnsupportedVersion,
    error_for_code,
)
from fastq.metadata import TopicPartition
from fastq.mirror.config import Side
from fastq.mirror.source_reader import ask_for_leaders, leaders_of
from fastq.net.client import BlockingClient
from fastq.net.operations import ANY, Call, Leader, Operation, ask_nodes
from fastq.protocol import messages as m
from fastq.values import NamedTuple

APPEND, CUT, END = 0, 1, 2
CALL_S = 30.0
PARTITIONS_MAX = 4_000
"""In one request: the broker takes 10,000 topics and partitions."""
REQUEST_BYTES_MAX = 16 * 1024 * 1024
LARGE_BYTES = 512 * 1024
"""No broker that is of use refuses less."""


class Ask(NamedTuple):
    """What is asked of a partition of the target: its topic's id there, and see the handler for the rest."""

    topic_id: bytes
    source: str
    offset: int = -1
    log_start: int = -1
    records: memoryview | None = None
    operation: int = APPEND


class Told(NamedTuple):
    """Where a partition of the target begins and ends now; -1: not told. `error` is why nothing was done, or not by all in time."""

    log_start: int
    log_end: int
    high_watermark: int
    error: FastqError | None = None


class TargetWriter:
    """A client of the target."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.client = BlockingClient(AdminConfig.from_mapping(side.common), CALL_S)

    def close(self) -> None:
        self.client.close()

    def check(self) -> None:
        """Raises ConfigError where the target is no fastq broker of this release or a later one."""
        try:
            self.client.call(ANY, m.MirrorAppendRequest())
        except UnsupportedVersion:
            raise ConfigError(
                f'offsets = "same" needs a fastq broker as the target, and {self.side.alias} is none: it does not take batches with the '
                "offsets that they have",
                hint='With offsets = "translated" any Kafka cluster is one, and offsets of groups are translated',
            ) from None

    def ask(self, wanted: Mapping[TopicPartition, Ask]) -> dict[TopicPartition, Told]:
        """Have something done in each partition; by the target's names of topics."""
        core, leaders = self.client.core, leaders_of(self.client, wanted)
        by_node: dict[int, dict[TopicPartition, Ask]] = {}
        found: dict[TopicPartition, Told] = {}
        for tp, asked in wanted.items():
            if tp in leaders:
                by_node.setdefault(leaders[tp], {})[tp] = asked
            else:
                found[tp] = failed(LeaderNotAvailable(f"{tp} has no known leader in {self.side.alias}"))
        if by_node:
            timeout_ms = core.config.request_timeout_ms // 2
            requests = [request for of_node in by_node.values() for request in divided(of_node)]
            try:
                told = self.client.run(_ask(requests, timeout_ms))
            except ConnectionClosed as error:
                raise _with_sizes(error, requests) from None
            for tp, one in told.items():  # beside nodes that have answered
                why = one.error
                found[tp] = failed(_with_sizes(why, requests)) if isinstance(why, ConnectionClosed) else one
        if any(told.error is not None for told in found.values()):
            ask_for_leaders(self.client, "the mirror's target has refused something")
        return found

    def ask_until(
        self,
        wanted: Mapping[TopicPartition, Ask],
        pause: Callable[[], object],
        tries: int,
    ) -> dict[TopicPartition, Told]:
        """The same, again and again for those that are refused, with a `pause` between."""
        found: dict[TopicPartition, Told] = {}
        left = dict(wanted)
        for attempt in range(tries):
            if attempt:
                pause()
            found |= self.ask(left)
            left = {tp: asked for tp, asked in left.items() if found[tp].error is not None}
            if not left:
                break
        return found


def _with_sizes(error: ConnectionClosed, requests: Sequence[Mapping[TopicPartition, Ask]]) -> FastqError:
    """Where a request was large, it says so."""
    largest = max(sum(map(_size_of, request.values())) for request in requests)
    if largest < LARGE_BYTES:
        return error
    hint = (
        f"If it does so again and again: the largest request had {largest} bytes of records, and a broker hangs up on one "
        f"above its socket.request.max.bytes"
    )
    return error.with_context(hint=hint)


def divided(wanted: Mapping[TopicPartition, Ask]) -> Iterator[dict[TopicPartition, Ask]]:
    """What is asked of a node, as requests that it takes, in the same order."""
    request: dict[TopicPartition, Ask] = {}
    size = 0
    for tp, asked in wanted.items():
        more = _size_of(asked)
        if request and (len(request) == PARTITIONS_MAX or size + more > REQUEST_BYTES_MAX):
            yield request
            request, size = {}, 0
        request[tp] = asked
        size += more
    yield request


def _size_of(asked: Ask) -> int:
    return 0 if asked.records is None else asked.records.nbytes


def failed(error: FastqError) -> Told:
    return Told(-1, -1, -1, error)


def _ask(asked_of: Sequence[Mapping[TopicPartition, Ask]], timeout_ms: int) -> Operation[dict[TopicPartition, Told]]:
    calls = []
    for wanted in asked_of:
        topics: dict[bytes, m.MirrorAppendRequest.MirroredTopic] = {}
        for tp, asked in wanted.items():
            topic = topics.setdefault(
                asked.topic_id, m.MirrorAppendRequest.MirroredTopic(topic_id=asked.topic_id, source=asked.source)
            )
            topic.partitions.append(
                m.MirrorAppendRequest.MirroredPartition(
                    index=tp.partition,
                    operation=asked.operation,
                    offset=asked.offset,
                    log_start_offset=asked.log_start,
                    records=asked.records,
                )
            )
        request = m.MirrorAppendRequest(timeout_ms=timeout_ms, topics=list(topics.values()))
        calls.append(Call(Leader(*next(iter(wanted))), request))
    answers = yield from ask_nodes(calls)
    found: dict[TopicPartition, Told] = {}
    for wanted, answer in zip(asked_of, answers, strict=True):
        if isinstance(answer, FastqError):
            found.update(dict.fromkeys(wanted, failed(answer)))
            continue
        names = {asked.topic_id: tp.topic for tp, asked in wanted.items()}
        for topic in answer.topics:
            for part in topic.partitions:
                tp = TopicPartition(names.get(topic.topic_id, ""), part.index)
                if tp not in wanted:
                    continue
                error = None
                if part.error_code:
                    error = error_for_code(part.error_code, part.error_message, topic=tp.topic, partition=tp.partition)
                found[tp] = Told(part.log_start_offset, part.log_end_offset, part.high_watermark, error)
        for tp in wanted:
            found.setdefault(tp, failed(UnknownServerError(f"the answer leaves {tp} out")))
    return found
