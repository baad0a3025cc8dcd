"""Transactions against a coordinator in memory: what is committed is seen once and in order, what is aborted is not."""

from itertools import cycle
from random import Random

import pytest
from fake_coordinator import CONCURRENT, LOADING, NOT_AVAILABLE, NOT_COORDINATOR, TransactionCore, transactional_id_of
from transaction_bench import ADD_PARTITIONS, END, GROUP, Bench, calls_since, visible

from fastq import Producer
from fastq.errors import (
    AbortableTransactionError,
    DeliveryTimeout,
    InvalidTimestamp,
    TransactionAborted,
    error_for_code,
)
from fastq.metadata import OffsetAndMetadata, TopicPartition
from fastq.producer.transaction_calls import offsets_to_send
from fastq.producer.transaction_hold import HOLD_MAX_S, HOLD_STEP_S, Hold
from fastq.producer.transaction_states import State
from fastq.protocol.api import ApiKey


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_is_seen_when_it_is_committed(version):
    core = TransactionCore(transaction_version=version)
    bench = Bench(core)
    bench.begin()
    delivery = bench.send("t", b"a")
    bench.deliver()
    assert delivery.result().offset == 0
    assert core.logs["t", 0].visible() == []
    bench.commit()
    assert visible(core) == {0: [b"a"]}
    assert bench.transactions.state is State.READY


@pytest.mark.parametrize("version", [1, 2])
def test_an_aborted_transaction_is_never_seen(version):
    core = TransactionCore(transaction_version=version)
    bench = Bench(core)
    bench.begin()
    sent = bench.send("t", b"sent")
    bench.deliver()
    waiting = bench.send("t", b"waiting")
    bench.abort()
    assert sent.result().offset == 0
    with pytest.raises(TransactionAborted, match=r"aborted.*id-1.*topic t.*partition 0"):
        waiting.result()
    bench.begin()
    bench.send("t", b"next")
    bench.commit()
    assert visible(core) == {0: [b"next"]}
    assert bench.accumulator.pool.used_bytes == 0


def test_what_kept_an_aborted_transaction_from_its_partition_is_forgotten_with_it():
    core = TransactionCore()
    bench = Bench(core)
    core.leaders["t", 0] = -1
    core.publish()
    bench.begin()
    waiting = bench.send("t", b"waiting")
    bench.accumulator.close_all()
    for _ in range(3):
        bench.turn()
    assert "has no leader" in str(bench.sender.why())
    bench.abort()
    assert isinstance(waiting.exception(), TransactionAborted)
    assert bench.sender.why() is None


def test_version_2_takes_two_requests_a_transaction():
    core = TransactionCore(marker_delay=0)
    bench = Bench(core)
    bench.begin()
    bench.send("t", b"0")
    bench.commit()
    visible(core)
    mark = len(core.calls)
    bench.begin()
    bench.send("t", b"1")
    bench.commit()
    assert core.calls[mark:] == [(ApiKey.PRODUCE, 13), (END, 5)]


def test_version_2_with_offsets_has_both_under_way_at_once():
    core = TransactionCore(marker_delay=0, nodes=1)
    bench = Bench(core)
    for _ in range(2):
        bench.begin()
        bench.send("t", b"x")
        bench.transactions.add_offsets(GROUP, {TopicPartition("in", 0): OffsetAndMetadata(7)})
        bench.transactions.begin_commit()
        mark = len(core.calls)
        bench.sender.run(core.now)
        under_way = core.in_flight(0)
        bench.settle()
        visible(core)
    assert under_way == 2
    assert sorted(calls_since(core, mark)) == [ApiKey.PRODUCE, END, ApiKey.TXN_OFFSET_COMMIT]
    assert calls_since(core, mark)[-1] == END


