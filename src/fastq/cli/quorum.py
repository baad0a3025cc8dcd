"""`fastq quorum`: the controllers' metadata quorum, and who votes in it."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.each_broker import ask_each
from fastq.cli.log_lines import warnings_held
from fastq.cli.output import (
    Subparsers,
    UsageError,
    add_json_option,
    complain,
    is_name,
    is_whole,
    nonempty,
    print_facts,
    print_json,
    print_records,
    whole,
)
from fastq.errors import (
    DuplicateVoter,
    FastqError,
    KafkaError,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnsupportedVersion,
    VoterNotFound,
)

if TYPE_CHECKING:
    from fastq import Admin
    from fastq.admin import QuorumDescription, QuorumReplica

CONTROLLER = re.compile(r"(?P<id>\d+)@(?:\[(?P<six>[^]]+)\]|(?P<host>[^:]+)):(?P<port>\d+):(?P<directory>.+)")
LEADER_S = 5.0
"""How long a leader of the quorum is waited for; an election takes less."""
LOOK_S = 0.2
"""How long until all are asked again."""
NODE_S = 2.0
"""How long each broker is waited for that is asked what it knows."""
FETCHES_MS = 2_000
"""Who follows the quorum and runs has fetched since then: it does so twice a second."""
NO_LEADER = "A majority of the controllers must run and reach each other"
LOOK = "fastq quorum replication lists who is there"
AUTO_JOIN = "controller.quorum.auto.join.enable"
STOP_FIRST = "stop it for good, then remove it"
LEVEL = (
    "voters come and go at level 1 of kraft.version alone: fastq cluster features --upgrade kraft.version=1 raises it"
)


def register(commands: Any) -> None:
    parser = Subparsers(commands).add("quorum", "The controllers' metadata quorum.", "fastq quorum status")
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))

    status = kinds.add("status", "Who leads, who votes, and how far they are.", "fastq quorum status")
    status.set_defaults(run=run_status)

    replication = kinds.add(
        "replication", "Each voter and observer: how far, and how far behind.", "fastq quorum replication"
    )
    replication.set_defaults(run=run_replication)

    add = kinds.add(
        "add-controller",
        "Let a controller that follows the quorum vote in it.",
        "fastq quorum add-controller 4@127.0.0.1:9094:J5bVhg1zR6mYyIjDqIWfOg",
    )
    add.add_argument(
        "controller",
        metavar="ID@HOST:PORT:DIRECTORY_ID",
        help="as in `fastq-broker format -I`; the directory's id is directory.id of its meta.properties, and in fastq quorum replication",
    )
    add.add_argument(
        "--listener",
        type=nonempty,
        metavar="NAME",
        default="CONTROLLER",
        help="the name of its listener (default: CONTROLLER)",
    )
    add.set_defaults(run=run_add)

    remove = kinds.add("remove-controller", "Take a controller's vote.", "fastq quorum remove-controller 4")
    remove.add_argument("controller", type=whole(), metavar="ID")
    remove.add_argument(
        "--directory-id", metavar="ID", help="of its metadata directory, where the id alone is not enough"
    )
    remove.set_defaults(run=run_remove)

    for action in (status, replication, add, remove):
        add_client_options(action)
        add_json_option(action)


def run_status(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        # What the first broker told is enough: any other that is asked now may be the one that stands still.
        cluster_id = admin._client.driver.core.metadata.cluster_id
        quorum = described_quorum(admin)
    followers = [voter for voter in quorum.voters if voter.node_id != quorum.leader_id]
    leader = next((voter for voter in quorum.voters if voter.node_id == quorum.leader_id), None)
    delays = [_lag_ms(leader, voter) for voter in followers]
    facts: dict[str, object] = {
        "cluster id": cluster_id,
        "leader": quorum.leader_id,
        "leader epoch": quorum.leader_epoch,
        "high watermark": quorum.high_watermark,
        "max follower lag": max((voter.lag for voter in followers), default=0),
        "max follower lag ms": None if None in delays else max((d for d in delays if d is not None), default=0),
        "voters": [voter.node_id for voter in quorum.voters],
        "observers": [observer.node_id for observer in quorum.observers],
    }
    print_facts(facts, options.json)
    return 0


def described_quorum(admin: Admin) -> QuorumDescription:
    """The quorum, as its leader tells it through any broker. All are asked at once, and one that stands still holds nobody up: it is named,
    once. Where none tells within LEADER_S, for an election may be under way, what each broker knows is the error."""
    nodes, deadline = admin._client.driver.core.metadata.nodes, time.monotonic() + LEADER_S
    with warnings_held() as held:
        while True:
            quorum, known, silent, refusal = _asked(admin, sorted(nodes))
            if quorum is not None or time.monotonic() >= deadline or (refusal is not None and not known):
                break
            time.sleep(LOOK_S)
        held.drop([nodes[node] for node in silent])
    if quorum is None and refusal is not None:
        raise refusal
    unheard = [f"node {node} does not answer" for node in silent]
    if quorum is None:
        raise NotLeaderOrFollower(
            f"no leader of the metadata quorum answers; {'; '.join([*known, *unheard])}", hint=NO_LEADER
        )
    for node, text in zip(silent, unheard, strict=True):
        if not held.was_told(nodes[node]):
            complain(text)
    return quorum


def _asked(
    admin: Admin, nodes: Sequence[int]
) -> tuple[QuorumDescription | None, list[str], list[int], FastqError | None]:
    """What brokers say of the quorum: its description, what those know that have none, who does not answer within NODE_S, and the first
    refusal, which asking again does not change."""
    from fastq.admin.cluster import quorum_as_known

    quorum, known, silent, refusal = None, [], [], None
    for node, answer in ask_each(nodes, lambda node: admin._client.run(quorum_as_known(node), NODE_S)).items():
        if not isinstance(answer, FastqError):
            quorum = quorum or answer
        elif not isinstance(answer, KafkaError):
            silent.append(node)
        elif not answer.retriable:
            refusal = refusal or answer
        else:
            known.append(answer.detail or f"node {node} says: {answer}")
    return quorum, known, silent, refusal


def _lag_ms(leader: QuorumReplica | None, voter: QuorumReplica) -> int | None:
    """How long ago a voter had all that the leader has; None where nobody knows."""
    if leader is None or leader.last_caught_up_ms is None or voter.last_caught_up_ms is None:
        return None
    return max(0, leader.last_caught_up_ms - voter.last_caught_up_ms)


def run_replication(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        quorum = admin.describe_quorum()
    rows = [
        _row(replica, "leader" if replica.node_id == quorum.leader_id else status, quorum, options.json)
        for status, replicas in (("follower", quorum.voters), ("observer", quorum.observers))
        for replica in replicas
    ]
    rows.sort(key=lambda row: ("leader", "follower", "observer").index(str(row["status"])))
    columns = ["node", "directory_id", "end", "lag", "last_fetch_ms", "last_caught_up_ms", "status"]
    if not options.json:
        columns = ["node", "directory_id", "end", "lag", "fetched", "caught_up", "status", "endpoints"]
    else:
        columns.append("endpoints")
    print_records(columns, rows, options.json)
    return 0


def _row(replica: QuorumReplica, status: str, quorum: QuorumDescription, shape: str) -> dict[str, object]:
    from fastq.protocol.uuid import uuid_to_str

    endpoints = [f"{e.listener}://{e.host}:{e.port}" for e in quorum.endpoints.get(replica.node_id, ())]
    row: dict[str, object] = {
        "node": replica.node_id,
        "directory_id": None if replica.directory_id is None else uuid_to_str(replica.directory_id),
        "end": replica.log_end_offset,
        "lag": replica.lag,
    }
    if shape:
        row |= {"last_fetch_ms": replica.last_fetch_ms, "last_caught_up_ms": replica.last_caught_up_ms}
    else:
        now_ms = _now_ms(quorum)
        row |= {"fetched": _ago(replica.last_fetch_ms, now_ms), "caught_up": _ago(replica.last_caught_up_ms, now_ms)}
    return row | {"status": status, "endpoints": endpoints}


def _now_ms(quorum: QuorumDescription) -> int:
    """The time of the leader's clock, which the other times are of: it tells of itself as of now."""
    leader = next((voter.last_fetch_ms for voter in quorum.voters if voter.node_id == quorum.leader_id), None)
    return time.time_ns() // 1_000_000 if leader is None else leader


