"""Transaction operations of the admin client against a small broker that plays coordinators and leaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from admin_fakes import A0, A1, Coordinators, answer_once, limit
from net_fakes import FakeBroker

from fastq.admin import Admin, FencedProducer, HangingTransaction, ProducerState, TransactionListing
from fastq.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from fastq.metadata import TopicPartition
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey

NOW_MS = 1_000_000_000


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.topics = {"a": 2}
        broker.handlers[ApiKey.FIND_COORDINATOR] = Coordinators(broker)
        yield broker


@pytest.fixture
def admin(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    monkeypatch.setattr("fastq.admin.group_admin.clock_ms", lambda: NOW_MS)
    with Admin(bootstrap_servers=broker.address, default_api_timeout_ms=5000, retry_backoff_ms=1) as admin:
        yield admin


def state(producer_id: int, **fields: int) -> m.DescribeProducersResponse.ProducerState:
    values = {"producer_epoch": 3, "coordinator_epoch": 2, "last_timestamp": NOW_MS - 1000, **fields}
    return m.DescribeProducersResponse.ProducerState(producer_id=producer_id, **values)


def serve_producers(broker: FakeBroker, producers: dict[TopicPartition, list[Any]]) -> None:
    def handle(request: Any, version: int) -> Any:
        partition = m.DescribeProducersResponse.PartitionResponse
        return m.DescribeProducersResponse(
            topics=[
                m.DescribeProducersResponse.TopicResponse(
                    name=topic.name,
                    partitions=[
                        partition(
                            partition_index=index, active_producers=producers.get(TopicPartition(topic.name, index), [])
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    broker.handlers[ApiKey.DESCRIBE_PRODUCERS] = handle


def transaction(id_: str, *partitions: int, code: int = 0) -> m.DescribeTransactionsResponse.TransactionState:
    topics = [m.DescribeTransactionsResponse.TopicData(topic="a", partitions=list(partitions))] if partitions else []
    return m.DescribeTransactionsResponse.TransactionState(
        error_code=code, transactional_id=id_, transaction_state="Ongoing", transaction_start_time_ms=-1, topics=topics
    )


def test_list_transactions(broker: FakeBroker, admin: Admin) -> None:
    listed = m.ListTransactionsResponse.TransactionState
    found = [listed(transactional_id=id_, producer_id=4, transaction_state="Ongoing") for id_ in ("y", "x")]
    requests = answer_once(
        broker,
        ApiKey.LIST_TRANSACTIONS,
        m.ListTransactionsResponse(error_code=14),
        m.ListTransactionsResponse(transaction_states=found),
    )
    assert admin.list_transactions(states=["Ongoing"], longer_than_ms=5, id_pattern="x|y") == {
        "x": TransactionListing("x", 4, "Ongoing"),
        "y": TransactionListing("y", 4, "Ongoing"),
    }
    assert (requests[-1].state_filters, requests[-1].duration_filter) == (["Ongoing"], 5)
    assert requests[-1].transactional_id_pattern == "x|y"
    answer_once(broker, ApiKey.LIST_TRANSACTIONS, m.ListTransactionsResponse(unknown_state_filters=["Dreaming"]))
    with pytest.raises(ValueError, match="Dreaming"):
        admin.list_transactions(states=["Dreaming"])


def test_filters_that_a_broker_is_too_old_for(broker: FakeBroker, admin: Admin) -> None:
    limit(broker, ApiKey.LIST_TRANSACTIONS, 0)
    answer_once(broker, ApiKey.LIST_TRANSACTIONS, m.ListTransactionsResponse())
    assert admin.list_transactions(producer_ids=[1]) == {}
    with pytest.raises(UnsupportedVersion, match="ListTransactions"):
        admin.list_transactions(longer_than_ms=5)


def test_describe_transactions(broker: FakeBroker, admin: Admin) -> None:
    answer_once(
        broker,
        ApiKey.DESCRIBE_TRANSACTIONS,
        m.DescribeTransactionsResponse(transaction_states=[transaction("x", code=16), transaction("y", code=14)]),
        m.DescribeTransactionsResponse(transaction_states=[transaction("x", 1, 0), transaction("y", code=105)]),
    )
    outcomes = admin.describe_transactions(["x", "y"])
    found = outcomes["x"].result()
    assert (found.partitions, found.start_ms, found.coordinator.node_id) == ((A0, A1), None, broker.node_id)
    assert isinstance(outcomes["y"].error, TransactionalIdNotFound)
    kinds = {request.key_type for key, _, request in broker.requests if key == ApiKey.FIND_COORDINATOR}
    assert kinds == {1}


def test_producers_are_fenced_once_their_transaction_has_ended(broker: FakeBroker, admin: Admin) -> None:
    requests = answer_once(
        broker,
        ApiKey.INIT_PRODUCER_ID,
        m.InitProducerIdResponse(error_code=51),
        m.InitProducerIdResponse(producer_id=5, producer_epoch=8),
    )
    assert admin.fence_producers(["x"]).results() == {"x": FencedProducer(5, 8)}
    assert [request.transactional_id for request in requests] == ["x", "x"]
    answer_once(broker, ApiKey.INIT_PRODUCER_ID, m.InitProducerIdResponse(error_code=51))
    assert isinstance(admin.fence_producers(["x"], timeout=1.5)["x"].error, ConcurrentTransactions)


def test_producers_and_their_transactions(broker: FakeBroker, admin: Admin) -> None:
    idle = state(9, coordinator_epoch=-1, last_sequence=4)
    serve_producers(broker, {A0: [idle, state(7, current_txn_start_offset=40)]})
    outcomes = admin.describe_producers([A0, A1, TopicPartition("a", 9)])
    assert outcomes[A0].result() == (
        ProducerState(7, 3, -1, NOW_MS - 1000, 2, 40),
        ProducerState(9, 3, 4, NOW_MS - 1000, None, None),
    )
    assert outcomes[A1].result() == () and isinstance(outcomes[TopicPartition("a", 9)].error, UnknownTopicOrPartition)
    assert len(admin.describe_producers([A0], node_id=broker.node_id)[A0].result()) == 2


def test_a_transaction_is_aborted_by_its_first_offset(broker: FakeBroker, admin: Admin) -> None:
    serve_producers(broker, {A0: [state(7, current_txn_start_offset=40)]})
    result = m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult

    def answer(code: int) -> m.WriteTxnMarkersResponse:
        topic = m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
            name="a", partitions=[result(partition_index=0, error_code=code)]
        )
        marker = m.WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=7, topics=[topic])
        return m.WriteTxnMarkersResponse(markers=[marker])

    requests = answer_once(broker, ApiKey.WRITE_TXN_MARKERS, answer(6), answer(0), answer(47))
    assert admin.abort_open_transaction(A0, 40).producer_id == 7
    marker = requests[-1].markers[0]
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, 2)
    assert marker.transaction_result is False and len(requests) == 2
    with pytest.raises(InvalidProducerEpoch, match="producer_id 7"):
        admin.abort_transaction(A0, 7, 2, 2)
    with pytest.raises(ValueError, match=r"a-0 begins at offset 41; open ones begin at \[40\]"):
        admin.abort_open_transaction(A0, 41)


def test_transactions_that_hang(broker: FakeBroker, admin: Admin) -> None:
    old = NOW_MS - 3_600_000
    lost = state(1, current_txn_start_offset=10, last_timestamp=old)
    elsewhere = state(2, current_txn_start_offset=20, last_timestamp=old)
    forgotten = state(3, current_txn_start_offset=30, last_timestamp=old)
    fine = state(4, current_txn_start_offset=40, last_timestamp=old)
    young = state(5, current_txn_start_offset=50)
    serve_producers(broker, {A0: [lost, elsewhere, forgotten, fine, young], A1: [state(6, last_timestamp=old)]})
    listed = m.ListTransactionsResponse.TransactionState
    requests = answer_once(
        broker,
        ApiKey.LIST_TRANSACTIONS,
        m.ListTransactionsResponse(
            transaction_states=[listed(transactional_id=f"t{id_}", producer_id=id_) for id_ in (2, 3, 4)]
        ),
    )
    answer_once(
        broker,
        ApiKey.DESCRIBE_TRANSACTIONS,
        m.DescribeTransactionsResponse(
            transaction_states=[transaction("t2", 1), transaction("t3", code=105), transaction("t4", 0, 1)]
        ),
    )
    found = admin.find_hanging_transactions()
    assert [(hanging.producer.producer_id, hanging.transactional_id) for hanging in found] == [
        (1, None),
        (2, "t2"),
        (3, None),
    ]
    assert isinstance(found[0], HangingTransaction) and found[0].topic_partition == A0
    assert requests[0].producer_id_filters == [1, 2, 3, 4]
    assert admin.find_hanging_transactions(topics=["a"], node_id=99) == []
    assert len(admin.find_hanging_transactions(topics=["a"], node_id=1, max_transaction_timeout_ms=0)) == 4
