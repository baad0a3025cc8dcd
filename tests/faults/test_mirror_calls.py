"""A mirror that is refused, or hung up on, in each call that it makes, from its first one on, and one between clusters whose leaders go
over to others and are killed: nothing is lost or doubled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from mirrors import configured, running, values_of
from waiting import until

from fastq import Admin, Producer
from fastq.errors import FastqError
from fastq.mirror import lane, pulls, same_lane
from fastq.mirror.config import MirrorConfig
from fastq.mirror.mirror import Mirror
from fastq.mirror.source_reader import SourceReader
from fastq.mirror.target_puller import Outcomes, TargetPuller
from fastq.testing import Broker, Cluster

pytestmark = [pytest.mark.one_node, pytest.mark.slow]  # it is between clusters of its own

WAIT_S = 60.0
OF_BOTH = {
    "Metadata": "LEADER_NOT_AVAILABLE",
    "ListOffsets": "NOT_LEADER_OR_FOLLOWER",
    "Fetch": "KAFKA_STORAGE_ERROR",
    "DescribeConfigs": "UNKNOWN_SERVER_ERROR",
    "OffsetForLeaderEpoch": "NOT_LEADER_OR_FOLLOWER",
    "OffsetFetch": "COORDINATOR_LOAD_IN_PROGRESS",
}
OF_TARGET = {
    "FindCoordinator": "COORDINATOR_NOT_AVAILABLE",
    "JoinGroup": "COORDINATOR_LOAD_IN_PROGRESS",
    "SyncGroup": "REBALANCE_IN_PROGRESS",
    "Heartbeat": "UNKNOWN_MEMBER_ID",
    "CreateTopics": "NOT_CONTROLLER",
    "InitProducerId": "COORDINATOR_LOAD_IN_PROGRESS",
    "AddPartitionsToTxn": "COORDINATOR_NOT_AVAILABLE",
    "Produce": "NOT_LEADER_OR_FOLLOWER",
    "EndTxn": "COORDINATOR_NOT_AVAILABLE",
    "MirrorAppend": "NOT_LEADER_OR_FOLLOWER",
    "MirrorPull": "NOT_LEADER_OR_FOLLOWER",
}
OF_SAME = ("MirrorAppend", "MirrorPull")


def copied(config: MirrorConfig, done: Callable[[], bool], case: str) -> None:
    """Run a mirror until it is done; one that ends with an error is started anew, as whoever looks after it does. Nobody else asks the
    brokers before it has copied something: what is to fail is the mirror's."""
    records = 0
    ended: list[BaseException] = []

    def run(mirror: Mirror) -> None:
        try:
            mirror.run()
        except FastqError as error:
            ended.append(error)

    end = time.monotonic() + WAIT_S
    while True:
        mirror = Mirror(config)
        thread = threading.Thread(target=run, args=(mirror,))
        thread.start()
        try:
            while thread.is_alive() and not (is_done := records + mirror.records > 0 and done()):
                assert time.monotonic() < end, (case, ended)
                time.sleep(0.05)
        finally:
            mirror.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive(), case
        if is_done:
            return
        records += mirror.records


def coordinate_and_lead(target: Cluster, topic: str) -> None:
    """Have the node lead the topic that coordinates the transactions which are written there, if any are: its end is that of both."""
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        for found in admin.describe_transactions(list(admin.list_transactions())).results().values():
            while target.leader(topic).node_id != found.coordinator.node_id:
                target.change_leader(topic)