def test_version_1_adds_before_it_sends_and_keeps_its_epoch():
    core = TransactionCore(transaction_version=1, topics={"t": 2})
    bench = Bench(core)
    bench.begin()
    mark = len(core.calls)
    for index in (0, 1):
        bench.send("t", b"x", partition=index)
    bench.commit()
    assert core.calls[mark][0] == ADD_PARTITIONS
    assert calls_since(core, mark).count(ADD_PARTITIONS) == 1
    assert max(version for api, version in core.calls if api == ApiKey.PRODUCE) <= 11
    assert (END, 4) in core.calls
    epoch = bench.sender.identity.epoch
    bench.begin()
    bench.send("t", b"y", partition=1)
    bench.commit()
    assert bench.sender.identity.epoch == epoch
    assert bench.accumulator.topic("t").partitions[1].next_sequence == 2


def test_version_2_starts_each_transaction_at_sequence_0_of_a_new_epoch():
    core = TransactionCore()
    bench = Bench(core)
    epochs = []
    for _ in range(3):
        bench.begin()
        epochs.append(bench.sender.identity.epoch)
        bench.send("t", b"x")
        bench.commit()
        assert bench.accumulator.topic("t").partitions[0].next_sequence == 1
    assert epochs == [0, 1, 2]


def test_many_batches_of_a_new_epoch_go_out_together_under_version_2():
    core = TransactionCore()
    bench = Bench(core)
    bench.begin()
    for _ in range(5):
        bench.send("t", bytes(400))
    bench.accumulator.close_all()
    bench.sender.run(core.now)
    assert len(bench.accumulator.topic("t").partitions[0].in_flight) == 5
    bench.commit()
    assert len(visible(core)[0]) == 5


def test_the_requests_name_the_transactional_id():
    core = TransactionCore()
    bench = Bench(core, transactional_id="billing-7")
    seen, produce = [], core._produce
    core._produce = lambda node, encoded: (seen.append(transactional_id_of(encoded)), produce(node, encoded))[1]
    bench.begin()
    bench.send("t", b"x")
    bench.commit()
    assert seen == ["billing-7"]


def test_an_empty_transaction_asks_nobody():
    core = TransactionCore()
    bench = Bench(core)
    bench.begin()
    mark = len(core.calls)
    bench.commit()
    bench.begin()
    bench.abort()
    assert core.calls[mark:] == []
    assert (bench.transactions.committed_total, bench.transactions.aborted_total) == (1, 1)


