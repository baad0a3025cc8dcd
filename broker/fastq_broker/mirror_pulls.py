"""What a MirrorPull does: fetch from a mirror's source, and append what comes, until there is enough of it.

Rules
- It takes what MirrorAppend takes: of a topic whose `mirror.source` is what the request names, at the log's end that it names. Before each
  append it is looked at anew who leads here, in which epoch, and whether the topic is still that mirror's.
- The alias in `mirror.source` says how the source is reached (`mirror.pull.ALIAS.KEY`), the rest which cluster it has to be, and which
  topic: that is fetched by its id. The name in the request only finds out who leads.
- Batches of later leader epochs than the request's are not appended: the mirror writes down first where an epoch begins. A partition
  stops at the first of them, and the answer says which epoch that is.
- What comes next is fetched while what came last is appended, until there are `bytes_max`, half of the time is over, little is left, or
  something is wrong. Each partition ends for itself, and the answer tells the source's errors from this cluster's.
- A source that throttles by a quota is asked for no more: whoever waits for it here is copied by nobody meanwhile.
- It is answered once all who have to have what was appended have it, as MirrorAppend is. Who asks and goes away is served to the end of
  what has come by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from fastq.errors import (
    ClientClosed,
    ConnectionFailed,
    ErrorCode,
    FastqError,
    InvalidRequest,
    KafkaError,
    ThrottlingQuotaExceeded,
    error_for_code,
)
from fastq.metadata import TopicPartition, is_topic_name
from fastq.net.batches import IDS_FROM, RESPONSE_BYTES, Fetched, Wanted, fetch, up_to_epoch
from fastq.net.operations import Found, Route
from fastq.protocol.messages import MetadataResponse, MirrorPullRequest, MirrorPullResponse

from .config_keys import shown
from .log.mirrored import append_mirrored, check_end
from .mirrored_replicas import check_writes, led_replica, refuse, tell_offsets, when_kept, words_of
from .source_client import SourceClient, asked_for

if TYPE_CHECKING:
    from typing import TypeAlias

    from .replicas import Replica, ReplicaTable
    from .router import RequestContext

    Answer: TypeAlias = MirrorPullResponse.PulledPartitionResult
    Answers: TypeAlias = Mapping[TopicPartition, Fetched | FastqError]

TIMEOUT_MS_MAX = 60_000
BYTES_MAX = 1 << 30
LOOK_S = 3.0
"""How long the source may take to say who leads: whoever waits for a pull is copied by nobody meanwhile."""
CALL_S_MIN, CALL_S_MAX = 0.1, 10.0
NODES_MAX = 4
"""Of the source, that one fetch asks: their answers share RESPONSE_BYTES, but for NODE_BYTES_MIN each."""
NODE_BYTES_MIN = 1 << 20
LEADS = "a leader in the source"
LITTLE_BYTES = 64 << 10
"""Of a partition with less to come the mirror fetches the rest, as it does what comes then."""

logger = logging.getLogger(__name__)


class Source:
    """What a `mirror.source` names: `ALIAS/CLUSTER ID/TOPIC ID`. Raises InvalidRequest."""

    __slots__ = ("alias", "cluster_id", "topic_id")

    def __init__(self, text: str) -> None:
        self.alias, _, rest = text.partition("/")
        self.cluster_id, _, topic_id = rest.rpartition("/")
        try:
            self.topic_id = bytes.fromhex(topic_id)
        except ValueError:
            self.topic_id = b""
        if len(self.topic_id) != 16 or not any(self.topic_id) or not self.cluster_id:
            raise InvalidRequest(f"{shown(text)} names no topic by its id: it takes ALIAS/CLUSTER ID/TOPIC ID")


class Pulled:
    """A partition of a request. The next fetch is to go on at `position`; its log ends at `end`, as far as this pull has appended."""

    __slots__ = ("answer", "end", "epoch", "leader_epoch", "node_id", "position", "replica", "source", "topic_id")

    def __init__(self, answer: Answer, replica: Replica, source: str, topic_id: bytes, offset: int, epoch: int) -> None:
        self.answer = answer
        self.replica = replica
        self.leader_epoch = replica.leader_epoch
        self.source = source
        self.topic_id = topic_id
        self.position = self.end = offset
        self.epoch = epoch
        self.node_id = -1

    def check(self, replicas: ReplicaTable) -> Replica:
        """The replica, which is still led here, in the same epoch, and the mirror's, and ends where it did. Raises KafkaError."""
        answer = self.answer
        replica = led_replica(replicas, self.replica.topic_id, answer.index)
        if isinstance(replica, int):
            raise error_for_code(replica)
        if replica is not self.replica or replica.leader_epoch != self.leader_epoch:
            refuse(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is led in another epoch than when the pull began")
        check_writes(replica, self.source)
        check_end(replica.log, self.end)
        return replica


class Pull:
    """One request, which is served when it is awaited, once. Loop thread only.

    Invariants: `_left` are the partitions that are to be fetched, by the source's names, those of which something came last at the end;
    `_waits` is what is waited for from the source, None while nothing is.
    """

    def __init__(self, context: RequestContext, request: MirrorPullRequest) -> None:
        self._context = context
        self._request = request
        self._loop = context.loop
        self._response = MirrorPullResponse()
        self._pulled: list[Pulled] = []
        self._left: dict[TopicPartition, Pulled] = {}
        self._bytes_left = max(min(request.bytes_max, BYTES_MAX), 1)
        self._until = self._heard_by = self._end_at = 0.0
        """When no more is fetched, when the source has to have answered, and when this is to be."""
        self._over = False
        self._waits: asyncio.Future[Any] | None = None

    def __await__(self) -> Generator[Any, None, MirrorPullResponse]:
        return self._serve().__await__()

    def hurry(self) -> None:
        """Who asks waits for no more: what has come by now is all."""
        self._over = True
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    # -- in order

    async def _serve(self) -> MirrorPullResponse:
        timeout_s = min(max(self._request.timeout_ms, 0), TIMEOUT_MS_MAX) / 1000
        now = self._loop.time()
        self._until, self._heard_by, self._end_at = now + timeout_s / 2, now + timeout_s * 3 / 4, now + timeout_s
        source = self._admit()
        if source is not None and self._left:
            try:
                with self._context.mirror_sources.borrowed(source.alias) as client:
                    await self._pull(client, source)
            except FastqError as error:
                self._response.error_code, self._response.error_message = _code_of(error), words_of(error)
        await self._commit()
        for pulled in self._pulled:
            pulled.answer.next_offset = pulled.end
            if self._is_here(pulled) and pulled.replica.log.loaded:
                tell_offsets(pulled.answer, pulled.replica)
        return self._response

    def _admit(self) -> Source | None:
        """Look at each partition that is asked for; the source that all have, where there is one."""
        first: Source | None = None
        for topic in self._request.topics:
            answers = [MirrorPullResponse.PulledPartitionResult(index=wanted.index) for wanted in topic.partitions]
            self._response.topics.append(
                MirrorPullResponse.PulledTopicResult(topic_id=topic.topic_id, partitions=answers)
            )
            try:
                source = Source(topic.source)
                first = first or source
                if (source.alias, source.cluster_id) != (first.alias, first.cluster_id):
                    raise InvalidRequest(f"{shown(topic.source)} is of another source than the first topic's")
                if not is_topic_name(topic.name):
                    raise InvalidRequest(f"{shown(topic.name)} is no name of a topic")
            except KafkaError as error:
                for answer in answers:
                    _refuse(answer, error)
                continue
            for wanted, answer in zip(topic.partitions, answers, strict=True):
                try:
                    self._admit_partition(topic, wanted, answer, source)
                except KafkaError as error:
                    _refuse(answer, error)
        return first

    def _admit_partition(
        self,
        topic: MirrorPullRequest.PulledTopic,
        wanted: MirrorPullRequest.PulledPartition,
        answer: Answer,
        source: Source,
    ) -> None:
        replica = led_replica(self._context.replicas, topic.topic_id, wanted.index)
        if isinstance(replica, int):
            raise error_for_code(replica)
        tp = TopicPartition(topic.name, wanted.index)
        if tp in self._left or wanted.offset <= 0:
            raise InvalidRequest(f"{tp} is asked for twice, or from offset {wanted.offset}: it takes one above 0")
        pulled = Pulled(answer, replica, topic.source, source.topic_id, wanted.offset, wanted.epoch)
        try:
            pulled.check(self._context.replicas)
        except KafkaError:
            if replica.log.loaded:
                tell_offsets(answer, replica)
            raise
        self._pulled.append(pulled)
        self._left[tp] = pulled

    async def _pull(self, client: SourceClient, source: Source) -> None:
        """Fetch and append; what is wrong with the source as a whole is so for all that are left."""
        try:
            topics = [*{tp.topic for tp in self._left}]
            found = await self._answer(client.start(asked_for(topics), min(LOOK_S, self._call_s())))
            if found is not None:
                client.muted = found.throttle_time_ms > 0
                if client.muted:
                    raise _throttled(found.throttle_time_ms)
                self._find_leaders(found, source)
                await self._go_on(client)
        except FastqError as error:
            for tp in list(self._left):
                self._end(tp, error)

    def _find_leaders(self, found: MetadataResponse, source: Source) -> None:
        """Note who leads each partition in the source. Raises KafkaError where that is another cluster."""
        if found.cluster_id != source.cluster_id:
            raise error_for_code(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"{shown(source.alias)} is the cluster {shown(source.cluster_id)} to the mirror, and where mirror.pull.{source.alias[:64]} "
                f"leads to is {shown(found.cluster_id)}",
            )
        topics = {topic.name: topic for topic in found.topics}
        for tp, pulled in list(self._left.items()):
            topic = topics.get(tp.topic)
            if topic is None or topic.error_code:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
                self._end(tp, error_for_code(code, topic=tp.topic))
            elif topic.topic_id != pulled.topic_id:
                self._end(tp, error_for_code(ErrorCode.UNKNOWN_TOPIC_ID, f"{tp.topic} is another topic there now"))
            else:
                leaders = [p.leader_id for p in topic.partitions if p.partition_index == tp.partition]
                if not leaders or leaders[0] < 0:
                    self._end(
                        tp, error_for_code(ErrorCode.LEADER_NOT_AVAILABLE, topic=tp.topic, partition=tp.partition)
                    )
                else:
                    pulled.node_id = leaders[0]

    async def _go_on(self, client: SourceClient) -> None:
        fetching = self._fetch(client)
        try:
            while fetching is not None:
                answers = await self._answer(fetching)
                fetching = None
                if answers is None:
                    return
                come = self._judge(answers)
                client.muted = client.muted or any(map(_is_muted, answers.values()))
                del answers
                if come:
                    fetching = self._fetch(client)
                    await asyncio.sleep(0)  # its request leaves before the loop's time is taken
                    self._append(come)
                come = []  # of large answers one is received and one appended, and no third is kept
        finally:
            if fetching is not None:
                fetching.cancel()

    async def _answer(self, future: asyncio.Future[Any]) -> Any:
        """What comes of it, None where nothing more is wanted."""
        if self._over:
            future.cancel()
            return None
        self._waits = future
        try:
            return await future
        finally:
            self._waits = None

    # -- a fetch

    def _fetch(self, client: SourceClient) -> asyncio.Future[Answers] | None:
        """Ask for more, unless it is enough: the first partitions that are left."""
        if self._over or not self._left or self._bytes_left <= 0 or self._loop.time() >= self._until:
            return None
        routes: dict[Route, dict[TopicPartition, Wanted]] = {}
        for tp, pulled in self._left.items():
            route = Found(pulled.node_id, LEADS)  # tried once: no other's answer is to wait for more
            if route in routes or len(routes) < NODES_MAX:
                wanted = Wanted(pulled.topic_id, pulled.position, pulled.epoch)
                routes.setdefault(route, {})[tp] = wanted
        size = max(RESPONSE_BYTES // len(routes), NODE_BYTES_MIN)  # a partition may fill it
        operation = fetch(routes, 0, response_bytes=size, versions=(IDS_FROM, 32767))
        return client.start(operation, self._call_s())

    def _call_s(self) -> float:
        """How long the source may take for an answer: what it has is to be kept by all here in time."""
        return min(max(self._heard_by - self._loop.time(), CALL_S_MIN), CALL_S_MAX)

    def _judge(self, answers: Answers) -> list[tuple[TopicPartition, Pulled, Fetched]]:
        """What is to be appended. Partitions that have come to their end are no longer left."""
        come: list[tuple[TopicPartition, Pulled, Fetched]] = []
        for tp, found in answers.items():
            pulled = self._left.get(tp)
            if pulled is None:
                continue
            if isinstance(found, FastqError):
                self._end(tp, found)
                continue
            answer = pulled.answer
            answer.source_log_start_offset, answer.source_high_watermark = found.log_start, found.high_watermark
            if found.diverged:
                answer.diverged = True
                del self._left[tp]
                continue
            kept, answer.later_epoch = up_to_epoch(found, pulled.epoch)
            if kept.next_offset > kept.asked:
                come.append((tp, pulled, kept))
                pulled.position = kept.next_offset
                self._bytes_left -= kept.records.nbytes
                self._left[tp] = self._left.pop(tp)  # behind those of which nothing came
            if answer.later_epoch >= 0 or kept.next_offset >= kept.high_watermark or _is_little(kept):
                del self._left[tp]
            elif kept.throttle_ms:  # what is asked next is answered after that, and its mirror may get more meanwhile
                self._end(tp, _throttled(kept.throttle_ms))
        return come

    def _append(self, come: list[tuple[TopicPartition, Pulled, Fetched]]) -> None:
        for tp, pulled, found in come:
            answer = pulled.answer
            if answer.error_code:
                continue
            try:
                replica = pulled.check(self._context.replicas)
                records = bytearray(found.records) if found.records.readonly else found.records  # a small answer's
                pulled.end = append_mirrored(
                    replica.log,
                    records,
                    offset=pulled.end,
                    leader_epoch=replica.leader_epoch,
                    now_ms=self._context.clock(),
                )
            except Exception as error:
                self._left.pop(tp, None)
                if not isinstance(error, FastqError):
                    logger.error("a mirror's pull of %s failed", pulled.replica.log.name, exc_info=error)
                    self._over = True
                _refuse(answer, error)
                continue
            answer.records += found.amount
            answer.bytes += found.records.nbytes
            answer.newest_timestamp = found.newest_ms

    def _end(self, tp: TopicPartition, error: FastqError) -> None:
        """Of this partition the source has an error."""
        answer = self._left.pop(tp).answer
        answer.source_error, answer.error_message = _code_of(error), words_of(error)

    # -- the end

    def _is_here(self, pulled: Pulled) -> bool:
        """Whether it is led by this node, and no topic of another time."""
        replica = pulled.replica
        return led_replica(self._context.replicas, replica.topic_id, replica.partition) is replica

    async def _commit(self) -> None:
        """Wait until all who have to have it have what was appended. Where something is wrong already, whoever asks looks for itself what
        is there, and the others are not to wait for that."""
        waiting: list[tuple[Replica, int, Callable[[KafkaError | None], object]]] = []
        for pulled in self._pulled:
            answer = pulled.answer
            if answer.error_code or not answer.bytes:
                continue
            if self._is_here(pulled):
                waiting.append((pulled.replica, pulled.end, partial(_note, answer)))
            else:
                _refuse(answer, error_for_code(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        kept: asyncio.Future[None] = self._loop.create_future()
        timeout_s = max(self._end_at - self._loop.time(), 0.0)
        give_up = when_kept(self._loop, timeout_s, waiting, partial(_settle, kept))
        try:
            await kept
        finally:
            give_up()


def _note(answer: Answer, error: KafkaError | None) -> None:
    if error is not None:
        _refuse(answer, error)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _throttled(throttle_ms: int) -> KafkaError:
    what = f"a quota of the source keeps it from answering for {throttle_ms} ms"
    return error_for_code(ErrorCode.THROTTLING_QUOTA_EXCEEDED, what)


def _is_muted(found: Fetched | FastqError) -> bool:
    """Whether a quota keeps who was asked from answering on that connection for now."""
    return found.throttle_ms > 0 if isinstance(found, Fetched) else isinstance(found, ThrottlingQuotaExceeded)


def _is_little(found: Fetched) -> bool:
    """Whether what is left in the source is not worth another fetch, by the size of what came."""
    come = found.next_offset - found.asked
    left = found.high_watermark - found.next_offset
    return come > 0 and left * found.records.nbytes < LITTLE_BYTES * come


def _refuse(answer: Answer, error: Exception) -> None:
    answer.error_code, answer.error_message = _code_of(error), words_of(error)


def _code_of(error: Exception) -> int:
    """The code that says it: of what is no error of Kafka's, whether the network is to blame."""
    if isinstance(error, KafkaError):
        return int(error.code)
    if isinstance(error, ClientClosed):
        return int(ErrorCode.BROKER_NOT_AVAILABLE)  # this node stops
    return int(ErrorCode.NETWORK_EXCEPTION if isinstance(error, ConnectionFailed) else ErrorCode.UNKNOWN_SERVER_ERROR)
