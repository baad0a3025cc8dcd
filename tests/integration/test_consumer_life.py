"""Consumers of a group that are kept busy, woken, stopped and killed: what their group sees of it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_lives import CONFIG, PROTOCOLS, SESSION_MS, committed, filled, options
from interruptions import every_place
from under_test import broker_under_test, nodes_of

from fastq import Admin, AsyncConsumer, Consumer, Producer, TopicPartition
from fastq.errors import ForkedClient, MaxPollIntervalExceeded, UnsupportedAssignor, UnsupportedVersion, WakeupError
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.any_nodes


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker | Cluster]:
    """A broker that loses patience soon."""
    with broker_under_test(config=CONFIG, in_memory=True) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, make_topic: Callable[..., str]) -> str:
    return filled(broker, make_topic)


def block(seconds: float) -> None:
    """What a handler that is not asynchronous does to its loop."""
    time.sleep(seconds)


# For more than twice the session, and for a minute.
HELD_S = (2 * SESSION_MS / 1000 + 0.5, pytest.param(60.0, marks=pytest.mark.soak))


@pytest.mark.parametrize("held_s", HELD_S)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_outlives_an_extension_that_holds_the_gil(
    broker: Broker, topic: str, protocol: str, held_s: float
) -> None:
    with Consumer(topic, **options(broker, topic, protocol)) as consumer:
        records = consumer.poll(timeout=20)
        before = consumer.group_metadata()
        ctypes.PyDLL(None).usleep(round(held_s * 1_000_000))  # no Python at all runs in this process meanwhile
        consumer.commit(records)
        assert consumer.poll(timeout=0.2) is not None
        assert consumer.group_metadata() == before
    # A second member comes only now: the first one kept all partitions to the end.
    assert before.generation_id >= 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_asyncio_member_outlives_a_blocked_loop(broker: Broker, topic: str, protocol: str) -> None:
    async def main() -> None:
        async with AsyncConsumer(topic, **options(broker, topic, protocol)) as consumer:
            records = await consumer.poll(timeout=20)
            before = consumer.group_metadata()
            block(SESSION_MS / 1000 * 2)
            await consumer.commit(records)
            assert consumer.group_metadata() == before

    asyncio.run(main())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_handler_that_is_too_slow_is_named(broker: Broker, topic: str, protocol: str) -> None:
    given = options(broker, topic, protocol, max_poll_interval_ms=600, max_poll_records=1)
    with Consumer(topic, **given) as consumer:
        seen = next(consumer_iter := iter(consumer))
        time.sleep(1.5)
        with pytest.raises(MaxPollIntervalExceeded) as caught:
            next(consumer_iter)
        error = caught.value
        assert error.topic == topic
        assert (error.partition, error.offset) == (seen.partition, seen.offset)
        assert error.elapsed_s is not None
        assert "max_poll_interval_ms=600" in str(error)
        assert f"group group-{topic}" in str(error)
        # It goes on as a member again.
        assert consumer.poll(timeout=20)
        assert consumer.group_metadata().generation_id > 0


@pytest.mark.parametrize("how", ["sleeps", "holds the GIL"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_slow_member_still_holds_is_handled_by_its_successor_alone(
    broker: Broker, topic: str, protocol: str, how: str
) -> None:
    """A chunk of many records, and a handler that is too slow in its midst: not one more of it is handed out."""
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(300):
            producer.send(topic, b"%d" % number, partition=0)
    given = options(broker, topic, protocol, max_poll_interval_ms=600)
    handled: dict[tuple[int, int], int] = {}
    with Consumer(topic, **given) as slow, Consumer(topic, **options(broker, topic, protocol)) as other:

        def handle(records: list[Any]) -> None:
            for record in records:
                handled[record.partition, record.offset] = handled.get((record.partition, record.offset), 0) + 1

        iterator = iter(slow)
        for _ in range(15):
            handle([last := next(iterator)])
        if how == "sleeps":
            time.sleep(1.2)
        else:
            ctypes.PyDLL(None).usleep(1_200_000)
        with pytest.raises(MaxPollIntervalExceeded) as caught:
            next(iterator)
        error = caught.value
        assert (error.partition, error.offset) == (last.partition, last.offset)
        end = time.monotonic() + 60
        while len(handled) < 320:
            assert time.monotonic() < end
            handle(other.poll(timeout=0.05))
            handle(slow.poll(timeout=0.05))
    # What it had handled and not committed is read again, and nothing else.
    assert sum(count > 1 for count in handled.values()) <= 15


def test_an_asyncio_member_that_was_too_slow_hands_out_no_more(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with AsyncConsumer(topic, **options(broker, topic, "auto", max_poll_interval_ms=600)) as consumer:
            iterator = aiter(consumer)
            for _ in range(3):
                last = await anext(iterator)
            block(1.2)
            with pytest.raises(MaxPollIntervalExceeded) as caught:
                await anext(iterator)
            assert (caught.value.partition, caught.value.offset) == (last.partition, last.offset)
            for _ in range(2):
                last = await anext(iterator)
            await asyncio.sleep(1.2)
            with pytest.raises(MaxPollIntervalExceeded) as caught:
                await anext(iterator)
            assert (caught.value.partition, caught.value.offset) == (last.partition, last.offset)

    asyncio.run(main())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_records_handed_out_are_signs_of_life(broker: Broker, topic: str, protocol: str) -> None:
    # All records of a partition lie in one chunk: the iterator asks for nothing meanwhile.
    with Consumer(topic, **options(broker, topic, protocol, max_poll_interval_ms=1000)) as consumer:
        records = iter(consumer)
        for _ in range(20):
            next(records)
            time.sleep(0.12)
        assert consumer.group_metadata().generation_id == 1


def test_wakeup_ends_a_wait_from_another_thread(broker: Broker, topic: str) -> None:
    with Consumer(topic, **options(broker, topic, "auto")) as consumer:
        while len(consumer.poll(timeout=5)) == 500:
            pass
        thread = threading.Timer(0.2, consumer.wakeup)
        thread.start()
        with pytest.raises(WakeupError):
            while True:
                consumer.poll(timeout=60)
        thread.join()
        # One that came while nobody waited ends the next wait.
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(timeout=60)
        assert consumer.poll(timeout=0) == []


def test_wakeup_of_an_asyncio_consumer(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with AsyncConsumer(topic, **options(broker, topic, "auto")) as consumer:
            got = 0
            while got < 20:
                got += len(await consumer.poll(timeout=10))
            threading.Timer(0.2, consumer.wakeup).start()
            with pytest.raises(WakeupError):
                await consumer.poll(timeout=60)

    asyncio.run(main())


def test_stop_ends_iterators_after_the_record_in_hand(broker: Broker, topic: str) -> None:
    with Consumer(topic, **options(broker, topic, "auto")) as consumer:
        count = 0
        for _ in consumer:
            count += 1
            if count == 3:
                consumer.stop()
        assert count == 3
        assert consumer.stopping
        assert consumer.poll(timeout=60) == []
    assert sum(committed(broker, topic).values()) == 3


PROGRAM = """
import sys
from fastq import Consumer
consumer = Consumer(sys.argv[1], bootstrap_servers=sys.argv[2], group_id="group-" + sys.argv[1], auto_offset_reset="earliest")
try:
    with consumer, consumer.stop_on_signal(*SIGNALS):
        count = 0
        for record in consumer:
            count += 1
            if count in (1, 20):
                print("got", count, flush=True)
    print("ended", count, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("signals", "number", "last"),
    [("()", signal.SIGTERM, "ended 20"), ("()", signal.SIGINT, "ended 20"), ("(15,)", signal.SIGINT, "interrupted")],
)
def test_signals(broker: Broker, topic: str, signals: str, number: int, last: str) -> None:
    program = PROGRAM.replace("*SIGNALS", f"*{signals}")
    process = subprocess.Popen(
        [sys.executable, "-c", program, topic, broker.bootstrap_servers], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "got 1\n"
        assert process.stdout.readline() == "got 20\n"
        process.send_signal(number)
        assert process.communicate(timeout=30)[0] == f"{last}\n"
    finally:
        process.kill()
        process.wait()
    # It has committed what it was done with (the record in hand, when it was interrupted, it was not), and has left.
    done = sum(committed(broker, topic).values())
    assert done == 20 if last == "ended 20" else done in (19, 20)
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        described = admin.describe_groups([f"group-{topic}"])
    assert not described[f"group-{topic}"].result().members


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_partitions_and_take_over(broker: Broker, topic: str, protocol: str) -> None:
    with Consumer(topic, **options(broker, topic, protocol)) as first:
        first.poll(timeout=20)
        assert len(first.assignment()) == 2
        second = Consumer(topic, **options(broker, topic, protocol))
        end = time.monotonic() + 60
        while not (len(first.assignment()) == 1 and len(second.assignment()) == 1):
            assert time.monotonic() < end
            first.poll(timeout=0.05)
            second.poll(timeout=0.05)
        assert set(first.assignment()) | set(second.assignment()) == {
            TopicPartition(topic, 0),
            TopicPartition(topic, 1),
        }
        second.close()
        while len(first.assignment()) < 2:
            assert time.monotonic() < end
            first.poll(timeout=0.05)


def test_a_static_member_keeps_its_partitions_through_a_restart(broker: Broker, topic: str) -> None:
    given = options(broker, topic, "consumer", group_instance_id="one")
    with Consumer(topic, **given) as consumer:
        consumer.poll(timeout=20)
        epoch = consumer.group_metadata().generation_id
    with Consumer(topic, **given) as consumer:
        end = time.monotonic() + 60
        while not consumer.assignment():
            assert time.monotonic() < end
            consumer.poll(timeout=0.1)
        assert consumer.group_metadata().generation_id == epoch


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_patterns_find_topics_that_come_later(broker: Broker, new_topic_name: Callable[[], str], protocol: str) -> None:
    stem = new_topic_name()
    given = options(broker, stem, protocol, metadata_max_age_ms=300)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(f"{stem}-a", b"1").result(20)
        with Consumer(re.compile(f"{stem}-[ab]"), **given) as consumer:
            assert [record.value for record in consumer.poll(timeout=20)] == [b"1"]
            producer.send(f"{stem}-c", b"no").result(20)
            producer.send(f"{stem}-b", b"2").result(20)
            end = time.monotonic() + 60
            got: list[Any] = []
            while not got:
                assert time.monotonic() < end
                got = [record.value for record in consumer.poll(timeout=0.5)]
            assert got == [b"2"]


def test_auto_falls_back_where_the_cluster_lacks_the_protocol(new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    config = {**CONFIG, "group.coordinator.rebalance.protocols": "classic"}
    with broker_under_test(config=config, in_memory=True) as old:
        with Producer(bootstrap_servers=old.bootstrap_servers) as producer:
            producer.send(name, b"1").result(20)
        with Consumer(name, **options(old, name, "auto")) as consumer:
            assert [record.value for record in consumer.poll(timeout=20)] == [b"1"]
            assert consumer.group_metadata().generation_id == 1
        with Consumer(name, **options(old, name, "consumer", group_id=f"new-{name}")) as refused:
            with pytest.raises(UnsupportedVersion, match="group_protocol='auto'"):
                refused.poll(timeout=20)
            old.stop()
            for node in nodes_of(old):
                del node.config["group.coordinator.rebalance.protocols"]
            old.start()
            with pytest.raises(UnsupportedVersion):
                refused.poll(timeout=20)
            refused.subscribe(name)
            assert [record.value for record in refused.poll(timeout=20)] == [b"1"], "it looks again"


def test_the_coordinator_is_told_which_assignor(broker: Broker, topic: str) -> None:
    with Consumer(topic, **options(broker, topic, "consumer", group_remote_assignor="range")) as consumer:
        assert consumer.poll(timeout=20)
    with (
        Consumer(topic, **options(broker, topic, "consumer", group_remote_assignor="none-such")) as consumer,
        pytest.raises(UnsupportedAssignor),
    ):
        consumer.poll(timeout=20)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_waiting_for_records_is_no_silence(broker: Broker, topic: str, protocol: str) -> None:
    given = options(broker, topic, protocol, max_poll_interval_ms=500)
    with Consumer(topic, **given) as consumer:
        while len(consumer.poll(timeout=0.3)):
            pass
        before = consumer.group_metadata()
        assert consumer.poll(timeout=2) == []
        assert consumer.group_metadata() == before

    async def main() -> None:
        async with AsyncConsumer(topic, **{**given, "group_id": f"{topic}-later"}) as consumer:
            while len(await consumer.poll(timeout=0.3)):
                pass
            before = consumer.group_metadata()
            assert await consumer.poll(timeout=2) == []
            assert consumer.group_metadata() == before

    asyncio.run(main())


def test_a_child_of_a_fork_is_refused_and_harms_nobody(broker: Broker, topic: str) -> None:
    with Consumer(topic, **options(broker, topic, "auto")) as consumer:
        assert consumer.poll(timeout=20)
        before = consumer.group_metadata()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                consumer.poll(timeout=0.1)
            except ForkedClient:
                consumer.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        ctypes.PyDLL(None).usleep(SESSION_MS * 1000 * 2)
        consumer.commit()
        assert consumer.group_metadata() == before


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_a_native_thread_a_python_thread_beats(
    broker: Broker, topic: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with TLS and SASL, and on Windows: a handler that waits, or lets other threads run, keeps its place.
    monkeypatch.setattr("fastq.consumer.group.liveness.supported", lambda: False)
    with Consumer(topic, **options(broker, topic, protocol)) as consumer:
        assert consumer.poll(timeout=20)
        before = consumer.group_metadata()
        time.sleep(SESSION_MS / 1000 * 2)
        consumer.commit()
        assert consumer.group_metadata() == before


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_survives_interrupts_anywhere(broker: Broker, topic: str, protocol: str) -> None:
    """Two interrupts in each call of a loop of poll and commit, at places that wander: nothing is skipped, nothing is handed out twice,
    the member stays one, and another consumer goes on where this one stopped."""
    given = options(broker, topic, protocol, enable_auto_commit=False)
    seen = [0, 0]

    def read(records: list[Any] | None) -> None:
        for record in records or ():
            assert record.offset == seen[record.partition]
            seen[record.partition] += 1

    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer, Consumer(topic, **given) as consumer:
        while not seen[0] or not seen[1]:
            read(consumer.poll(timeout=30))
        member = consumer.group_metadata().member_id
        for count, records in enumerate(every_place(lambda: consumer.poll(max_records=2, timeout=5.0), 9, 5)):
            read(records)
            if count % 2 == 0:
                producer.send(topic, b"more", partition=count // 2 % 2)
        for _ in every_place(lambda: consumer.commit(timeout=10), 9, 5):
            read(consumer.poll(max_records=2, timeout=0))
        read(consumer.poll(timeout=0.5))
        assert consumer.group_metadata().member_id == member
        producer.flush()
        for record in consumer.read_to_end(timeout=30):
            read([record])
        consumer.commit(timeout=30)
        ends = [consumer.position((topic, index)) for index in (0, 1)]
        assert ends == seen
    with Consumer(**given) as consumer:
        found = consumer.committed([(topic, 0), (topic, 1)])
        assert [place and place.offset for place in found.values()] == ends


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_cell_that_is_run_again_replaces_its_consumer(broker: Broker, topic: str, protocol: str) -> None:
    """The one before leaves the group when its name is given to the next one, which has all partitions soon; what the first was done
    with is committed."""
    given = options(broker, topic, protocol)
    consumer = Consumer(topic, **given)
    for count, _ in enumerate(consumer):
        if count == 14:
            break
    consumer = Consumer(topic, **given)  # which joins when it is asked for records
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert not admin.describe_groups([f"group-{topic}"])[f"group-{topic}"].result().members
    rest = 0
    end = time.monotonic() + 60
    while rest < 6 and time.monotonic() < end:
        rest += len(consumer.poll(timeout=0.1))
    assert rest == 6  # the record in hand is read again
    consumer.close()