def pulling(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have a mirror get one batch an answer, and the target asked to fetch the rest by itself; of how many partitions, each time."""
    fetch, pull = SourceReader.fetch, TargetPuller.pull
    asked: list[int] = []

    def counted(puller: TargetPuller, wanted: Any, bytes_max: int) -> Outcomes:
        asked.append(len(wanted))
        return pull(puller, wanted, bytes_max)

    def of_one(reader: SourceReader, wanted: Any, *more: Any) -> Any:
        return fetch(reader, {tp: one._replace(bytes_max=1) for tp, one in wanted.items()}, *more)

    monkeypatch.setattr(SourceReader, "fetch", of_one)
    monkeypatch.setattr(TargetPuller, "pull", counted)
    for name, value in {"MUCH_BYTES": 1, "MORE_BYTES": 1, "SOON_S": 0.0, "AGAIN_S": 0.0, "LATER_S": 0.0}.items():
        monkeypatch.setattr(pulls, name, value)
    return asked


def is_there(target: Broker, own: str, of_own: list[bytes], of_all: list[bytes]) -> bool:
    return values_of(target, f"A.{own}") == of_own and values_of(target, "A.numbers") == of_all


@pytest.mark.parametrize(
    ("offsets", "how"),
    [
        ("translated", "error"),
        ("same", "disconnect"),
        pytest.param("translated", "disconnect", marks=pytest.mark.soak),
        pytest.param("same", "error", marks=pytest.mark.soak),
    ],
)
def test_whatever_call_fails_each_record_arrives_once(monkeypatch: pytest.MonkeyPatch, offsets: str, how: str) -> None:
    monkeypatch.setattr(lane, "RETRY_S", 0.2)
    monkeypatch.setattr(same_lane, "RETRY_S", 0.2)
    quick = {"group.initial.rebalance.delay.ms": 0}
    sent: list[bytes] = []
    is_same = offsets == "same"
    pulled = pulling(monkeypatch) if is_same else []
    with (
        Broker(in_memory=True, config=quick) as source,
        Broker(in_memory=True, config={**quick, "mirror.pull.A.bootstrap.servers": source.bootstrap_servers}) as target,
    ):
        config = configured(
            (source, target), ["numbers.*"], offsets=offsets, lanes=1, heartbeat_interval_ms=50, group_interval_ms=50
        )
        sides = [(source, OF_BOTH), (target, OF_BOTH | OF_TARGET)]
        cases = [(broker, api, error) for broker, apis in sides for api, error in apis.items()]
        with (
            Admin(bootstrap_servers=source.bootstrap_servers) as admin,
            Producer(bootstrap_servers=source.bootstrap_servers) as producer,
        ):
            admin.create_topic("numbers", 1)
            for number, (broker, api, error) in enumerate(cases):
                if not is_same and api in OF_SAME:
                    continue
                case = f"{api} of the {'source' if broker is source else 'target'}"
                topics = [f"numbers{number}", "numbers"]
                admin.create_topic(topics[0], 1)
                values = [b"%d" % number] * (
                    3 if is_same else 1
                )  # each a batch: of the last two the target is asked to pull
                for value in values:
                    for topic in topics:
                        producer.send(topic, value, partition=0).result()
                sent += values
                before = len(pulled)
                if how == "error":
                    broker.fail(api, error=error, times=2)
                else:
                    broker.disconnect(api, times=2)
                copied(config, partial(is_there, target, topics[0], values, sent), case)
                source.clear_faults()
                target.clear_faults()
                assert len(pulled) > before or not is_same, case
            assert values_of(target, "A.numbers") == sent


@pytest.mark.parametrize("offsets", ["translated", "same"])
def test_between_clusters_whose_leaders_change_and_are_killed_each_record_arrives_once(offsets: str) -> None:
    quick = {"group.initial.rebalance.delay.ms": 0}
    with Cluster(3, config=quick) as source, Cluster(3, config=quick) as target:
        config = configured((source, target), ["numbers"], offsets=offsets, lanes=1, replication_factor=3)
        sent = 0

        def more(producer: Producer) -> None:
            nonlocal sent
            numbers = [b"%d" % number for number in range(sent, sent + 30)]
            producer.send_many("numbers", numbers, partition=0).result()
            sent += len(numbers)

        def is_copied() -> bool:
            return values_of(target, "A.numbers") == [b"%d" % number for number in range(sent)]

        with (
            Admin(bootstrap_servers=source.bootstrap_servers) as admin,
            Producer(bootstrap_servers=source.bootstrap_servers) as producer,
        ):
            admin.create_topic("numbers", 1, 3)
            more(producer)
            copied(config, is_copied, "the first")
            steps: list[Callable[[], object]] = [
                lambda: source.change_leader("numbers", 0),
                lambda: target.change_leader("A.numbers", 0),
                lambda: coordinate_and_lead(target, "A.numbers"),
                lambda: source.leader("numbers", 0).kill(),
                lambda: target.leader("A.numbers", 0).kill(),
            ]
            with running(config):
                for step in steps:
                    more(producer)
                    step()
                    more(producer)
                    until(is_copied)
