"""What brokers, data and the application do wrong, as the blocking and the asyncio consumer tell it, over real sockets."""

from __future__ import annotations

import asyncio
import itertools
import socket
from typing import Any

import pytest
from consumer_fakes import SocketCluster
from consumer_on_sockets import async_consumer, consumer, fill, in_order

from fastq import AsyncConsumer, Consumer, TopicPartition
from fastq._native.crc32c import crc32c
from fastq.errors import (
    ClientClosed,
    ConnectionRefused,
    CorruptRecord,
    DeserializationError,
    NotAKafkaBroker,
    OffsetOutOfRange,
    ProtocolError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)


def test_leader_changes_are_followed(cluster: SocketCluster) -> None:
    count = fill(cluster)
    with consumer(cluster, "logs", max_partition_fetch_bytes=150) as reader:
        records = list(itertools.islice(reader, 5))
        for log in cluster.logs.values():
            log.leader, log.epoch = 3 - log.leader, log.epoch + 1
        records += reader.read_to_end()
        in_order(records, count)


def test_truncation_by_a_new_leader_is_noticed(cluster: SocketCluster) -> None:
    fill(cluster, partitions=1, batches=3)
    with consumer(cluster, "logs", fetch_max_wait_ms=10) as reader:
        assert len(list(reader.read_to_end())) == 12
        log = cluster.logs[TopicPartition("logs", 0)]
        with cluster.lock:
            del log.entries[2:]
            log.end, log.leader, log.epoch = 8, 3 - log.leader, 1
            log.append([(None, b"other")] * 9)
        assert [record.offset for record in itertools.islice(reader, 2)] == [8, 9]


def test_offset_out_of_range(cluster: SocketCluster) -> None:
    fill(cluster, partitions=1)
    log = cluster.logs[TopicPartition("logs", 0)]
    log.start, log.entries = 8, log.entries[2:]
    with consumer(cluster, "logs") as reader:
        reader.poll(timeout=5)
        reader.seek(("logs", 0), 2)
        assert next(iter(reader)).offset == 8
    with consumer(cluster, auto_offset_reset="none") as reader:
        reader.assign([("logs", 0)])
        with pytest.raises(OffsetOutOfRange, match="seek"):
            reader.poll(timeout=5)
        assert reader.poll(timeout=0.05) == []  # raised once
        reader.seek(("logs", 0), 99)
        with pytest.raises(OffsetOutOfRange, match="offset 99 is not in the log"):
            reader.poll(timeout=5)
        reader.seek(("logs", 0), 9)
        assert reader.poll(timeout=5)[0].offset == 9


def test_corrupt_batch_is_raised_and_passed_by_a_seek(cluster: SocketCluster) -> None:
    fill(cluster, partitions=1)
    log = cluster.logs[TopicPartition("logs", 0)]
    whole = log.entries[1].data
    log.entries[1].data = whole[:-1] + b"!"
    with consumer(cluster, "logs") as reader:
        assert [record.offset for record in reader.poll(timeout=5)] == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(CorruptRecord, match=r"logs-0 at offset 4, fetched from 127.0.0.1.*seek past"):
                reader.poll(timeout=5)
        with pytest.raises(CorruptRecord):
            next(iter(reader))
        reader.seek(("logs", 0), 8)
        assert next(iter(reader)).offset == 8
        reader.seek(("logs", 0), 4)
        log.entries[1].data = whole  # it was the wire, not the disk
        assert next(iter(reader)).offset == 4


def test_a_batch_that_ends_before_it_begins_is_raised_and_not_waited_for(cluster: SocketCluster) -> None:
    fill(cluster, partitions=1)
    log = cluster.logs[TopicPartition("logs", 0)]
    data = bytearray(log.entries[-1].data)
    data[23:27] = (-4).to_bytes(4, "big", signed=True)
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    log.entries[-1].data = bytes(data)
    with consumer(cluster, "logs") as reader:
        before = reader.poll(timeout=5)
        with pytest.raises(CorruptRecord, match=f"logs-0 at offset {len(before)}, .*last offset delta -4"):
            reader.poll(timeout=5)


@pytest.mark.parametrize("batches", [False, True])
def test_batches_that_all_end_before_what_was_asked_for_are_raised_and_not_waited_for(
    cluster: SocketCluster, batches: bool
) -> None:
    """A broker whose index is damaged: it was asked again, for ever, without a word."""
    fill(cluster, partitions=1)
    log = cluster.logs[TopicPartition("logs", 0)]
    read = log.read
    with consumer(cluster, retry_backoff_ms=5) as reader:
        reader.assign([("logs", 0)])
        reader.seek(("logs", 0), 8)
        log.read = lambda offset, bytes_max, rng=None: read(0, 1)  # type: ignore[method-assign]
        poll = reader.poll_batch if batches else reader.poll
        for _ in range(2):
            with pytest.raises(
                CorruptRecord, match=r"logs-0 at offset 8, .*all batches end before the offset asked for"
            ):
                poll(timeout=5)
        log.read = read  # type: ignore[method-assign]
        assert reader.poll(timeout=5)[0].offset == 8


