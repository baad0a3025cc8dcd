"""Administration of a Kafka-protocol cluster: `Admin` (blocking) and `AsyncAdmin`, and the types they take and give."""

from typing import TYPE_CHECKING

from fastq.admin.acl_types import Acl, AclFilter, AclOperation, AclPatternType, AclPermission, AclResourceType
from fastq.admin.admin import Admin
from fastq.admin.async_admin import AsyncAdmin
from fastq.admin.cluster_types import (
    ElectionType,
    FeatureMetadata,
    FeatureUpdate,
    PartitionReassignment,
    QuorumDescription,
    QuorumReplica,
    RaftVoterEndpoint,
    TopicPartitionReplica,
    UpgradeType,
)
from fastq.admin.config import AdminConfig
from fastq.admin.group_types import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupMember,
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
from fastq.admin.types import (
    AlterConfigOp,
    ApiVersion,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    CreatedTopic,
    LogDirDescription,
    NewPartitions,
    NewTopic,
    OffsetResult,
    OffsetSpec,
    Outcome,
    Outcomes,
    PartitionDescription,
    ReplicaInfo,
    ResourceType,
    TopicDescription,
    TopicListing,
)
from fastq.admin.user_types import (
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClientQuotaMatch,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from fastq.lazy import lazy_names

if TYPE_CHECKING:
    from fastq.admin.options import AdminOptions as AdminOptions

__all__ = [
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPatternType",
    "AclPermission",
    "AclResourceType",
    "Admin",
    "AdminConfig",
    "AlterConfigOp",
    "ApiVersion",
    "AsyncAdmin",
    "ClientQuotaEntity",
    "ClientQuotaFilter",
    "ClientQuotaMatch",
    "ClusterDescription",
    "CommittedOffset",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "CreatedTopic",
    "ElectionType",
    "FeatureMetadata",
    "FeatureUpdate",
    "FencedProducer",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "HangingTransaction",
    "LogDirDescription",
    "NewPartitions",
    "NewTopic",
    "OffsetChange",
    "OffsetReset",
    "OffsetResult",
    "OffsetSpec",
    "Outcome",
    "Outcomes",
    "PartitionDescription",
    "PartitionLag",
    "PartitionReassignment",
    "ProducerState",
    "QuorumDescription",
    "QuorumReplica",
    "RaftVoterEndpoint",
    "ReplicaInfo",
    "ResourceType",
    "ScramCredentialInfo",
    "ScramMechanism",
    "TopicDescription",
    "TopicListing",
    "TopicPartitionReplica",
    "TransactionDescription",
    "TransactionListing",
    "UpgradeType",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
]

# For type checkers mostly, and it imports the ssl module.
if not TYPE_CHECKING:  # which would take any name for one of the package
    __getattr__, __dir__, _lazy = lazy_names(__name__, {"AdminOptions": "fastq.admin.options"})
    __all__ += _lazy
