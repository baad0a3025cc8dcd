"""The transaction coordinator of a node: its shards, the producer ids it gives away, the markers it writes, and time.

Rules
- Handlers and the produce path call in; everything that is decided about a transactional id is decided by its shard.
- A producer id is given away only once its block is on disk in the metadata log: a few are kept at hand, so that the end of a
  transaction need not wait for one.
- A method that answers `Transaction | Awaitable` answers at once whenever nothing has to be waited for.
- What ends a producer for good is said by who still coordinates: a node that was cut off goes by states of before, where a transaction of
  now has never begun, or its producer is another. While no controller has heard it, such an answer is COORDINATOR_NOT_AVAILABLE; so is one
  that confirms what nothing is written for, as the end of the transaction before has the epoch of the one of now in version 1.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from fastq.errors import ErrorCode, KafkaError, error_for_code
from fastq_broker.controller.topics import TRANSACTIONS_TOPIC
from fastq_broker.coordinator import CoordinatorRuntime
from fastq_broker.log import failures
from fastq_broker.turns import Repeated

from .markers import MarkerWriter
from .shard import NoProducerId, Reply, TransactionShard
from .transaction import Partition, Transaction
from .verification import Operation, Refusals, admit, refusal_for

if TYPE_CHECKING:
    from typing import TypeAlias

    from fastq_broker.ports import Ports

    from .verification import Answer

    Outcome: TypeAlias = "Transaction | Awaitable[Transaction]"

logger = logging.getLogger(__name__)

PRODUCER_IDS_AT_HAND: Final = 8
FEATURE: Final = "transaction.version"
ENDS_A_PRODUCER: Final = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    }
)
ENDS_A_TRANSACTION: Final = ENDS_A_PRODUCER | {ErrorCode.TRANSACTION_ABORTABLE}


class TransactionCoordinator:
    """All transactional ids of this node. Loop thread only.

    Invariant: every id in `_producer_ids` is from a block that is on disk.
    """

    def __init__(self, ports: Ports) -> None:
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            ports, TRANSACTIONS_TOPIC, lambda context: TransactionShard(context, self)
        )
        self.markers = MarkerWriter(ports)
        self._ports = ports
        self._producer_ids: deque[int] = deque()
        config = ports.config
        self._repeated = [
            Repeated(ports.loop, interval_ms / 1000, work)
            for interval_ms, work in (
                (config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self._abort_late),
                (config.transaction_remove_expired_transaction_cleanup_interval_ms, self._expire),
            )
        ]

    # -- life

    def follow(self) -> None:
        """Leadership may have changed."""
        self.runtime.follow()
        for work in self._repeated:
            work.start()

    def close(self) -> None:
        """The broker stops."""
        for work in self._repeated:
            work.close()
        self.runtime.close()

    # -- all ids

    def shard(self, transactional_id: str) -> TransactionShard:
        """The shard of a transactional id. Raises CoordinatorNotAvailable, NotCoordinator, CoordinatorLoadInProgress."""
        return self.runtime.shard_for(transactional_id)

    @property
    def loading(self) -> bool:
        """Whether a partition is not loaded yet: a list of all ids would be short."""
        return self.runtime.loading

    def transactions(self) -> Iterator[Transaction]:
        """All transactional ids that are loaded here."""
        return (txn for shard in self.runtime.shards() for txn in shard.transactions.values())

    def _abort_late(self) -> None:
        # What could not be begun to be loaded may have a transaction to end whose client is gone, so that nobody asks for it.
        failures.attempt("following who coordinates transactions", self.runtime.follow)
        for shard in self.runtime.shards():
            failures.attempt("aborting transactions that are late", shard.abort_timed_out)

    def _expire(self) -> None:
        expiration_ms = self._ports.config.transactional_id_expiration_ms
        for shard in self.runtime.shards():
            failures.attempt("expiring transactional ids", partial(shard.expire, expiration_ms))

    # -- what the shards need

    @property
    def transaction_version(self) -> int:
        """The cluster's level of the feature transaction.version."""
        return self._ports.controller.finalized_features.get(FEATURE, 0)

    def new_producer_id(self) -> int:
        """An id from a block that is on disk. Raises NoProducerId when none is at hand."""
        if not self._producer_ids:
            raise NoProducerId
        return self._producer_ids.popleft()

    def soon(self, callback: Callable[[], None]) -> None:
        """Call in the loop's next turn."""
        self._ports.loop.call_soon(callback)

    def write_markers(
        self,
        coordinator_epoch: int,
        txn: Transaction,
        partitions: frozenset[Partition],
        on_done: Callable[[frozenset[Partition]], None],
    ) -> None:
        """Write the decision of a transaction into partitions."""
        self.markers.write_all(coordinator_epoch, txn, partitions, on_done)

    # -- requests

    def initialize(self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None) -> Outcome:
        """InitProducerId: the state that has the producer's id and epoch. Raises KafkaError subclasses, here or when awaited."""
        return self._ask(
            transactional_id,
            lambda shard, reply: shard.initialize(transactional_id, timeout_ms, expected, reply),
        )

    def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[Partition], version: int
    ) -> Outcome:
        """AddPartitionsToTxn, AddOffsetsToTxn. Raises KafkaError subclasses, here or when awaited."""
        return self._ask(
            transactional_id,
            lambda shard, reply: shard.add_partitions(transactional_id, producer_id, epoch, partitions, version, reply),
        )

    def end(self, transactional_id: str, producer_id: int, epoch: int, committed: bool, version: int) -> Outcome:
        """EndTxn. Raises KafkaError subclasses, here or when awaited."""
        return self._ask(
            transactional_id,
            lambda shard, reply: shard.end(transactional_id, producer_id, epoch, committed, version, reply),
        )

    def _ask(self, transactional_id: str, request: Callable[[TransactionShard, Reply], None]) -> Outcome:
        shard = self.runtime.shard_for(transactional_id)
        done: asyncio.Future[Transaction] = self._ports.loop.create_future()
        before = shard.transactions.get(transactional_id)
        try:
            request(shard, partial(self._settle, done, before))
        except NoProducerId:
            return self._ask_with_ids(transactional_id, request)
        except KafkaError as error:
            raise self._as_is_known(error) from None
        return done.result() if done.done() else done

    def _as_is_known(self, error: KafkaError) -> KafkaError:
        """A refusal, of which a node that no controller hears does not know whether it holds."""
        return error if self._is_heard or error.code not in ENDS_A_PRODUCER else _unheard(str(error))

    @property
    def _is_heard(self) -> bool:
        """Whether nobody else can coordinate what this node thinks that it does."""
        cluster = self._ports.cluster
        return cluster is None or cluster.is_heard

    def _settle(
        self,
        done: asyncio.Future[Transaction],
        before: Transaction | None,
        txn: Transaction | None,
        error: KafkaError | None,
    ) -> None:
        if done.done():  # the client is gone
            return
        if error is not None:
            done.set_exception(self._as_is_known(error))
        elif txn is None:
            done.set_exception(error_for_code(-1, "the transaction coordinator gave no answer"))
        elif txn is before and not self._is_heard:
            done.set_exception(_unheard("it is done already"))
        else:
            done.set_result(txn)

    async def _ask_with_ids(
        self, transactional_id: str, request: Callable[[TransactionShard, Reply], None]
    ) -> Transaction:
        """Fetch producer ids, then ask again; others may have taken them meanwhile."""
        self._producer_ids.extend(await self._ports.producer_ids.take(PRODUCER_IDS_AT_HAND))
        answer = self._ask(transactional_id, request)
        return await answer if inspect.isawaitable(answer) else answer

    # -- what may be appended

    def admit(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: frozenset[Partition],
        wanted: Operation,
        retry: Callable[[Answer | None], None],
    ) -> Refusals | None:
        """What of `partitions` must not be appended to, by partition; None when `retry` will be called: with the answer of the node
        that coordinates, or with None to ask again."""
        try:
            shard = self.runtime.shard_for(transactional_id)
        except KafkaError as error:
            cluster = self._ports.cluster
            if cluster is None or error.code != ErrorCode.NOT_COORDINATOR:
                return dict.fromkeys(partitions, refusal_for(error, wanted))
            coordinator = partial(self._coordinator_of, transactional_id)
            return cluster.elsewhere.ask(coordinator, transactional_id, producer_id, epoch, partitions, wanted, retry)
        refused = admit(shard, transactional_id, producer_id, epoch, partitions, wanted, partial(retry, None))
        if not refused or self._is_heard:
            return refused
        return {
            at: refusal_for(_unheard(str(error)), wanted) if error.code in ENDS_A_TRANSACTION else error
            for at, error in refused.items()
        }

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[Partition]
    ) -> frozenset[Partition]:
        """Those of `partitions` that are not in the producer's open transaction, for the node that leads them. Raises KafkaError."""
        shard = self.runtime.shard_for(transactional_id)
        try:
            missing = shard.verify(transactional_id, producer_id, epoch, partitions)
        except KafkaError as error:
            raise self._as_is_known(error) from None
        if missing and not self._is_heard:
            raise _unheard("partitions are not in the transaction")
        return missing

    def _coordinator_of(self, transactional_id: str) -> int:
        """The node that coordinates an id; -1 while none does."""
        found = self._ports.image.partition(self.runtime.topic, self.runtime.partition_for(transactional_id))
        return -1 if found is None else found.leader

    async def check(
        self, transactional_id: str, producer_id: int, epoch: int, topic: str, partition: int, wanted: Operation
    ) -> None:
        """Make sure that a partition is in the producer's open transaction. Raises what an append of the producer would answer."""
        partitions = frozenset({(topic, partition)})
        while True:
            again: asyncio.Future[Answer | None] = self._ports.loop.create_future()
            refused = self.admit(transactional_id, producer_id, epoch, partitions, wanted, partial(_wake, again))
            if refused is None:
                answer = await again
                if answer is None or not answer.holds_for(partitions):
                    continue
                refused = answer.refused
            for error in refused.values():
                raise error
            return


def _unheard(said: str) -> KafkaError:
    return error_for_code(
        ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no controller hears this node, which would say: {said}"
    )


def _wake(waiting: asyncio.Future[Answer | None], answer: Answer | None) -> None:
    if not waiting.done():
        waiting.set_result(answer)