# -- trouble


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", range(25))
def test_exactly_once_through_a_lossy_network_and_moving_coordinators(seed, version):
    """Transactions that are done again until they are committed: everything of them once and in order, nothing of others."""
    core = TransactionCore(seed, transaction_version=version, topics={"t": 3}, nodes=3, trouble=0.1)
    bench = Bench(core)
    random = Random(seed)
    expected = {index: [] for index in range(3)}
    offset, aborted = 0, 0
    for number in range(40):
        while True:
            bench.begin()
            sent = {index: [] for index in range(3)}
            for i in range(random.randrange(40)):
                index = random.randrange(3)
                value = b"%d-%d-%d" % (number, i, aborted) + bytes(random.randrange(60))
                sent[index].append(value)
                try:
                    bench.send("t", value, partition=index)
                except AbortableTransactionError:
                    break
                if random.random() < 0.05:
                    bench.turn(0.003)
                if random.random() < 0.01:
                    core.refuse.append(32)
                if random.random() < 0.01:
                    core.move_leaders()
                if random.random() < 0.02:
                    core.move_coordinator()
            try:
                if random.random() < 0.5:
                    bench.transactions.add_offsets(GROUP, {TopicPartition("in", 0): OffsetAndMetadata(offset + 1)})
                    sent_offset = offset + 1
                else:
                    sent_offset = offset
                if random.random() < 0.1:
                    bench.abort()
                    aborted += 1
                    continue
                bench.commit()
            except AbortableTransactionError:
                bench.abort()
                aborted += 1
                continue
            offset = sent_offset
            for index, values in sent.items():
                expected[index] += values
            break
    assert visible(core) == expected
    assert aborted > 0
    assert core.committed_offsets.get(("group", "in", 0), (0,))[0] == offset
    assert all("open" not in log.fates for log in core.logs.values())
    assert bench.accumulator.pool.used_bytes == 0


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "api",
    [ApiKey.INIT_PRODUCER_ID, ADD_PARTITIONS, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, END],
)
def test_the_coordinator_moves_in_every_step(api, version):
    core = TransactionCore(transaction_version=version, nodes=3)
    core.fail_next[api] = [NOT_COORDINATOR, 15, 14, CONCURRENT, 7]
    bench = Bench(core)
    bench.begin()
    bench.send("t", b"x")
    bench.transactions.add_offsets(GROUP, {TopicPartition("in", 0): OffsetAndMetadata(9, "note", 1)})
    bench.commit()
    assert visible(core) == {0: [b"x"]}
    assert core.committed_offsets == {("group", "in", 0): (9, "member-1", "note")}
    used = version == 1 or api not in (ADD_PARTITIONS, ApiKey.ADD_OFFSETS_TO_TXN)
    assert bool(core.fail_next[api]) != used


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("step", ["init", "open", "commit", "abort"])
def test_a_coordinator_that_is_none_for_a_minute_costs_nothing_but_the_minute(step, version):
    """Asked as often as the back-off has it, whatever it says in turns; what was to be done is done once, and the producer goes on."""
    core = TransactionCore(transaction_version=version, nodes=3)
    bench = Bench(core)
    sound, turns, told = core.trouble_for, cycle([LOADING, NOT_AVAILABLE, NOT_COORDINATOR]), []

    def trouble_for(api, node):
        told.append(api)
        return next(turns)

    def begins():
        core.trouble_for = trouble_for
        core.at(60, lambda: setattr(core, "trouble_for", sound))

    if step == "init":
        begins()
    bench.begin()
    if step == "open":
        begins()
    bench.send("t", b"x")
    bench.transactions.add_offsets(GROUP, {TopicPartition("in", 0): OffsetAndMetadata(9, "note", 1)})
    if step in ("commit", "abort"):
        bench.deliver()
        begins()
    if step == "abort":
        bench.abort()
    else:
        bench.commit()
    assert 60 / 0.1 < len(told) < 60 / 0.025, "pauses of 50 ms, more or less"
    assert not list(bench.transactions.troubles)
    assert visible(core) == {0: [] if step == "abort" else [b"x"]}
    assert core.committed_offsets == ({} if step == "abort" else {("group", "in", 0): (9, "member-1", "note")})
    bench.begin()
    bench.send("t", b"y")
    bench.commit()
    assert visible(core)[0][-1] == b"y"


def test_the_coordinator_is_waited_for_until_there_is_one():
    core = TransactionCore()
    core.fail_next[ApiKey.FIND_COORDINATOR] = [15] * 6
    bench = Bench(core)
    bench.begin()
    assert [api for api, _ in core.calls] == [ApiKey.FIND_COORDINATOR] * 7 + [ApiKey.INIT_PRODUCER_ID]


@pytest.mark.parametrize("version", [1, 2])
def test_a_coordinator_that_left_the_cluster_while_nothing_was_asked_of_it_is_looked_up_again(version):
    """No request fails then that would say so: the metadata does, which has that broker no more."""
    core = TransactionCore(transaction_version=version, nodes=3)
    core.coordinator = 2
    bench = Bench(core)
    for value in (b"x", b"y", b"z"):
        bench.begin()
        bench.send("t", value)
        bench.transactions.add_offsets(GROUP, {TopicPartition("in", 0): OffsetAndMetadata(9)})
        if value == b"y":
            visible(core)  # what there was before is over
            bench.deliver()
            del core.metadata.nodes[2]
            core.coordinator = 1
        bench.commit()
    assert visible(core) == {0: [b"x", b"y", b"z"]}


