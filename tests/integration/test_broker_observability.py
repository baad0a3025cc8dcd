"""What a running broker tells about itself: metrics, health, structured logs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.errors import MessageTooLarge
from fastq.net.operations import ANY
from fastq.protocol.messages import DescribeClusterRequest
from fastq.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(in_memory=True, metrics=True) as broker:
        yield broker


def get(broker: Broker, path: str) -> str:
    with urllib.request.urlopen(broker.metrics_url + path, timeout=20) as response:
        return str(response.read().decode())


def samples(broker: Broker) -> dict[str, float]:
    """Every sample, its labels in the name."""
    found = {}
    for family in text_string_to_metric_families(get(broker, "/metrics")):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_requests_records_and_connections(broker: Broker) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        Consumer("counted", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer,
    ):
        producer.send("counted", b"x" * 1000, partition=0).result(20)
        assert len(consumer.poll(timeout=20)) == 1
        found = samples(broker)
        assert found["fastq_connections{listener=PLAINTEXT}"] >= 2
    assert found["fastq_partition_high_watermark{partition=0,topic=counted}"] == 1
    assert found["fastq_partition_log_start_offset{partition=0,topic=counted}"] == 0
    assert found["fastq_partition_log_bytes{partition=0,topic=counted}"] > 1000
    assert found["fastq_topic_log_bytes{topic=counted}"] > 1000
    assert found["fastq_partitions{}"] == found["fastq_partitions_led{}"] >= 1
    assert found["fastq_requests_total{api=Produce}"] == found["fastq_request_seconds_count{api=Produce}"] == 1
    assert found["fastq_request_phase_seconds_count{api=Produce,phase=local}"] == 1
    assert found["fastq_request_phase_seconds_count{api=Produce,phase=remote}"] == 0, "it was answered at once"
    assert found["fastq_request_phase_seconds_count{api=Fetch,phase=local}"] >= 1
    topic = "kafka_server_brokertopicmetrics_{}_total{{topic=counted}}"
    assert found[topic.format("messagesin")] == 1
    assert found[topic.format("bytesin")] > 1000 and found[topic.format("bytesout")] > 1000
    assert found["kafka_server_brokertopicmetrics_messagesin_total{}"] >= 1
    assert found[f"fastq_log_dir_space_level{{dir={broker.data_dir}}}"] == 0
    assert found["fastq_request_bytes_total{api=Produce}"] > 1000
    assert found["fastq_response_bytes_total{api=Fetch}"] > 1000
    assert abs(found["process_start_time_seconds{}"] - time.time()) < 600
    assert found["fastq_log_dirs_offline{}"] == 0


def test_long_polls_count_once_they_are_answered(broker: Broker) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        Consumer("polled", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="latest") as consumer,
    ):
        producer.send("polled", b"0", partition=0).result(20)
        consumer.poll(timeout=0.3)
        before = samples(broker)["fastq_requests_total{api=Fetch}"]
        producer.send("polled", b"1", partition=0).result(20)
        deadline = time.monotonic() + 60
        while samples(broker)["fastq_requests_total{api=Fetch}"] <= before:
            assert time.monotonic() < deadline
            consumer.poll(timeout=0.1)
        found = samples(broker)
        assert found["fastq_request_phase_seconds_count{api=Fetch,phase=remote}"] >= 1
        assert found["fastq_loop_lag_seconds_count{}"] >= 1


def test_groups_and_their_lag(broker: Broker) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        for number in range(5):
            producer.send("lagging", b"%d" % number, partition=0).result(20)
        admin.alter_group_offsets("slow", {TopicPartition("lagging", 0): 2}).results()
    found = samples(broker)
    assert found["fastq_group_lag_records{group=slow,topic=lagging}"] == 3
    assert found["fastq_groups{state=Empty}"] == 1


def test_errors_and_faults_are_counted(broker: Broker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=1) as admin:
        assert admin._client.call(ANY, DescribeClusterRequest(endpoint_type=9)).error_code != 0
        broker.disconnect("Metadata")
        admin.list_topics()
        admin.create_topic("small", configs={"max.message.bytes": "100"})
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        pytest.raises(MessageTooLarge),
    ):
        producer.send("small", b"x" * 1000).result(20)
    found = samples(broker)
    assert any(key.startswith("fastq_request_errors_total{api=DescribeCluster") for key in found)
    assert found["fastq_partition_errors_total{api=Produce,error=MESSAGE_TOO_LARGE}"] == 1


def test_health(broker: Broker) -> None:
    assert get(broker, "/health/live") == "live\n"
    assert get(broker, "/health/ready") == "ready\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(broker, "/")
    with pytest.raises(RuntimeError, match="metrics=True"):
        _ = Broker().metrics_url


def test_a_bad_metrics_address() -> None:
    command = [sys.executable, "-m", "fastq_broker", "--listen", "127.0.0.1:0", "--metrics-listen"]
    ended = subprocess.run([*command, "nowhere"], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1) and "it takes HOST:PORT" in ended.stderr


def test_a_metrics_port_in_use(broker: Broker, tmp_path: object) -> None:
    command = [sys.executable, "-m", "fastq_broker", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    address = broker.metrics_url.removeprefix("http://")
    ended = subprocess.run([*command, "--metrics-listen", address], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "the port is in use" in ended.stderr


def test_logs_as_json(tmp_path: object) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fastq_broker",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            f"{tmp_path}/d",
            "--log-format",
            "json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and "ready" in process.stdout.readline()
        process.terminate()
        _, log = process.communicate(timeout=30)
    lines = [json.loads(line) for line in log.splitlines()]
    assert any(line["message"].startswith("formatted ") for line in lines)
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
