"""The partitions of a coordinator's topic that this node leads, each with its shard of state.

Rules
- Who leads a partition coordinates its keys. `follow` compares the metadata with what is loaded, and loads and unloads.
- Partitions load in the background, one after the other; one that a client asks for comes next. Until then it is
  COORDINATOR_LOAD_IN_PROGRESS. A load that fails is tried again.
- Nothing is created before it is asked for: the topic comes with the first key that is looked up.
Source: CoordinatorRuntime.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from fastq.errors import ErrorCode, KafkaError, MissingPackage, error_for_code
from fastq_broker.controller.topics import TRANSACTIONS_TOPIC, internal_topic
from fastq_broker.log import failures

from .hashing import partition_of
from .loading import replay_log
from .shard import Shard, ShardContext

if TYPE_CHECKING:
    from fastq_broker.controller import Controller
    from fastq_broker.ports import Ports
    from fastq_broker.replicas import Replica

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0

S = TypeVar("S", bound=Shard)


class CoordinatorRuntime(Generic[S]):
    """All shards of one internal topic on this node. Loop thread only.

    Invariants: a partition is in one of `_waiting` (to be loaded), `_loading`, `_active`, or not led here. `_active` holds the
    shards that have everything of their log.
    """

    def __init__(self, ports: Ports, topic: str, make_shard: Callable[[ShardContext], S]) -> None:
        self.topic = topic
        self._ports = ports
        self._make_shard = make_shard
        self._active: dict[int, tuple[ShardContext, S]] = {}
        self._waiting: list[int] = []
        self._loading: dict[int, tuple[ShardContext, S]] = {}
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._read_anew_at: dict[int, float] = {}
        self._loader: asyncio.Task[None] | None = None
        self._closed = False

    # --- which partition, and its shard ---

    @property
    def partition_count(self) -> int:
        """Partitions of the topic, or as many as it would be created with."""
        topic = self._ports.image.topic(self.topic)
        if topic is not None:
            return len(topic.partitions)
        config = self._ports.config
        if self.topic == TRANSACTIONS_TOPIC:
            return config.transaction_state_log_num_partitions
        return config.offsets_topic_num_partitions

    def partition_for(self, key: str) -> int:
        """The partition that coordinates a group or transactional id."""
        return partition_of(key, self.partition_count)

    def shard_for(self, key: str) -> S:
        """The shard that coordinates `key`.

        Raises CoordinatorNotAvailable (and has the topic created), NotCoordinator, CoordinatorLoadInProgress.
        """
        partition = self.partition_for(key)
        shard = self.shard_of(partition)
        if shard is not None:
            return shard
        raise self._unavailable(partition)

    def shard_of(self, partition: int) -> S | None:
        """The loaded shard of a partition; None when there is none here, or it is about to be unloaded."""
        found = self._active.get(partition)
        return found[1] if found is not None and found[0].current else None

    def shards(self) -> Iterator[S]:
        """The shards that are loaded here."""
        return iter([shard for _, shard in self._active.values()])

    @property
    def loading(self) -> bool:
        """Whether any partition that is led here is not loaded yet."""
        return bool(self._waiting or self._loading or self._retries)

    def not_loaded(self) -> list[int]:
        """The partitions that are led here and not loaded yet."""
        return [*self._waiting, *self._loading, *self._retries]

    def _unavailable(self, partition: int) -> KafkaError:
        if self._ports.image.topic(self.topic) is None:
            create_topic(self._ports, self.topic)
            code, words = ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator's topic is being created"
        elif partition in self._waiting or partition in self._loading or partition in self._retries:
            if partition in self._waiting:  # somebody waits for it
                self._waiting.remove(partition)
                self._waiting.insert(0, partition)
                self._begin()
            code, words = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator is loading its state"
        elif partition in self._active and self._active[partition][0].replica.leader_id == self._ports.node_id:
            if self._active[partition][0].closed:
                self._ports.loop.call_soon(self._active[partition][0].on_torn)
            code, words = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator is about to load its state anew"
        else:
            code, words = ErrorCode.NOT_COORDINATOR, "this broker does not lead the coordinator's partition"
        return error_for_code(code, words, topic=self.topic, partition=partition)

    # --- leadership ---

    def follow(self) -> None:
        """Load what the metadata has this node lead, unload the rest. Called at the start, after changes of the metadata, now and then."""
        if self._closed:
            return
        ports = self._ports
        hosted = ports.replicas.by_name.get(self.topic.encode(), {})
        led = {number: replica for number, replica in hosted.items() if replica.leader_id == ports.node_id}
        for partition, (context, _) in [*self._active.items(), *self._loading.items()]:
            moved = led.get(partition) is not context.replica or context.replica.leader_epoch != context.leader_epoch
            if moved or context.closed:
                self.unload(partition)
        for partition in [*self._waiting, *self._retries]:
            if partition not in led:
                self.unload(partition)
        for partition in led:
            self.load(partition)

    def load(self, partition: int) -> None:
        """Read a partition's log into a new shard, in the background. Nothing happens when that was done or is in progress."""
        if self._closed:
            return
        known = partition in self._active or partition in self._loading or partition in self._waiting
        if not known and partition not in self._retries:
            self._waiting.append(partition)
        self._begin()

    def _begin(self) -> None:
        """Load what waits, unless that is in progress. Where it cannot be begun, who asks for a partition does, or the next change."""
        if self._waiting and self._loader is None:
            work = self._load_all()
            try:
                self._loader = self._ports.loop.create_task(work)
            except Exception as error:
                work.close()
                failures.report(f"loading partitions of {self.topic}", error)

    def unload(self, partition: int) -> None:
        """Drop a partition's shard: it answers who waits with NOT_COORDINATOR."""
        if partition in self._waiting:
            self._waiting.remove(partition)
        retry = self._retries.pop(partition, None)
        if retry is not None:
            retry.cancel()
        loading = self._loading.pop(partition, None)
        if loading is not None:  # the loader sees that its context is closed
            loading[0].close()
        found = self._active.pop(partition, None)
        if found is not None:
            context, shard = found
            context.close()
            failures.attempt(f"unloading {context.replica.log.path}", shard.unloaded)

    def close(self) -> None:
        """The broker stops: unload everything."""
        self._closed = True
        for partition in [*self._waiting, *self._retries, *self._loading, *self._active]:
            self.unload(partition)
        if self._loader is not None:
            self._loader.cancel()
            self._loader = None

    # --- records ---

    def marker_written(self, partition: int, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """A transaction marker has been appended to a partition of the topic. While it loads, the loader reads it from the log."""
        found = self._active.get(partition)
        if found is not None:
            found[1].replay_marker(producer_id, producer_epoch, committed)

    # --- loading ---

    async def _load_all(self) -> None:
        """Load what waits, one after the other."""
        try:
            while self._waiting:
                await self._load(self._waiting[0])
        except Exception as error:
            failures.report(f"loading partitions of {self.topic}", error)
        finally:
            self._loader = None

    async def _load(self, partition: int) -> None:
        replica = self._ports.replicas.get(self.topic, partition)
        self._waiting.remove(partition)
        if replica is None:
            return
        try:
            context, shard = self._made(partition, replica)
        except Exception as error:
            self._load_failed(partition, replica, error)
            return
        try:
            count = await replay_log(replica.log, shard, self._ports.read_ahead, lambda: context.closed)
        except Exception as error:
            if not context.closed:
                context.close()
                self._load_failed(partition, replica, error)
            return
        if context.closed:
            return
        del self._loading[partition]
        self._active[partition] = (context, shard)
        if count:
            logger.info("%s-%d: coordinating, %d records were read", self.topic, partition, count)
        try:
            shard.loaded()
        except Exception as error:  # half of what it has to do would never be done
            del self._active[partition]
            context.close()
            failures.attempt(f"unloading {replica.log.path}", shard.unloaded)
            self._load_failed(partition, replica, error)

    def _made(self, partition: int, replica: Replica) -> tuple[ShardContext, S]:
        """An empty shard, to be loaded."""
        context = ShardContext(replica, self._ports.loop, self._ports.surroundings)
        context.shard = shard = self._make_shard(context)
        context.on_torn = partial(self._reload, partition, context)
        self._loading[partition] = (context, shard)
        return context, shard

    def _reload(self, partition: int, context: ShardContext) -> None:
        """Read a shard anew, or after a while where that was done just now: one that fails each time would have the loop do little else."""
        if partition not in self._active or self._active[partition][0] is not context:
            return
        self.unload(partition)
        now = self._ports.loop.time()
        before, self._read_anew_at[partition] = self._read_anew_at.get(partition, now - RETRY_S), now
        if now - before < RETRY_S:
            self._retry_later(partition)
        else:
            self.load(partition)

    def _load_failed(self, partition: int, replica: Replica, error: Exception) -> None:
        """Try again later: the disk may have had a bad moment."""
        self._loading.pop(partition, None)
        self._retry_later(partition)
        place, words = f"loading {replica.log.path}", "%s-%d cannot be loaded, trying again in %.0f s: %s"
        if isinstance(error, (KafkaError, OSError, MissingPackage)):
            failures.say(logger.error, place, words, self.topic, partition, RETRY_S, error)
        else:
            failures.report(place, error)

    def _retry_later(self, partition: int) -> None:
        try:
            self._retries[partition] = self._ports.loop.call_later(RETRY_S, self._retry, partition)
        except Exception:
            self._waiting.append(partition)  # for who asks for it, or a change of the metadata
            raise

    def _retry(self, partition: int) -> None:
        del self._retries[partition]
        self.load(partition)


def create_topic(ports: Ports, name: str) -> Awaitable[object] | None:
    """Have an internal topic created unless it is there; what to await for it, or None where it cannot be created now.

    It need not be awaited for the topic to come. Raises, when awaited, KafkaStorageError.
    """
    controller = ports.controller
    image = controller.image
    live = any(image.live_brokers())
    if ports.cluster is not None:
        return ports.cluster.topics.create([internal_topic(controller.config, name, image)]) if live else None
    if controller.pending.topic(name) is None:
        if not live:
            return None
        (created,) = controller.create_topics([internal_topic(controller.config, name, image)])
        if created.error:
            if created.error != ErrorCode.KAFKA_STORAGE_ERROR:  # that the disk failed has been said
                logger.error("cannot create %s: %s", name, created.message)
            return None
    return _Flushed(controller)


class _Flushed:
    """What was written is committed once this has been awaited. It need not be: a coroutine that nobody awaits would complain."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def __await__(self) -> Generator[Any, None, None]:
        return self._controller.flushed().__await__()
