"""What the admin clients say about access control lists (KIP-140, KIP-290).

Rules of this file: as in `types.py`: names are Kafka's. A number that a broker sends and this release has no name for is UNKNOWN.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fastq.admin.types import check_kind

__all__ = ["Acl", "AclFilter", "AclOperation", "AclPatternType", "AclPermission", "AclResourceType"]


class AclResourceType(IntEnum):
    """What an ACL is about. ANY is for filters alone."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPatternType(IntEnum):
    """How an ACL names resources: LITERAL, one ("*": all), or PREFIXED, those whose names begin so. ANY and MATCH, which are those that
    concern a name, are for filters alone."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What an ACL allows or denies. ANY is for filters alone."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Whether it is allowed or denied. ANY is for filters alone."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True)
class Acl:
    """One access control: `principal` ("User:alice", "User:*") may, or may not, do `operation` from `host` ("*": any) to a resource."""

    resource_type: AclResourceType
    name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    host: str = "*"
    pattern_type: AclPatternType = AclPatternType.LITERAL

    def __post_init__(self) -> None:
        _check(self)
        for name in ("name", "principal", "host"):
            check_kind(name, getattr(self, name), str, "a text")


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which access controls: None and ANY are every one."""

    resource_type: AclResourceType = AclResourceType.ANY
    name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    host: str | None = None
    pattern_type: AclPatternType = AclPatternType.ANY

    def __post_init__(self) -> None:
        _check(self)


def _check(found: Acl | AclFilter) -> None:
    check_kind("resource_type", found.resource_type, AclResourceType, "an AclResourceType")
    check_kind("operation", found.operation, AclOperation, "an AclOperation")
    check_kind("permission", found.permission, AclPermission, "an AclPermission")
    check_kind("pattern_type", found.pattern_type, AclPatternType, "an AclPatternType")
