"""The part of the blocking admin client that is about the cluster: the quorum, features, leaders, replicas, access controls, users.

Rules of this file: as in `admin.py`, which it is a part of: a method builds an operation and runs it, nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fastq.admin import acls, cluster
from fastq.admin import users as of_users
from fastq.admin.acl_types import Acl, AclFilter
from fastq.admin.arguments import names_of
from fastq.admin.cluster_types import (
    ElectionType,
    FeatureMetadata,
    FeatureUpdate,
    PartitionReassignment,
    QuorumDescription,
    RaftVoterEndpoint,
    TopicPartitionReplica,
)
from fastq.admin.types import Outcomes
from fastq.admin.user_types import (
    ClientQuotaEntity,
    ClientQuotaFilter,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from fastq.metadata import TopicPartition

if TYPE_CHECKING:
    from fastq.net.client import BlockingClient


class ClusterAdmin:
    """The cluster's nodes, and which of them has what. Thread rule as `Admin`'s."""

    if TYPE_CHECKING:
        _client: BlockingClient

        def _timeout_ms(self, timeout: float | None) -> int: ...

    # -- the metadata quorum ---------------------------------------------------------------------------------------------

    def describe_quorum(self, *, timeout: float | None = None) -> QuorumDescription:
        """The controllers' quorum: its leader, voters and observers, and how far each is (KIP-836). UnsupportedVersion before Kafka 3.3."""
        return self._client.run(cluster.describe_quorum(), timeout)

    def add_raft_voter(
        self,
        voter_id: int,
        directory_id: bytes,
        endpoints: Sequence[RaftVoterEndpoint],
        *,
        cluster_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Let a controller that follows the quorum vote in it (KIP-853); done when the change is committed.

        `directory_id` is of its metadata directory (16 bytes; `directory.id` in its meta.properties), `endpoints` are where it listens for
        controllers; with a `cluster_id` any other cluster refuses. Raises DuplicateVoter for an id that votes already; UnsupportedVersion
        under kraft.version 0; RequestTimedOut while another change is under way, or while it is not caught up.
        """
        operation = cluster.add_raft_voter(
            voter_id, directory_id, endpoints, cluster_id=cluster_id, timeout_ms=self._timeout_ms(timeout)
        )
        return self._client.run(operation, timeout)

    def remove_raft_voter(
        self, voter_id: int, directory_id: bytes, *, cluster_id: str | None = None, timeout: float | None = None
    ) -> None:
        """Take a controller's vote (KIP-853); done when the change is committed. It goes on as an observer.

        Raises VoterNotFound when none has this id and directory, and for the last one; else as `add_raft_voter`.
        """
        operation = cluster.remove_raft_voter(voter_id, directory_id, cluster_id=cluster_id)
        return self._client.run(operation, timeout)

    # -- features and registrations --------------------------------------------------------------------------------------

    def describe_features(self, node_id: int | None = None, *, timeout: float | None = None) -> FeatureMetadata:
        """The levels of features that the cluster has finalized, and those that a broker supports (None: any one; KIP-584)."""
        return self._client.run(cluster.describe_features(node_id), timeout)

    def update_features(
        self,
        updates: Mapping[str, int | FeatureUpdate],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Set levels of features, all of them or none (KIP-584): `{"metadata.version": 29}`. An int only goes up; see `FeatureUpdate`.

        With `validate_only` everything is checked and nothing changed. Raises InvalidUpdateVersion, with the feature and why.
        """
        operation = cluster.update_features(updates, validate_only=validate_only, timeout_ms=self._timeout_ms(timeout))
        return self._client.run(operation, timeout)

    def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> None:
        """Take a broker that is gone for good out of the cluster. Raises BrokerIdNotRegistered.

        Its replicas stay in the partitions' lists, out of sync. One that lives is shut out until it is started again.
        """
        return self._client.run(cluster.unregister_broker(broker_id), timeout)

    # -- replicas and leaders --------------------------------------------------------------------------------------------

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, None]:
        """Begin to move partitions to other replicas, the preferred leader first (KIP-455); None cancels a move. An outcome for each.

        It is done once the new replicas are in sync: see `list_partition_reassignments`. The error of an item is
        InvalidReplicaAssignment for nodes that are not there, NoReassignmentInProgress where nothing was to cancel. With
        `allow_replication_factor_change=False` another number of replicas is refused (KIP-860, Kafka 4.1).
        """
        operation = cluster.alter_partition_reassignments(
            reassignments,
            allow_replication_factor_change=allow_replication_factor_change,
            timeout_ms=self._timeout_ms(timeout),
        )
        return self._client.run(operation, timeout)

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The partitions that move, of all (None) or of some (KIP-455)."""
        operation = cluster.list_partition_reassignments(partitions, timeout_ms=self._timeout_ms(timeout))
        return self._client.run(operation, timeout)

    def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, None]:
        """Elect leaders of partitions (KIP-460), or of all that need it (None: only those have an outcome).

        The error of an item is ElectionNotNeeded where it has that leader already, PreferredLeaderNotAvailable or
        EligibleLeadersNotAvailable where nobody can be elected. ElectionType.UNCLEAN loses records.
        """
        operation = cluster.elect_leaders(election_type, partitions, timeout_ms=self._timeout_ms(timeout))
        return self._client.run(operation, timeout)

    def alter_replica_log_dirs(
        self, moves: Mapping[TopicPartitionReplica, str], *, timeout: float | None = None
    ) -> Outcomes[TopicPartitionReplica, None]:
        """Begin to move replicas to other log directories of their brokers, absolute paths (KIP-113); an outcome for each.

        `describe_log_dirs` has the copy as `is_future` until it is done. A replica that its broker does not have yet is waited for; its
        error is ReplicaNotAvailable when the time is over, and it will be made in the directory named.
        """
        return self._client.run(cluster.alter_replica_log_dirs(moves), timeout)

    # -- access controls -------------------------------------------------------------------------------------------------

    def describe_acls(self, wanted: AclFilter | None = None, *, timeout: float | None = None) -> list[Acl]:
        """The access controls (KIP-140) that a filter names, in order; None: all.

        Raises SecurityDisabled where the cluster has no authorizer, as a fastq broker has none.
        """
        return self._client.run(acls.describe_acls(AclFilter() if wanted is None else wanted), timeout)

    def create_acls(self, wanted: Sequence[Acl], *, timeout: float | None = None) -> Outcomes[Acl, None]:
        """Make access controls; an outcome for each. One that is there already is no error."""
        return self._client.run(acls.create_acls(list(wanted)), timeout)

    def delete_acls(
        self, filters: Sequence[AclFilter], *, timeout: float | None = None
    ) -> Outcomes[AclFilter, tuple[Acl, ...]]:
        """Delete the access controls that each of some filters names; what each has deleted."""
        return self._client.run(acls.delete_acls(list(filters)), timeout)

    # -- users and quotas ------------------------------------------------------------------------------------------------

    def describe_user_scram_credentials(
        self, users: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> Outcomes[str, tuple[ScramCredentialInfo, ...]]:
        """The SCRAM credentials (KIP-554) of some users, or of all that have one (None); never a secret of one.

        The error of a user without any is ResourceNotFound. UnsupportedVersion before Kafka 2.7.
        """
        wanted = None if users is None else names_of(users)
        return self._client.run(of_users.describe_user_scram_credentials(wanted), timeout)

    def alter_user_scram_credentials(
        self,
        alterations: Sequence[UserScramCredentialUpsertion | UserScramCredentialDeletion],
        *,
        timeout: float | None = None,
    ) -> Outcomes[str, None]:
        """Set and delete SCRAM credentials (KIP-554); an outcome a user. Mechanisms go one after the other, until a user has an error.

        Passwords are salted and hashed here, some milliseconds each at 4,096 iterations, and go out as that alone. The error of a user is
        ResourceNotFound where there is nothing to delete, UnacceptableCredential for too many iterations; a fastq broker, which has no
        listeners with SASL, refuses to set one (UnsupportedVersion).
        """
        return self._client.run(of_users.alter_user_scram_credentials(list(alterations)), timeout)

    def describe_client_quotas(
        self, wanted: ClientQuotaFilter | None = None, *, timeout: float | None = None
    ) -> dict[ClientQuotaEntity, dict[str, float]]:
        """The quotas (KIP-546) of entities that a filter names (None: all), by the name of each: rates in bytes a second, or per cent.

        UnsupportedVersion before Kafka 2.6.
        """
        chosen = ClientQuotaFilter() if wanted is None else wanted
        return self._client.run(of_users.describe_client_quotas(chosen), timeout)

    def alter_client_quotas(
        self,
        changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[ClientQuotaEntity, None]:
        """Set quotas (KIP-546), or take them away (None): `{ClientQuotaEntity({"user": "alice"}): {"producer_byte_rate": 1e6}}`.

        An outcome an entity; others of its quotas stay as they are. A fastq broker, which enforces none, refuses to set one
        (UnsupportedVersion).
        """
        operation = of_users.alter_client_quotas(changes, validate_only=validate_only)
        return self._client.run(operation, timeout)
