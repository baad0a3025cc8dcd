"""The admin client and the command on groups and transactions that librdkafka made."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from waiting import until

from fastq import Admin, TopicPartition
from fastq.admin import OffsetReset
from fastq.cli import main
from fastq.errors import GroupIdNotFound, TransactionalIdNotFound, UnknownMemberId

Make = Callable[..., str]


@pytest.fixture
def admin(servers: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=servers, default_api_timeout_ms=30_000) as admin:
        yield admin


def fill(servers: str, topic: str, records: int, partitions: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for number in range(records):
        producer.produce(topic, str(number), partition=number % partitions, timestamp=1_000_000 + number)
    assert producer.flush(30) == 0


def member(servers: str, group: str, topic: str, protocol: str, **config: str) -> confluent_kafka.Consumer:
    """A consumer that has its partitions."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "tester",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline, "no partitions after 30 s"
        consumer.poll(0.1)
    return consumer


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_life_of_a_group(servers: str, make_topic: Make, admin: Admin, protocol: str) -> None:
    topic, group = make_topic(servers, partitions=2), f"group-{uuid.uuid4().hex[:8]}"
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(servers, topic, 20, 2)
    with pytest.raises(GroupIdNotFound):
        admin.describe_group(group)
    consumer = member(servers, group, topic, protocol, group_instance_id="worker-1")
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 4)], asynchronous=False)
    until(lambda: admin.describe_group(group).state == "Stable")
    described = admin.describe_group(group)
    assert (described.type, described.protocol_type, described.is_active) == (protocol, "consumer", True)
    (only,) = described.members
    assert (only.client_id, only.instance_id, only.assignment) == ("tester", "worker-1", (zero, one))
    assert only.subscribed_topics == (topic,) and described.coordinator.port > 0
    assert admin.list_groups(states=["Stable"], types=[protocol])[group].type == protocol
    assert group not in admin.list_groups(states=["Empty"])
    lags = admin.group_lag(group, [zero, one]).results()
    assert (lags[zero].committed, lags[zero].lag, lags[one].lag) == (4, 6, None)
    with pytest.raises(UnknownMemberId, match="stop them first"):
        admin.reset_group_offsets(group, OffsetReset.to_earliest())
    assert admin.delete_groups([group]).errors[group].name == "NON_EMPTY_GROUP"
    assert admin.delete_group_offsets(group, [zero]).errors[zero].name == "GROUP_SUBSCRIBED_TO_TOPIC"
    consumer.close()
    if protocol == "classic":  # of a static member, close does not leave
        assert not admin.remove_members(group, instance_ids=["worker-1"]).errors
    else:
        admin.remove_members(group, instance_ids=["worker-1"])
    until(lambda: admin.describe_group(group).state == "Empty" or protocol == "consumer")
    if protocol == "consumer":  # the broker keeps a static member for its session's time
        return
    assert {tp: o.offset for tp, o in admin.list_group_offsets(group).results().items() if o} == {zero: 4}
    plan = admin.reset_group_offsets(group, OffsetReset.to_datetime(1_000_013), topics=[topic], dry_run=True)
    assert (plan[zero].after, plan[one].after) == (7, 6)
    admin.reset_group_offsets(group, OffsetReset.shift_by(3))
    assert admin.list_group_offsets(group, [zero]).results()[zero].offset == 7  # type: ignore[union-attr]
    admin.reset_group_offsets(group, OffsetReset.to_offsets({one: 99}))
    assert admin.group_lag(group).results()[one].lag == 0
    admin.delete_group_offsets(group, [zero]).results()
    assert list(admin.list_group_offsets(group)) == [one]
    admin.delete_groups([group]).results()
    with pytest.raises(GroupIdNotFound):
        admin.describe_group(group)
    assert isinstance(admin.delete_groups([group])[group].error, GroupIdNotFound)


def test_members_are_put_out(servers: str, make_topic: Make, admin: Admin) -> None:
    topic, group = make_topic(servers), f"group-{uuid.uuid4().hex[:8]}"
    consumer = member(servers, group, topic, "classic")
    (only,) = admin.describe_group(group).members
    assert list(admin.remove_members(group).results()) == [only.member_id]
    assert all(left.member_id != only.member_id for left in admin.describe_group(group).members)
    assert isinstance(admin.remove_members(group, member_ids=["absent"])["absent"].error, UnknownMemberId)
    consumer.close()


def test_offsets_of_a_group_that_never_had_members(servers: str, make_topic: Make, admin: Admin) -> None:
    topic, group = make_topic(servers, partitions=2), f"group-{uuid.uuid4().hex[:8]}"
    fill(servers, topic, 4, 2)
    admin.alter_group_offsets(group, {TopicPartition(topic, 1): 1}).results()
    described = admin.describe_group(group)
    assert (described.state, described.members) == ("Empty", ())
    plan = admin.reset_group_offsets(group, OffsetReset.to_current(), topics=[topic])
    assert [(change.before, change.after) for change in plan.values()] == [(None, 2), (1, 1)]
    missing = TopicPartition(topic, 9)
    assert admin.list_group_offsets(group, [missing])[missing].value is None


