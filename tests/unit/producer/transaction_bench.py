"""A transactional producer over a cluster in memory, and what can be seen of its transactions."""

from fastq._native.accumulator import Accumulator
from fastq._native.producer_core import SyncProducerCore
from fastq.metadata import GroupMetadata
from fastq.producer.sender import Sender, SenderSettings
from fastq.producer.transaction_states import State
from fastq.producer.transactions import Transactions
from fastq.protocol.api import ApiKey

GROUP = GroupMetadata("group", 3, "member-1", None)
ADD_PARTITIONS, END = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN


class Bench(SyncProducerCore):
    """A transactional producer without threads: the test decides when it takes its turn."""

    def __init__(self, core, *, transactional_id="id-1", delivery_timeout_s=1e6, max_in_flight=5, retries=2**31 - 1):
        super().__init__(
            Accumulator(
                buffer_memory=1 << 22,
                batch_size=500,
                batch_size_max=500,
                max_request_size=1 << 20,
                clock=core.clock,
                seed=3,
            )
        )
        self.core = core
        self.transactions = Transactions(
            core,
            self.accumulator,
            transactional_id,
            timeout_ms=60_000,
            request_timeout_s=30.0,
            retry_backoff_ms=5,
            retry_backoff_max_ms=50,
        )
        settings = SenderSettings(
            acks=-1,
            idempotent=True,
            max_in_flight=max_in_flight,
            max_request_size=1 << 20,
            request_timeout_s=30.0,
            delivery_timeout_s=delivery_timeout_s,
            retries=retries,
            retry_backoff_ms=5,
            retry_backoff_max_ms=50,
        )
        self.sender = Sender(core, self.accumulator, settings, self.transactions)
        for name in {name for name, _ in core.logs}:
            self.sender.topic_ready(name)

    def _attend(self):
        pass

    def _send_slow(self, *record):
        self.transactions.check_send()
        return self._enqueue(*record)

    def turn(self, until=0.05):
        self.accumulator.close_due(self.core.now, 0.005)
        due = self.sender.run(self.core.now)
        self.core.step(min(self.core.now + until, due if due is not None else 1e12))

    def settle(self, seconds=1e3):
        end = self.core.now + seconds
        while not self.transactions.settled:
            assert self.core.now < end, f"stuck while {self.transactions.state}: {self.transactions.last_error}"
            self.turn()
        self.transactions.check_outcome()

    def deliver(self):
        self.accumulator.close_all()
        while self.accumulator.incomplete:
            self.turn()

    def begin(self):
        if self.transactions.state in (State.UNINITIALIZED, State.INITIALIZING):
            self.transactions.initialize()
            self.settle()
        self.transactions.begin()

    def commit(self):
        self.transactions.begin_commit()
        self.settle()

    def abort(self):
        self.transactions.begin_abort()
        self.settle()


def visible(core):
    """What read_committed sees, once all markers are written."""
    core.step(core.now + 1)
    while core.events:
        core.step(core.now + 1)
    return {index: log.visible() for (_, index), log in core.logs.items()}


def calls_since(core, mark):
    return [api for api, _ in core.calls[mark:]]
