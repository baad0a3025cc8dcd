"""What the admin clients do with groups, written once: operations of `fastq.net.operations`, by the rules of `core.py`.

Rules of this file:
- What concerns a group goes to its coordinator, which is looked up again when it has moved (14, 15, 16).
- A group is described by whichever of the two protocols it uses: ConsumerGroupDescribe first (KIP-848), and DescribeGroups
  for those that it does not know, or where the broker has no such API.
- Offsets are asked for and committed by topic name (up to version 9): ids come with version 10 and say nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fastq._native.wire import DecodeError, Reader
from fastq.admin.arguments import names_of
from fastq.admin.core import (
    Answers,
    _error,
    _group_by_topic,
    _passes,
    asked_for,
    describe_cluster,
    look_up_topics,
    or_error_of_each,
    per_item,
)
from fastq.admin.group_types import (
    GROUP_STATES,
    GROUP_TYPES,
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupMember,
    OffsetChange,
    OffsetReset,
    PartitionLag,
)
from fastq.admin.offset_reset import plan_reset
from fastq.admin.offsets import list_several
from fastq.admin.shown import Shown, ask_all_once
from fastq.admin.types import OffsetSpec, Outcome, Outcomes, check_kind
from fastq.arguments import int_of, mapping_of
from fastq.errors import ErrorCode, FastqError, GroupIdNotFound, KafkaError, UnsupportedVersion
from fastq.metadata import Node, OffsetAndMetadata, TopicPartition, partition_of
from fastq.net.operations import (
    Call,
    Coordinator,
    CoordinatorKind,
    Found,
    Operation,
    OutOfTime,
    Retry,
    find_coordinators,
)
from fastq.net.requests import VersionedRequest
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey
from fastq.protocol.message import Message

V = TypeVar("V")

BY_NAME = 9
"""The last version of OffsetCommit and OffsetFetch that names topics."""
ACTIVE_GROUP_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
"""What a coordinator answers to a commit from outside while the group has members."""


def per_coordinator(
    kind: CoordinatorKind,
    request: Callable[[list[str]], Message | VersionedRequest],
    read: Callable[[Any, Node], Answers[str, V]],
) -> Callable[[list[str]], Operation[Answers[str, V]]]:
    """One request to each coordinator concerned, in parallel; a coordinator that cannot be asked fails its ids only."""

    def send(ids: list[str]) -> Operation[Answers[str, V]]:
        answers: dict[str, V | FastqError] = {}
        by_node: dict[Node, list[str]] = {}
        found = yield from find_coordinators(kind, ids)
        for id_, coordinator in found.items():
            if isinstance(coordinator, FastqError):
                answers[id_] = coordinator
            else:
                by_node.setdefault(coordinator, []).append(id_)
        role = f"which coordinated the {kind}s that it was to be asked about"
        responses = yield [Call(Found(node.node_id, role), request(theirs)) for node, theirs in by_node.items()]
        for (node, theirs), response in zip(by_node.items(), responses, strict=True):
            answers.update(asked_for(theirs, response if isinstance(response, FastqError) else read(response, node)))
        return answers

    return send


def for_all_brokers(
    request: Message | VersionedRequest, versions: tuple[int, int] | None = None
) -> Operation[list[Any]]:
    """The answers of all brokers to one request with a top-level error code; raises the first error that stays. Where one has left the
    cluster meanwhile, those that have answered may have its part by now: all are asked again."""
    answers: dict[int, Any] = {}
    errors: dict[int, FastqError] = {}
    while True:
        cluster = yield from describe_cluster()
        there = [node.node_id for node in cluster.nodes]
        if not answers.keys() | errors.keys() <= set(there):
            answers.clear()
        left = [node_id for node_id in there if node_id not in answers]
        responses = yield [Call(Found(node_id, "one of those to be asked"), request, versions) for node_id in left]
        errors.clear()
        for node_id, response in zip(left, responses, strict=True):
            if isinstance(response, FastqError):
                errors[node_id] = response
            elif response.error_code:
                errors[node_id] = _error(response.error_code, None, broker=f"node {node_id}")
            else:
                answers[node_id] = response
        if not errors:
            return [answers[node_id] for node_id in there]
        lasting = [error for error in errors.values() if not _passes(error, finds=True)]
        if lasting or not (yield Retry(next(iter(errors.values())))):
            raise next(iter(lasting or errors.values()))


# -- groups ------------------------------------------------------------------------------------------------------------------


def list_groups(states: Sequence[str], types: Sequence[str]) -> Operation[dict[str, GroupListing]]:
    """ListGroups (KIP-518, KIP-848) of every broker; filters that a broker is too old for are applied here. ValueError for a state or
    type that no group is in, which a broker answers with none."""
    responses = yield from for_all_brokers(_listing_request(states, types))
    return _listed(responses, states, types)


def groups_shown(states: Sequence[str], types: Sequence[str]) -> Operation[Shown[dict[str, GroupListing]]]:
    """The same of those brokers that answer."""
    told = yield from ask_all_once(_listing_request(states, types))
    return Shown(_listed(told.found, states, types), told.silent)


def _listing_request(states: Sequence[str], types: Sequence[str]) -> VersionedRequest:
    for names, known, what in ((states, GROUP_STATES, "state"), (types, GROUP_TYPES, "type")):
        unknown = [name for name in names if name.lower() not in map(str.lower, known)]
        if unknown:
            raise ValueError(
                f"no group is of the {what} {', '.join(map(repr, unknown))}; Kafka's are {', '.join(known)}"
            )

    # Brokers before 3.7 compare letter by letter.
    as_told = [state for state in GROUP_STATES if state.lower() in map(str.lower, states)]

    def build(version: int) -> m.ListGroupsRequest:
        return m.ListGroupsRequest(
            states_filter=as_told if version >= 4 else [], types_filter=list(types) if version >= 5 else []
        )

    return VersionedRequest(ApiKey.LIST_GROUPS, build)


def _listed(responses: Iterable[Any], states: Sequence[str], types: Sequence[str]) -> dict[str, GroupListing]:
    found = [
        GroupListing(g.group_id, g.protocol_type, g.group_state or None, g.group_type or None)
        for response in responses
        for g in response.groups
    ]
    wanted_states, wanted_types = ({name.lower() for name in names} for names in (states, types))
    return {
        group.group_id: group
        for group in sorted(found, key=lambda group: group.group_id)
        if (not wanted_states or group.state is None or group.state.lower() in wanted_states)
        and (not wanted_types or group.type is None or group.type.lower() in wanted_types)
    }


def describe_groups(group_ids: Sequence[str]) -> Operation[Outcomes[str, GroupDescription]]:
    """Groups with their members, whichever protocol they use; GroupIdNotFound for one that does not exist. A coordinator that is silent
    holds up no group of another one."""
    of_consumers = per_coordinator("group", _consumer_describe_request, _read_consumer_groups)
    of_classic = per_coordinator("group", _classic_describe_request, _read_classic_groups)

    def send(left: list[str]) -> Operation[Answers[str, GroupDescription]]:
        answers = yield from of_consumers(left)
        classic = [id_ for id_ in left if isinstance(answers.get(id_), (GroupIdNotFound, UnsupportedVersion))]
        if not classic:
            return answers
        of_others: dict[str, GroupDescription | FastqError]
        of_others = {id_: answer for id_, answer in answers.items() if id_ not in classic}
        try:
            return {**of_others, **(yield from of_classic(classic))}
        except (FastqError, OutOfTime) as failed:
            if not of_others:
                raise
            error = failed.error if isinstance(failed, OutOfTime) else failed
            return of_others | dict.fromkeys(classic, error)

    return per_item(group_ids, send, finds=True)


def _consumer_describe_request(group_ids: list[str]) -> m.ConsumerGroupDescribeRequest:
    return m.ConsumerGroupDescribeRequest(group_ids=group_ids)


def _classic_describe_request(group_ids: list[str]) -> m.DescribeGroupsRequest:
    return m.DescribeGroupsRequest(groups=group_ids)


def _read_consumer_groups(
    response: m.ConsumerGroupDescribeResponse, coordinator: Node
) -> Answers[str, GroupDescription]:
    answers: dict[str, GroupDescription | FastqError] = {}
    for group in response.groups:
        if group.error_code:
            answers[group.group_id] = _error(group.error_code, group.error_message, group=group.group_id)
            continue
        members = tuple(
            GroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                _partitions(member.assignment),
                _partitions(member.target_assignment),
                member.member_epoch,
                member.rack_id,
                tuple(member.subscribed_topic_names),
                member.subscribed_topic_regex or None,
            )
            for member in sorted(group.members, key=lambda member: member.member_id)
        )
        answers[group.group_id] = GroupDescription(
            group.group_id,
            "consumer",
            group.group_state,
            "consumer",
            group.assignor_name,
            members,
            coordinator,
            group.group_epoch,
            group.assignment_epoch,
        )
    return answers


def _partitions(assignment: m.ConsumerGroupDescribeResponse.Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index)
        for topic in sorted(assignment.topic_partitions, key=lambda topic: topic.topic_name)
        for index in sorted(topic.partitions)
    )


def _read_classic_groups(response: m.DescribeGroupsResponse, coordinator: Node) -> Answers[str, GroupDescription]:
    answers: dict[str, GroupDescription | FastqError] = {}
    for group in response.groups:
        if group.error_code:
            answers[group.group_id] = _error(group.error_code, group.error_message, group=group.group_id)
        elif group.group_state == "Dead" and not group.members:  # before version 6 this is how "no such group" is said
            answers[group.group_id] = GroupIdNotFound(group=group.group_id)
        else:
            members = tuple(
                _classic_member(group.protocol_type, member)
                for member in sorted(group.members, key=lambda member: member.member_id)
            )
            answers[group.group_id] = GroupDescription(
                group.group_id,
                "classic",
                group.group_state,
                group.protocol_type,
                group.protocol_data,
                members,
                coordinator,
            )
    return answers


def _classic_member(protocol_type: str, member: m.DescribeGroupsResponse.DescribedGroupMember) -> GroupMember:
    assignment: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    if protocol_type in ("consumer", ""):
        assigned = _embedded(m.ConsumerProtocolAssignment, member.member_assignment)
        if assigned is not None:
            pairs = ((t.topic, index) for t in assigned.assigned_partitions for index in t.partitions)
            assignment = tuple(TopicPartition(*pair) for pair in sorted(pairs))
        subscription = _embedded(m.ConsumerProtocolSubscription, member.member_metadata)
        if subscription is not None:
            topics = tuple(sorted(subscription.topics))
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        assignment,
        subscribed_topics=topics,
        metadata=member.member_metadata,
        raw_assignment=member.member_assignment,
    )


def _embedded(kind: type[Any], data: bytes) -> Any:
    """What consumers tell each other through the coordinator: version 2, then the message. None when it is not that."""
    if len(data) < 2:
        return None
    try:
        # What is asked for is what every version begins with; newer ones add fields at the end, which some clients leave out.
        return kind.decode(Reader(data, 2), 0)
    except DecodeError:
        return None


def delete_groups(group_ids: Sequence[str]) -> Operation[Outcomes[str, None]]:
    """DeleteGroups (KIP-229): groups without members, with their offsets; NonEmptyGroup for others."""

    def request(left: list[str]) -> m.DeleteGroupsRequest:
        return m.DeleteGroupsRequest(groups_names=left)

    def read(response: m.DeleteGroupsResponse, _coordinator: Node) -> Answers[str, None]:
        return {
            r.group_id: _error(r.error_code, None, group=r.group_id) if r.error_code else None for r in response.results
        }

    return per_item(group_ids, per_coordinator("group", request, read), finds=True)


def remove_members(
    group_id: str, instance_ids: Sequence[str], member_ids: Sequence[str], reason: str
) -> Operation[Outcomes[str, None]]:
    """LeaveGroup for others (KIP-345): static members by instance id, any by member id, all of them when none is named."""
    named: dict[str, tuple[str, str | None]] = {instance_id: ("", instance_id) for instance_id in instance_ids}
    named.update((member_id, (member_id, None)) for member_id in member_ids)
    if not named:
        described = (yield from describe_groups([group_id]))[group_id].result()
        named = {member.member_id: (member.member_id, member.instance_id) for member in described.members}

    def send(left: list[str]) -> Operation[Answers[str, None]]:
        members = [
            m.LeaveGroupRequest.MemberIdentity(member_id=named[key][0], group_instance_id=named[key][1], reason=reason)
            for key in left
        ]
        response: m.LeaveGroupResponse = yield Call(
            Coordinator("group", group_id), m.LeaveGroupRequest(group_id=group_id, members=members), (3, 32767)
        )
        if response.error_code:
            return dict.fromkeys(left, _error(response.error_code, None, group=group_id))
        answers = {(r.member_id, r.group_instance_id): r.error_code for r in response.members}
        by_id = {r.member_id or r.group_instance_id: r.error_code for r in response.members}
        codes = {key: answers.get(named[key], by_id.get(key)) for key in left}
        return {
            key: _error(code, None, group=group_id, member=key) if code else None
            for key, code in codes.items()
            if code is not None
        }

    if not named:
        return Outcomes({})
    outcomes = yield from per_item(list(named), send)
    return outcomes


# -- offsets -----------------------------------------------------------------------------------------------------------------


def list_group_offsets(
    group_id: str, partitions: Sequence[TopicPartition] | None, *, require_stable: bool
) -> Operation[Outcomes[TopicPartition, CommittedOffset | None]]:
    """OffsetFetch: of some partitions, or of all that have one. With `require_stable` it waits for open transactions."""
    check_kind("the id of a group", group_id, str, "a str")

    def fetch(wanted: list[TopicPartition] | None) -> Operation[Answers[TopicPartition, CommittedOffset | None]]:
        while True:
            request = _offset_fetch(group_id, wanted, require_stable)
            response: m.OffsetFetchResponse = yield Call(Coordinator("group", group_id), request, (2, BY_NAME))
            answer = response.groups[0] if response.groups else response
            error = _error(answer.error_code, None, group=group_id) if answer.error_code else None
            if error is None:
                return _read_offsets(group_id, answer.topics)
            if not (error.retriable and (yield Retry(error))):
                raise error

    if partitions is not None:
        outcomes = yield from per_item([partition_of(tp) for tp in partitions], fetch)
        return outcomes
    answers = yield from fetch(None)
    unstable = [tp for tp, answer in answers.items() if isinstance(answer, KafkaError) and answer.retriable]
    again = yield from or_error_of_each(unstable, per_item(unstable, fetch))
    listed: dict[TopicPartition, Outcome[CommittedOffset | None]] = {}
    for tp, answer in sorted(answers.items()):
        if tp in again:
            listed[tp] = again[tp]
        elif answer is not None:
            listed[tp] = Outcome(error=answer) if isinstance(answer, FastqError) else Outcome(answer)
    return Outcomes(listed)


def _offset_fetch(group_id: str, partitions: Iterable[TopicPartition] | None, require_stable: bool) -> VersionedRequest:
    topics = None if partitions is None else _group_by_topic(partitions)

    def build(version: int) -> m.OffsetFetchRequest:
        stable = require_stable and version >= 7
        if version < 8:
            old = m.OffsetFetchRequest.OffsetFetchRequestTopic
            named = None if topics is None else [old(name=n, partition_indexes=p) for n, p in topics.items()]
            return m.OffsetFetchRequest(group_id=group_id, topics=named, require_stable=stable)
        new = m.OffsetFetchRequest.OffsetFetchRequestTopics
        wanted = None if topics is None else [new(name=n, partition_indexes=p) for n, p in topics.items()]
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=wanted)
        return m.OffsetFetchRequest(groups=[group], require_stable=stable)

    return VersionedRequest(ApiKey.OFFSET_FETCH, build)


def _read_offsets(group_id: str, topics: Iterable[Any]) -> Answers[TopicPartition, CommittedOffset | None]:
    answers: dict[TopicPartition, CommittedOffset | FastqError | None] = {}
    for topic in topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code:
                answers[tp] = _error(p.error_code, None, group=group_id, topic=tp.topic, partition=tp.partition)
            elif p.committed_offset < 0:
                answers[tp] = None
            else:
                answers[tp] = CommittedOffset(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
    return answers


def alter_group_offsets(
    group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
) -> Operation[Outcomes[TopicPartition, None]]:
    """OffsetCommit from outside of the group: it must have no members."""
    check_kind("the id of a group", group_id, str, "a str")
    wanted = {
        partition_of(tp): offset if isinstance(offset, OffsetAndMetadata) else CommittedOffset(offset)
        for tp, offset in mapping_of(offsets, "offsets", '{TopicPartition("logs", 0): 100}').items()
    }
    for tp, committed in wanted.items():
        int_of(committed.offset, f"{tp}: an offset", 0)

    def request(left: list[TopicPartition]) -> m.OffsetCommitRequest:
        return m.OffsetCommitRequest(
            group_id=group_id,
            topics=[
                m.OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[_commit_partition(index, wanted[TopicPartition(topic, index)]) for index in indexes],
                )
                for topic, indexes in _group_by_topic(left).items()
            ],
        )

    def send(left: list[TopicPartition]) -> Operation[Answers[TopicPartition, None]]:
        response: m.OffsetCommitResponse = yield Call(Coordinator("group", group_id), request(left), (2, BY_NAME))
        return {
            TopicPartition(topic.name, p.partition_index): _commit_error(
                p.error_code, group_id, topic.name, p.partition_index
            )
            for topic in response.topics
            for p in topic.partitions
        }

    return per_item(list(wanted), send)


def _commit_partition(index: int, offset: CommittedOffset) -> m.OffsetCommitRequest.OffsetCommitRequestPartition:
    return m.OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def _commit_error(code: int, group_id: str, topic: str, partition: int) -> KafkaError | None:
    if not code:
        return None
    message = "the group has members; stop them first" if code in ACTIVE_GROUP_ERRORS else None
    return _error(code, message, group=group_id, topic=topic, partition=partition)


def delete_group_offsets(
    group_id: str, partitions: Sequence[TopicPartition]
) -> Operation[Outcomes[TopicPartition, None]]:
    """OffsetDelete (KIP-496); GroupSubscribedToTopic for topics that the group still reads."""
    check_kind("the id of a group", group_id, str, "a str")

    def request(left: list[TopicPartition]) -> m.OffsetDeleteRequest:
        partition = m.OffsetDeleteRequest.OffsetDeleteRequestPartition
        return m.OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=topic, partitions=[partition(partition_index=index) for index in indexes]
                )
                for topic, indexes in _group_by_topic(left).items()
            ],
        )

    def send(left: list[TopicPartition]) -> Operation[Answers[TopicPartition, None]]:
        response: m.OffsetDeleteResponse = yield Call(Coordinator("group", group_id), request(left))
        if response.error_code:
            return dict.fromkeys(left, _error(response.error_code, None, group=group_id))
        return {
            TopicPartition(topic.name, p.partition_index): _error(
                p.error_code, None, group=group_id, topic=topic.name, partition=p.partition_index
            )
            if p.error_code
            else None
            for topic in response.topics
            for p in topic.partitions
        }

    return per_item([partition_of(tp) for tp in partitions], send)


def group_lag(
    group_id: str, partitions: Sequence[TopicPartition] | None, *, read_committed: bool, timeout_ms: int
) -> Operation[Outcomes[TopicPartition, PartitionLag]]:
    """How far a group is behind, in some partitions or in all that it has offsets of; an error for a topic that is gone."""
    fetched = yield from list_group_offsets(group_id, partitions, require_stable=False)
    committed = {tp: outcome.value for tp, outcome in fetched.items() if outcome.error is None}
    times = [dict.fromkeys(committed, spec) for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)]
    bounds = yield from list_several(times, read_committed=read_committed, timeout_ms=timeout_ms)
    lags: dict[TopicPartition, Outcome[PartitionLag]] = {}
    for tp in fetched:
        error = fetched[tp].error or bounds[0][tp].error or bounds[1][tp].error
        if error is not None:
            lags[tp] = Outcome(error=error)
        else:
            offset = committed[tp]
            start, end = (found[tp].result().offset for found in bounds)
            lags[tp] = Outcome(PartitionLag(offset.offset if offset is not None else None, start, end))
    return Outcomes(lags)


def reset_group_offsets(
    group_id: str,
    reset: OffsetReset,
    partitions: Sequence[TopicPartition] | None,
    topics: Sequence[str] | None,
    *,
    dry_run: bool,
    timeout_ms: int,
) -> Operation[dict[TopicPartition, OffsetChange]]:
    """Plan where a group's offsets go and, without `dry_run`, commit that. The group must have no members to execute."""
    if not isinstance(reset, OffsetReset):
        raise TypeError(f"where offsets go is an OffsetReset, as OffsetReset.to_latest(), got {reset!r}")
    fetched = yield from list_group_offsets(group_id, None, require_stable=False)
    committed = {tp: offset.offset for tp, offset in fetched.results().items() if offset is not None}
    places = yield from _reset_scope(reset, partitions, topics, committed)
    times = [OffsetSpec.EARLIEST, OffsetSpec.LATEST, *([reset.value] if reset.kind == "time" else [])]
    listed = yield from list_several(
        [dict.fromkeys(places, time) for time in times], read_committed=False, timeout_ms=timeout_ms
    )
    starts, ends, *by_time = [{tp: result.offset for tp, result in one.results().items()} for one in listed]
    plan = plan_reset(reset, places, committed, starts, ends, by_time[0] if by_time else None)
    if not dry_run and plan:
        written = yield from alter_group_offsets(group_id, {tp: change.after for tp, change in plan.items()})
        written.results()
    return plan


def _reset_scope(
    reset: OffsetReset,
    partitions: Sequence[TopicPartition] | None,
    topics: Sequence[str] | None,
    committed: Iterable[TopicPartition],
) -> Operation[list[TopicPartition]]:
    """The partitions given, those of topics, those of the reset itself, else all that the group has offsets of."""
    places = [partition_of(tp) for tp in partitions or ()]
    if topics:
        described = yield from look_up_topics(names_of(topics))
        places += [
            TopicPartition(name, part.index) for name, topic in described.results().items() for part in topic.partitions
        ]
    if partitions is None and topics is None:
        return sorted(reset.offsets) if reset.kind == "offsets" else sorted(committed)
    if reset.kind == "offsets":
        return [tp for tp in dict.fromkeys(places) if tp in reset.offsets]
    return list(dict.fromkeys(places))
