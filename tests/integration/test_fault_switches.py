"""The testing kit: clients of three makers meet the faults that a test sets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import OffsetSpec
from fastq.errors import ClusterAuthorizationFailed, ConnectionFailed, PolicyViolation
from fastq.protocol.api import APIS, ApiKey
from fastq.protocol.frames import decode_response, encode_request
from fastq.protocol.messages import FetchRequest, MetadataRequest, ProduceRequest
from fastq.testing import Broker


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker(in_memory=True) as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Iterator[Broker]:
    yield running
    running.clear_faults()


def call(broker: Broker, request: object, version: int) -> object:
    """One request on a connection of its own; what comes back, or None when the connection is closed."""
    with socket.create_connection((broker.host, broker.port), 10) as sock:
        sock.sendall(encode_request(7, "test", request, version))  # type: ignore[arg-type]
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            piece = sock.recv(65536)
            if not piece:
                return None
            data += piece
    correlation_id, response = decode_response(data[4:], request.API_KEY, version)  # type: ignore[attr-defined]
    assert correlation_id == 7
    return response


def test_a_producer_retries_what_fails(broker: Broker) -> None:
    broker.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=3)
    with Producer(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=1) as producer:
        assert producer.send("retried", b"x").result(20).offset == 0
    assert broker.faults_left() == {}
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        place = TopicPartition("retried", 0)
        assert admin.list_offsets({place: OffsetSpec.LATEST})[place].result().offset == 1


def test_librdkafka_meets_them_too(broker: Broker) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "retries": 0})
    producer.produce("peer", "warm")
    assert producer.flush(20) == 0
    broker.fail("Produce", error="POLICY_VIOLATION")
    producer.produce("peer", "x", on_delivery=lambda error, message: failures.append(error.code()))
    assert producer.flush(20) == 0
    assert failures == [confluent_kafka.KafkaError.POLICY_VIOLATION]


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "FETCH_SESSION_ID_NOT_FOUND", "UNKNOWN_LEADER_EPOCH"])
def test_a_consumer_goes_on_after_failed_fetches(broker: Broker, error: str) -> None:
    topic = f"read-{error.lower()}"
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        Consumer(
            topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", retry_backoff_ms=1
        ) as consumer,
    ):
        producer.send(topic, b"0").result(20)
        assert [record.value for record in consumer.poll(timeout=20)] == [b"0"]
        broker.fail("Fetch", error=error, times=2)
        producer.send(topic, b"1").result(20)
        found: list[bytes] = []
        deadline = time.monotonic() + 60
        while (not found or broker.faults_left()) and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(timeout=0.5)]
        assert found == [b"1"] and broker.faults_left() == {}


def test_a_failed_fetch_names_its_partitions(broker: Broker) -> None:
    broker.fail("Fetch", error="OFFSET_OUT_OF_RANGE")
    partition = FetchRequest.FetchPartition(partition=4)
    request = FetchRequest(topics=[FetchRequest.FetchTopic(topic="any", partitions=[partition])])
    response = call(broker, request, 12)
    (topic,) = response.responses  # type: ignore[attr-defined]
    assert (response.error_code, topic.topic) == (0, "any")  # type: ignore[attr-defined]
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [(4, 1)]


def test_admin_requests_fail_without_being_done(broker: Broker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        broker.fail("CreateTopics", error=44)
        with pytest.raises(PolicyViolation):
            admin.create_topic("never")
        assert "never" not in admin.list_topics()
        broker.fail("DescribeConfigs", error="CLUSTER_AUTHORIZATION_FAILED", times=None)
        from fastq.admin import ConfigResource

        resource = ConfigResource.topic("peer")
        for _ in range(3):
            assert isinstance(admin.describe_configs([resource])[resource].error, ClusterAuthorizationFailed)
        assert broker.faults_left() == {"DescribeConfigs": [("fail", None)]}


@pytest.mark.parametrize("version", [13, 9, 0])
def test_reading_apis_answer_with_the_code_and_what_they_know(broker: Broker, version: int) -> None:
    broker.fail("Metadata", error="LEADER_NOT_AVAILABLE")
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="peer")])
    response = call(broker, request, version)
    assert [topic.error_code for topic in response.topics] == [5]  # type: ignore[attr-defined]
    assert [node.port for node in response.brokers] == [broker.port]  # type: ignore[attr-defined]


def test_a_disconnect(broker: Broker) -> None:
    broker.disconnect("Metadata", times=2)
    assert call(broker, MetadataRequest(topics=[]), 12) is None
    with Admin(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=1) as admin:
        assert admin.describe_cluster().nodes
    broker.disconnect("Metadata", times=None)
    with (
        Admin(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=1, retries=2) as admin,
        pytest.raises(ConnectionFailed),
    ):
        admin.describe_cluster(timeout=1)


def test_a_delay(broker: Broker) -> None:
    broker.delay("Metadata", seconds=0.3)
    started = time.monotonic()
    assert call(broker, MetadataRequest(topics=[]), 12).brokers  # type: ignore[attr-defined]
    assert time.monotonic() - started > 0.25  # the loop's timers are a little early at times, never much
    broker.delay("Produce", seconds=0.1)
    broker.delay("Fetch", seconds=0.1, times=2)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("late", b"x").result(20)
    with Consumer("late", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll(timeout=20)] == [b"x"]


def test_a_delayed_request_whose_client_goes(broker: Broker) -> None:
    broker.delay("Metadata", seconds=0.2)
    with socket.create_connection((broker.host, broker.port), 10) as sock:
        sock.sendall(encode_request(7, "test", MetadataRequest(topics=[]), 12))
        deadline = time.monotonic() + 60
        while broker.faults_left() and time.monotonic() < deadline:
            time.sleep(0.01)
    time.sleep(0.3)
    assert broker.running and call(broker, MetadataRequest(topics=[]), 12) is not None


def test_throttle_times(broker: Broker) -> None:
    broker.throttle("Metadata", seconds=0.05)
    assert call(broker, MetadataRequest(topics=[]), 12).throttle_time_ms == 50  # type: ignore[attr-defined]
    broker.throttle("Produce", seconds=0.001)
    broker.throttle("Fetch", seconds=0.001, times=2)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("slowed", b"x").result(20)
    with Consumer("slowed", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll(timeout=20)] == [b"x"]
    assert broker.faults_left() == {}


def test_a_throttled_connection_is_not_heard(broker: Broker) -> None:
    broker.throttle("Metadata", seconds=0.4)
    with socket.create_connection((broker.host, broker.port), 20) as sock:

        def ask(number: int) -> None:
            sock.sendall(encode_request(number, "test", MetadataRequest(topics=[]), 12))

        answers = sock.makefile("rb")

        def answer() -> tuple[int, int]:
            size = int.from_bytes(answers.read(4), "big")
            number, response = decode_response(answers.read(size), MetadataRequest.API_KEY, 12)
            return number, response.throttle_time_ms  # type: ignore[attr-defined]

        ask(1)
        started = time.monotonic()
        assert answer() == (1, 400)
        ask(2)
        ask(3)
        assert call(broker, MetadataRequest(topics=[]), 12).throttle_time_ms == 0  # type: ignore[attr-defined]
        assert (answer(), answer()) == ((2, 0), (3, 0))
        assert time.monotonic() - started > 0.35  # as in test_a_delay
        answers.close()
    assert broker.faults_left() == {}
    # A client that heeds the throttle time notices nothing else.
    broker.throttle("Produce", seconds=0.1, times=2)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(3):
        producer.produce("peer", str(number))
        assert producer.flush(20) == 0


def test_a_consumer_asks_a_broker_that_throttles_it_for_nothing_meanwhile(broker: Broker) -> None:
    settings = {"bootstrap_servers": broker.bootstrap_servers}
    with Producer(settings) as producer, Consumer(settings, auto_offset_reset="earliest") as consumer:
        node_id = producer.send("muted", b"0", partition=0).result(20) and 1
        consumer.assign([TopicPartition("muted", 0)])
        assert [record.value for record in consumer.poll(timeout=20)] == [b"0"]
        broker.throttle("Fetch", seconds=60)
        core = consumer._core
        while core.throttled_until(node_id) <= core.clock():
            consumer.poll(timeout=0.05)
        producer.send("muted", b"1", partition=0).result(20)
        assert not list(consumer.poll(timeout=1.0))
        assert core.in_flight(node_id) == 0 and not core.can_send(node_id)


def test_a_leader_change(broker: Broker) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        producer.send("moving", b"0", partition=0).result(20)
        before = admin.describe_topic("moving").partitions[0].leader_epoch
        assert broker.change_leader("moving") == before + 1
        assert admin.describe_topic("moving").partitions[0].leader_epoch == before + 1
        assert producer.send("moving", b"1", partition=0).result(20).offset == 1
    partition = FetchRequest.FetchPartition(partition=0, current_leader_epoch=before)
    request = FetchRequest(topics=[FetchRequest.FetchTopic(topic="moving", partitions=[partition])])
    assert call(broker, request, 12).responses[0].partitions[0].error_code == 74  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        broker.change_leader("absent")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_groups_meet_them(broker: Broker, protocol: str) -> None:
    """librdkafka joins, heartbeats and commits through what fails, and reads each record."""
    topic, beat = f"grouped-{protocol}", "Heartbeat" if protocol == "classic" else "ConsumerGroupHeartbeat"
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(3):
            producer.send(topic, b"%d" % number, partition=0).result(20)
    broker.fail("FindCoordinator", error="COORDINATOR_NOT_AVAILABLE")
    broker.fail("OffsetCommit", error="COORDINATOR_LOAD_IN_PROGRESS")
    broker.disconnect(beat)
    if protocol == "classic":
        broker.fail("JoinGroup", error="NOT_COORDINATOR")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **({"heartbeat.interval.ms": 100} if protocol == "classic" else {}),
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while (len(found) < 3 or beat in broker.faults_left()) and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
    assert found == [b"0", b"1", b"2"]
    consumer.commit(asynchronous=False)
    consumer.close()
    assert broker.faults_left() == {}
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        place = TopicPartition(topic, 0)
        committed = admin.list_group_offsets(topic)[place].result()
        assert committed is not None and committed.offset == 3


def test_switches_are_used_in_order(broker: Broker) -> None:
    broker.fail("Metadata", error="LEADER_NOT_AVAILABLE")
    broker.throttle("Metadata", seconds=1, times=2)
    assert broker.faults_left() == {"Metadata": [("fail", 1), ("throttle", 2)]}
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="peer")])
    seen = [call(broker, request, 12) for _ in range(4)]
    assert [response.topics[0].error_code for response in seen] == [5, 0, 0, 0]  # type: ignore[attr-defined]
    assert [response.throttle_time_ms for response in seen] == [0, 1000, 1000, 0]  # type: ignore[attr-defined]


def test_without_acknowledgement_a_failed_produce_is_silent(broker: Broker) -> None:
    broker.fail("Produce", error="NOT_LEADER_OR_FOLLOWER")
    with socket.create_connection((broker.host, broker.port), 10) as sock:
        sock.sendall(encode_request(1, "test", ProduceRequest(acks=0), 9))
        sock.sendall(encode_request(2, "test", MetadataRequest(topics=[]), 12))
        assert int.from_bytes(sock.recv(8)[4:], "big") == 2
    assert broker.faults_left() == {}


def test_mistakes_of_a_test(broker: Broker) -> None:
    with pytest.raises(ValueError, match="there is no API 'Prodcue'"):
        broker.fail("Prodcue", error=6)
    with pytest.raises(ValueError, match="there is no error 'NOT_LEADER'"):
        broker.fail("Produce", error="NOT_LEADER")
    with pytest.raises(ValueError, match=r"times .* is 1 or more"):
        broker.disconnect("Produce", times=0)
    with pytest.raises(ValueError, match="seconds is 0 to"):
        broker.delay("Produce", seconds=-1)
    with pytest.raises(RuntimeError, match="does not run"):
        Broker().fail("Produce", error=6)
    assert len(APIS) > 60 and ApiKey.PRODUCE in APIS


def test_a_restart_clears_them_and_memory_is_given_back() -> None:
    with Broker(in_memory=True) as broker:
        directory = broker.data_dir
        broker.fail("Metadata", error=5, times=None)
        broker.restart()
        assert broker.faults_left() == {}
        assert directory.is_dir() and (not os.path.isdir("/dev/shm") or directory.parent.name == "shm")
    assert not directory.exists()


def test_a_broker_ends_with_the_test_that_started_it() -> None:
    script = "import os; from fastq.testing import Broker; b = Broker().start(); print(b.pid, flush=True); os._exit(1)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{int(out)}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the broker still runs")