def test_a_coordinator_that_the_metadata_does_not_have_yet_is_waited_for():
    core = TransactionCore(nodes=3)
    core.coordinator, joining, publish = 2, core.metadata.nodes.pop(2), core.publish

    def joined():
        core.metadata.nodes[2] = joining
        publish()

    core.publish = joined
    bench = Bench(core)
    bench.begin()
    assert [api for api, _ in core.calls] == [ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID]


def test_a_coordinator_that_the_metadata_never_has_is_asked_about_less_and_less_often():
    core = TransactionCore(nodes=3)
    core.coordinator, gone = 2, core.metadata.nodes.pop(2)
    bench = Bench(core)
    core.at(10, lambda: core.metadata.nodes.update({2: gone}))
    bench.begin()
    lookups = [api for api, _ in core.calls].count(ApiKey.FIND_COORDINATOR)
    assert 1 < lookups < 10 / 0.02
    assert "node 2, which is not among the brokers" in str(bench.transactions.last_error)


def test_old_versions_of_find_coordinator_and_init_producer_id():
    core = TransactionCore(transaction_version=1)
    core.supported = {ApiKey.FIND_COORDINATOR: 1, ApiKey.INIT_PRODUCER_ID: 1}
    bench = Bench(core)
    bench.begin()
    bench.send("t", b"x")
    bench.commit()
    assert visible(core) == {0: [b"x"]}


def test_markers_on_their_way_are_waited_for_in_milliseconds():
    core = TransactionCore(marker_delay=0)
    bench = Bench(core)
    bench.begin()
    bench.send("t", b"a")
    bench.commit()
    core.transactions["id-1"].state = "prepare"  # as long as the markers take
    core.at(0.03, lambda: setattr(core.transactions["id-1"], "state", "complete"))
    began = core.now
    bench.begin()
    bench.send("t", b"b")
    bench.commit()
    assert 0.03 < core.now - began < 0.06
    assert visible(core) == {0: [b"a", b"b"]}


@pytest.mark.parametrize("version", [1, 2])
def test_a_refused_batch_makes_the_transaction_abortable(version):
    core = TransactionCore(transaction_version=version)
    bench = Bench(core)
    bench.begin()
    core.refuse.append(32)
    refused = bench.send("t", b"bad")
    bench.deliver()
    with pytest.raises(InvalidTimestamp):
        refused.result()
    with pytest.raises(AbortableTransactionError, match=r"id-1.*INVALID_TIMESTAMP.*Abort the transaction") as caught:
        bench.send("t", b"more")
    assert isinstance(caught.value.cause, InvalidTimestamp)
    with pytest.raises(AbortableTransactionError):
        bench.transactions.begin_commit()
    bench.abort()
    bench.begin()
    bench.send("t", b"good")
    bench.commit()
    assert visible(core) == {0: [b"good"]}


def test_a_batch_refused_during_the_commit_fails_the_commit():
    core = TransactionCore()
    bench = Bench(core)
    bench.begin()
    core.refuse.append(32)
    bench.send("t", b"bad")
    with pytest.raises(AbortableTransactionError):
        bench.commit()
    assert END not in calls_since(core, 0)
    bench.abort()
    assert visible(core) == {0: []}


def test_a_gap_under_version_1_is_mended_by_a_new_epoch():
    core = TransactionCore(transaction_version=1)
    bench = Bench(core)
    bench.begin()
    before = bench.sender.identity.epoch
    core.refuse.append(32)
    bench.send("t", b"bad")
    bench.deliver()
    mark = len(core.calls)
    bench.abort()
    assert calls_since(core, mark)[-1] == ApiKey.INIT_PRODUCER_ID
    assert bench.sender.identity.epoch == before + 1
    bench.begin()
    bench.send("t", b"good")
    bench.commit()
    assert visible(core) == {0: [b"good"]}


