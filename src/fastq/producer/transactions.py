"""The transactions of one producer: a state machine between the sender, the coordinators and the user's calls. Sans-I/O.

Rules, after Kafka's TransactionManager (KIP-98, KIP-360, KIP-447, KIP-890):
- transaction_states.py has the one table of states and the one of what an error of a coordinator leads to.
- Transaction version 1: a partition is added by AddPartitionsToTxn before its first batch goes out, a group by
  AddOffsetsToTxn; the epoch stays, and is raised by InitProducerId after an abort that left a gap in a sequence.
- Transaction version 2: the leaders and the group's coordinator add what they get, and EndTxn raises the epoch. So a
  transaction of one batch takes two round trips. Which of the two holds is looked up when a transaction begins.
- EndTxn goes out when every batch has its fate and all offsets are in; after an error nothing that waits is sent.
- One request at a time is under way at each coordinator. Everything is tried again until the caller's patience ends, and
  even then goes on: what a commit will be is decided by the coordinator alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from fastq._native.accumulator import NO_TRANSACTION, Accumulator
from fastq._native.producer_batch import IN_FLIGHT, OPEN, PartitionState
from fastq.errors import (
    AbortableTransactionError,
    ConcurrentTransactions,
    ConnectionFailed,
    CoordinatorNotAvailable,
    ErrorCode,
    FastqError,
    FatalTransactionError,
    KafkaError,
    ProtocolError,
    TransactionAborted,
    TransactionError,
    TransactionFenced,
    TransactionStateError,
    UnsupportedVersion,
    error_for_code,
)
from fastq.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition
from fastq.net.backoff import backoff_s
from fastq.net.core import ClientCore
from fastq.net.requests import VersionedRequest
from fastq.net.troubles import Troubles
from fastq.producer import transaction_requests as requests
from fastq.producer.identity import TransactionalIdentity
from fastq.producer.transaction_hold import Hold
from fastq.producer.transaction_requests import Coordinator, OffsetsCommit
from fastq.producer.transaction_states import (
    ABORT_HINT,
    CONCURRENT_ATTEMPTS,
    CONCURRENT_FIRST_MS,
    CONCURRENT_MAX_MS,
    FATAL_FOR_BATCHES,
    GROUP_HINT,
    GROUP_MOVED_ON,
    HINTS,
    MAPPING_LOST,
    MOVES,
    SENDING,
    STALE_ANSWERS_MAX,
    STALE_HINT,
    UNDER_WAY,
    Action,
    State,
    action_for,
)
from fastq.protocol.api import ApiKey

logger = logging.getLogger("fastq.producer")

FEATURE = "transaction.version"
LOOK_AGAIN_S = 0.02


class Transactions:
    """The state machine. Thread rule: whoever holds the driver, but `check_send` and `state`, which anybody may read.

    Invariants: NO_TRANSACTION of the accumulator's flags is off exactly in IN_TRANSACTION; `error` is set exactly in the two
    error states; outside of IN_TRANSACTION and COMMITTING no batch leaves.
    """

    def __init__(
        self,
        core: ClientCore,
        accumulator: Accumulator,
        transactional_id: str,
        *,
        timeout_ms: int,
        request_timeout_s: float,
        retry_backoff_ms: int,
        retry_backoff_max_ms: int,
    ) -> None:
        self.core, self.accumulator = core, accumulator
        self.transactional_id, self.timeout_ms = transactional_id, timeout_ms
        self.identity = TransactionalIdentity(self.may_send)
        self.state = State.UNINITIALIZED
        self.error: TransactionError | None = None
        self.last_error: FastqError | None = None
        self.troubles = Troubles(logger)  # of this producer: its batches' too
        self.version = 1
        self.committed_total = self.aborted_total = 0
        self.wake: Callable[[], object] = lambda: None
        self._request_timeout_s, self._backoff_ms = request_timeout_s, (retry_backoff_ms, retry_backoff_max_ms)
        self._coordinator = Coordinator(requests.TRANSACTION, transactional_id)
        self._groups: dict[str, Coordinator] = {}
        self.hold = Hold()
        self._due: float | None = None
        self._records_before = 0  # of those that the accumulator counts, which are not of open batches
        self._forget_transaction()
        accumulator.slow |= NO_TRANSACTION

    def _forget_transaction(self) -> None:
        self._started = False  # a coordinator may know of the transaction
        self._confirmed = False  # it does
        self._partitions: dict[PartitionState, None] = {}
        self._new_partitions: dict[PartitionState, None] = {}
        self._added_groups: set[str] = set()
        self._commits: list[OffsetsCommit] = []
        self._stale_answers = 0

    # -- the user's calls -----------------------------------------------------------------------------------------

    @property
    def records_left(self) -> int:
        """How many records were sent in a transaction that nobody has ended, or that a fatal error has."""
        if self.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.FATAL_ERROR):
            return 0
        return self.accumulator.records_total + self._open_records() - self._records_before

    def _open_records(self) -> int:
        return sum(len(batch) for batch in list(self.accumulator.incomplete) if batch.state == OPEN)

    @property
    def settled(self) -> bool:
        """False while an initialization, a commit or an abort is under way."""
        return self.state not in UNDER_WAY

    def initialize(self) -> None:
        """Begin to get a producer id, unless that is under way or done."""
        if self.state is State.UNINITIALIZED:
            self._move(State.INITIALIZING)

    def begin(self) -> None:
        """Open a transaction. Raises what `initialize` failed with, or TransactionStateError."""
        if self.state is not State.READY:
            self._wrong_state("begin a transaction")
        self._forget_transaction()
        self.version = 2 if self.core.features.get(FEATURE, 0) >= 2 else 1
        self.identity.first_goes_alone = self.version < 2
        self._move(State.IN_TRANSACTION)

    def begin_commit(self) -> None:
        """Close the transaction to new records; it is committed once all that it has is in. Again: no effect."""
        if self.state is State.COMMITTING:
            return
        if self.state is not State.IN_TRANSACTION:
            self._wrong_state("commit")
        self._move(State.COMMITTING)
        self.accumulator.close_all()

    def begin_abort(self) -> None:
        """Give the transaction up: what has not been sent is not. Again, and with nothing to abort: no effect."""
        if self.state in (State.ABORTING, State.INITIALIZING, State.READY):
            return
        if self.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            self._wrong_state("abort")
        self.error = None
        self._move(State.ABORTING)

    def add_offsets(self, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit these offsets of a group with the transaction; goes out with the next turn."""
        if self.state is not State.IN_TRANSACTION:
            self._wrong_state("send offsets")
        if offsets:
            self._commits.append(OffsetsCommit(group, dict(offsets)))
            self.wake()

    def cannot_commit(self, cause: FastqError, hint: str) -> NoReturn:
        """The offsets of a group cannot be had for it, so it can only be aborted. Raises that, or TransactionStateError."""
        if self.state is State.IN_TRANSACTION:
            self._fail(Action.ABORT, cause, hint)
        self._wrong_state("send offsets")

    def check_send(self) -> None:
        """Raise the reason why no record is accepted now."""
        if (state := self.state) is not State.IN_TRANSACTION:
            self._wrong_state("send", state)

    def check_outcome(self) -> None:
        """Raise the error that the producer is in, if it is in one."""
        if self.error is not None:
            raise self.error.with_traceback(None)

    def _wrong_state(self, what: str, state: State | None = None) -> NoReturn:
        self.check_outcome()
        hints = {
            State.COMMITTING: "Wait for commit_transaction to return; after a TransactionTimeout, interrupt or cancellation call it again",
            State.ABORTING: "Wait for abort_transaction to return; after a TransactionTimeout, interrupt or cancellation call it again",
            State.IN_TRANSACTION: "Commit or abort the open one first",
        }
        hint = hints.get(
            state or self.state, "Open a transaction with `with producer.transaction():` or begin_transaction()"
        )
        raise TransactionStateError(
            f"cannot {what}: {(state or self.state).value}", transactional_id=self.transactional_id, hint=hint
        )

    # -- states ---------------------------------------------------------------------------------------------------

    def _move(self, state: State) -> None:
        assert state in MOVES[self.state], f"{self.state} does not lead to {state}"
        self.state = state
        if state is State.IN_TRANSACTION:
            self.accumulator.slow &= ~NO_TRANSACTION
        else:
            self.accumulator.slow |= NO_TRANSACTION
        if state is State.READY:
            self._records_before = self.accumulator.records_total
        self.wake()

    def _fail(self, action: Action, cause: FastqError, hint: str | None = None) -> None:
        """Enter an error state. A fatal error stays; one that asks for an abort changes nothing where one is under way."""
        if self.state is State.FATAL_ERROR:
            return
        if action is Action.ABORT and self.state in (State.ABORTABLE_ERROR, State.ABORTING):
            return
        if action is Action.ABORT and self.state in SENDING:
            hint = hint or (GROUP_HINT if getattr(cause, "code", None) in GROUP_MOVED_ON else ABORT_HINT)
            self.error = AbortableTransactionError(transactional_id=self.transactional_id, cause=cause, hint=hint)
            self._move(State.ABORTABLE_ERROR)
            self._drop_unsent()
            return
        if action is Action.FENCED:
            self.error = TransactionFenced(
                "a newer producer uses the same transactional id, or the transaction was open for longer than "
                f"transaction_timeout_ms={self.timeout_ms}",
                transactional_id=self.transactional_id,
                cause=cause,
                hint="Close this producer; if no other one is meant to use the id, make the transactions shorter or "
                "raise transaction_timeout_ms, and go on with a new producer",
            )
        else:
            code = cause.code if isinstance(cause, KafkaError) else ErrorCode.NONE
            hint = hint or HINTS.get(code, "Close the producer and make a new one")
            self.error = FatalTransactionError(transactional_id=self.transactional_id, cause=cause, hint=hint)
        self._move(State.FATAL_ERROR)
        self._records_before -= self._open_records()
        self.accumulator.abort(self.error)

    def _drop_unsent(self) -> None:
        """Give the batches that no connection has their fate: they are not sent."""
        self._records_before -= self._open_records()
        for batch in list(self.accumulator.incomplete):
            if batch.state != IN_FLIGHT:
                cause = self.error.cause if self.error is not None else batch.last_error
                self.identity.failed(batch, maybe_written=False)
                self.accumulator.complete(
                    batch,
                    TransactionAborted(
                        "the record was not written: its transaction is aborted",
                        transactional_id=self.transactional_id,
                        topic=batch.partition.topic.name,
                        partition=batch.partition.index,
                        cause=cause,
                    ),
                )
                self.troubles.rest(batch.partition)

    # -- from the sender ------------------------------------------------------------------------------------------

    @property
    def produce_version_max(self) -> int:
        """The last version of Produce of this transaction's version."""
        return requests.PRODUCE_VERSION_MAX_V1 if self.version < 2 else requests.PRODUCE_VERSION_MAX

    @property
    def produce_version_min(self) -> int:
        """The first one."""
        return 0 if self.version < 2 else requests.PRODUCE_VERSION_MAX_V1 + 1

    def may_send(self, partition: PartitionState) -> bool:
        """Whether batches of a partition may leave: it belongs to the open transaction, or is added by being sent to."""
        if self.state not in SENDING:
            return False
        if partition in self._partitions:
            return True
        if self.version < 2:
            self._new_partitions[partition] = None
            return False
        if not self._partitions:
            now = self.core.clock()
            if now < self.hold.until():
                return False
            self.hold.sent(now)
        self._partitions[partition] = None
        self._started = True
        return True

    def batch_failed(self, error: FastqError) -> None:
        """A batch was given up: so is its transaction."""
        if isinstance(error, TransactionError):
            return
        if isinstance(error, KafkaError) and error.code in FATAL_FOR_BATCHES:
            self._fail(Action.FENCED if error.code == ErrorCode.PRODUCER_FENCED else Action.FATAL, error)
        elif isinstance(error, UnsupportedVersion):
            self._fail(Action.FATAL, error)
        else:
            self._fail(Action.ABORT, error)

    def pause_s(self, error: FastqError, attempts: int) -> float:
        """How long to wait after `attempts` failures in a row, the last of them `error`."""
        first_ms, max_ms = map(float, self._backoff_ms)
        if isinstance(error, ConcurrentTransactions):
            if attempts <= CONCURRENT_ATTEMPTS:
                first_ms, max_ms = min(first_ms, CONCURRENT_FIRST_MS), min(max_ms, CONCURRENT_MAX_MS)
            else:
                attempts -= CONCURRENT_ATTEMPTS
        return backoff_s(first_ms, max_ms, attempts, self.core.random)

    def step(self, now: float) -> float | None:
        """Send what the state asks for; answers when the next step is due without any event, or None."""
        self._due = None
        if self.state in (State.ABORTABLE_ERROR, State.ABORTING):
            self._drop_unsent()
        if now < self.hold.until() and self.state in SENDING:
            self._look_again(self.hold.until())
        if self._commits:
            self._step_group(now)
        if not self._coordinator.busy:
            self._step_coordinator(now)
        return self._due

    # -- requests -------------------------------------------------------------------------------------------------

    def _step_coordinator(self, now: float) -> None:
        """The one request that the transaction's coordinator gets next."""
        send: Callable[[], None] | None = None
        if self.state is State.INITIALIZING:
            send = self._initialize
        elif self.state in SENDING:
            if self._new_partitions:
                send = self._add_partitions
            elif self.version < 2 and any(self._is_new(commit) for commit in self._commits):
                send = self._add_group
            elif self.state is State.COMMITTING and not self._commits and not self.accumulator.incomplete:
                send = self._end
        elif self.state is State.ABORTING and not self.accumulator.incomplete and not self._group_busy:
            send = self._end
        if send == self._end and not self._started:
            self._ended()
        elif send is not None and self._reachable(self._coordinator, now):
            send()

    @property
    def _group_busy(self) -> bool:
        return any(coordinator.busy for coordinator in self._groups.values())

    def _initialize(self) -> None:
        mine = self.identity
        request = requests.init_producer_id(self.transactional_id, self.timeout_ms, mine.producer_id, mine.epoch)
        self._send(self._coordinator, request, (3 if mine.is_known else 0, 5), self._initialized)

    def _initialized(self, response: Any) -> None:
        if self._judge(self._coordinator, ApiKey.INIT_PRODUCER_ID, [(response.error_code, {})]):
            self.identity.assume(response.producer_id, response.producer_epoch)
            self._move(State.READY)

    def _add_partitions(self) -> None:
        partitions, self._started = list(self._new_partitions), True
        request = requests.add_partitions(self.transactional_id, self.identity, partitions)
        self._send(self._coordinator, request, (0, 3), partial(self._partitions_added, partitions))

    def _partitions_added(self, partitions: list[PartitionState], response: Any) -> None:
        if self._judge(self._coordinator, ApiKey.ADD_PARTITIONS_TO_TXN, requests.partition_errors(response)):
            self._confirmed = True
            for partition in partitions:
                self._new_partitions.pop(partition, None)
                self._partitions[partition] = None
                self.accumulator.mark_ready(partition)

    def _is_new(self, commit: OffsetsCommit) -> bool:
        return commit.group.group_id not in self._added_groups

    def _add_group(self) -> None:
        group_id = next(commit.group.group_id for commit in self._commits if self._is_new(commit))
        self._started = True
        request = requests.add_offsets(self.transactional_id, self.identity, group_id)
        self._send(self._coordinator, request, (0, 4), partial(self._group_added, group_id))

    def _group_added(self, group_id: str, response: Any) -> None:
        if self._judge(self._coordinator, ApiKey.ADD_OFFSETS_TO_TXN, [(response.error_code, {"group_id": group_id})]):
            self._confirmed = True
            self._added_groups.add(group_id)

    def _step_group(self, now: float) -> None:
        commit = self._commits[0]
        if self.state not in SENDING or (self.version < 2 and self._is_new(commit)):
            return
        group = commit.group
        coordinator = self._groups.get(group.group_id)
        if coordinator is None:
            coordinator = self._groups[group.group_id] = Coordinator(requests.GROUP, group.group_id)
        if coordinator.busy or not self._reachable(coordinator, now):
            return
        self._started = True
        versions = (5, 5) if self.version >= 2 else (3 if group.member_id or group.generation_id >= 0 else 0, 4)
        request = requests.txn_offset_commit(self.transactional_id, self.identity, group, commit.offsets)
        self._send(coordinator, request, versions, partial(self._offsets_answered, coordinator, commit))

    def _offsets_answered(self, coordinator: Coordinator, commit: OffsetsCommit, response: Any) -> None:
        answers = requests.partition_errors(response, group_id=commit.group.group_id)
        for code, context in answers:
            if code == 0:
                commit.offsets.pop(TopicPartition(context["topic"], context["partition"]), None)
        if self._judge(coordinator, ApiKey.TXN_OFFSET_COMMIT, answers) and commit in self._commits:
            self._commits.remove(commit)

    def _end(self) -> None:
        request = requests.end_txn(self.transactional_id, self.identity, self.state is State.COMMITTING)
        self._send(self._coordinator, request, (5, 5) if self.version >= 2 else (0, 4), self._end_answered)

    def _end_answered(self, response: Any) -> None:
        code = response.error_code
        if self.state is State.ABORTING:
            # Only the coordinator's own word counts: where it still has the transaction, InitProducerId would fence this producer.
            if code in MAPPING_LOST:
                self._ended(State.INITIALIZING)
                return
            if code == ErrorCode.INVALID_TXN_STATE and self.version < 2 and not self._confirmed:
                code = 0  # what should have begun it never arrived
            elif code and action_for(code) is Action.ABORT:
                self._fail(Action.FATAL, self._error(self._coordinator, ApiKey.END_TXN, code))
                return
        elif code == ErrorCode.INVALID_TXN_STATE and self.version >= 2 and self._stale_answers < STALE_ANSWERS_MAX:
            self._stale_answers += 1
            self._judge(self._coordinator, ApiKey.END_TXN, [(code, {"hint": STALE_HINT})], Action.FIND)
            return
        if self._judge(self._coordinator, ApiKey.END_TXN, [(code, {})]):
            if self.version >= 2 and response.producer_id >= 0:
                self.identity.assume(response.producer_id, response.producer_epoch)
                self.hold.ended(self.core.clock())
            self._ended()

    def _ended(self, then: State | None = None) -> None:
        """The coordinator has decided, or had nothing to decide."""
        if self.state is State.COMMITTING:
            self.committed_total += 1
        else:
            self.aborted_total += 1
        if self.accumulator.incomplete:
            self.accumulator.abort(
                TransactionStateError(
                    "the record was not written: it was sent while its transaction ended",
                    transactional_id=self.transactional_id,
                    hint="Send from other threads only while the transaction is open",
                )
            )
        self._forget_transaction()
        self._move(then or (State.INITIALIZING if self.identity.gap else State.READY))

    # -- coordinators ---------------------------------------------------------------------------------------------

    def _reachable(self, coordinator: Coordinator, now: float) -> bool:
        """Whether a request may go to the coordinator now; begins to look it up or to connect where that is needed."""
        if now < coordinator.retry_at:
            self._look_again(coordinator.retry_at)
            return False
        node_id = coordinator.node_id
        if node_id is None:
            self._find(coordinator, now)
            return False
        if node_id not in self.core.metadata.nodes:
            what = f"its coordinator is on node {node_id}, which is not among the brokers that the cluster names"
            self.core.request_metadata_update(f"{coordinator.key}: {what}")
            error = CoordinatorNotAvailable(what)
            if self.core.metadata_updater.answered > coordinator.found_after:
                coordinator.node_id = None  # it has left: another one may be it by now
                self._retry(coordinator, error)
            self._passing(coordinator, error, False)
        elif self.core.can_send(node_id, now) or self.core.is_connecting(node_id):
            return True
        self._look_again(now + LOOK_AGAIN_S)
        return False

    def _look_again(self, when: float) -> None:
        if self._due is None or when < self._due:
            self._due = when

    def _find(self, coordinator: Coordinator, now: float) -> None:
        node_id = self.core.least_loaded(now)
        if node_id is None:
            self._look_again(now + LOOK_AGAIN_S)
            return
        request = requests.find_coordinator(coordinator.key_type, coordinator.key)
        handler = partial(self._answered, coordinator, partial(self._found, coordinator))
        self.core.send(node_id, request, handler, timeout_s=self._request_timeout_s, anywhere=True)
        coordinator.busy = True  # once it is on its way: there may be no memory for it

    def _found(self, coordinator: Coordinator, response: Any) -> None:
        answer = requests.coordinator_of(coordinator.key_type, response, coordinator.key)
        if isinstance(answer, ProtocolError):
            self._fail(Action.FATAL, answer)
            return
        context, failures = {"message": answer.error_message, "key": coordinator.key}, coordinator.failures
        if self._judge(coordinator, ApiKey.FIND_COORDINATOR, [(answer.error_code, context)]):
            # A coordinator that keeps saying that it is none is asked less and less often.
            coordinator.node_id, coordinator.failures = answer.node_id, failures
            coordinator.found_after = self.core.metadata_updater.requests
            logger.debug("the coordinator of %s is node %d", coordinator.key, answer.node_id)

    def _send(
        self,
        coordinator: Coordinator,
        request: VersionedRequest,
        versions: tuple[int, int],
        handler: Callable[[Any], None],
    ) -> None:
        assert coordinator.node_id is not None
        self.core.send(
            coordinator.node_id,
            request,
            partial(self._answered, coordinator, handler),
            timeout_s=self._request_timeout_s,
            versions=versions,
        )
        coordinator.busy = True

    def _answered(
        self, coordinator: Coordinator, handler: Callable[[Any], None], response: Any, error: FastqError | None
    ) -> None:
        coordinator.busy = False
        self.wake()
        if error is None:
            if response.throttle_time_ms > 0 and coordinator.node_id is not None:
                self.core.throttle(coordinator.node_id, response.throttle_time_ms / 1000, self.core.clock())
            handler(response)
        elif error.retriable:
            if isinstance(error, ConnectionFailed):
                coordinator.node_id = None
            self._retry(coordinator, error)
        else:
            self._fail(Action.FATAL, error)

    def _judge(
        self,
        coordinator: Coordinator,
        api: ApiKey,
        answers: list[tuple[int, dict[str, Any]]],
        instead: Action | None = None,
    ) -> bool:
        """True when no answer is an error; otherwise what the worst of them leads to is done, or `instead` of it."""
        errors = [
            (instead or action_for(code), self._error(coordinator, api, code, **to)) for code, to in answers if code
        ]
        if not errors:
            coordinator.failures, coordinator.retry_at = 0, 0.0
            self.troubles.over((coordinator, api is ApiKey.FIND_COORDINATOR), self.core.clock())
            return True
        action, error = max(
            errors, key=lambda found: (found[0].value, found[1].code != ErrorCode.OPERATION_NOT_ATTEMPTED)
        )
        if action in (Action.RETRY, Action.FIND):
            coordinator.node_id = None if action is Action.FIND else coordinator.node_id
            self._retry(coordinator, error)
            self._passing(coordinator, error, api is ApiKey.FIND_COORDINATOR)
        elif action is Action.ABORT and self.state is State.INITIALIZING:
            self._fail(Action.FATAL, error)
        else:
            self._fail(action, error)
        return False

    def _error(
        self, coordinator: Coordinator, api: ApiKey, code: int, message: str | None = None, **where: Any
    ) -> KafkaError:
        broker = self.core.broker_label(coordinator.node_id) if coordinator.node_id is not None else None
        return error_for_code(code, message, broker=broker, api=api.name, **where)

    def _retry(self, coordinator: Coordinator, error: FastqError) -> None:
        coordinator.failures += 1
        coordinator.retry_at = self.core.clock() + self.pause_s(error, coordinator.failures)
        self.last_error = error
        logger.debug("%s of %s is asked again: %s", coordinator.key_type, coordinator.key, error)

    def _passing(self, coordinator: Coordinator, error: FastqError, in_lookup: bool) -> None:
        """What is asked again: told when it lasts. A look-up that works says nothing of what is asked of the coordinator then."""
        kind = "group" if coordinator.key_type == requests.GROUP else "transactional id"
        name = f"{'the coordinator of ' if in_lookup else ''}{kind} {coordinator.key}"
        doing = "found" if in_lookup else "served"
        self.troubles.failed((coordinator, in_lookup), doing, error, self.core.clock(), name=name)
