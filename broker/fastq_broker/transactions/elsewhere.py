"""What the coordinators of other nodes say of transactional batches that are to be appended here: AddPartitionsToTxn, many in a request.

Rules
- A question is of one producer's transaction and of partitions that this node leads. Its answer holds until a marker of the producer
  goes into one of them, or their leader epoch is another: then it has to be asked again, or a late batch would be in no transaction.
- A request has each transactional id once. Of the same producer and epoch many questions are one; another waits for the next request.
- A transaction that is just ending is asked about again every add.partitions.to.txn.retry.backoff.ms, for
  add.partitions.to.txn.retry.backoff.max.ms: what it then is, the client is told.
Source: AddPartitionsToTxnManager, ReplicaManager, VerificationGuard (KIP-890).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakSet

from fastq.errors import ErrorCode, FastqError, KafkaError, error_for_code
from fastq.protocol.messages import AddPartitionsToTxnRequest
from fastq_broker.cluster.peers import PeerQueues
from fastq_broker.log import failures

from .transaction import Partition
from .verification import Operation, Refusals, not_in_transaction, refusal_for

if TYPE_CHECKING:
    from fastq_broker.cluster.peers import Ask
    from fastq_broker.replicas import ReplicaTable

    from .verification import Answer

VERSIONS: Final = (4, 5)
"""Of AddPartitionsToTxn: those that brokers ask in, many transactions at once."""
_GOING_ON: Final = "going on after the answer of another node's transaction coordinator"
_NOTHING: Final[Mapping[Partition, int]] = {}


class Patience(Protocol):
    """How a transaction that is just ending is waited for."""

    @property
    def add_partitions_to_txn_retry_backoff_ms(self) -> int: ...
    @property
    def add_partitions_to_txn_retry_backoff_max_ms(self) -> int: ...


class Loop(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float: ...
    def call_soon(self, callback: Callable[[], object], /) -> object: ...
    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> object: ...


class Question:
    """What is asked of a coordinator elsewhere, and what it said: an `Answer`, for as long as somebody holds it."""

    def __init__(
        self,
        coordinator: Callable[[], int],
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: frozenset[Partition],
        wanted: Operation,
        replicas: ReplicaTable,
        retry: Callable[[Answer | None], None],
    ) -> None:
        self.coordinator = coordinator
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch
        self.partitions = partitions
        self.wanted = wanted
        self.retry = retry
        self.refused: Refusals = {}
        self.until = 0.0
        self._replicas = replicas
        self._led = self._epochs()
        self._ended = False

    def _epochs(self) -> dict[Partition, int]:
        """The leader epochs of the partitions; -1 for one that is not here."""
        hosted = {partition: self._replicas.get(*partition) for partition in self.partitions}
        return {at: -1 if replica is None else replica.leader_epoch for at, replica in hosted.items()}

    @property
    def key(self) -> tuple[int, int, bool]:
        """What two questions about one transactional id must have in common to be one."""
        return self.producer_id, self.epoch, self.wanted is Operation.ADD

    def holds_for(self, partitions: frozenset[Partition]) -> bool:
        """Whether the answer is still good, and says something of all these partitions."""
        return not self._ended and partitions <= self.partitions and self._epochs() == self._led

    def marker_written(self, producer_id: int, partition: Partition) -> None:
        """A transaction has ended here."""
        if producer_id == self.producer_id and partition in self.partitions:
            self._ended = True


class Elsewhere:
    """Asks the coordinators of other nodes. Loop thread only."""

    def __init__(self, ask: Ask, loop: Loop, patience: Patience, replicas: ReplicaTable) -> None:
        self._loop = loop
        self._patience = patience
        self._replicas = replicas
        self._queues: PeerQueues[Question] = PeerQueues(ask, loop.call_soon, _build, self._answered, VERSIONS)
        self._questions: WeakSet[Question] = WeakSet()

    def ask(
        self,
        coordinator: Callable[[], int],
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: frozenset[Partition],
        wanted: Operation,
        retry: Callable[[Answer | None], None],
    ) -> Refusals | None:
        """Ask; `retry` gets the answer. The refusals at once where nobody coordinates. `coordinator()` is the node to ask, -1 for none."""
        question = Question(
            coordinator, transactional_id, producer_id, epoch, partitions, wanted, self._replicas, retry
        )
        question.until = self._loop.time() + self._patience.add_partitions_to_txn_retry_backoff_max_ms / 1000
        node_id = coordinator()
        if node_id < 0:
            return _all(question, _nobody(transactional_id))
        self._questions.add(question)
        self._queues.put(node_id, question)
        return None

    def marker_written(self, producer_id: int, partition: Partition) -> None:
        """A producer's transaction has ended in a partition of this node."""
        for question in list(self._questions):
            question.marker_written(producer_id, partition)

    def _answered(self, questions: Collection[Question], response: Any, error: FastqError | None) -> None:
        codes: dict[str, Mapping[Partition, int]] = {}
        if error is None and response.error_code:
            error = error_for_code(response.error_code, "the coordinator refused to be asked")
        elif error is None:
            codes = {
                result.transactional_id: {
                    (topic.name, item.partition_index): item.partition_error_code
                    for topic in result.topic_results
                    for item in topic.results_by_partition
                }
                for result in response.results_by_transaction
            }
        for question in questions:
            try:
                self._tell(question, codes.get(question.transactional_id, _NOTHING), error)
            except Exception as failure:
                failures.report(_GOING_ON, failure)

    def _tell(self, question: Question, said: Mapping[Partition, int], error: FastqError | None) -> None:
        answer: Question | None = None
        try:
            if ErrorCode.CONCURRENT_TRANSACTIONS in said.values() and self._ask_again(question):
                return
            question.refused = {
                partition: refusal
                for partition in question.partitions
                if (refusal := _refusal(question, partition, said.get(partition), error)) is not None
            }
            answer = question
        except Exception as failure:  # who waits asks again: nobody else would tell it anything
            failures.report(_GOING_ON, failure)
        question.retry(answer)

    def _ask_again(self, question: Question) -> bool:
        """Ask once more, later, where there is time."""
        delay_s = self._patience.add_partitions_to_txn_retry_backoff_ms / 1000
        if question.wanted is not Operation.ADD or self._loop.time() + delay_s > question.until:
            return False
        self._loop.call_later(delay_s, self._put, question)
        return True

    def _put(self, question: Question) -> None:
        answer: Question | None = None
        try:
            node_id = question.coordinator()
            if node_id >= 0:
                self._queues.put(node_id, question)
                return
            question.refused = _all(question, _nobody(question.transactional_id))
            answer = question
        except Exception as failure:
            failures.report(_GOING_ON, failure)
        question.retry(answer)