def _ago(at_ms: int | None, now_ms: int) -> str:
    if at_ms is None:
        return "never"
    return f"{max(0, now_ms - at_ms) / 1000:,.1f} s ago"


def run_add(options: argparse.Namespace) -> int:
    from fastq.admin import RaftVoterEndpoint

    found = CONTROLLER.fullmatch(options.controller)
    if (
        found is None
        or not is_whole(found["id"])
        or not is_whole(found["port"], 65535)
        or not is_name(found["six"] or found["host"])
    ):
        raise UsageError(
            f"ID@HOST:PORT:DIRECTORY_ID is expected, not {options.controller!r}: its controller's listener, and its directory's id, which "
            "fastq quorum replication shows"
        )
    directory = _directory(found["directory"])
    node, endpoint = (
        int(found["id"]),
        RaftVoterEndpoint(options.listener, found["six"] or found["host"], int(found["port"])),
    )
    with opened_admin(options) as admin:
        try:
            admin.add_raft_voter(node, directory, [endpoint])
        except (DuplicateVoter, RequestTimedOut, UnsupportedVersion) as error:
            raise _hinted(error) from None
        voters = [voter.node_id for voter in admin.describe_quorum().voters]
    _tell(options, {"added": node, "voters": voters}, f"controller {node} votes now", voters)
    return 0