def test_transactions(servers: str, make_topic: Make, admin: Admin) -> None:
    topic, id_ = make_topic(servers, partitions=2), f"tx-{uuid.uuid4().hex[:8]}"
    place = TopicPartition(topic, 0)
    assert isinstance(admin.describe_transactions([id_])[id_].error, TransactionalIdNotFound)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": id_})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "one", partition=0)
    producer.flush(30)
    described = admin.describe_transactions([id_])[id_].result()
    assert (described.state, described.partitions, described.timeout_ms) == ("Ongoing", (place,), 60_000)
    assert described.start_ms is not None and abs(time.time() * 1000 - described.start_ms) < 60_000
    listed = admin.list_transactions(states=["Ongoing"], producer_ids=[described.producer_id])
    assert listed[id_].producer_id == described.producer_id
    assert id_ not in admin.list_transactions(longer_than_ms=3_600_000)
    assert list(admin.list_transactions(id_pattern=f"{id_[:6]}.*{id_[-2:]}")) == [id_]
    with pytest.raises(ValueError, match="Dreaming"):
        admin.list_transactions(states=["Dreaming"])
    (state,) = admin.describe_producers([place])[place].result()
    assert (state.producer_id, state.transaction_start_offset, state.last_sequence) == (described.producer_id, 0, 0)
    assert admin.find_hanging_transactions(topics=[topic]) == []
    assert admin.find_hanging_transactions(topics=[topic], max_transaction_timeout_ms=0) == []
    fenced = admin.fence_producers([id_])[id_].result()
    assert (fenced.producer_id, fenced.producer_epoch > described.producer_epoch) == (described.producer_id, True)
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(30)
    until(lambda: admin.describe_producers([place])[place].result()[0].transaction_start_offset is None)
    assert admin.describe_transactions([id_])[id_].result().start_ms is None


def test_a_transaction_is_aborted_past_its_coordinator(servers: str, make_topic: Make, admin: Admin) -> None:
    topic, id_ = make_topic(servers), f"tx-{uuid.uuid4().hex[:8]}"
    place = TopicPartition(topic, 0)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": id_})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "one", partition=0)
    producer.flush(30)
    with pytest.raises(ValueError, match="begins at offset 7; open ones begin at"):
        admin.abort_open_transaction(place, 7)
    (state,) = admin.describe_producers([place])[place].result()
    assert admin.abort_open_transaction(place, 0).producer_id == state.producer_id
    assert admin.describe_producers([place])[place].result()[0].transaction_start_offset is None


def test_the_commands(
    servers: str, make_topic: Make, admin: Admin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTQ_BOOTSTRAP", servers)
    topic, group = make_topic(servers, partitions=2), f"group-{uuid.uuid4().hex[:8]}"
    fill(servers, topic, 20, 2)

    def rows(*arguments: str) -> list[dict[str, object]]:
        capsys.readouterr()
        assert main([*arguments, "--json"]) == 0
        found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
        return found

    consumer = member(servers, group, topic, "classic")
    assert {row["group"]: row["state"] for row in rows("groups", "list")}[group] == "Stable"
    assert [(row["partition"], row["lag"], row["client"]) for row in rows("groups", "describe", group)] == [
        (0, None, "tester"),
        (1, None, "tester"),
    ]
    assert rows("groups", "describe", group, "--members")[0]["assignment"] == [f"{topic}-0", f"{topic}-1"]
    consumer.close()
    reset = rows("groups", "reset-offsets", group, "--topic", f"{topic}:1", "--to-offset", "4", "--execute")
    assert [(row["before"], row["after"]) for row in reset] == [(None, 4)]
    assert [row["lag"] for row in rows("groups", "describe", group)] == [6]
    assert rows("groups", "describe", group, "--state")[0]["state"] == "Empty"
    id_ = f"tx-{uuid.uuid4().hex[:8]}"
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": id_})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "one", partition=0)
    producer.flush(30)
    (found,) = rows("transactions", "describe", id_)
    assert (found["state"], found["partitions"]) == ("Ongoing", [f"{topic}-0"])
    assert [row["state"] for row in rows("transactions", "list", "--pattern", id_)] == ["Ongoing"]
    assert rows("transactions", "find-hanging", "--topic", topic) == []
    states = rows("producers", "describe", "--topic", f"{topic}:0")
    assert [row["transaction_start"] for row in states if row["producer_id"] == found["producer_id"]] == [10]
    (aborted,) = rows("transactions", "abort", id_)
    assert aborted["producer_id"] == found["producer_id"]
    assert rows("groups", "delete", group) == [{"group": group, "error": None}]
    assert main(["groups", "delete", group]) == 1
    assert "no such group" in capsys.readouterr().err
