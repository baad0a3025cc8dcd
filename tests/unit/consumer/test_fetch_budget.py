"""How many requests a fetcher may send while nothing arrives: counted by a virtual clock, against brokers that hold a fetch back as
real ones do, and against some that do not."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from virtual_time import A, B, VirtualTime

from fastq import AsyncConsumer, Consumer, Producer
from fastq.consumer.fetcher import CHUNKS_AHEAD, FETCH_API
from fastq.protocol.messages import FetchResponse
from fastq.testing import Broker


def test_a_drained_partition_beside_a_backlogged_one() -> None:
    time = VirtualTime()
    time.fill(A, 50)
    time.run(1.0)
    assert time.fetcher.partitions[A].buffered_bytes > 0
    assert time.run(10.0) <= 10 * 4  # nothing is taken, nothing arrives
    # The backlogged one is fetched again as soon as it has room, whatever the other one waits for.
    sent = len(time.sent)
    assert time.drain(A) > 0
    time.run(0.001)
    assert time.sent[sent][1] == FETCH_API
    assert time.drain(A) > 0


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_both_consumers_beside_a_broker(
    shared_broker: Broker, make_topic: Callable[..., str], asynchronous: bool, grouped: bool
) -> None:
    """The same, by what their metrics count. A fetch that went out with each answer would come as often as any other round trip does."""
    trips, topic = 1000, make_topic(shared_broker.bootstrap_servers, 2)
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send_many(topic, [bytes(1000)] * 8000, partition=0)
        producer.send_many(topic, [b"drained"], partition=1)
    options: dict[str, Any] = {
        "bootstrap_servers": shared_broker.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "max_partition_fetch_bytes": 100_000,
        **({"group_id": topic} if grouped else {}),
    }

    enough = CHUNKS_AHEAD * 100_000  # is at hand of the backlogged one: it is not asked for more

    def seen(consumer: Any, records: Any) -> bool:
        """Whether the drained partition is, and the other one is not."""
        places = consumer.metrics()["partitions"]
        return len(places) == 2 and places[topic, 1]["position"] == 1 and places[topic, 0]["buffered_bytes"] >= enough

    async def main() -> tuple[int, int]:
        async with AsyncConsumer(topic, **options) as consumer:
            while not seen(consumer, await consumer.poll(max_records=10, timeout=0.1)):
                pass
            before = consumer.metrics()["fetches"]
            for _ in range(trips):
                await consumer.end_offsets([(topic, 1)])
            return before, consumer.metrics()["fetches"]

    def blocking() -> tuple[int, int]:
        with Consumer(topic, **options) as consumer:
            while not seen(consumer, consumer.poll(max_records=10, timeout=0.1)):
                pass
            before = consumer.metrics()["fetches"]
            for _ in range(trips):
                consumer.end_offsets([(topic, 1)])
            return before, consumer.metrics()["fetches"]

    before, after = asyncio.run(main()) if asynchronous else blocking()
    assert before > 0 and after - before < trips / 10


def test_records_of_the_drained_partition_come_soon() -> None:
    time = VirtualTime()
    time.fill(A, 50)
    time.run(5.0)
    time.fill(B, 1)
    time.run(0.51)
    assert time.drain(B) == 1


@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"fetch_max_wait_ms": 0}, {"fetch_min_bytes": 0}, {"fetch_max_wait_ms": 100}], ids=str
)
def test_drained_partitions(options: dict[str, Any], patient: bool) -> None:
    """Also of a broker that answers at once, whatever it is asked."""
    time = VirtualTime(patient=patient, **options)
    time.fill(A, 2)
    time.run(1.0)
    assert time.drain(A) == 2
    assert time.run(10.0) <= 10 * 110


def test_paused_partitions_are_not_fetched() -> None:
    time = VirtualTime()
    time.run(1.0)
    for state in time.fetcher.partitions.values():
        state.paused = True
    time.run(1.0)
    assert time.run(10.0) == 0


def test_an_offset_that_is_refused_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """The end that ListOffsets tells is below the start of the log, as of a last stable offset that retention has passed."""
    time = VirtualTime(auto_offset_reset="latest")
    log = time.logs[0]
    log.start, log.end = 100, 50
    with caplog.at_level(logging.WARNING, "fastq.consumer"):
        assert time.run(60.0) <= 60 * 8
    assert 1 <= sum(record.name.startswith("fastq.consumer") for record in caplog.records) <= 10
    assert "a-0" in caplog.text and "offset 50" in caplog.text
    log.end = 100
    time.run(3.0)
    time.fill(A, 1)
    time.run(1.0)
    assert time.drain(A) == 1


def test_an_offset_refused_once_costs_no_time() -> None:
    time = VirtualTime()
    time.fill(A, 2)
    time.run(1.0)
    time.drain(A)
    time.logs[0].start = time.logs[0].end = 10
    time.fetcher.seek(A, 1)
    time.fill(A, 1)
    time.run(0.5 + 0.01)  # the poll on its way, and no pause
    assert time.drain(A) == 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_whose_brokers_are_gone_is_looked_after_in_moderation(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """What is due to a coordinator that nobody knows waits for one: it was tried again and again, thousands of times a second."""
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("logs", b"1").result(20)
        consumer = Consumer(
            "logs",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            group_protocol=protocol,
            auto_offset_reset="earliest",
        )
        assert consumer.poll(timeout=20)
        turns, step = 0, consumer._step

        def counted() -> None:
            nonlocal turns
            turns += 1
            step()

        monkeypatch.setattr(consumer, "_step", counted)
        broker.kill()
        consumer.poll(timeout=1.5)
        assert turns < 300
        consumer.close(timeout=0)


def test_a_policy_without_an_answer_is_asked_in_moderation() -> None:
    """A broker that knows no end, not even for "latest"."""
    time = VirtualTime(auto_offset_reset="latest")
    time.logs[0].end = -1
    assert time.run(30.0) <= 30 * 8


def test_a_session_that_is_never_known() -> None:
    time = VirtualTime()
    time.run(1.0)
    handle = time.cluster.handle

    def forgetful(node: int, request: Any, version: int) -> Any:
        time.cluster.sessions.clear()
        return (
            FetchResponse(error_code=71, responses=[])
            if request.API_KEY == FETCH_API
            else handle(node, request, version)
        )

    time.cluster.handle = forgetful  # type: ignore[method-assign]
    time.fetcher.seek(A, 0)
    assert time.run(10.0) <= 10 * 8


def test_a_follower_that_is_behind_is_given_up_for_a_while() -> None:
    """The leader sends its readers to a replica which refuses what they ask: not to and fro without end."""
    time = VirtualTime()
    time.fill(A, 3)
    time.cluster.nodes[2] = ("127.0.0.1", 9002)
    time.metadata.update(time.cluster.metadata())
    handle = time.cluster.handle

    def elsewhere(node: int, request: Any, version: int) -> Any:
        response = handle(1, request, version)
        if request.API_KEY == FETCH_API:
            for topic in response.responses:
                for part in topic.partitions:
                    if part.partition_index == 0:
                        part.records, part.error_code = b"", 0 if request.replica_id == -1 and node == 1 else 1
                        part.preferred_read_replica = 2
        return response

    time.cluster.handle = elsewhere  # type: ignore[method-assign]
    original = time._send

    def send(out: Any) -> None:
        node = out.node_id
        time.cluster.handle = lambda _node, request, version: elsewhere(node, request, version)  # type: ignore[method-assign]
        original(out)

    time._send = send  # type: ignore[method-assign]
    assert time.run(20.0) <= 20 * 16


def answered(time: VirtualTime, change: Callable[[FetchResponse], object]) -> None:
    """Have every fetch answered with something else."""
    handle = time.cluster.handle

    def altered(node: int, request: Any, version: int) -> Any:
        response = handle(node, request, version)
        if request.API_KEY == FETCH_API:
            change(response)
        return response

    time.cluster.handle = altered  # type: ignore[method-assign]


def others(response: FetchResponse) -> None:
    for topic in response.responses:
        for part in topic.partitions:
            part.partition_index += 1000


def other_topic(response: FetchResponse) -> None:
    for topic in response.responses:
        topic.topic_id = b"?" * 16


def unknown_replica(response: FetchResponse) -> None:
    for topic in response.responses:
        for part in topic.partitions:
            part.records, part.preferred_read_replica = b"", 77


def nothing(response: FetchResponse) -> None:
    response.responses = []


@pytest.mark.parametrize("change", [others, other_topic, nothing, unknown_replica])
def test_answers_to_what_was_not_asked(change: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a storm of requests nor of lines; what was asked for comes when the broker is in order again."""
    time = VirtualTime()
    time.fill(A, 2)
    handle = time.cluster.handle
    answered(time, change)
    with caplog.at_level(logging.WARNING, "fastq.consumer"):
        assert time.run(30.0) <= 30 * 8
    if change is not unknown_replica:
        assert 1 <= len(caplog.messages) <= 10
        assert "node 1" in caplog.text and "a Fetch answer of" in caplog.text
    time.cluster.handle = handle  # type: ignore[method-assign]
    time.run(3.0)
    assert time.drain(A) == 2


def test_a_partition_that_is_answered_twice_is_taken_once() -> None:
    def twice(response: FetchResponse) -> None:
        for topic in response.responses:
            topic.partitions = topic.partitions * 2

    time = VirtualTime()
    time.fill(A, 2)
    answered(time, twice)
    time.run(1.0)
    assert time.drain(A) == 2