def test_a_deserialization_error_behind_other_records_waits_for_the_next_call(cluster: SocketCluster) -> None:
    for log in cluster.create("logs", 2):
        log.append([(None, b"%d" % log.leader)])
    cluster.logs[TopicPartition("logs", 1)].append([(None, b"5")])

    def second_partition_fails(data: bytes) -> bytes:
        if data == b"2":
            raise ValueError(data)
        return data

    with consumer(cluster, "logs", value_deserializer=second_partition_fails) as reader:
        values, errors = [], 0
        while len(values) < 2:
            try:
                values += [record.value for record in reader.poll(timeout=5)]
            except DeserializationError as error:
                assert (error.partition, error.offset) == (1, 0)
                errors += 1
        assert (sorted(values), errors) == ([b"1", b"5"], 1)


def bad_fifth(data: bytes) -> int:
    if data == b"5":
        raise ValueError("five")
    return int(data)


def test_deserialization_errors_raise_once_and_go_on(cluster: SocketCluster) -> None:
    fill(cluster, partitions=1)
    with consumer(cluster, "logs", key_deserializer="str", value_deserializer=bad_fifth) as reader:
        records = reader.poll(timeout=5)
        assert [record.value for record in records] == [0, 1, 2, 3, 4] and records[0].key == "k"
        assert reader.position(("logs", 0)) == 5
        with pytest.raises(DeserializationError, match=r"the value of logs-0 at offset 5.*five") as caught:
            reader.poll(timeout=5)
        error = caught.value
        assert (error.topic, error.partition, error.offset, error.raw.value) == ("logs", 0, 5, b"5")
        assert reader.position(("logs", 0)) == 6
        assert reader.poll(timeout=5)[0].value == 6
        reader.seek_to_beginning()
        values, errors = [], 0
        while len(values) < 19:
            try:
                for record in reader:
                    values.append(record.value)
                    if len(values) == 19:
                        break
            except DeserializationError:
                errors += 1
        assert values == [n for n in range(20) if n != 5] and errors == 1
        reader.seek_to_beginning()
        assert reader.poll_batch(timeout=5).values[5] == b"5"


@pytest.mark.parametrize(("policy", "sixth"), [("skip", 6), ("raw", b"5")])
def test_deserialization_error_policies(cluster: SocketCluster, policy: str, sixth: object) -> None:
    fill(cluster, partitions=1)
    with consumer(cluster, "logs", value_deserializer=bad_fifth, on_deserialization_error=policy) as reader:
        assert [record.value for record in reader.poll(timeout=5)][5] == sixth
        assert reader.metrics()["skipped_records"] == (policy == "skip")


