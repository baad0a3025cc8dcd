"""What the admin clients do with transactions, written once: operations of `fastq.net.operations`, by the rules of `core.py`.

Rules of this file (KIP-664):
- What concerns a transactional id goes to its coordinator, what concerns a partition's producers to the partition's leader.
- A transaction hangs when a partition has it open for longer than any transaction may take, and the coordinator of its
  producer either knows no such producer or does not count the partition in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fastq.admin.core import (
    Answers,
    _error,
    _group_by_topic,
    _passes,
    _per_leader,
    _unanswered,
    broker_of,
    list_topics,
    look_up_topics,
    per_item,
)
from fastq.admin.groups import for_all_brokers, per_coordinator
from fastq.admin.shown import Shown, ask_all_once
from fastq.admin.transaction_types import (
    TRANSACTION_STATES,
    FencedProducer,
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from fastq.admin.types import Outcomes
from fastq.arguments import int_of
from fastq.errors import FastqError, TransactionalIdNotFound
from fastq.metadata import Node, TopicPartition, partition_of
from fastq.net.operations import Call, Coordinator, Operation, OutOfTime, Retry
from fastq.protocol import messages as m

FENCING_TIMEOUT_MS = 60_000
"""The transaction time-out that a fencing InitProducerId names; no transaction is begun with it."""


def list_transactions(
    states: Sequence[str], producer_ids: Sequence[int], *, longer_than_ms: int | None, id_pattern: str | None
) -> Operation[dict[str, TransactionListing]]:
    """ListTransactions of every broker; the duration takes version 1 (KIP-994), the pattern version 2 (KIP-1152)."""
    responses = yield from for_all_brokers(*_listing_request(states, producer_ids, longer_than_ms, id_pattern))
    return _listed(responses)


def transactions_shown(
    states: Sequence[str], producer_ids: Sequence[int], *, longer_than_ms: int | None, id_pattern: str | None
) -> Operation[Shown[dict[str, TransactionListing]]]:
    """The same of those brokers that answer."""
    told = yield from ask_all_once(*_listing_request(states, producer_ids, longer_than_ms, id_pattern))
    return Shown(_listed(told.found), told.silent)


def _listing_request(
    states: Sequence[str], producer_ids: Sequence[int], longer_than_ms: int | None, id_pattern: str | None
) -> tuple[m.ListTransactionsRequest, tuple[int, int]]:
    request = m.ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if longer_than_ms is None else longer_than_ms,
        transactional_id_pattern=id_pattern,
    )
    return request, (2 if id_pattern is not None else 1 if longer_than_ms is not None else 0, 32767)


def _listed(responses: Sequence[Any]) -> dict[str, TransactionListing]:
    unknown = sorted({state for response in responses for state in response.unknown_state_filters})
    if unknown:
        raise ValueError(
            f"the broker knows no transaction state {', '.join(map(repr, unknown))}; Kafka's are {', '.join(TRANSACTION_STATES)}"
        )
    listings = [
        TransactionListing(t.transactional_id, t.producer_id, t.transaction_state)
        for response in responses
        for t in response.transaction_states
    ]
    return {t.transactional_id: t for t in sorted(listings, key=lambda t: t.transactional_id)}


def describe_transactions(transactional_ids: Sequence[str]) -> Operation[Outcomes[str, TransactionDescription]]:
    """DescribeTransactions; TransactionalIdNotFound for one that does not exist."""
    return per_item(transactional_ids, _describe_once, finds=True)


def _describe_once(transactional_ids: list[str]) -> Operation[Answers[str, TransactionDescription]]:
    def request(left: list[str]) -> m.DescribeTransactionsRequest:
        return m.DescribeTransactionsRequest(transactional_ids=left)

    def read(response: m.DescribeTransactionsResponse, coordinator: Node) -> Answers[str, TransactionDescription]:
        return {
            t.transactional_id: _error(t.error_code, None, transactional_id=t.transactional_id)
            if t.error_code
            else _described(t, coordinator)
            for t in response.transaction_states
        }

    return per_coordinator("transaction", request, read)(transactional_ids)


def _described(t: m.DescribeTransactionsResponse.TransactionState, coordinator: Node) -> TransactionDescription:
    return TransactionDescription(
        t.transactional_id,
        t.transaction_state,
        t.producer_id,
        t.producer_epoch,
        t.transaction_timeout_ms,
        t.transaction_start_time_ms if t.transaction_start_time_ms >= 0 else None,
        tuple(sorted(TopicPartition(topic.topic, index) for topic in t.topics for index in topic.partitions)),
        coordinator,
    )


def fence_producers(transactional_ids: Sequence[str]) -> Operation[Outcomes[str, FencedProducer]]:
    """InitProducerId for others: ends what each has open, and refuses its present producer from then on (KIP-588)."""

    def send(left: list[str]) -> Operation[Answers[str, FencedProducer]]:
        responses = yield [Call(Coordinator("transaction", id_), _fencing_request(id_)) for id_ in left]
        answers: dict[str, FencedProducer | FastqError] = {}
        for id_, response in zip(left, responses, strict=True):
            if isinstance(response, FastqError):
                answers[id_] = response
            elif response.error_code:
                answers[id_] = _error(response.error_code, None, transactional_id=id_)
            else:
                answers[id_] = FencedProducer(response.producer_id, response.producer_epoch)
        return answers

    return per_item(transactional_ids, send)


def _fencing_request(transactional_id: str) -> m.InitProducerIdRequest:
    return m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=FENCING_TIMEOUT_MS)


def describe_producers(
    partitions: Sequence[TopicPartition], node_id: int | None
) -> Operation[Outcomes[TopicPartition, tuple[ProducerState, ...]]]:
    """DescribeProducers of partitions' leaders, or of one broker that has copies of them."""
    wanted = [partition_of(tp) for tp in partitions]
    return per_item(wanted, _producers_once(node_id), finds=node_id is None)