def test_records_that_expire_fail_their_transaction():
    core = TransactionCore(nodes=1)
    bench = Bench(core, delivery_timeout_s=0.5)
    bench.begin()
    core.down_until[0] = core.now + 2
    delivery = bench.send("t", b"late")
    with pytest.raises(AbortableTransactionError, match="delivery_timeout_ms"):
        bench.commit()
    assert isinstance(delivery.exception(), DeliveryTimeout)
    bench.abort()
    assert visible(core) == {0: []}


# -- when the first batch goes


def transaction_of(hold, now, took):
    """One transaction right after the one before; when it ends."""
    start = max(now, hold.until())
    hold.sent(start)
    hold.answered(start + took)
    hold.ended(start + took)
    return start + took


def test_a_broker_that_answers_at_once_is_not_waited_for():
    hold, now = Hold(), 100.0
    for _ in range(50):
        now = transaction_of(hold, now, 0.001)
    assert hold.hold_s == 0


def test_the_wait_that_avoids_a_collision_is_learned():
    """A cluster that needs 1.2 ms to end a transaction, and 20 ms for whoever comes earlier."""
    hold, now, collisions = Hold(), 100.0, []
    ended = now
    for number in range(400):
        early = max(now, hold.until()) < ended + 0.0012
        collisions.append(early)
        ended = now = transaction_of(hold, now, 0.021 if early and number else 0.001)
    assert sum(collisions[:10]) >= 3
    assert sum(collisions[100:]) < 300 / 10
    assert HOLD_STEP_S < hold.hold_s < HOLD_MAX_S


def test_a_far_cluster_is_no_collision():
    hold, now = Hold(), 100.0
    for _ in range(20):
        now = transaction_of(hold, now, 0.08)
    assert hold.hold_s == 0


def test_the_wait_is_bounded_and_ends_when_it_is_no_use():
    hold, now = Hold(), 100.0
    now = transaction_of(hold, now, 0.001)
    for _ in range(100):
        now = transaction_of(hold, now, 0.05)
    assert hold.hold_s == HOLD_MAX_S
    for _ in range(200):
        now = transaction_of(hold, now, 0.001)
    assert hold.hold_s == 0


def test_what_comes_long_after_tells_nothing():
    hold = Hold()
    transaction_of(hold, 100.0, 0.001)
    transaction_of(hold, 200.0, 0.5)
    assert hold.hold_s == 0


def test_the_first_batch_waits_for_as_long_as_was_learned():
    core = TransactionCore(marker_delay=0)
    bench = Bench(core)
    bench.begin()
    bench.send("t", b"0")
    bench.commit()
    bench.transactions.hold.hold_s = 0.003
    ended = bench.transactions.hold.until() - 0.003
    bench.begin()
    bench.send("t", b"1")
    bench.transactions.begin_commit()
    bench.sender.run(core.now)
    assert (bench.sender.requests_total, core.now < ended + 0.003) == (1, True)
    bench.settle()
    assert core.now >= ended + 0.003
    assert visible(core) == {0: [b"0", b"1"]}


def test_a_transaction_before_that_never_ends_is_asked_about_less_and_less_often():
    bench = Bench(TransactionCore())
    pauses = [bench.transactions.pause_s(error_for_code(CONCURRENT), attempts) for attempts in range(1, 60)]
    assert max(pauses[:25]) <= 0.024
    assert min(pauses[35:]) >= 0.8 * bench.transactions._backoff_ms[1] / 1000


def test_what_is_no_consumer_and_no_group_is_refused_by_name():
    """It was an AttributeError of the producer's own code."""
    with (
        Producer(bootstrap_servers="127.0.0.1:1", transactional_id="id-1") as producer,
        pytest.raises(TypeError, match="the consumer of a transaction is a Consumer or AsyncConsumer, got 'c'"),
    ):
        producer.transaction(consumer="c")
    with pytest.raises(TypeError, match="takes a consumer, or a mapping of partitions to offsets, got 'c'"):
        offsets_to_send("c", "group")
    with pytest.raises(TypeError, match=r"consumer\.group_metadata\(\) or a group id, got 5"):
        offsets_to_send({("t", 0): 1}, 5)
