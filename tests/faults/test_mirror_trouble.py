"""A mirror whose source or target goes away, comes back, or refuses: it goes on, and nothing is lost or doubled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from fastq import Admin, Consumer, Producer
from fastq.errors import ConfigError, ConnectionFailed
from fastq.mirror import lane, survey
from fastq.mirror.config import MirrorConfig, parse_config
from fastq.mirror.mirror import Mirror
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each

WAIT_S = 60.0
RECORDS = 40


def configured(source: str, target: str) -> MirrorConfig:
    return parse_config(
        {
            "source": {"alias": "A", "bootstrap.servers": source},
            "target": {"alias": "B", "bootstrap.servers": target},
            "mirror": {"topics": ["numbers"], "lanes": 2, "refresh_interval_ms": 200, "transaction_interval_ms": 10},
        }
    )


def committed(target: Broker) -> list[int]:
    settings = {"bootstrap_servers": target.bootstrap_servers, "isolation_level": "read_committed"}
    with Consumer("A.numbers", **settings, auto_offset_reset="earliest") as consumer:
        return [int(record.value or b"") for record in consumer.read_to_end()]


@pytest.mark.slow
def test_it_outlives_brokers_that_go_and_errors_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "RETRY_S", 0.2)
    quick = {"group.initial.rebalance.delay.ms": 0}
    sent = 0
    with Broker(in_memory=True) as source, Broker(in_memory=True, config=quick) as target:
        with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic("numbers", 1)

        def more() -> None:
            nonlocal sent
            with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
                producer.send_many("numbers", [b"%d" % n for n in range(sent, sent + RECORDS)], partition=0)
            sent += RECORDS

        def fail(broker: Broker, api: str, error: str) -> Callable[[], None]:
            def begin() -> None:
                broker.fail(api, error=error, times=2)
                more()

            return begin

        def leave(broker: Broker) -> Callable[[], None]:
            def begin() -> None:
                broker.kill()
                time.sleep(0.5)
                broker.start()
                more()

            return begin

        troubles = {
            "the target refuses records for now": fail(target, "Produce", "NOT_LEADER_OR_FOLLOWER"),
            "the target refuses records": fail(target, "Produce", "INVALID_RECORD"),
            "the target forgets the producer": fail(target, "Produce", "UNKNOWN_PRODUCER_ID"),
            "a commit is refused": fail(target, "EndTxn", "COORDINATOR_NOT_AVAILABLE"),
            "a commit is fenced": fail(target, "EndTxn", "PRODUCER_FENCED"),
            "the source refuses a fetch": fail(source, "Fetch", "NOT_LEADER_OR_FOLLOWER"),
            "the source's disk is broken": fail(source, "Fetch", "KAFKA_STORAGE_ERROR"),
            "the group is lost": fail(target, "Heartbeat", "UNKNOWN_MEMBER_ID"),
            "the source is killed": leave(source),
            "the target is killed": leave(target),
        }
        mirror = Mirror(configured(source.bootstrap_servers, target.bootstrap_servers))
        thread = threading.Thread(target=mirror.run)
        thread.start()
        try:
            more()
            for trouble, begin in {"none": lambda: None, **troubles}.items():
                begin()
                end = time.monotonic() + WAIT_S
                found: list[int] = []
                while len(found) < sent and time.monotonic() < end:
                    time.sleep(0.1)
                    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
                        found = committed(target) if "A.numbers" in admin.list_topics() else []
                assert found == list(range(sent)), trouble
        finally:
            mirror.stop()
            thread.join(WAIT_S)
        assert not thread.is_alive()


def test_one_cluster_in_both_places_is_refused_and_a_cluster_that_is_gone_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survey, "CONNECT_S", 0.5)
    with Broker(in_memory=True) as broker:
        with pytest.raises(ConfigError, match="are one cluster"):
            Mirror(configured(broker.bootstrap_servers, broker.bootstrap_servers)).run()
        gone = broker.bootstrap_servers
    config = configured(gone, gone)
    with pytest.raises(ConnectionFailed, match=gone):
        Mirror(config).run()