def _producers_once(
    node_id: int | None,
) -> Callable[[list[TopicPartition]], Operation[Answers[TopicPartition, tuple[ProducerState, ...]]]]:
    def request(left: Iterable[TopicPartition]) -> m.DescribeProducersRequest:
        topic = m.DescribeProducersRequest.TopicRequest
        return m.DescribeProducersRequest(
            topics=[topic(name=name, partition_indexes=indexes) for name, indexes in _group_by_topic(left).items()]
        )

    def read(response: m.DescribeProducersResponse) -> Answers[TopicPartition, tuple[ProducerState, ...]]:
        return {
            TopicPartition(topic.name, p.partition_index): _error(
                p.error_code, p.error_message, topic=topic.name, partition=p.partition_index
            )
            if p.error_code
            else tuple(_producer(state) for state in sorted(p.active_producers, key=lambda state: state.producer_id))
            for topic in response.topics
            for p in topic.partitions
        }

    def of_node(left: list[TopicPartition]) -> Operation[Answers[TopicPartition, tuple[ProducerState, ...]]]:
        assert node_id is not None
        response = yield Call(broker_of(node_id), request(left))
        return read(response)

    return _per_leader(request, read) if node_id is None else of_node


def _producer(state: m.DescribeProducersResponse.ProducerState) -> ProducerState:
    return ProducerState(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch if state.coordinator_epoch >= 0 else None,
        state.current_txn_start_offset if state.current_txn_start_offset >= 0 else None,
    )


def abort_transaction(
    partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> Operation[None]:
    """Write an abort marker into one partition, as a coordinator would: for transactions that no coordinator knows."""
    partition = partition_of(partition)

    def request(left: list[TopicPartition]) -> m.WriteTxnMarkersRequest:
        topic = m.WriteTxnMarkersRequest.WritableTxnMarkerTopic
        marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            coordinator_epoch=coordinator_epoch,
            topics=[topic(name=name, partition_indexes=indexes) for name, indexes in _group_by_topic(left).items()],
        )
        return m.WriteTxnMarkersRequest(markers=[marker])

    def read(response: m.WriteTxnMarkersResponse) -> Answers[TopicPartition, None]:
        return {
            TopicPartition(topic.name, p.partition_index): _error(
                p.error_code,
                None,
                topic=topic.name,
                partition=p.partition_index,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )
            if p.error_code
            else None
            for marker in response.markers
            for topic in marker.topics
            for p in topic.partitions
        }

    outcomes: Outcomes[TopicPartition, None] = yield from per_item([partition], _per_leader(request, read), finds=True)
    outcomes[partition].result()


def find_open_transaction(partition: TopicPartition, start_offset: int) -> Operation[ProducerState]:
    """The producer whose transaction began at an offset of a partition; ValueError when there is none."""
    partition = partition_of(partition)
    found = yield from describe_producers([partition], None)
    producers = found[partition].result()
    for producer in producers:
        if producer.transaction_start_offset == start_offset:
            return producer
    open_at = sorted(p.transaction_start_offset for p in producers if p.transaction_start_offset is not None)
    raise ValueError(
        f"no open transaction of {partition} begins at offset {start_offset}; open ones begin at {open_at or 'none'}"
    )


