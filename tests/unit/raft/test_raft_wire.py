"""The quorum's messages as bytes of each version, and back."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fastq_broker.raft import wire
from fastq_broker.raft.messages import (
    AddVoter,
    Answer,
    AnyAnswer,
    Ask,
    BeginEpoch,
    EndEpoch,
    EpochEnd,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    RemoveVoter,
    SnapshotId,
    UpdateVoter,
    Versions,
    VersionsAnswer,
    Vote,
    VoterAnswer,
)
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter

from fastq._native.wire import EncodeError, Reader
from fastq.errors import ErrorCode, ProtocolError
from fastq.protocol.messages import ApiVersionsRequest, ApiVersionsResponse, FetchResponse, VoteRequest, VoteResponse

ME, OTHER = ReplicaKey(1, b"a" * 16), ReplicaKey(2, b"b" * 16)
PLACES = {"CONTROLLER": Endpoint("127.0.0.1", 9093), "OTHER": Endpoint("::1", 65535)}
ASKS: list[Ask] = [
    Vote("cluster", 7, ME, OTHER, 6, 1234, True),
    Vote(None, 7, ME, OTHER, 6, 1234, False),
    BeginEpoch("cluster", 7, 1, OTHER, PLACES),
    EndEpoch("cluster", 7, 1, (OTHER, ME), PLACES),
    Fetch("cluster", 7, ME, 99, 6, 98, 0.5, 1 << 20),
    Fetch("cluster", 7, ME, 0, 0, -1, 0.0, 1),
    FetchSnapshot("cluster", 7, ME, SnapshotId(10, 3), 4096, 1 << 20),
]
ANSWERS: dict[type, list[AnyAnswer]] = {
    Vote: [Answer(0, 1, 7, Endpoint("h", 1), True), Answer(0, -1, 7), Answer(74, 1, 9)],
    BeginEpoch: [Answer(0, 1, 7, Endpoint("h", 1)), Answer(125, 1, 7)],
    EndEpoch: [Answer(0, 1, 7, Endpoint("h", 1)), Answer(74, -1, 8)],
    Fetch: [
        Fetched(0, 1, 7, Endpoint("h", 1), 5, 2, b"records"),
        Fetched(0, 1, 7, None, -1, 0, b"", EpochEnd(3, 17)),
        Fetched(0, 1, 7, None, 5, 0, b"", None, SnapshotId(40, 2)),
        Fetched(6, -1, 7),
    ],
    FetchSnapshot: [
        FetchedSnapshot(0, 1, 7, Endpoint("h", 1), SnapshotId(10, 3), 9000, 4096, b"piece"),
    ],
}


def versions(message: Any) -> range:
    if isinstance(message, wire.FetchRequest | FetchResponse):
        return range(wire.FETCH_VERSIONS[0], wire.FETCH_VERSIONS[1] + 1)
    return range(message.MIN_VERSION, message.MAX_VERSION + 1)


def again(message: Any, version: int) -> Any:
    """The same after it was bytes."""
    return type(message).decode(Reader(bytes(message.to_bytes(version))), version)


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: type(ask).__name__)
def test_questions_arrive_as_they_were_asked(ask: Ask) -> None:
    request = wire.request_of(ask)
    newest = max(versions(request))
    assert wire.ask_of(again(request, newest)) == ask
    for version in versions(request):
        if isinstance(ask, Vote) and ask.pre and version < 2:
            with pytest.raises(EncodeError):
                again(request, version)
            continue
        found = wire.ask_of(again(request, version))
        assert found is not None and found.epoch == ask.epoch and type(found) is type(ask)


def test_older_versions_say_less() -> None:
    vote = wire.ask_of(again(wire.request_of(ASKS[1]), 0))
    assert vote == Vote(None, 7, ReplicaKey(1), None, 6, 1234, False)
    ended = wire.ask_of(again(wire.request_of(ASKS[3]), 0))
    assert ended == EndEpoch("cluster", 7, 1, (ReplicaKey(2), ReplicaKey(1)), {})
    asked = wire.ask_of(again(wire.request_of(ASKS[4]), 17))
    assert isinstance(asked, Fetch) and asked.high_watermark == 2**63 - 1  # so that it does not wait for news of it


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: type(ask).__name__)
def test_answers_arrive_as_they_were_given(ask: Ask) -> None:
    request = wire.request_of(ask)
    for answer in ANSWERS[type(ask)]:
        response = wire.response_of(request, answer, versions(request)[-1])
        assert wire.answer_of(again(response, max(versions(response)))) == answer


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: type(ask).__name__)
def test_what_concerns_every_partition_is_said_at_the_top(ask: Ask) -> None:
    request = wire.request_of(ask)
    for response in (
        wire.response_of(request, Answer(ErrorCode.INCONSISTENT_CLUSTER_ID, -1, -1), 1),
        wire.invalid(request),
    ):
        newest = again(response, max(versions(response)))
        assert newest.error_code == response.error_code != 0
        assert wire.answer_of(newest) == Answer(response.error_code, -1, -1)


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: type(ask).__name__)
def test_other_partitions_are_nobodys_question(ask: Ask) -> None:
    request: Any = wire.request_of(ask)
    part = request.topics[0].partitions[0]
    name = "partition" if hasattr(part, "partition") else "partition_index"
    setattr(part, name, 1)
    assert wire.ask_of(request) is None
    setattr(part, name, 0)
    request.topics[0].partitions.append(part)
    assert wire.ask_of(request) is None
    request.topics[0].partitions = []
    assert wire.ask_of(request) is None
    request.topics = []
    assert wire.ask_of(request) is None


VOTER = Voter(OTHER, PLACES, (0, 1))


@pytest.mark.parametrize(
    "ask",
    [
        AddVoter("cluster", 1.5, Voter(OTHER, PLACES), when_committed=False),
        RemoveVoter("cluster", OTHER),
        UpdateVoter("cluster", 7, VOTER),
    ],
    ids=lambda ask: type(ask).__name__,
)
def test_changes_of_voters_arrive_as_they_were_asked(ask: Any) -> None:
    request: Any = wire.request_of(ask)
    assert wire.voter_ask_of(again(request, request.MAX_VERSION)) == ask
    for error, place in ((0, Endpoint("h", 1)), (ErrorCode.DUPLICATE_VOTER, None)):
        response = wire.voter_response_of(request, VoterAnswer(error, 1, 7, place, "remove it first"))
        answer = wire.answer_of(again(response, response.MAX_VERSION))
        said = (1, 7, place, "") if isinstance(ask, UpdateVoter) else (-1, -1, None, "remove it first")
        assert answer == VoterAnswer(error, *said)


def test_a_node_says_which_versions_it_can() -> None:
    assert isinstance(wire.request_of(Versions(1)), ApiVersionsRequest)
    feature = ApiVersionsResponse.SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1)
    assert wire.answer_of(ApiVersionsResponse(supported_features=[feature])) == VersionsAnswer(0, lowest=0, highest=1)
    assert wire.answer_of(ApiVersionsResponse()) == VersionsAnswer(0, lowest=0, highest=0)


def test_an_answer_about_nothing_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="names 0 topics"):
        wire.answer_of(VoteResponse())


def test_any_bytes_are_read_or_refused() -> None:
    rng = Random(5)
    whole = bytes(wire.request_of(ASKS[0]).to_bytes(2))
    for _ in range(500):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            request = VoteRequest.decode(Reader(bytes(data)), 2)
        except Exception as error:
            assert type(error).__name__ == "DecodeError"
        else:
            wire.ask_of(request)
