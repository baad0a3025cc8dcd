"""Fail-over and fail-back of a mirror with the same offsets: whatever is killed, open, or copied by nobody meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from mirrors import running
from same_mirrors import ends_of, same, stable_end, two_brokers, values, wait_for_same, written
from waiting import until

from fastq import Admin, Producer, TopicPartition
from fastq.admin import ConfigResource, OffsetSpec, Outcome, Outcomes
from fastq.cli import main
from fastq.errors import (
    ConfigError,
    FastqError,
    PolicyViolation,
    RequestTimedOut,
    TransactionalIdAuthorizationFailed,
    TransactionFenced,
)
from fastq.mirror import same_failover
from fastq.mirror.config import MirrorConfig
from fastq.mirror.failover import fail_back, fail_over, reversed_config
from fastq.mirror.lane import opened_producer
from fastq.mirror.names import state_topic
from fastq.mirror.progress import MirrorStopped
from fastq.mirror.report import status
from fastq.mirror.same import MIRROR_SOURCE
from fastq.mirror.source_reader import SourceReader
from fastq.mirror.state import read_state, target_key, target_value
from fastq.mirror.survey import Survey
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with two_brokers() as pair:
        yield pair


def test_fail_over_and_back_with_the_same_numbers(
    brokers: tuple[Broker, Broker], new_topic_name: Any, capsys: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    config = same(brokers, name)
    path = written(config)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 2)
    with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
        for i in range(20):
            producer.send(name, b"%d" % i, partition=i % 2).result()
    with Producer(bootstrap_servers=source.bootstrap_servers, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"never ended", partition=0)
        producer.flush()
        with running(config):
            wait_for_same(config, name, 2)
        assert main(["mirror", "fail-over", "--config", path]) == 0
        assert f"all else that {config.source.alias} has is in {config.target.alias}" in capsys.readouterr().out
        states = [part.state for part in status(config, 0.0).partitions if part.partition.topic == name]
        assert states == ["mirrored"] * 2, "it was called made anew, for its id is not known any more"
        # What was open is aborted: the stable end is the end.
        assert stable_end(config, "target", name) == 13
        assert b"never ended" not in values(config, "target", name, "read_committed")
        with pytest.raises(MirrorStopped), running(config):
            pass
        with Producer(bootstrap_servers=target.bootstrap_servers) as other:
            for i in range(5):
                other.send(name, b"there %d" % i, partition=i % 2).result()
        assert main(["mirror", "fail-over", "--config", path]) == 0, "again: nothing more is to be done"
        assert main(["mirror", "fail-back", "--config", path]) == 0
        assert "partitions prepared" in capsys.readouterr().out
        assert main(["mirror", "fail-back", "--config", path]) == 0
        with Producer(bootstrap_servers=source.bootstrap_servers) as late, pytest.raises(PolicyViolation):
            late.send(name, b"read-only", partition=0).result()
        back = reversed_config(config)
        with running(back):
            wait_for_same(back, name, 2)
    assert main(["mirror", "fail-over", "--reverse", "--config", path]) == 0
    with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
        producer.send(name, b"home", partition=0).result()
    assert main(["mirror", "fail-back", "--reverse", "--config", path]) == 0
    with running(config):
        wait_for_same(config, name, 2)


@pytest.mark.parametrize("step", ["ended", "ends written", "partitions ended"])
def test_a_fail_over_that_is_killed_anywhere_is_done_again(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    source, target = brokers
    name = new_topic_name()
    config = same(brokers, name)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1)
    with Producer(bootstrap_servers=source.bootstrap_servers, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"open", partition=0)
        producer.flush()
        with suppress(MirrorStopped), running(config):  # it may hear of it
            wait_for_same(config, name)

            def killed(*_: Any, **__: Any) -> Any:
                raise KeyboardInterrupt(step)

            with monkeypatch.context() as patched:
                if step == "ended":
                    patched.setattr("fastq.mirror.same_failover._write_ends", killed)
                elif step == "ends written":
                    asked = same_failover._ask_all
                    patched.setattr(same_failover, "_ask_all", lambda *a, **m: killed() if m else asked(*a))
                else:
                    patched.setattr(same_failover, "_write_ends", _then(same_failover._write_ends, patched, killed))
                with pytest.raises(KeyboardInterrupt, match=step):
                    fail_over(config)
            # What was begun stands: nobody writes, the mirror that runs no more than others.
            end = ends_of(config, name)
            with Producer(bootstrap_servers=target.bootstrap_servers) as other, pytest.raises(PolicyViolation):
                other.send(name, b"too early", partition=0).result()
            producer.send(name, b"too late", partition=0)
            producer.flush()
            assert ends_of(config, name) == end
            fail_over(config)
            with Producer(bootstrap_servers=target.bootstrap_servers) as other:
                other.send(name, b"now", partition=0).result()
        assert values(config, "target", name, "read_committed") == [b"now"]
        state = read_state(config.target, state_topic(config.source.alias), range(2))
        assert {tp: end for lane in state.stopped.values() for tp, end in lane.ends.items()} == {
            TopicPartition(name, 0): 1
        }
        producer.abort_transaction()


def test_a_lane_that_begins_anew_does_not_end_the_fail_over(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fences the fail-over off, once, as the fail-over has fenced it."""
    source, target = brokers
    name = new_topic_name()
    config = same(brokers, name)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1)
    with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
        producer.send(name, b"copied", partition=0).result()
    with running(config):
        wait_for_same(config, name)
    begun = []

    def read(side: Any, topic: str, lanes: Any) -> Any:
        if len(begun) < 2:
            begun.extend(lanes)
            with opened_producer(config, begun[-1]) as lane:
                lane.init_transactions()
        return read_state(side, topic, lanes)

    monkeypatch.setattr(same_failover, "read_state", read)
    fail_over(config)
    assert begun == [0, 0]
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        producer.send(name, b"now", partition=0).result()


