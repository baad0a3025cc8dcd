"""Any order of events: producers of both versions, lost answers, time-outs, unreachable partitions, coordinators that die.

The partitions are real logs, the coordinator's log is a list that may lose what was never told to be durable. At the end each
transaction is in all of its partitions or in none, an acknowledged end holds, and nothing is in a log twice.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from fastq_broker.log import LogManager, PartitionLog
from fastq_broker.transactions.states import TransactionState
from fastq_broker.transactions.transaction import EPOCH_LAST_GIVEN, Partition, Transaction
from fastq_broker.transactions.verification import Operation, admit
from transaction_fakes import START_MS, Bench, FakeWorld

from fastq._native.records import build_batch, decode_control_record, decode_records, iter_headers
from fastq.errors import ErrorCode, KafkaError

PARTITIONS: list[Partition] = [("t", number) for number in range(3)]
STEPS = 250


class LoggedWorld(FakeWorld):
    """Markers go into real logs, as MarkerWriter puts them there."""

    def __init__(self, logs: dict[Partition, PartitionLog]) -> None:
        super().__init__()
        self.logs = logs

    def write_markers(
        self,
        coordinator_epoch: int,
        txn: Transaction,
        partitions: frozenset[Partition],
        on_done: Callable[[frozenset[Partition]], None],
    ) -> None:
        for partition in sorted(partitions - self.unreachable):
            self.logs[partition].append_transaction_marker(
                producer_id=txn.producer_id,
                producer_epoch=txn.producer_epoch,
                coordinator_epoch=coordinator_epoch,
                commit=txn.state == TransactionState.PREPARE_COMMIT,
                leader_epoch=0,
                now_ms=START_MS,
                transaction_version=txn.version,
            )
        on_done(partitions & frozenset(self.unreachable))


class Client:
    """A producer as the protocol demands it; `attempt` is its open transaction."""

    def __init__(self, model: Model, name: str, version: int) -> None:
        self.model = model
        self.name = name
        self.version = version
        self.id = self.epoch = -1
        self.sequences: dict[Partition, int] = defaultdict(int)
        self.attempt = -1
        self.doubtful = False
        """Whether an answer to an EndTxn of this attempt was lost."""

    def initialize(self) -> None:
        answer = self.model.ask("initialize", self.name, 1000, None)
        if isinstance(answer, Transaction):
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()

    def send(self) -> None:
        model = self.model
        if self.id < 0:
            self.initialize()
            return
        if self.attempt < 0:
            self.attempt = model.begin()
        if self.doubtful:  # it is ending
            return
        at = model.random.choice(PARTITIONS)
        wanted = Operation.ADD if self.version == 2 else Operation.ABORTABLE
        if self.version == 1:
            added = model.ask("add_partitions", self.name, self.id, self.epoch, frozenset({at}), 0)
            if not isinstance(added, Transaction):
                self.note(added)
                return
        refused = admit(model.bench.shard, self.name, self.id, self.epoch, frozenset({at}), wanted, lambda: None)
        if refused is None:  # to be asked again
            return
        if refused:
            self.note(refused[at])
            return
        value = b"%d" % self.attempt
        batch = build_batch(
            [(START_MS, None, value)],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[at],
            transactional=True,
        )
        model.logs[at].append(batch, leader_epoch=0, now_ms=START_MS, transaction_version=self.version)
        self.sequences[at] += 1
        model.sent[self.attempt][at] += 1

    def end(self, committed: bool) -> None:
        if self.attempt < 0 or (self.attempt in self.model.ends and self.model.ends[self.attempt] != committed):
            return
        self.model.ends[self.attempt] = committed
        version = 2 if self.version == 2 else 0
        answer = self.model.ask("end", self.name, self.id, self.epoch, committed, version)
        if answer is None or self.model.random.random() < 0.2:  # the answer is lost
            self.doubtful = True
            return
        if isinstance(answer, Transaction):
            self.model.acknowledged[self.attempt] = committed
            if self.version == 2:
                self.id, self.epoch = answer.next_producer
                self.sequences.clear()
            self.attempt, self.doubtful = -1, False
        else:
            self.note(answer)

    def note(self, error: KafkaError | None) -> None:
        """An error that will not go away ends this producer: the next one initializes."""
        passing = (
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )
        if error is None or error.code in passing:
            return
        self.id = self.attempt = -1
        self.doubtful = False


class Model:
    """Clients, a coordinator and three logs under one seed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        manager = LogManager([directory], clock=lambda: START_MS)
        manager.start()
        self.logs = {place: manager.create(*place, bytes(16)) for place in PARTITIONS}
        self.bench = Bench()
        self.bench.world = LoggedWorld(self.logs)
        self.safe = 0
        self.bench.restart()
        self.clients = [Client(self, name, version) for name in ("a", "b") for version in (2, 1)]
        self.sent: dict[int, dict[Partition, int]] = defaultdict(lambda: defaultdict(int))
        self.ends: dict[int, bool] = {}
        self.acknowledged: dict[int, bool] = {}

    def begin(self) -> int:
        self.sent[len(self.sent)].clear()
        return len(self.sent) - 1

    def ask(self, request: str, *args: object) -> Transaction | KafkaError | None:
        return self.bench.ask(getattr(self.bench.shard, request), *args)

    def step(self) -> None:
        bench = self.bench
        (client,) = self.random.choices(self.clients, [20, 1, 1, 20])
        actions: list[tuple[int, Callable[[], object]]] = [
            (40, client.send),
            (12, partial(client.end, True)),
            (6, partial(client.end, False)),
            (20, self.turn),
            (10, self.finish),
            (3, partial(setattr, bench.context, "durable", self.random.random() < 0.8)),
            (3, partial(bench.context.advance, self.random.choice([100, 700]))),
            (3, bench.shard.abort_timed_out),
            (2, partial(bench.world.unreachable.add, self.random.choice(PARTITIONS))),
            (3, bench.world.unreachable.clear),
            (2, self.crash),
            (1, self.age),
        ]
        weights = [weight for weight, _ in actions]
        self.random.choices([action for _, action in actions], weights)[0]()

    def turn(self) -> None:
        self.bench.turn()

    def finish(self) -> None:
        self.bench.context.finish_appends()

    def crash(self) -> None:
        """The coordinator is gone, and perhaps what was not yet on disk with it."""
        context = self.bench.context
        lost = len(context.unfinished)
        if lost and self.random.random() < 0.5:
            del context.log[-lost:]
        self.bench.restart()

    def age(self) -> None:
        """Bring an idle id near to its last epoch, as years of use would."""
        context, shard = self.bench.context, self.bench.shard
        for client in self.clients:
            txn = shard.transactions.get(client.name)
            if (
                txn is None
                or txn.state != TransactionState.EMPTY
                or client.name in shard._writing
                or not context.durable
            ):
                continue
            old = txn.to(TransactionState.EMPTY, producer_epoch=EPOCH_LAST_GIVEN - 1)
            shard._write(old, lambda txn, error: None)

    def settle(self) -> None:
        """All faults end; whatever is open is taken over by a new producer."""
        bench = self.bench
        bench.world.unreachable.clear()
        bench.context.durable = True
        self.finish()
        for _ in range(20):
            self.turn()
            bench.context.advance(20_000)
        for name in list(bench.shard.transactions):
            for _ in range(3):
                self.ask("initialize", name, 1000, None)
                self.turn()


