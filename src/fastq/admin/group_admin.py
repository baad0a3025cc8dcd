"""The part of the blocking admin client that is about groups, transactions and producers.

Rules of this file: as in `admin.py`, which it is a part of: a method builds an operation and runs it, nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastq.admin import groups, transactions
from fastq.admin.arguments import REMOVAL_REASON, TRANSACTION_TIMEOUT_MAX_MS, clock_ms, names_of
from fastq.admin.group_types import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    OffsetChange,
    OffsetReset,
    PartitionLag,
)
from fastq.admin.transaction_types import (
    FencedProducer,
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from fastq.admin.types import Outcomes
from fastq.metadata import TopicPartition

if TYPE_CHECKING:
    from fastq.net.client import BlockingClient


class GroupAdmin:
    """Groups, transactions and producers. Thread rule as `Admin`'s."""

    if TYPE_CHECKING:
        _client: BlockingClient

        def _timeout_ms(self, timeout: float | None) -> int: ...

    # -- groups ----------------------------------------------------------------------------------------------------------

    def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = (), timeout: float | None = None
    ) -> dict[str, GroupListing]:
        """All groups by id, in order; those in one of some states, of some types (see `GroupListing`). Each broker tells of those that it
        coordinates when it is asked: one that moves between two of them meanwhile may be missing, as in Kafka's own tools."""
        return self._client.run(groups.list_groups(names_of(states), names_of(types)), timeout)

    def describe_group(self, group_id: str, *, timeout: float | None = None) -> GroupDescription:
        """One group with its members and their partitions; raises GroupIdNotFound."""
        outcomes = self.describe_groups([group_id], timeout=timeout)
        return outcomes[group_id].result()

    def describe_groups(
        self, group_ids: Sequence[str], *, timeout: float | None = None
    ) -> Outcomes[str, GroupDescription]:
        """Groups with their members, classic and KIP-848 ones; an outcome for each."""
        return self._client.run(groups.describe_groups(names_of(group_ids)), timeout)

    def list_group_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, CommittedOffset | None]:
        """What a group has committed, in some partitions (None where nothing) or in all that it has committed in.

        `require_stable` waits for transactions that are about to commit offsets (KIP-447).
        """
        return self._client.run(groups.list_group_offsets(group_id, partitions, require_stable=require_stable), timeout)

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, None]:
        """Set a group's offsets; makes the group when there is none. UnknownMemberId while it has members."""
        return self._client.run(groups.alter_group_offsets(group_id, offsets), timeout)

    def reset_group_offsets(
        self,
        group_id: str,
        to: OffsetReset,
        *,
        partitions: Sequence[TopicPartition] | None = None,
        topics: Sequence[str] | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetChange]:
        """Move a group's offsets (KIP-122) in some partitions or topics, or in all that it has committed in; the plan.

        With `dry_run` nothing is written. Raises the first error; UnknownMemberId while the group has members.
        """
        operation = groups.reset_group_offsets(
            group_id, to, partitions, topics, dry_run=dry_run, timeout_ms=self._timeout_ms(timeout)
        )
        return self._client.run(operation, timeout)

    def group_lag(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None = None,
        *,
        read_committed: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, PartitionLag]:
        """How far a group is behind, in some partitions or in all that it has committed in.

        `read_committed` counts to the first open transaction, not to the high watermark.
        """
        operation = groups.group_lag(
            group_id, partitions, read_committed=read_committed, timeout_ms=self._timeout_ms(timeout)
        )
        return self._client.run(operation, timeout)

    def delete_groups(self, group_ids: Sequence[str], *, timeout: float | None = None) -> Outcomes[str, None]:
        """Delete groups with their offsets; NonEmptyGroup for one that has members."""
        return self._client.run(groups.delete_groups(names_of(group_ids)), timeout)

    def delete_group_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, None]:
        """Forget what a group has committed in partitions; GroupSubscribedToTopic for topics that it reads."""
        return self._client.run(groups.delete_group_offsets(group_id, list(partitions)), timeout)

    def remove_members(
        self,
        group_id: str,
        *,
        instance_ids: Sequence[str] = (),
        member_ids: Sequence[str] = (),
        reason: str = REMOVAL_REASON,
        timeout: float | None = None,
    ) -> Outcomes[str, None]:
        """Put members out of a group: static ones by instance id, any by member id, all when none is named.

        A member that still runs joins again.
        """
        operation = groups.remove_members(group_id, names_of(instance_ids), names_of(member_ids), reason)
        return self._client.run(operation, timeout)

    # -- transactions ----------------------------------------------------------------------------------------------------

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int | None = None,
        id_pattern: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, TransactionListing]:
        """Transactional ids in order: all, or those in some states, of some producers, open for longer than a time, or
        matching a regular expression. UnsupportedVersion where a broker is too old for a filter."""
        operation = transactions.list_transactions(
            names_of(states), producer_ids, longer_than_ms=longer_than_ms, id_pattern=id_pattern
        )
        return self._client.run(operation, timeout)

    def describe_transactions(
        self, transactional_ids: Sequence[str], *, timeout: float | None = None
    ) -> Outcomes[str, TransactionDescription]:
        """What the coordinators know of transactional ids; TransactionalIdNotFound for one that does not exist."""
        return self._client.run(transactions.describe_transactions(names_of(transactional_ids)), timeout)

    def abort_transaction(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        timeout: float | None = None,
    ) -> None:
        """Abort a transaction in one partition, past its coordinator: for hanging ones only (see `HangingTransaction`)."""
        operation = transactions.abort_transaction(partition, producer_id, producer_epoch, coordinator_epoch)
        self._client.run(operation, timeout)

    def abort_open_transaction(
        self, partition: TopicPartition, start_offset: int, *, timeout: float | None = None
    ) -> ProducerState:
        """The same for the transaction that began at an offset of the partition; the producer that it was of."""
        return self._client.run(transactions.abort_open_transaction(partition, start_offset), timeout)

    def find_hanging_transactions(
        self,
        *,
        topics: Sequence[str] | None = None,
        node_id: int | None = None,
        max_transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MAX_MS,
        timeout: float | None = None,
    ) -> list[HangingTransaction]:
        """Transactions that nobody will end, of some topics (None: all), in the partitions that a broker leads (None: all).

        Those with a batch within `max_transaction_timeout_ms`, the brokers' transaction.max.timeout.ms, are left out.
        """
        wanted = None if topics is None else names_of(topics)
        operation = transactions.find_hanging_transactions(
            wanted, node_id, max_timeout_ms=max_transaction_timeout_ms, clock_ms=clock_ms
        )
        return self._client.run(operation, timeout)

    def describe_producers(
        self, partitions: Sequence[TopicPartition], *, node_id: int | None = None, timeout: float | None = None
    ) -> Outcomes[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that partitions remember, as their leaders do, or one broker that has copies of them."""
        return self._client.run(transactions.describe_producers(list(partitions), node_id), timeout)

    def fence_producers(
        self, transactional_ids: Sequence[str], *, timeout: float | None = None
    ) -> Outcomes[str, FencedProducer]:
        """Abort what transactional ids have open, and refuse their present producers from now on."""
        return self._client.run(transactions.fence_producers(names_of(transactional_ids)), timeout)
