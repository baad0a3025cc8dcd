"""The user's side of transactions: the calls of both producers, and what `with producer.transaction()` gives.

Rules
- A call changes the state machine and waits until it has settled, at most `max_block_ms` or the timeout given; a time-out
  decides nothing, and the same call again goes on waiting.
- `send_offsets` does not wait: its answer is waited for, and its error raised, by the commit.
- The context managers commit when their block ends and abort when it raises. What the abort cannot mend is raised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fastq.errors import AbortableTransactionError, ClientClosed, TransactionStateError, TransactionTimeout
from fastq.metadata import TopicPartition
from fastq.producer.transaction_states import State
from fastq.producer.transactions import GroupMetadata, Offset, Transactions

if TYPE_CHECKING:
    from fastq.net.blocking import BlockingDriver
    from fastq.producer.base import Parts
    from fastq.producer.config import ProducerConfig


class MemberOfGroup(Protocol):
    """What `consumer.group_metadata()` answers (KIP-447)."""

    @property
    def group_id(self) -> str: ...
    @property
    def generation_id(self) -> int: ...
    @property
    def member_id(self) -> str: ...
    @property
    def group_instance_id(self) -> str | None: ...


class GroupConsumer(Protocol):
    """What `send_offsets` needs of a consumer, blocking or asyncio."""

    def group_metadata(self) -> MemberOfGroup:
        """Which member of which group it is now."""

    def positions(self) -> Mapping[TopicPartition, Any]:
        """By partition, the offset after the last record that was handed out."""


Group: TypeAlias = "MemberOfGroup | str"
Offsets: TypeAlias = "Mapping[TopicPartition, Any] | Mapping[tuple[str, int], Any]"


def group_of(group: Group) -> GroupMetadata:
    """A group as it goes to the coordinator; a str is the group without a member of it."""
    if isinstance(group, str):
        return GroupMetadata(group)
    return GroupMetadata(group.group_id, group.generation_id, group.member_id, group.group_instance_id)


def offset_of(value: Any) -> Offset:
    """An offset to commit: a number, (offset, metadata), or an object with `offset` and perhaps leader_epoch, metadata."""
    if isinstance(value, tuple) and not hasattr(value, "offset"):
        value, metadata = value
        return Offset(int(value), -1, metadata or "")
    if hasattr(value, "offset"):
        epoch = getattr(value, "leader_epoch", None)
        return Offset(int(value.offset), -1 if epoch is None else int(epoch), getattr(value, "metadata", None) or "")
    return Offset(int(value))


def offsets_to_send(source: GroupConsumer | Offsets, group: Group | None) -> tuple[GroupMetadata, dict[Any, Offset]]:
    """What `send_offsets` was given, as group and offsets. TypeError when the group is missing."""
    if isinstance(source, Mapping):
        if group is None:
            raise TypeError("send_offsets of a mapping needs the group: consumer.group_metadata(), or a group id")
        offsets = source
    else:
        if group is None:
            group = source.group_metadata()
        offsets = source.positions()
    return group_of(group), {TopicPartition(*partition): offset_of(value) for partition, value in offsets.items()}


class _Calls:
    """What both producers share. `_parts` is theirs."""

    if TYPE_CHECKING:
        config: ProducerConfig
        _parts: Parts
        _max_block_s: float

    def _transactions(self) -> Transactions:
        transactions = self._parts.transactions
        if transactions is None:
            raise TransactionStateError(
                "this producer has no transactional_id", hint="Give it one: Producer(transactional_id='billing-1', ...)"
            )
        self._parts.check_open()
        return transactions

    def _hopeless(self, transactions: Transactions) -> None:
        """Raise the error that waiting will not mend, when no broker can be had at all."""
        if transactions.state is State.INITIALIZING:
            error = self._parts.core.hopeless()
            if error is not None:
                raise error

    def _timed_out(self, transactions: Transactions, call: str, timeout: float) -> TransactionTimeout:
        last = transactions.last_error
        waits = (
            f"; {len(self._parts.accumulator.incomplete)} batches wait" if self._parts.accumulator.incomplete else ""
        )
        return TransactionTimeout(
            f"{call} did not finish within {timeout:g} s: {transactions.state.value}{waits}",
            transactional_id=transactions.transactional_id,
            cause=last,
            hint=f"Nothing is decided yet: call {call} again to go on waiting",
        )


class BlockingTransactionCalls(_Calls):
    """The calls of Producer. Thread rule: any thread, though a transaction belongs to whoever sends in it."""

    if TYPE_CHECKING:
        _driver: BlockingDriver
        _pending: bool

        def _wait(self, predicate: Any, timeout: float | None) -> bool: ...
        def _drive(self) -> None: ...
        def _attend(self) -> None: ...

    def init_transactions(self, timeout: float | None = None) -> None:
        """Get the producer id, and fence off an older producer of the same transactional id, whose open transaction is
        aborted. Begun on entering `with`, implied by the first transaction. Waits `timeout` seconds (None: max_block_ms).

        Raises FatalTransactionError, TransactionTimeout, and what makes a connection impossible.
        """
        transactions = self._transactions()
        with self._driver.lock:
            transactions.initialize()
        self._settle(transactions, "init_transactions", timeout)

    def transaction(self) -> Transaction:
        """A transaction for `with`: begins it, commits at the end of the block, and aborts when the block raises."""
        self._transactions()
        return Transaction(self)

    def begin_transaction(self) -> None:
        """Open a transaction: what is sent from now on belongs to it. The first call waits as `init_transactions` does.

        Raises TransactionStateError when one is open, FatalTransactionError when the producer is of no more use.
        """
        transactions = self._transactions()
        if transactions.state in (State.UNINITIALIZED, State.INITIALIZING):
            self.init_transactions()
        with self._driver.lock:
            transactions.begin()

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Send what waits, without linger, and commit; waits `timeout` seconds (None: max_block_ms).

        Raises AbortableTransactionError when a record or an offset was refused: nothing is committed, abort then.
        Raises TransactionTimeout, after which the same call goes on waiting, and FatalTransactionError.
        """
        self._end(Transactions.begin_commit, "commit_transaction", timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Give up what was sent in the open transaction; waits as `commit_transaction` does. Without one: no effect.

        Records that had not left fail with TransactionAborted. Raises FatalTransactionError and TransactionTimeout.
        """
        self._end(Transactions.begin_abort, "abort_transaction", timeout)

    def send_offsets_to_transaction(
        self, offsets: GroupConsumer | Offsets, group_metadata: Group | None = None
    ) -> None:
        """Commit a consumer's offsets with the transaction (KIP-447).

        offsets: the consumer itself, for all that it has handed out, or a mapping of partitions to offsets of the next
        record to read, with `group_metadata` from `consumer.group_metadata()`. Does not wait: the commit does.
        """
        transactions = self._transactions()
        group, chosen = offsets_to_send(offsets, group_metadata)
        with self._driver.lock:
            transactions.add_offsets(group, chosen)
        self._pending = True
        self._drive()
        self._attend()

    def _end(self, begin: Any, call: str, timeout: float | None) -> None:
        transactions = self._transactions()
        with self._driver.lock:
            begin(transactions)
        self._settle(transactions, call, timeout)

    def _settle(self, transactions: Transactions, call: str, timeout: float | None) -> None:
        limit = self._max_block_s if timeout is None else timeout

        def settled() -> bool:
            if self._parts.core.closed:
                raise ClientClosed(f"the producer was closed during {call}")
            self._hopeless(transactions)
            return transactions.settled

        if not self._wait(settled, limit):
            raise self._timed_out(transactions, call, limit)
        transactions.check_outcome()


class Transaction:
    """An open transaction of a Producer; see `Producer.transaction`. Used once."""

    def __init__(self, producer: BlockingTransactionCalls) -> None:
        self._producer = producer

    def send_offsets(self, offsets: GroupConsumer | Offsets, group_metadata: Group | None = None) -> None:
        """Commit a consumer's offsets with the transaction; see `Producer.send_offsets_to_transaction`."""
        self._producer.send_offsets_to_transaction(offsets, group_metadata)

    def __enter__(self) -> Transaction:
        self._producer.begin_transaction()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self._producer.commit_transaction()
            except AbortableTransactionError:
                self._producer.abort_transaction()
                raise
        elif not _is_over(self._producer, error):
            self._producer.abort_transaction()


def _is_over(producer: _Calls, error: BaseException | None) -> bool:
    """Whether a block that raised has nothing left to abort: its error says already what became of the producer."""
    transactions = producer._parts.transactions
    if transactions is None or producer._parts.core.closed or isinstance(error, ClientClosed):
        return True
    return transactions.state is State.READY or transactions.error is error or transactions.state is State.COMMITTING


class AsyncTransactionCalls(_Calls):
    """The calls of AsyncProducer: the names of Producer's, with `await`. Thread rule: the loop's thread."""

    if TYPE_CHECKING:

        def _start(self) -> None: ...
        def _attend(self) -> None: ...

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Get the producer id; see Producer.init_transactions."""
        transactions = self._begin_call()
        transactions.initialize()
        await self._settle(transactions, "init_transactions", timeout)

    def transaction(self) -> AsyncTransaction:
        """A transaction for `async with`; see Producer.transaction."""
        self._transactions()
        return AsyncTransaction(self)

    async def begin_transaction(self) -> None:
        """Open a transaction; see Producer.begin_transaction."""
        transactions = self._begin_call()
        if transactions.state in (State.UNINITIALIZED, State.INITIALIZING):
            await self.init_transactions()
        transactions.begin()

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Send what waits and commit; see Producer.commit_transaction. Cancelling it leaves the commit under way."""
        transactions = self._begin_call()
        transactions.begin_commit()
        await self._settle(transactions, "commit_transaction", timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Give the open transaction up; see Producer.abort_transaction."""
        transactions = self._begin_call()
        transactions.begin_abort()
        await self._settle(transactions, "abort_transaction", timeout)

    async def send_offsets_to_transaction(
        self, offsets: GroupConsumer | Offsets, group_metadata: Group | None = None
    ) -> None:
        """Commit a consumer's offsets with the transaction; see Producer.send_offsets_to_transaction."""
        transactions = self._begin_call()
        transactions.add_offsets(*offsets_to_send(offsets, group_metadata))
        self._attend()

    def _begin_call(self) -> Transactions:
        transactions = self._transactions()
        self._start()
        return transactions

    async def _settle(self, transactions: Transactions, call: str, timeout: float | None) -> None:
        limit = self._max_block_s if timeout is None else timeout
        end = time.monotonic() + limit
        self._attend()
        while not transactions.settled:
            if self._parts.core.closed:
                raise ClientClosed(f"the producer was closed during {call}")
            self._hopeless(transactions)
            # A look every now and then: nobody announces that no broker can be had.
            wait_s = min(end - time.monotonic(), 0.1 if transactions.state is State.INITIALIZING else 1.0)
            if wait_s <= 0:
                raise self._timed_out(transactions, call, limit)
            changed = asyncio.Event()
            transactions.waiters.append(changed.set)
            try:
                await asyncio.wait_for(changed.wait(), wait_s)
            except (TimeoutError, asyncio.TimeoutError):
                pass
            finally:
                if changed.set in transactions.waiters:
                    transactions.waiters.remove(changed.set)
        transactions.check_outcome()


class AsyncTransaction:
    """An open transaction of an AsyncProducer; see `AsyncProducer.transaction`. Used once."""

    def __init__(self, producer: AsyncTransactionCalls) -> None:
        self._producer = producer

    async def send_offsets(self, offsets: GroupConsumer | Offsets, group_metadata: Group | None = None) -> None:
        """Commit a consumer's offsets with the transaction; see `Producer.send_offsets_to_transaction`."""
        await self._producer.send_offsets_to_transaction(offsets, group_metadata)

    async def __aenter__(self) -> AsyncTransaction:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                await self._producer.commit_transaction()
            except AbortableTransactionError:
                await self._producer.abort_transaction()
                raise
        elif not _is_over(self._producer, error):
            await self._producer.abort_transaction()


def abort_open(transactions: Transactions | None) -> bool:
    """Begin to abort what a closing producer leaves open; whether there is something to wait for."""
    if transactions is None:
        return False
    if transactions.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
        transactions.begin_abort()
    return transactions.state in (State.COMMITTING, State.ABORTING)