def committed_in(log: PartitionLog) -> dict[int, int]:
    """How many records of each attempt a read_committed consumer sees. All transactions must have ended."""
    assert log.last_stable_offset == log.log_end_offset
    seen: dict[int, int] = defaultdict(int)
    pending: dict[int, list[int]] = defaultdict(list)
    data = log.read(0, 1 << 30).read()
    for position, header in iter_headers(data):
        (record,) = decode_records(data, position)
        if not header.is_control:
            pending[header.producer_id].append(int(record.value))
            continue
        ended = pending.pop(header.producer_id, [])
        if decode_control_record(record.key, record.value).type == 1:
            for attempt in ended:
                seen[attempt] += 1
    assert not any(pending.values())
    return dict(seen)


@pytest.mark.parametrize("seed", range(40))
def test_each_transaction_is_everywhere_or_nowhere(tmp_path: Path, seed: int) -> None:
    model = Model(tmp_path, seed)
    for _ in range(STEPS):
        model.step()
    model.settle()
    seen = {place: committed_in(log) for place, log in model.logs.items()}
    for attempt, sent in model.sent.items():
        found = {place: seen[place].get(attempt, 0) for place in sent if sent[place]}
        wanted = {place: count for place, count in sent.items() if count}
        nothing = dict.fromkeys(wanted, 0)
        assert found in (wanted, nothing), f"transaction {attempt} is torn: sent {wanted}, visible {found}"
        acknowledged = model.acknowledged.get(attempt)
        if acknowledged is not None and wanted:
            assert found == (wanted if acknowledged else nothing), f"transaction {attempt} was acknowledged otherwise"
        if not model.ends.get(attempt, False):
            assert found == nothing, f"transaction {attempt} was never committed"
    assert any(model.acknowledged.values())