def _build(waiting: deque[Question]) -> tuple[AddPartitionsToTxnRequest, list[Question]]:
    """What waits, but what is about an id that is in the request already, of another producer or epoch."""
    taken: list[Question] = []
    keys: dict[str, tuple[int, int, bool]] = {}
    partitions: dict[str, set[Partition]] = {}
    for _ in range(len(waiting)):
        question = waiting.popleft()
        if keys.setdefault(question.transactional_id, question.key) == question.key:
            taken.append(question)
            partitions.setdefault(question.transactional_id, set()).update(question.partitions)
        else:
            waiting.append(question)
    transactions = [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=keys[transactional_id][0],
            producer_epoch=keys[transactional_id][1],
            verify_only=not keys[transactional_id][2],
            topics=_topics(wanted),
        )
        for transactional_id, wanted in partitions.items()
    ]
    return AddPartitionsToTxnRequest(transactions=transactions), taken


def _topics(partitions: set[Partition]) -> list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    return [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
        for topic, indexes in by_topic.items()
    ]


def _refusal(question: Question, partition: Partition, code: int | None, error: FastqError | None) -> KafkaError | None:
    """What a coordinator's answer means for a batch."""
    topic, index = partition
    if error is not None:
        message = f"the coordinator of transactional id {question.transactional_id!r} could not be asked: {error}"
        unasked = error_for_code(ErrorCode.NETWORK_EXCEPTION, message, topic=topic, partition=index)
        return refusal_for(unasked, question.wanted)
    if code == ErrorCode.NONE:
        return None
    if code == ErrorCode.TRANSACTION_ABORTABLE and question.wanted is not Operation.ADD:
        return not_in_transaction(question.transactional_id, partition, question.wanted)
    said = f"the coordinator of transactional id {question.transactional_id!r} says so"
    if code is None:
        code, said = (
            ErrorCode.NETWORK_EXCEPTION,
            f"the answer about transactional id {question.transactional_id!r} is short",
        )
    return refusal_for(error_for_code(code, said, topic=topic, partition=index), question.wanted)


def _nobody(transactional_id: str) -> KafkaError:
    message = f"nobody coordinates transactional id {transactional_id!r} now"
    return error_for_code(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)


def _all(question: Question, error: KafkaError) -> Refusals:
    return dict.fromkeys(question.partitions, refusal_for(error, question.wanted))