def abort_open_transaction(partition: TopicPartition, start_offset: int) -> Operation[ProducerState]:
    """Abort the transaction that began at an offset of a partition; the producer that it was of."""
    producer = yield from find_open_transaction(partition, start_offset)
    # Before any marker of this producer was written there, the partition has no coordinator's epoch to compare with.
    epoch = producer.coordinator_epoch if producer.coordinator_epoch is not None else 0
    yield from abort_transaction(partition, producer.producer_id, producer.producer_epoch, epoch)
    return producer


def find_hanging_transactions(
    topics: Sequence[str] | None, node_id: int | None, *, max_timeout_ms: int, clock_ms: Callable[[], int]
) -> Operation[list[HangingTransaction]]:
    """Transactions that are open in partitions though no coordinator counts them as such. Raises the first error of a partition that
    stays, as it may have some."""
    looked = yield from hanging_shown(topics, node_id, max_timeout_ms=max_timeout_ms, clock_ms=clock_ms)
    hanging = list(looked.hanging)
    while looked.unknown:
        errors = list(looked.unknown.values())
        lasting = [error for error in errors if not _passes(error, finds=True)]
        if lasting or not (yield Retry(errors[0])):
            raise (lasting or errors)[0]
        looked = yield from _look_for_hanging(list(looked.unknown), node_id, clock_ms() - max_timeout_ms)
        hanging += looked.hanging
    return sorted(hanging, key=lambda each: (each.topic_partition, each.producer.producer_id))


class HangingShown(NamedTuple):
    """What hangs, and the partitions of which nobody tells whether something does, with why."""

    hanging: list[HangingTransaction]
    unknown: dict[TopicPartition, FastqError]


def hanging_shown(
    topics: Sequence[str] | None, node_id: int | None, *, max_timeout_ms: int, clock_ms: Callable[[], int]
) -> Operation[HangingShown]:
    """The same by one try of each that is to be asked."""
    int_of(max_timeout_ms, "the longest that a transaction may take, in ms", 0)
    partitions = yield from _partitions_of(topics, node_id)
    return (yield from _look_for_hanging(partitions, node_id, clock_ms() - max_timeout_ms))


def _look_for_hanging(partitions: list[TopicPartition], node_id: int | None, oldest_ms: int) -> Operation[HangingShown]:
    if not partitions:
        return HangingShown([], {})
    told = yield from _producers_once(node_id)(partitions)
    answers = {tp: told.get(tp, _unanswered(tp)) for tp in partitions}
    unknown = {tp: answer for tp, answer in answers.items() if isinstance(answer, FastqError)}
    suspects = [
        (tp, producer)
        for tp, producers in answers.items()
        if not isinstance(producers, FastqError)
        for producer in producers
        if producer.transaction_start_offset is not None and producer.last_timestamp_ms <= oldest_ms
    ]
    if not suspects:
        return HangingShown([], unknown)
    producer_ids = sorted({producer.producer_id for _, producer in suspects})
    try:
        listed = yield from transactions_shown((), producer_ids, longer_than_ms=None, id_pattern=None)
        ids = {listing.producer_id: listing.transactional_id for listing in listed.found.values()}
        known = (yield from _describe_once(sorted(ids.values()))) if ids else {}
    except (FastqError, OutOfTime) as failed:  # of those that are silent more is known than of these
        error = failed.error if isinstance(failed, OutOfTime) else failed
        return HangingShown([], {tp: unknown.get(tp, error) for tp in [*unknown, *(tp for tp, _ in suspects)]})
    hanging = []
    for tp, producer in suspects:
        id_ = ids.get(producer.producer_id)
        answer = None if id_ is None else known.get(id_, _unanswered(id_))
        if id_ is None and listed.silent:  # it may be one of theirs
            unknown[tp] = next(iter(listed.silent.values()))
        elif id_ is None or isinstance(answer, TransactionalIdNotFound):
            hanging.append(HangingTransaction(tp, producer, None))
        elif isinstance(answer, FastqError):
            unknown[tp] = answer
        elif answer is not None and tp not in answer.partitions:
            hanging.append(HangingTransaction(tp, producer, id_))
    # A partition is looked at anew as a whole.
    return HangingShown([each for each in hanging if each.topic_partition not in unknown], unknown)


def _partitions_of(topics: Sequence[str] | None, node_id: int | None) -> Operation[list[TopicPartition]]:
    """The partitions of topics (None: all), or those of them that a broker leads."""
    names = list((yield from list_topics(include_internal=True)) if topics is None else topics)
    described = yield from look_up_topics(names)
    return [
        TopicPartition(name, part.index)
        for name, topic in described.results().items()
        for part in topic.partitions
        if node_id is None or (part.leader is not None and part.leader.node_id == node_id)
    ]
