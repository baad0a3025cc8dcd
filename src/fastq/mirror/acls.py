"""Access controls of topics: those of the source's are made for the target's, as MirrorMaker 2 does it.

Rules
- What allows to write is not copied, and what allows all allows to read: the mirror alone writes there. After a fail-over it is the
  target's administrators who say who may write.
- Those of one topic by its name are copied, in the target's name; those of all topics ("*") and of prefixes are each cluster's own, as are
  those of groups, of the cluster and the rest. Nothing is ever taken back in the target.
- A side without an authorizer has none: that is told, and is no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastq.admin import Acl, AclFilter, AclOperation, AclPatternType, AclPermission, AclResourceType, Admin
from fastq.errors import FastqError, SecurityDisabled
from fastq.mirror.config import MirrorConfig
from fastq.values import NamedTuple

TOPICS = AclFilter(AclResourceType.TOPIC, pattern_type=AclPatternType.LITERAL)


class Copied(NamedTuple):
    """What was made in the target, what could not be and why, and in words why nothing is copied ("": it is)."""

    made: tuple[Acl, ...]
    errors: Mapping[Acl, FastqError]
    why_not: str = ""


def wanted_acls(source: Iterable[Acl], targets: Mapping[str, str]) -> set[Acl]:
    """What the target is to have, of the topics of `targets`: names in the source, and in the target."""
    found: set[Acl] = set()
    for acl in source:
        is_topic = acl.resource_type is AclResourceType.TOPIC and acl.pattern_type is AclPatternType.LITERAL
        allows = acl.permission is AclPermission.ALLOW
        if not is_topic or acl.name not in targets or acl.operation == AclOperation.UNKNOWN:
            continue
        if acl.permission not in (AclPermission.ALLOW, AclPermission.DENY):
            continue
        if allows and acl.operation is AclOperation.WRITE:
            continue
        operation = AclOperation.READ if allows and acl.operation is AclOperation.ALL else acl.operation
        found.add(Acl(acl.resource_type, targets[acl.name], acl.principal, operation, acl.permission, acl.host))
    return found


def copy_acls(config: MirrorConfig, source: Admin, target: Admin, targets: Mapping[str, str]) -> Copied:
    """Make what the target has not yet. Raises why either side cannot be asked."""
    found: list[list[Acl]] = []
    for side, admin in ((config.source, source), (config.target, target)):
        try:
            found.append(admin.describe_acls(TOPICS))
        except SecurityDisabled:
            return Copied((), {}, f"{side.alias} has no authorizer: access controls (ACLs) of topics are not copied")
    missing = sorted(wanted_acls(found[0], targets) - set(found[1]), key=repr)
    if not missing:
        return Copied((), {})
    outcomes = target.create_acls(missing)
    errors = outcomes.errors
    return Copied(tuple(acl for acl in missing if acl not in errors), errors)


def in_words(acl: Acl) -> str:
    """As administrators say it: "User:alice may READ topic orders from *"."""
    verb = "may" if acl.permission is AclPermission.ALLOW else "may not"
    return f"{acl.principal} {verb} {acl.operation.name} {acl.resource_type.name.lower()} {acl.name} from {acl.host}"
