"""The user's side of transactions: the calls of both producers, and what `with producer.transaction()` gives.

Rules
- A call changes the state machine and waits until it has settled, at most `max_block_ms` or the timeout given; a time-out
  decides nothing, and the same call again goes on waiting, or tells what was decided meanwhile. It is
  written once, as a generator (calls.py), for both producers.
- `send_offsets` does not wait: its answer is waited for, and its error raised, by the commit.
- The context managers commit when their block ends and abort when it raises. What the abort cannot mend is raised.
- A consumer that goes with a transaction goes on from what is committed whenever the transaction is not: what was read for it is
  read again. That is set before the error passes on, and cannot fail: the consumer looks the offsets up when it is read next.
- A consumer that has lost partitions, of which it has handed out what is not committed, commits nothing: their offsets would not be in the
  transaction that has their results. It knows of them by itself (`Handed`), since the last commit or return to what is committed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from fastq.errors import (
    AbortableTransactionError,
    ClientClosed,
    ConfigError,
    NotAssigned,
    TransactionStateError,
    TransactionTimeout,
)
from fastq.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition, partition_of
from fastq.producer.calls import Calls, ProducerCalls, Wait
from fastq.producer.transaction_states import State
from fastq.producer.transactions import Transactions
from fastq.timeouts import check_timeout

T = TypeVar("T")
PARTITIONS_NAMED = 5
KEPT_HINT = (
    "Abort, and go on from the committed offsets: `with producer.transaction(consumer=consumer)` has done both, so run it again. "
    "A transaction of what one poll() has answered has no rebalance in it"
)


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


class CommitSettings(Protocol):
    """What a transaction looks at in a consumer's configuration."""

    @property
    def group_id(self) -> str | None: ...
    @property
    def enable_auto_commit(self) -> bool: ...