def _then(first: Any, patched: pytest.MonkeyPatch, killed: Any) -> Any:
    """Do it, and be killed when the partitions have ended: as their topics are to be opened."""

    def done(*arguments: Any) -> None:
        first(*arguments)
        patched.setattr(Admin, "set_configs", killed)

    return done


def test_a_fail_back_over_records_that_nobody_has_copied_is_refused(
    brokers: tuple[Broker, Broker], new_topic_name: Any, capsys: Any
) -> None:
    source, _ = brokers
    name = new_topic_name()
    config = same(brokers, name)
    path = written(config)
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Producer(bootstrap_servers=source.bootstrap_servers) as producer,
    ):
        admin.create_topic(name, 1)
        producer.send(name, b"copied", partition=0).result()
        with running(config):
            wait_for_same(config, name)
        producer.send(name, b"too late", partition=0).result()
        assert main(["mirror", "fail-over", "--config", path]) == 0
        assert main(["mirror", "fail-back", "--config", path]) == 2
        assert f"{name}-0 has the offsets 1 to 1, which {config.target.alias} never had" in capsys.readouterr().err
        producer.send(name, b"still writable", partition=0).result()
        # The way that the hint names.
        admin.delete_topics([name]).results()
    assert main(["mirror", "fail-back", "--config", path]) == 0
    back = reversed_config(config)
    with running(back):
        wait_for_same(back, name)


def test_with_start_latest_a_fail_back_passes_over_nothing_that_was_written_since(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    """Of what the former source has nothing of, and of what is to be deleted there, it began at the end."""
    source, target = brokers
    prefix = new_topic_name()
    quiet, other = f"{prefix}-quiet", f"{prefix}-other"
    config = same(brokers, f"{prefix}-.*", start="latest")
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Producer(bootstrap_servers=source.bootstrap_servers) as producer,
        Producer(bootstrap_servers=target.bootstrap_servers) as there,
    ):
        admin.create_topic(quiet, 1)
        admin.create_topic(other, 1)
        with running(config) as mirror:
            until(lambda: sum(len(lane.counts.lag) for lane in list(mirror.lanes.values())) == 2)
            producer.send(other, b"copied", partition=0).result()
            wait_for_same(config, other)
        producer.send(other, b"too late", partition=0).result()
        fail_over(config)
        for name in (quiet, other):
            there.send(name, b"since", partition=0).result()
        with pytest.raises(ConfigError, match=f"{other}-0 has the offsets 1 to 1"):
            fail_back(config)
        admin.delete_topics([other]).results()
        fail_back(config)
        back = reversed_config(config)
        with running(back):
            for name in (quiet, other):
                wait_for_same(back, name)
        assert [values(config, "source", name, "read_committed") for name in (quiet, other)] == [
            [b"since"],
            [b"copied", b"since"],
        ]