def run_remove(options: argparse.Namespace) -> int:
    node = options.controller
    wanted = None if options.directory_id is None else _directory(options.directory_id)
    with opened_admin(options) as admin:
        directory = _of_voter(admin.describe_quorum(), node) if wanted is None else wanted
        try:
            admin.remove_raft_voter(node, directory)
        except (VoterNotFound, RequestTimedOut, UnsupportedVersion) as error:
            raise _hinted(error) from None
        quorum = admin.describe_quorum()
    voters = [voter.node_id for voter in quorum.voters]
    is_back = node in voters
    said = "was removed, and votes again" if is_back else "votes no more"
    _tell(options, {"removed": node, "voters": voters}, f"controller {node} {said}", voters)
    if is_back:
        complain(f"controller {node} joins by itself ({AUTO_JOIN}=true): {STOP_FIRST}")
    elif _fetches(quorum, node):
        complain(
            f"controller {node} fetches still: with {AUTO_JOIN}=true it votes again within seconds. If so, {STOP_FIRST}"
        )
    return int(is_back)


def _fetches(quorum: QuorumDescription, node: int) -> bool:
    """Whether an observer runs: one that was stopped is listed for a while."""
    fetched = [each.last_fetch_ms for each in quorum.observers if each.node_id == node]
    return any(at is not None and _now_ms(quorum) - at <= FETCHES_MS for at in fetched)


def _hinted(error: FastqError) -> FastqError:
    """The refusal of a change of voters, with the command that shows why."""
    return error.with_context(hint=LEVEL if isinstance(error, UnsupportedVersion) else LOOK)


def _directory(text: str) -> bytes:
    from fastq.protocol.uuid import uuid_from_str

    try:
        return uuid_from_str(text)
    except ValueError as error:
        raise UsageError(f"the directory id: {error}") from None


def _of_voter(quorum: QuorumDescription, node: int) -> bytes:
    """The directory of the one voter with an id."""
    from fastq.protocol.uuid import ZERO_UUID

    voters = [voter for voter in quorum.voters if voter.node_id == node]
    if not voters:
        known = ", ".join(str(voter.node_id) for voter in quorum.voters)
        raise ValueError(f"controller {node} does not vote; who does: {known}")
    if len(voters) > 1:
        raise ValueError(f"controller {node} votes with {len(voters)} directories: --directory-id says which; {LOOK}")
    return voters[0].directory_id or ZERO_UUID


def _tell(options: argparse.Namespace, document: dict[str, object], sentence: str, voters: list[int]) -> None:
    if options.json:
        print_json(document, options.json)
    else:
        print(f"{sentence}; voters: {', '.join(map(str, voters))}")
