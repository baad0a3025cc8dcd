"""Where a member of the consumer protocol (KIP-848) may stand, where it may go from there, and what it does about an error code.

    UNSUBSCRIBED -> JOINING -> STABLE <-> RECONCILING <-> ACKNOWLEDGING
    any of them -> FENCED -> JOINING (what it had is lost); LEAVING -> UNSUBSCRIBED; LEFT (too slow) -> FENCED; FATAL

Source: Kafka's MemberState.
"""

from __future__ import annotations

from enum import Enum

from fastq.errors import ErrorCode


class State(Enum):
    """Where a member stands. The value is for the log."""

    UNSUBSCRIBED = "unsubscribed"
    JOINING = "joining"
    RECONCILING = "reconciling"  # a target assignment is being brought about
    ACKNOWLEDGING = "acknowledging"  # done, and the next heartbeat says so
    STABLE = "stable"
    FENCED = "fenced"  # the application is to hear that all is lost; then it joins again
    LEAVING = "leaving"
    LEFT = "left"  # because the application did not poll; the next poll joins again
    FATAL = "fatal"


MEMBER = {State.RECONCILING, State.ACKNOWLEDGING, State.STABLE}
SILENT = {State.UNSUBSCRIBED, State.LEFT, State.FENCED, State.FATAL}
_ANYWHERE = {State.FENCED, State.LEAVING, State.FATAL}
TRANSITIONS: dict[State, set[State]] = {
    State.UNSUBSCRIBED: {State.JOINING, State.FENCED},
    State.JOINING: {State.RECONCILING, State.STABLE, State.LEFT} | _ANYWHERE,
    State.RECONCILING: {State.ACKNOWLEDGING, State.STABLE, State.LEFT} | _ANYWHERE,
    State.ACKNOWLEDGING: {State.RECONCILING, State.STABLE, State.LEFT} | _ANYWHERE,
    State.STABLE: {State.RECONCILING, State.ACKNOWLEDGING, State.LEFT} | _ANYWHERE,
    State.FENCED: {State.JOINING, State.LEAVING, State.UNSUBSCRIBED},
    State.LEAVING: {State.UNSUBSCRIBED},
    State.LEFT: {State.FENCED, State.JOINING, State.LEAVING, State.UNSUBSCRIBED},
    State.FATAL: {State.LEAVING, State.UNSUBSCRIBED},
}


class Reaction(Enum):
    """What a member does about an error code."""

    FENCED = "joins again"
    COORDINATOR = "looks for the coordinator"
    AGAIN = "tries again after a pause"
    REPORT = "tells the application, and tries again"
    MATCH_HERE = "names the topics that match the pattern"
    CLASSIC = "cannot use this protocol"
    FATAL = "tells the application, and gives up"


PASSING = {Reaction.FENCED, Reaction.COORDINATOR, Reaction.AGAIN}
REACTIONS: dict[int, Reaction] = {
    ErrorCode.FENCED_MEMBER_EPOCH: Reaction.FENCED,
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.FENCED,
    ErrorCode.STALE_MEMBER_EPOCH: Reaction.AGAIN,
    ErrorCode.NOT_COORDINATOR: Reaction.COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Reaction.AGAIN,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Reaction.REPORT,
    ErrorCode.INVALID_REGULAR_EXPRESSION: Reaction.MATCH_HERE,
    ErrorCode.UNSUPPORTED_VERSION: Reaction.CLASSIC,
}