@pytest.mark.parametrize("why", ["refused", "failed", "alias", "replicas", "seed", "back"])
def test_a_fail_back_that_is_not_done_leaves_no_topic_read_only(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any, why: str
) -> None:
    source, _ = brokers
    prefix = new_topic_name()
    bad, fine = f"{prefix}-a", f"{prefix}-b"
    config = same(brokers, f"{prefix}-.*")
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Producer(bootstrap_servers=source.bootstrap_servers) as producer,
    ):
        for name in (bad, fine):
            admin.create_topic(name, 1)
            producer.send(name, b"copied", partition=0).result()
        with running(config):
            wait_for_same(config, bad)
            wait_for_same(config, fine)
        if why in ("refused", "back"):
            producer.send(bad, b"too late", partition=0).result()
        fail_over(config)
        with monkeypatch.context() as patched:
            words = {
                "refused": f"{bad}-0 has the offsets",
                "failed": "no answer",
                "alias": "calls its target otherwise",
                "replicas": "replication factor",
                "seed": "no answer",
                "back": f"{bad}-0 has the offsets",
            }
            if why == "failed":
                patched.setattr(Admin, "describe_producers", _unanswered)
            elif why == "alias":
                with closing(Survey(reversed_config(config))) as survey:
                    survey.prepare()
                state = state_topic(config.target.alias)
                producer.send(state, target_value("otherwise"), target_key(), partition=0).result()
            elif why == "replicas":  # the former source is one node
                config = same(brokers, f"{prefix}-.*", int(config.source.alias[1:]), replication_factor=2)
            elif why == "seed":
                patched.setattr("fastq.mirror.failover._seed", _unanswered)
            elif why == "back":  # the first of them cannot be given back
                set_configs = Admin.set_configs
                cannot = lambda topic, configs: topic.name == bad and configs[MIRROR_SOURCE] is None  # noqa: E731
                patched.setattr(
                    Admin, "set_configs", lambda self, *of: _unanswered() if cannot(*of) else set_configs(self, *of)
                )
            with pytest.raises(FastqError, match=words[why]):
                fail_back(config)
        if why == "back":
            assert f"{bad} stays read-only: no answer" in caplog.text
            admin.set_configs(ConfigResource.topic(bad), {MIRROR_SOURCE: None})
        for name in (bad, fine):
            producer.send(name, b"still writable", partition=0).result()


def _unanswered(*_: Any, **__: Any) -> Any:
    raise RequestTimedOut("no answer")


@pytest.fixture
def left_open(brokers: tuple[Broker, Broker], new_topic_name: Any) -> Iterator[tuple[MirrorConfig, str, Producer]]:
    """A transaction that is open in the former source, and copied, after a fail-over; its producer lives on."""
    source, name = brokers[0].bootstrap_servers, new_topic_name()
    config = same(brokers, name)
    with Admin(bootstrap_servers=source) as admin:
        admin.create_topic(name, 1)
    with Producer(bootstrap_servers=source, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"open")
        producer.flush()
        with running(config):
            wait_for_same(config, name)
        fail_over(config)
        yield config, name, producer


def test_a_transaction_that_is_open_in_the_former_source_cannot_be_committed_after_a_fail_back(
    left_open: tuple[MirrorConfig, str, Producer],
) -> None:
    config, name, producer = left_open
    fail_back(config)
    back = reversed_config(config)
    with running(back):
        with pytest.raises(TransactionFenced):
            # Once the mirror has brought the end: until then Kafka's answer is CONCURRENT_TRANSACTIONS.
            producer.commit_transaction()
        wait_for_same(back, name)
        until(lambda: stable_end(config, "source", name) == stable_end(config, "target", name))
    for side in ("source", "target"):
        assert values(config, side, name, "read_committed") == []
    with Producer(config.source.common, transactional_id=name) as again:
        again.begin_transaction()  # the mirror has brought the end that its coordinator waited for
        again.commit_transaction()


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_ends_while_a_fail_back_looks_keeps_its_end(
    left_open: tuple[MirrorConfig, str, Producer], monkeypatch: Any, commit: bool
) -> None:
    config, name, producer = left_open
    tp, look = TopicPartition(name, 0), same_failover._differences

    def looked(*arguments: Any) -> Any:
        found = look(*arguments)
        producer.commit_transaction() if commit else producer.abort_transaction()
        return found if commit else {tp: "another reason"}

    monkeypatch.setattr(same_failover, "_differences", looked)
    with pytest.raises(ConfigError, match="is being committed" if commit else "another reason"):
        fail_back(config)
    until(lambda: stable_end(config, "source", name) == 2)  # the record, and the marker
    assert values(config, "source", name, "read_committed") == ([b"open"] if commit else [])


