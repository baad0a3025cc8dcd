"""What Prometheus reads of a mirror that runs, and of one whose clusters are gone."""

from __future__ import annotations

import argparse
import time
import urllib.request
from typing import Any

import pytest
from mirrors import WAIT_S, configured, running
from waiting import until

from fastq import Admin, Producer
from fastq.cli.mirror import address
from fastq.errors import ConnectionFailed
from fastq.mirror import ages
from fastq.mirror.config import parse_config
from fastq.mirror.metrics import MirrorExporter
from fastq.mirror.mirror import Mirror
from fastq.mirror.report import MirrorStatus, Watch
from fastq.mirror.source_reader import SourceReader
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each


def read(port: int) -> dict[str, float]:
    """The samples, by name and labels but for the aliases."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.replace('source="A",target="B"', ""): float(value) for name, value in samples}


def test_lag_rates_and_what_a_process_has_done_are_served(new_topic_name: Any) -> None:
    name = new_topic_name()
    gone = [False]

    class Watched(Watch):
        def look(self) -> Any:
            if gone[0]:
                raise ConnectionFailed("nobody is there")
            return super().look()

    soon = {"group.initial.rebalance.delay.ms": 0}
    with Broker(in_memory=True, config=soon) as source, Broker(in_memory=True, config=soon) as target:
        with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic(name, 1)
        with (
            Producer(bootstrap_servers=source.bootstrap_servers) as producer,
            running(configured((source, target), [name], heartbeat_interval_ms=50)) as mirror,
            MirrorExporter(mirror, interval_s=0.1, watch=Watched) as exporter,
        ):
            producer.send_many(name, [b"%d" % i for i in range(10)], partition=0).result()
            port = exporter.serve()
            at = f'{{,topic="{name}",partition="0"}}'
            until(lambda: read(port).get(f"fastq_mirror_next_offset{at}") == 10)
            found = read(port)
            assert found[f"fastq_mirror_lag_records{at}"] == found[f"fastq_mirror_lag_seconds{at}"] == 0
            assert found[f"fastq_mirror_stopped{at}"] == 0 and found["fastq_mirror_look_ok{}"] == 1
            assert found["fastq_mirror_records_total{}"] >= 10 and found["fastq_mirror_transactions_total{}"] >= 1
            until(lambda: read(port)["fastq_mirror_chunks_total{}"] > 0)
            found = read(port)
            assert found["fastq_mirror_bytes_total{}"] >= 10 and found["fastq_mirror_transaction_seconds_total{}"] > 0
            assert 0 < found["fastq_mirror_latency_seconds_total{}"] < WAIT_S * found["fastq_mirror_chunks_total{}"]
            assert found["fastq_mirror_lanes{}"] == 2 and found["fastq_mirror_failed_over{}"] == 0
            assert found["fastq_mirror_failures_total{}"] == found["fastq_mirror_refused_topics{}"] == 0
            until(lambda: "fastq_mirror_heartbeat_age_seconds{}" in read(port))
            gone[0] = True
            until(lambda: read(port)["fastq_mirror_look_ok{}"] == 0)
            assert f"fastq_mirror_lag_records{at}" not in read(port)
            assert read(port)["fastq_mirror_heartbeat_age_seconds{}"] < WAIT_S, (
                "as the target tells it, where that is well"
            )
            gone[0] = False
            until(lambda: read(port)["fastq_mirror_look_ok{}"] == 1)


@pytest.mark.parametrize("knew", [True, False], ids=["looked before", "begun since"])
def test_the_age_of_the_last_heartbeat_is_told_while_nobody_can_look(
    monkeypatch: pytest.MonkeyPatch, knew: bool
) -> None:
    """By the alert on it a source that is gone is noticed: it was left out from the first look on that failed."""
    now, target = [1000.0], [None if knew else 7.0]
    looks = iter([MirrorStatus([], {}, None, 2.0), MirrorStatus([], {}, None, None)] if knew else [])

    class Watched:
        def __init__(self, _: object) -> None:
            pass

        def look(self) -> MirrorStatus:
            found = next(looks, None)
            if found is None:
                raise ConnectionFailed("nobody is there")
            return found

        def close(self) -> None:
            pass

    monkeypatch.setattr("fastq.mirror.metrics.heartbeat_age_s", lambda _: target[0])
    side = {"bootstrap.servers": "127.0.0.1:1"}
    config = parse_config(
        {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}, "mirror": {"topics": ["t"]}}
    )
    exporter = MirrorExporter(Mirror(config), watch=Watched, clock=lambda: now[0])  # type: ignore[arg-type]

    def told() -> tuple[float, float | None]:
        families = {family.name: family.samples for family in exporter.families()}
        age = families.get("fastq_mirror_heartbeat_age_seconds")
        return families["fastq_mirror_look_ok"][0][1], None if age is None else age[0][1]

    assert told() == (0, None)
    exporter.look()
    assert told() == ((1, 2) if knew else (0, 7))
    now[0] += 10
    target[0] = None  # nor does the target answer
    for ok in (1, 0, 0) if knew else (0, 0):
        exporter.look()
        assert told() == (ok, now[0] - 998 if knew else now[0] - 993)
        now[0] += 300


@pytest.mark.parametrize("offsets", ["translated", "same"])
def test_the_age_of_what_lags_is_told_however_much_it_is_and_read_once(
    new_topic_name: Any, monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    name, partitions = new_topic_name(), 12
    fetches: list[int] = []
    fetch = SourceReader.fetch

    def fetched(reader: SourceReader, wanted: Any, *arguments: Any) -> Any:
        found = fetch(reader, wanted, *arguments)
        if {one.bytes_max for one in wanted.values()} == {ages.BATCH_BYTES}:
            fetches.append(sum(answer.records.nbytes for answer in found.values()))  # type: ignore[union-attr]
        return found

    soon = {"group.initial.rebalance.delay.ms": 0}
    with Broker(in_memory=True, config=soon) as source, Broker(in_memory=True, config=soon) as target:
        config = configured((source, target), [name], offsets=offsets)
        with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic(name, partitions)
        settings = {"bootstrap_servers": source.bootstrap_servers, "linger_ms": 0}
        with Producer(settings, batch_bytes_max=200_000, max_request_size=2_000_000) as producer:
            now = int(time.time() * 1000)
            for n in range(partitions):
                producer.send(name, b"copied", partition=n, timestamp_ms=now - 500_000).result()
            with running(config) as mirror:
                until(lambda: mirror.records >= partitions)
            for n in range(partitions):  # batches that are larger than what is asked of each, and more behind them
                for age_ms in (400_000, 1000):
                    value = bytes(150_000) if n % 2 else b"small"
                    producer.send(name, value, partition=n, timestamp_ms=now - age_ms).result()
        monkeypatch.setattr(SourceReader, "fetch", fetched)
        watch = Watch(config)
        try:
            for _ in range(2):
                found = [p for p in watch.look().partitions if p.partition.topic == name]
                assert [p.lag for p in found] == [2] * partitions
                assert all(p.age_s is not None and 400 <= p.age_s < 450 for p in found), found
                assert 0 < len(fetches) <= partitions / 2 + 1, "the small ones came at once, and nothing a second time"
                assert max(fetches) < 400_000, "and of each what is needed"
        finally:
            watch.close()
        monkeypatch.setattr(ages, "WAIT_S", 0.0)  # nothing comes in time
        if offsets == "translated":
            watch = Watch(config)
            try:
                found = [p for p in watch.look().partitions if p.partition.topic == name]
                assert all(p.age_s is not None and 500 <= p.age_s < 550 for p in found), "as old as the last one copied"
            finally:
                watch.close()


def test_an_address_is_a_port_or_a_host_with_it() -> None:
    assert address("9404") == ("127.0.0.1", 9404) and address("0.0.0.0:1") == ("0.0.0.0", 1)
    assert address("[::1]:2") == ("::1", 2)
    for wrong in ("", "x", "host:", "1:65536", "-1"):
        with pytest.raises(argparse.ArgumentTypeError, match="PORT is expected"):
            address(wrong)
