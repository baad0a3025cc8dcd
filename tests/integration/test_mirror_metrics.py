"""What Prometheus reads of a mirror that runs, and of one whose clusters are gone."""

from __future__ import annotations

import argparse
import urllib.request
from typing import Any

import pytest
from mirrors import configured, running, wait_for

from fastq import Admin, Producer
from fastq.cli.mirror import address
from fastq.errors import ConnectionFailed
from fastq.mirror.metrics import MirrorExporter
from fastq.mirror.report import Watch
from fastq.testing import Broker

pytestmark = pytest.mark.one_node


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
            wait_for(lambda: read(port).get(f"fastq_mirror_next_offset{at}") == 10)
            found = read(port)
            assert found[f"fastq_mirror_lag_records{at}"] == found[f"fastq_mirror_lag_seconds{at}"] == 0
            assert found[f"fastq_mirror_stopped{at}"] == 0 and found["fastq_mirror_look_ok{}"] == 1
            assert found["fastq_mirror_records_total{}"] >= 10 and found["fastq_mirror_transactions_total{}"] >= 1
            assert found["fastq_mirror_lanes{}"] == 2 and found["fastq_mirror_failed_over{}"] == 0
            assert found["fastq_mirror_failures_total{}"] == found["fastq_mirror_refused_topics{}"] == 0
            wait_for(lambda: "fastq_mirror_heartbeat_age_seconds{}" in read(port))
            gone[0] = True
            wait_for(lambda: read(port)["fastq_mirror_look_ok{}"] == 0)
            assert f"fastq_mirror_lag_records{at}" not in read(port)
            gone[0] = False
            wait_for(lambda: read(port)["fastq_mirror_look_ok{}"] == 1)


def test_an_address_is_a_port_or_a_host_with_it() -> None:
    assert address("9404") == ("127.0.0.1", 9404) and address("0.0.0.0:1") == ("0.0.0.0", 1)
    assert address("[::1]:2") == ("::1", 2)
    for wrong in ("", "x", "host:", "1:65536", "-1"):
        with pytest.raises(argparse.ArgumentTypeError, match="PORT is expected"):
            address(wrong)