@pytest.mark.parametrize("lasts", [False, True])
def test_a_fail_back_that_fails_after_it_has_fenced_can_be_done_again(
    left_open: tuple[MirrorConfig, str, Producer], monkeypatch: pytest.MonkeyPatch, caplog: Any, lasts: bool
) -> None:
    """The end of the transaction was written as soon as the topic was given back, and the target never had it."""
    config, name, _ = left_open
    looks, describe = [0], Admin.describe_producers

    def described(*arguments: Any, **more: Any) -> Any:
        looks[0] += 1
        return _unanswered() if looks[0] == 2 or (lasts and looks[0] > 2) else describe(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Admin, "describe_producers", described)
        patched.setattr(same_failover, "TRIES", 4)
        if lasts:
            with pytest.raises(RequestTimedOut, match="no answer"):
                fail_back(config)
            assert f"{name} stays read-only" in caplog.text
        else:
            fail_back(config)
    fail_back(config)
    back = reversed_config(config)
    with running(back):
        wait_for_same(back, name)
        until(lambda: stable_end(config, "source", name) == stable_end(config, "target", name))


@pytest.mark.parametrize("lasts", [False, True])
def test_a_fail_back_whose_producers_cannot_be_fenced_says_why(
    left_open: tuple[MirrorConfig, str, Producer], monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    """It ended in an AssertionError. Whose transaction goes on has its topic back, unless that may be fenced."""
    config, name, producer = left_open
    error = RequestTimedOut("no answer") if lasts else TransactionalIdAuthorizationFailed("it may not")
    with monkeypatch.context() as patched:
        patched.setattr(same_failover, "TRIES", 3)
        patched.setattr(
            Admin, "fence_producers", lambda _, ids, **__: Outcomes({id_: Outcome(None, error) for id_ in ids})
        )
        with pytest.raises(type(error)):
            fail_back(config)
    if lasts:
        fail_back(config)
        with running(reversed_config(config)):
            until(lambda: stable_end(config, "source", name) == stable_end(config, "target", name))
    else:
        producer.abort_transaction()
        assert stable_end(config, "source", name) == 2  # the record, and the marker


@pytest.mark.parametrize("why", ["refused", "failed"])
def test_a_second_fail_back_that_is_not_done_leaves_what_the_first_has_fenced(
    left_open: tuple[MirrorConfig, str, Producer], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It gave the topic back, the end of the transaction was written into it, and no third one could go on."""
    config, name, _ = left_open
    with monkeypatch.context() as patched:
        patched.setattr("fastq.mirror.failover._seed", _unanswered)
        with pytest.raises(RequestTimedOut, match="no answer"):
            fail_back(config)
    with monkeypatch.context() as patched:
        found = {TopicPartition(name, 0): "another topic's reason"}
        patched.setattr(same_failover, "_differences", (lambda *_: found) if why == "refused" else _unanswered)
        with pytest.raises(FastqError, match=r"another topic's reason|no answer"):
            fail_back(config)
    with Producer(config.source.common) as producer, pytest.raises(PolicyViolation):
        producer.send(name, b"too early", partition=0).result()
    fail_back(config)
    back = reversed_config(config)
    with running(back):
        wait_for_same(back, name)
        until(lambda: stable_end(config, "source", name) == stable_end(config, "target", name))


def test_a_fail_back_that_is_refused_leaves_a_third_clusters_topic_to_its_mirror(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, _ = brokers
    name, third = new_topic_name(), "C/a-cluster/a-topic"
    config = same(brokers, name)
    topic = ConfigResource.topic(name)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1)
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"copied", partition=0).result()
            with running(config):
                wait_for_same(config, name)
            producer.send(name, b"too late", partition=0).result()
        admin.set_configs(topic, {MIRROR_SOURCE: third})
        fail_over(config)
        with pytest.raises(ConfigError, match=f"{name}-0 has the offsets 1 to 1"):
            fail_back(config)
        assert admin.describe_configs([topic])[topic].result()[MIRROR_SOURCE].value == third


@pytest.mark.parametrize("more", ["source", "target"])
def test_a_fail_back_with_partitions_that_one_side_alone_has(
    brokers: tuple[Broker, Broker], new_topic_name: Any, more: str
) -> None:
    source, target = brokers
    name = new_topic_name()
    config = same(brokers, name)
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Admin(bootstrap_servers=target.bootstrap_servers) as there,
    ):
        admin.create_topic(name, 1)
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"copied", partition=0).result()
        with running(config):
            wait_for_same(config, name)
        if more == "source":
            admin.create_partitions({name: 2}).results()
            with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
                producer.send(name, b"never copied", partition=1).result()
        fail_over(config)
        if more == "source":
            with pytest.raises(
                ConfigError, match=f"{name}-1 has the offsets 0 to 0, which {config.target.alias} never"
            ):
                fail_back(config)
            return
        there.create_partitions({name: 2}).results()
        with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
            producer.send(name, b"there alone", partition=1).result()
        fail_back(config)
        back = reversed_config(config)
        with running(back):
            until(lambda: len(admin.describe_topic(name).partitions) == 2)
            wait_for_same(back, name, 2)


def test_a_fail_back_compares_all_partitions_with_a_few_clients(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: Any
) -> None:
    """Three a partition took hours where there are thousands. Batches beyond what is asked for come too, each in a turn of its own."""
    source, target = brokers
    name = new_topic_name()
    config = same(brokers, name)
    made: list[object] = []

    class Counted(SourceReader):
        def __init__(self, side: Any) -> None:
            made.append(side)
            super().__init__(side)

    monkeypatch.setattr(same_failover, "SourceReader", Counted)
    monkeypatch.setattr(same_failover, "BATCH_BYTES", 2000)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 6)  # the last of them stays empty
        for servers, partitions in ((source, range(5)), (target, range(0, 5, 2))):
            with Producer(bootstrap_servers=servers.bootstrap_servers, batch_size=100_000) as producer:
                for partition in partitions:
                    for size in (10, 5000 if partition % 2 else 100):
                        producer.send_many(name, [b"%d" % partition * size], partition=partition)
                        producer.flush()
            if servers is source:
                with running(config):
                    wait_for_same(config, name, 6)
                fail_over(config)
        fail_back(config)
        assert len(made) == 2
        back = reversed_config(config)
        with running(back):
            wait_for_same(back, name, 6)


def test_a_fail_back_that_is_killed_before_it_has_looked_looks_when_it_is_done_again(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, _ = brokers
    name = new_topic_name()
    config = same(brokers, name)
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Producer(bootstrap_servers=source.bootstrap_servers) as producer,
    ):
        admin.create_topic(name, 1)
        producer.send(name, b"copied", partition=0).result()
        with running(config):
            wait_for_same(config, name)
        producer.send(name, b"too late", partition=0).result()
        fail_over(config)
        with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(same_failover, "_differences", killed)
            patched.setattr(same_failover, "_give_back", lambda *_: None)
            fail_back(config)
        with pytest.raises(ConfigError, match=f"{name}-0 has the offsets 1 to 1"):
            fail_back(config)
        producer.send(name, b"still writable", partition=0).result()


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_fail_back_whose_abort_has_been_deleted_leaves_no_transaction_open(
    brokers: tuple[Broker, Broker], left_open: tuple[MirrorConfig, str, Producer]
) -> None:
    config, name, _ = left_open
    tp = TopicPartition(name, 0)
    back = reversed_config(same(brokers, name, int(config.source.alias[1:]), on_gap="continue"))
    there = config.target.common
    with Producer(there) as other, Admin(there) as admin:
        other.send(name, b"gone").result()
        end = admin.list_offsets({tp: OffsetSpec.LATEST})[tp].result().offset
        fail_back(config)
        admin.delete_records({tp: end}).results()
        other.send(name, b"there").result()
        with running(back):
            until(lambda: values(config, "source", name, "read_committed") == [b"there"])
    with Producer(config.source.common, transactional_id=name) as again:
        again.begin_transaction()
        again.commit_transaction()