class GroupConsumer(Protocol):
    """What `send_offsets` needs of a consumer, blocking or asyncio."""

    @property
    def config(self) -> CommitSettings: ...

    def group_metadata(self) -> MemberOfGroup:
        """Which member of which group it is now."""

    def positions(self) -> Mapping[TopicPartition, Any]:
        """By partition, the offset after the last record that was handed out."""

    def seek_to_committed(self) -> None:
        """Go on, with all partitions, from what the group has committed."""

    def _tell_taken_away(self) -> list[TopicPartition]:
        """What it does not have any more, and has handed out records of that no commit covers: once, as the transaction cannot be committed
        then."""

    def _goes_with_transaction(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """A transaction has these offsets."""


Group: TypeAlias = "MemberOfGroup | str"
Offsets: TypeAlias = "Mapping[TopicPartition, Any] | Mapping[tuple[str, int], Any]"


def group_of(group: Group) -> GroupMetadata:
    """A group as it goes to the coordinator; a str is the group without a member of it."""
    if isinstance(group, str):
        return GroupMetadata(group)
    if not hasattr(group, "group_id"):
        raise TypeError(f"a group is named by consumer.group_metadata() or a group id, got {group!r}")
    return GroupMetadata(group.group_id, group.generation_id, group.member_id, group.group_instance_id)


def offset_of(value: Any) -> OffsetAndMetadata:
    """An offset to commit: a number, (offset, metadata), or an object with `offset` and perhaps leader_epoch, metadata."""
    if isinstance(value, tuple) and not hasattr(value, "offset"):
        value, metadata = value
        return OffsetAndMetadata(int(value), metadata or "")
    if hasattr(value, "offset"):
        epoch = getattr(value, "leader_epoch", None)
        return OffsetAndMetadata(
            int(value.offset), getattr(value, "metadata", None) or "", -1 if epoch is None else int(epoch)
        )
    return OffsetAndMetadata(int(value))


def offsets_to_send(
    source: GroupConsumer | Offsets, group: Group | None
) -> tuple[GroupMetadata, dict[Any, OffsetAndMetadata]]:
    """What `send_offsets` was given, as group and offsets. TypeError when the group is missing, or for what is neither."""
    if isinstance(source, Mapping):
        if group is None:
            raise TypeError("send_offsets of a mapping needs the group: consumer.group_metadata(), or a group id")
        offsets = source
    else:
        if not hasattr(source, "positions"):
            raise TypeError(f"send_offsets takes a consumer, or a mapping of partitions to offsets, got {source!r}")
        if group is None:
            group = source.group_metadata()
        offsets = source.positions()
    return group_of(group), {partition_of(partition): offset_of(value) for partition, value in offsets.items()}


class TransactionOperations(ProducerCalls):
    """The calls of both producers, as generators."""

    _commit_unheard = False
    """A commit was begun that no call has waited for to its end: it may be through by now, and who calls again is to hear of it."""

    def _transactions(self) -> Transactions:
        transactions = self._parts.transactions
        if transactions is None:
            raise TransactionStateError(
                "this producer has no transactional_id", hint="Give it one: Producer(transactional_id='billing-1', ...)"
            )
        self._parts.check_open()
        return transactions

    def _settled(
        self, transactions: Transactions, call: str, timeout: float | None, end: float | None = None
    ) -> Calls[None]:
        """Wait until what was begun is decided: for `timeout`, or until `end` where some of it has passed already."""
        limit = self._max_block_s if timeout is None else timeout
        left_s = limit if end is None else max(end - time.monotonic(), 0.0)
        core, accumulator = self._parts.core, self._parts.accumulator

        def settled() -> bool:
            if core.closed:
                raise ClientClosed(f"the producer was closed during {call}")
            if transactions.state is State.INITIALIZING and (hopeless := core.hopeless()) is not None:
                raise hopeless
            return transactions.settled

        if not (yield Wait(settled, left_s)):
            from fastq.words import counted

            left = len(accumulator.incomplete)
            waits = f"; {counted(left, 'batch')} {'waits' if left == 1 else 'wait'}" if left else ""
            raise TransactionTimeout(
                f"{call} did not finish within {limit:g} s: {transactions.state.value}{waits}",
                transactional_id=transactions.transactional_id,
                cause=next((trouble.why() for trouble in transactions.troubles), transactions.last_error),
                hint=f"Nothing is decided yet: call {call} again to go on waiting",
            )
        transactions.check_outcome()

    def _init_transactions(self, timeout: float | None) -> Calls[None]:
        check_timeout(timeout)
        transactions = self._transactions()
        with self._guard:
            transactions.initialize()
        yield from self._settled(transactions, "init_transactions", timeout)

    def _begin_transaction(self) -> Calls[None]:
        transactions = self._transactions()
        if transactions.state in (State.UNINITIALIZED, State.INITIALIZING):
            yield from self._init_transactions(None)
        with self._guard:
            transactions.begin()
            self._commit_unheard = False

    def _commit_transaction(self, timeout: float | None) -> Calls[None]:
        check_timeout(timeout)
        transactions = self._transactions()
        limit = self._max_block_s if timeout is None else timeout
        end, waiting = time.monotonic() + limit, self._places_wanted()
        if (
            transactions.state is State.IN_TRANSACTION
            and waiting()
            and not (yield Wait(lambda: not waiting(), limit))
            and waiting()
        ):
            from fastq.words import counted

            left = waiting()
            waits = f"{counted(left, 'record')} still {'waits' if left == 1 else 'wait'} for room or metadata"
            raise TransactionTimeout(
                f"commit_transaction did not begin within {limit:g} s: {waits}",
                transactional_id=transactions.transactional_id,
                hint="Nothing is decided yet: call commit_transaction again to go on waiting",
            )
        with self._guard:
            if not self._is_through(transactions):
                transactions.begin_commit()
                self._commit_unheard = True
        yield from self._settled(transactions, "commit_transaction", limit, end)
        self._commit_unheard = False

    def _is_through(self, transactions: Transactions) -> bool:
        """Whether the transaction that a call before has begun to commit is committed, and nobody has heard. Under the guard."""
        return self._commit_unheard and transactions.state in (State.READY, State.INITIALIZING)

    def _abort_transaction(self, timeout: float | None) -> Calls[None]:
        check_timeout(timeout)
        transactions = self._transactions()
        with self._guard:
            if self._is_through(transactions):
                raise TransactionStateError(
                    "cannot abort: the commit that was begun is through, and the transaction is committed",
                    transactional_id=transactions.transactional_id,
                    hint="Go on with the next one; commit_transaction() would have told the same",
                )
            transactions.begin_abort()
            self._commit_unheard = False
        self._abort_begun()
        yield from self._settled(transactions, "abort_transaction", timeout)

    def _send_offsets(
        self, offsets: GroupConsumer | Offsets, group_metadata: Group | None, consumer: GroupConsumer | None = None
    ) -> None:
        """consumer: whose records the transaction is about, where it is known."""
        transactions = self._transactions()
        group, chosen = offsets_to_send(offsets, group_metadata)
        if not isinstance(offsets, Mapping):
            consumer = offsets
        if consumer is not None:
            self._check_kept(consumer)
        with self._guard:
            transactions.add_offsets(group, chosen)
        if consumer is not None:
            consumer._goes_with_transaction(chosen)
        self._kick()

    def _check_kept(self, consumer: GroupConsumer) -> None:
        """Raises AbortableTransactionError where partitions were taken away that the transaction may be about: who has them by now begins
        at what is committed, and makes of them what this one has made."""
        transactions = self._transactions()
        if transactions.state is not State.IN_TRANSACTION or not (gone := consumer._tell_taken_away()):
            return
        names = ", ".join(map(str, gone[:PARTITIONS_NAMED]))
        if len(gone) > PARTITIONS_NAMED:
            names += f" and {len(gone) - PARTITIONS_NAMED} more"
        cause = NotAssigned(
            f"{names} {'was' if len(gone) == 1 else 'were'} taken from this consumer, as by a rebalance, after records were handed out "
            "that are not committed: whoever reads them next is given the same records",
            group=consumer.config.group_id,
        )
        with self._guard:
            transactions.cannot_commit(cause, KEPT_HINT)

    def _is_over(self, error: BaseException | None) -> bool:
        """Whether a block that raised has nothing left to abort: its error says already what became of the producer."""
        transactions = self._parts.transactions
        if transactions is None or self._parts.core.closed or isinstance(error, ClientClosed):
            return True
        if transactions.state is State.FATAL_ERROR:
            return transactions.error is error
        return transactions.state in (State.READY, State.COMMITTING)

    def _leave(self, block: TransactionBlock, error: BaseException | None) -> Calls[None]:
        """The end of a `with producer.transaction()`: commit, or abort; a consumer goes back unless it was a commit."""
        committed = False
        try:
            if error is None:
                try:
                    if block.consumer is not None and block.has_offsets:
                        self._check_kept(block.consumer)
                    elif block.consumer is not None:
                        self._send_offsets(block.consumer, None)
                except Exception as failed:
                    if not self._is_over(failed):
                        yield from self._abort_transaction(None)
                    raise
                try:
                    yield from self._commit_transaction(None)
                    committed = True
                except GeneratorExit:
                    raise
                except BaseException as failed:
                    # Not committing: it was refused, or the wait for records that had no place yet was cut short.
                    transactions = self._parts.transactions
                    if transactions is not None and transactions.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                        yield from self._abort_transaction(None)
                        if isinstance(failed, TransactionTimeout):  # which would say that nothing is decided
                            raise AbortableTransactionError(
                                transactional_id=transactions.transactional_id,
                                cause=failed.with_context(hint=""),
                                hint="It is aborted: do it again",
                            ) from None
                    raise
            elif not self._is_over(error):
                yield from self._abort_transaction(None)
        finally:
            if block.consumer is not None and not committed:
                with contextlib.suppress(ClientClosed), self._outside():
                    block.consumer.seek_to_committed()


class BlockingTransactionCalls(TransactionOperations):
    """The calls of Producer. Thread rule: any thread, though a transaction belongs to whoever sends in it."""

    if TYPE_CHECKING:

        def _run(self, operation: Calls[T]) -> T: ...

    def init_transactions(self, timeout: float | None = None) -> None:
        """Get the producer id, and fence off an older producer of the same transactional id, whose open transaction is
        aborted. Begun on entering `with`, implied by the first transaction. Waits `timeout` seconds (None: max_block_ms).

        Raises FatalTransactionError, TransactionTimeout, and what makes a connection impossible.
        """
        self._run(self._init_transactions(timeout))

    def transaction(self, *, consumer: GroupConsumer | None = None) -> Transaction:
        """A transaction for `with`: begins it, commits at the end of the block, and aborts when the block raises.

        consumer: the Consumer whose records are worked on. What it has handed out is committed with the transaction, unless
        `send_offsets` in the block says otherwise; when the transaction is not committed, it goes back to what is, and hands the same
        records out again. ConfigError for one without a group, or with enable_auto_commit, which would commit beside the transaction.

        A rebalance while the consumer is asked for records in the block, or between two polls before it, may take partitions away whose
        records the transaction is about. It is aborted then, with an AbortableTransactionError that names them: their next owner begins at
        what is committed, so run the block again. A block about what one `poll` before it has answered meets no rebalance.
        """
        self._transactions()
        return Transaction(self, consumer)

    def begin_transaction(self) -> None:
        """Open a transaction: what is sent from now on belongs to it. The first call waits as `init_transactions` does.

        Raises TransactionStateError when one is open, FatalTransactionError when the producer is of no more use.
        """
        self._run(self._begin_transaction())

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Send what waits, without linger, and commit; waits `timeout` seconds (None: max_block_ms).

        Raises AbortableTransactionError when a record or an offset was refused: nothing is committed, abort then.
        Raises FatalTransactionError, and TransactionTimeout, after which the same call goes on waiting, or answers where the commit
        went through meanwhile.
        """
        self._run(self._commit_transaction(timeout))

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Give up what was sent in the open transaction; waits as `commit_transaction` does. Without one: no effect.

        Records that had not left fail with TransactionAborted. Raises FatalTransactionError and TransactionTimeout, and
        TransactionStateError when a commit was begun: it is under way, or has gone through.
        A consumer stays where it is: `consumer.seek_to_committed()` has it read the same records again.
        """
        self._run(self._abort_transaction(timeout))

    def send_offsets_to_transaction(
        self, offsets: GroupConsumer | Offsets, group_metadata: Group | None = None
    ) -> None:
        """Commit a consumer's offsets with the transaction (KIP-447).

        offsets: the consumer itself, for all that it has handed out, or a mapping of partitions to offsets of the next
        record to read, with `group_metadata` from `consumer.group_metadata()`. Does not wait: the commit does.

        Raises AbortableTransactionError for a consumer of which a rebalance has taken partitions whose records it had handed out and
        nobody has committed: abort, call its `seek_to_committed`, and do it again. With a mapping, rebalances are yours to notice
        (`on_revoked`).
        """
        self._send_offsets(offsets, group_metadata)


class TransactionBlock:
    """What the blocks of both producers know: the consumer that goes with it, and whether offsets were sent in it."""

    def __init__(self, consumer: GroupConsumer | None) -> None:
        if consumer is not None and not hasattr(consumer, "config"):
            raise TypeError(f"the consumer of a transaction is a Consumer or AsyncConsumer, got {consumer!r}")
        if consumer is not None and consumer.config.group_id is None:
            raise ConfigError(
                "the consumer of a transaction needs a group_id: without one there is nothing to commit its offsets to"
            )
        if consumer is not None and consumer.config.enable_auto_commit:
            raise ConfigError(
                "enable_auto_commit=True would commit what a transaction then aborts: make the consumer of a transaction with "
                "enable_auto_commit=False, the transaction commits"
            )
        self.consumer = consumer
        self.has_offsets = False
        self._begun = False

    def _check_unused(self) -> None:
        """Raises TransactionStateError for a block that was entered before: what it knows is of that transaction."""
        if self._begun:
            raise TransactionStateError(
                "this transaction was begun before, and is used once", hint="Call producer.transaction() for each"
            )


class Transaction(TransactionBlock):
    """An open transaction of a Producer; see `Producer.transaction`. Used once."""

    def __init__(self, producer: BlockingTransactionCalls, consumer: GroupConsumer | None = None) -> None:
        super().__init__(consumer)
        self._producer = producer

    def send_offsets(self, offsets: GroupConsumer | Offsets, group_metadata: Group | None = None) -> None:
        """Commit a consumer's offsets with the transaction; see `Producer.send_offsets_to_transaction`."""
        self._producer._send_offsets(offsets, group_metadata, self.consumer)
        self.has_offsets = True

    def __enter__(self) -> Transaction:
        self._check_unused()
        self._producer.begin_transaction()
        self._begun = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._producer._run(self._producer._leave(self, error))


class AsyncTransactionCalls(TransactionOperations):
    """The calls of AsyncProducer: the names of Producer's, with `await`. Thread rule: the loop's thread."""

    if TYPE_CHECKING:

        def _start(self) -> None: ...
        async def _run(self, operation: Calls[T]) -> T: ...

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Get the producer id; see Producer.init_transactions."""
        await self._run(self._init_transactions(timeout))

    def transaction(self, *, consumer: GroupConsumer | None = None) -> AsyncTransaction:
        """A transaction for `async with`; see Producer.transaction. `consumer` is an AsyncConsumer."""
        self._transactions()
        return AsyncTransaction(self, consumer)

    async def begin_transaction(self) -> None:
        """Open a transaction; see Producer.begin_transaction."""
        await self._run(self._begin_transaction())

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Send what waits and commit; see Producer.commit_transaction.

        Cancelling it leaves the commit under way, or the transaction open while records of un-awaited sends have no place yet.
        """
        await self._run(self._commit_transaction(timeout))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Give the open transaction up; see Producer.abort_transaction."""
        await self._run(self._abort_transaction(timeout))

    async def send_offsets_to_transaction(
        self, offsets: GroupConsumer | Offsets, group_metadata: Group | None = None
    ) -> None:
        """Commit a consumer's offsets with the transaction; see Producer.send_offsets_to_transaction."""
        self._start()
        self._send_offsets(offsets, group_metadata)


class AsyncTransaction(TransactionBlock):
    """An open transaction of an AsyncProducer; see `AsyncProducer.transaction`. Used once."""

    def __init__(self, producer: AsyncTransactionCalls, consumer: GroupConsumer | None = None) -> None:
        super().__init__(consumer)
        self._producer = producer

    async def send_offsets(self, offsets: GroupConsumer | Offsets, group_metadata: Group | None = None) -> None:
        """Commit a consumer's offsets with the transaction; see `Producer.send_offsets_to_transaction`."""
        self._producer._start()
        self._producer._send_offsets(offsets, group_metadata, self.consumer)
        self.has_offsets = True

    async def __aenter__(self) -> AsyncTransaction:
        self._check_unused()
        await self._producer.begin_transaction()
        self._begun = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._producer._run(self._producer._leave(self, error))
