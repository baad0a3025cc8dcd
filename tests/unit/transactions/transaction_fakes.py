"""A shard's world without a broker: a log that keeps records in a list, markers that go where the test lets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from fastq_broker.transactions.shard import NoProducerId, TransactionShard
from fastq_broker.transactions.transaction import Partition, Transaction

from fastq.errors import KafkaError, MessageTooLarge

START_MS = 1_790_000_000_000

Done = Callable[[KafkaError | None], None]


class FakeTimer:
    def __init__(self, due_ms: int, callback: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeContext:
    """The runtime of one partition. `durable` False keeps appends from being finished until `finish_appends`."""

    def __init__(self) -> None:
        self.partition = 7
        self.leader_epoch = 3
        self.time_ms = START_MS
        self.set_ahead_ms = 0
        """By how much somebody has set the wall clock."""
        self.log: list[tuple[bytes, bytes | None]] = []
        self.batch_records_max = 1000
        self.shard: TransactionShard | None = None
        self.failure: KafkaError | None = None
        self.durable = True
        self.unfinished: list[Done] = []
        self.timers: list[FakeTimer] = []

    def append(self, records: Sequence[tuple[bytes, bytes | None]], on_done: Done, *, spare_bytes: int = 0) -> None:
        if self.failure is None and len(records) > self.batch_records_max:
            on_done(MessageTooLarge(f"{len(records)} records"))
            return
        self.append_in_parts(records, on_done)

    def append_in_parts(self, records: Sequence[tuple[bytes, bytes | None]], on_done: Done) -> None:
        if self.failure is not None:
            on_done(self.failure)
            return
        assert self.shard is not None
        for key, value in records:
            self.log.append((key, value))
            self.shard.replay(key, value, self.time_ms)
        if self.durable:
            on_done(None)
        else:
            self.unfinished.append(on_done)

    def when_durable(self, on_done: Done) -> None:
        if self.durable:
            on_done(None)
        else:
            self.unfinished.append(on_done)

    def finish_appends(self, error: KafkaError | None = None) -> None:
        unfinished, self.unfinished = self.unfinished, []
        for on_done in unfinished:
            on_done(error)

    def now_ms(self) -> int:
        return self.time_ms + self.set_ahead_ms

    def monotonic_ms(self) -> int:
        return self.time_ms - START_MS

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.time_ms + int(delay_s * 1000), callback)
        self.timers.append(timer)
        return timer

    def advance(self, ms: int) -> None:
        self.time_ms += ms
        due = [timer for timer in self.timers if timer.due_ms <= self.time_ms]
        self.timers = [timer for timer in self.timers if timer.due_ms > self.time_ms]
        for timer in due:
            if not timer.cancelled:
                timer.callback()


class FakeWorld:
    """Producer ids from 1000 on; markers are written at once, but into `unreachable` partitions."""

    def __init__(self) -> None:
        self.transaction_version = 2
        self.ids = count(1000)
        self.ids_left = 1_000_000
        self.turn: list[Callable[[], None]] = []
        self.markers: list[tuple[Partition, int, int, str]] = []
        self.unreachable: set[Partition] = set()

    def new_producer_id(self) -> int:
        if not self.ids_left:
            raise NoProducerId
        self.ids_left -= 1
        return next(self.ids)

    def soon(self, callback: Callable[[], None]) -> None:
        self.turn.append(callback)

    def write_markers(
        self,
        coordinator_epoch: int,
        txn: Transaction,
        partitions: frozenset[Partition],
        on_done: Callable[[frozenset[Partition]], None],
    ) -> None:
        assert coordinator_epoch == 3
        for partition in sorted(partitions - self.unreachable):
            self.markers.append((partition, txn.producer_id, txn.producer_epoch, txn.state.label))
        on_done(partitions & frozenset(self.unreachable))


class Bench:
    """A loaded shard, and short ways to ask it. A request answers a Transaction, or the KafkaError that it was refused with."""

    def __init__(self) -> None:
        self.world = FakeWorld()
        self.context = FakeContext()
        self._open()
        self.shard.loaded()

    def _open(self) -> TransactionShard:
        self.shard = self.context.shard = TransactionShard(self.context, self.world)
        return self.shard

    def restart(self) -> None:
        """Another life of the coordinator, from the log alone."""
        self.world.turn.clear()
        self.context.timers.clear()
        self.context.unfinished.clear()
        self._open()
        for key, value in self.context.log:
            self.shard.replay(key, value, START_MS)
        self.shard.loaded()

    def turn(self) -> None:
        """The loop's next turn, as often as there is something to do."""
        while self.world.turn:
            self.world.turn.pop(0)()

    def state(self, name: str = "t") -> str:
        return self.shard.transactions[name].state.label

    def ask(self, request: Callable[..., None], *args: object) -> Transaction | KafkaError | None:
        """The reply, the refusal, or None while neither has come."""
        answers: list[Transaction | KafkaError | None] = []
        try:
            request(*args, lambda txn, error: answers.append(error or txn))
        except KafkaError as error:
            return error
        return answers[0] if answers else None

    def initialize(
        self, name: str = "t", *, expected: tuple[int, int] | None = None, timeout_ms: int = 60_000
    ) -> Transaction | KafkaError | None:
        return self.ask(self.shard.initialize, name, timeout_ms, expected)

    def add(
        self, producer_id: int, epoch: int, *partitions: Partition, name: str = "t", version: int = 2
    ) -> Transaction | KafkaError | None:
        return self.ask(self.shard.add_partitions, name, producer_id, epoch, frozenset(partitions), version)

    def end(
        self, producer_id: int, epoch: int, committed: bool, *, name: str = "t", version: int = 2
    ) -> Transaction | KafkaError | None:
        return self.ask(self.shard.end, name, producer_id, epoch, committed, version)


def code(answer: object) -> int:
    return int(answer.code) if isinstance(answer, KafkaError) else 0


def identity(answer: object) -> tuple[int, int]:
    assert isinstance(answer, Transaction), answer
    return answer.producer_id, answer.producer_epoch


def begun(bench: Bench, *, version: int = 2) -> tuple[int, int]:
    """A transaction that is open in one partition."""
    producer = identity(bench.initialize())
    assert isinstance(bench.add(*producer, ("topic", 0), version=version), Transaction)
    return producer