def test_errors_of_topics(cluster: SocketCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastq.consumer.topic_watch.UNKNOWN_GRACE_S", 0.1)
    with consumer(cluster, "none-such", retry_backoff_ms=10) as reader:
        with pytest.raises(UnknownTopicOrPartition, match="none-such"):
            reader.poll(timeout=5)
        assert reader.poll(timeout=0.2) == []  # once
        assert reader._wakeup_in() is None, "nothing is left to wake up for"
        cluster.create("none-such")[0].append([(None, b"there")])
        assert reader.poll(timeout=5)[0].value == b"there"
    cluster.bad_topics["secret"] = 29
    with consumer(cluster, "secret") as reader, pytest.raises(TopicAuthorizationFailed, match="secret"):
        reader.poll(timeout=5)


def test_a_broker_that_is_not_there_is_raised_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options: Any = {
        "bootstrap_servers": f"127.0.0.1:{port}",
        "default_api_timeout_ms": 200,
        "reconnect_backoff_max_ms": 50,
    }
    with Consumer("logs", **options) as reader:
        assert reader.poll(timeout=0.01) == []
        with pytest.raises(ConnectionRefused, match=f"127.0.0.1:{port}"):
            next(iter(reader))
        with pytest.raises(ConnectionRefused):
            reader.end_offsets([("logs", 0)])


def test_assigned_partitions_that_do_not_exist(cluster: SocketCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastq.consumer.topic_watch.UNKNOWN_GRACE_S", 0.1)
    fill(cluster)
    with consumer(cluster, retry_backoff_ms=10, metadata_max_age_ms=100) as reader:
        reader.assign([("logs", 0), ("logs", 2), ("none-such", 0)])
        errors, records = [], []
        for _ in range(50):
            try:
                records += reader.poll(timeout=0.05)
            except UnknownTopicOrPartition as error:
                errors.append((error.topic, error.partition))
        assert sorted(errors) == [("logs", 2), ("none-such", None)], "each once"
        assert len(records) == 20
        cluster.create("logs", 1)[2].append([(None, b"0")])
        assert reader.poll(timeout=5)[0].partition == 2


def test_a_partition_of_which_others_have_heard_first_is_no_error(cluster: SocketCluster) -> None:
    fill(cluster)
    with consumer(cluster, retry_backoff_ms=10) as reader:
        reader.assign([("logs", 0)])
        assert reader.poll(timeout=5)
        cluster.create("logs", 1)[2].append([(None, b"new")])
        reader.assign([("logs", 2)])  # by metadata that does not have it yet
        assert [record.value for record in reader.poll(timeout=5)] == [b"new"]


def test_offsets_are_not_refused_by_what_the_metadata_said_before(cluster: SocketCluster) -> None:
    fill(cluster)
    tps = [TopicPartition("logs", index) for index in range(3)]
    with consumer(cluster, "logs", retry_backoff_ms=10) as reader:
        cluster.bad_topics["logs"] = 29
        with pytest.raises(TopicAuthorizationFailed):
            reader.poll(timeout=5)
        with pytest.raises(TopicAuthorizationFailed, match="logs"):
            reader.end_offsets(tps[:1])
        del cluster.bad_topics["logs"]  # an access control was added
        assert reader.end_offsets(tps[:2]) == dict.fromkeys(tps[:2], 20)
        with pytest.raises(UnknownTopicOrPartition, match="the topic has 2"):
            reader.end_offsets(tps)
        cluster.create("logs", 1)[2].append([(None, b"new")])
        assert reader.end_offsets(tps) == {tps[0]: 20, tps[1]: 20, tps[2]: 1}


def test_an_error_of_a_partition_is_raised_once(cluster: SocketCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cluster)
    refuse = cluster._refusal
    secret = cluster.logs[TopicPartition("logs", 0)]
    monkeypatch.setattr(cluster, "_refusal", lambda node, log, epoch: 29 if log is secret else refuse(node, log, epoch))
    with consumer(cluster, "logs", retry_backoff_ms=5, retry_backoff_max_ms=10) as reader:
        errors, records = [], []
        for _ in range(20):
            try:
                records += reader.poll(timeout=0.02)
            except TopicAuthorizationFailed as error:
                errors.append(error)
        assert len(errors) == 1 and len(records) == 20
        assert (errors[0].topic, errors[0].partition) == ("logs", 0) and "127.0.0.1" in str(errors[0])
        monkeypatch.undo()
        assert len(reader.poll(timeout=5)) == 20


@pytest.mark.parametrize("api", [1, 2])
def test_rubbish_from_a_broker_is_a_protocol_error_that_names_it(cluster: SocketCluster, api: int) -> None:
    count = fill(cluster)
    with consumer(cluster, "logs", reconnect_backoff_ms=5, retry_backoff_ms=5) as reader:
        cluster.rubbish.add(api)
        with pytest.raises(
            ProtocolError, match=r"(?s)127\.0\.0\.1.*(Fetch|ListOffsets)|(Fetch|ListOffsets).*127\.0\.0\.1"
        ):
            reader.poll(timeout=10)
        cluster.rubbish.clear()
        records: list = []
        while len(records) < count:
            try:
                records += reader.poll(timeout=5)
            except ProtocolError:
                continue  # of the other broker
        in_order(records, count)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_error_of_the_application_at_the_end_keeps_nothing_else_from_it(asynchronous: bool) -> None:
    """A callback that raised when the consumer was closed left those behind it, and the interceptors, without a word of the end."""
    heard: list[object] = []

    class Interceptor:
        def on_consume(self, records: Any) -> Any:
            return records

        def close(self) -> None:
            heard.append("interceptor")

    def callback(offsets: Any, error: Any) -> None:
        (offset,) = (place.offset for place in offsets.values())
        heard.append((offset, type(error)))
        if offset < 7:
            raise LookupError(f"of the application, {offset}")

    options: dict[str, Any] = {
        "bootstrap_servers": "127.0.0.1:1",
        "group_id": "g",
        "enable_auto_commit": False,
        "interceptors": Interceptor(),
    }

    def commit(client: Consumer | AsyncConsumer) -> None:
        client.assign([("logs", 0)])
        for offset in (5, 6, 7):
            client.commit_async({("logs", 0): offset}, callback)

    async def main() -> None:
        client = AsyncConsumer(**options)
        commit(client)
        await client.close(timeout=0)

    def blocking() -> None:
        client = Consumer(**options)
        commit(client)
        client.close(timeout=0)

    with pytest.raises(LookupError, match="of the application"):
        asyncio.run(main()) if asynchronous else blocking()
    assert heard == [(5, ClientClosed), (6, ClientClosed), (7, ClientClosed), "interceptor"]


def test_an_error_that_stays_leaves_the_loop_to_others(cluster: SocketCluster) -> None:
    """A task that tries again at once, whatever poll raises, does not starve the rest of the program."""
    cluster.rubbish.add(18)  # ApiVersions

    async def main() -> None:
        lived = asyncio.Event()
        async with async_consumer(cluster, "a") as consumer:
            with pytest.raises(NotAKafkaBroker):
                await consumer.poll()
            asyncio.get_running_loop().call_soon(lived.set)
            for _ in range(5):
                with pytest.raises(NotAKafkaBroker):
                    await consumer.poll()
            assert lived.is_set()  # before close, which waits

    asyncio.run(main())
