"""What a controller's listener answers to the members of its quorum.

Rules: the table of this file is what ApiVersions tells there. A Fetch may wait for news, and is answered by the machine when there is
some; a change of the voters when it is committed. Source: ControllerApis, RaftManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from fastq.errors import ErrorCode, KafkaStorageError, UnsupportedVersion, error_for_code
from fastq.protocol.messages import (
    AddRaftVoterRequest,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from fastq_broker.log.files import passes
from fastq_broker.raft import wire
from fastq_broker.raft.driver import QuorumDriver
from fastq_broker.raft.messages import (
    AddVoter,
    Answer,
    BeginEpoch,
    EndEpoch,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    RemoveVoter,
    Vote,
    VoterAnswer,
)
from fastq_broker.raft.roles import NoRoom
from fastq_broker.router import RequestContext, Route, Router

if TYPE_CHECKING:
    from types import ModuleType

    from fastq_broker.ports import Ports

FIRST_VERSION_WITH_LEVEL_0 = 4


class QuorumRouter(Router):
    """Requests of the members of a quorum to the machine of this one. Loop thread only."""

    forwards = False

    def __init__(self, ports: Ports, quorum: QuorumDriver) -> None:
        super().__init__(ports)
        self._quorum = quorum
        table: dict[int, tuple[tuple[int, int], Callable[[RequestContext, Any], Any]]] = {
            FetchRequest.API_KEY: (wire.FETCH_VERSIONS, self._fetch),
            ApiVersionsRequest.API_KEY: ((0, 4), self._api_versions),
            VoteRequest.API_KEY: ((0, 2), self._ask),
            BeginQuorumEpochRequest.API_KEY: ((0, 1), self._ask),
            EndQuorumEpochRequest.API_KEY: ((0, 1), self._ask),
            FetchSnapshotRequest.API_KEY: ((0, 1), self._ask),
            AddRaftVoterRequest.API_KEY: ((0, 1), self._voters),
            RemoveRaftVoterRequest.API_KEY: ((0, 0), self._voters),
            UpdateRaftVoterRequest.API_KEY: ((0, 0), self._voters),
        }
        for key, (versions, handle) in table.items():
            self._routes[key] = Route(key, cast("ModuleType", SimpleNamespace(VERSIONS=versions, handle=handle)))

    def route(self, api_key: int) -> Route | None:
        return self._routes.get(api_key)

    def versions(self) -> dict[int, tuple[int, int]]:
        return {key: route.versions for key, route in self._routes.items()}

    def _api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        low, high = self._quorum.machine.config.versions
        if low == 0 and context.api_version < FIRST_VERSION_WITH_LEVEL_0:
            low = 1  # older clients take a feature that begins at 0 for a mistake
        return ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
                for key, (first, last) in sorted(self.versions().items())
            ],
            supported_features=[
                ApiVersionsResponse.SupportedFeatureKey(name=wire.KRAFT_VERSION, min_version=low, max_version=high)
            ],
        )

    def _ask(self, context: RequestContext, request: wire.QuorumRequest) -> wire.QuorumResponse:
        with _taking_part(self._quorum):
            return self._answer(request, context.api_version)

    def _answer(self, request: wire.QuorumRequest, version: int) -> wire.QuorumResponse:
        ask = wire.ask_of(request)
        machine, now = self._quorum.machine, self._quorum.now()
        answer: Answer | FetchedSnapshot
        if isinstance(ask, Vote):
            answer = machine.vote(ask, now)
        elif isinstance(ask, BeginEpoch):
            answer = machine.begin_epoch(ask, now)
        elif isinstance(ask, EndEpoch):
            answer = machine.end_epoch(ask, now)
        elif isinstance(ask, FetchSnapshot):
            answer = machine.fetch_snapshot(ask, now)
        else:
            return wire.invalid(request)
        self._quorum.turn()
        return wire.response_of(request, answer, version)

    async def _fetch(self, context: RequestContext, request: FetchRequest) -> wire.QuorumResponse:
        ask = wire.ask_of(request)
        if not isinstance(ask, Fetch):
            return wire.invalid(request)
        answered: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        with _taking_part(self._quorum):
            self._quorum.machine.fetch(ask, self._quorum.now(), lambda answer: _set(answered, answer))
        self._quorum.turn()
        return wire.response_of(request, await answered, context.api_version)

    async def _voters(self, context: RequestContext, request: wire.VoterRequest) -> wire.VoterResponse:
        return await change_voters(self._quorum, request)


async def change_voters(quorum: QuorumDriver, request: wire.VoterRequest) -> wire.VoterResponse:
    """Have the machine of a member add, remove or update a voter. UnsupportedVersion on a node that reaches no others."""
    if quorum.loop is None:
        raise UnsupportedVersion(
            "this node is configured to be the quorum's only voter: name its controllers' addresses in controller.quorum.bootstrap.servers"
        )
    machine, now = quorum.machine, quorum.now()
    answered: asyncio.Future[VoterAnswer] = asyncio.get_running_loop().create_future()

    def done(answer: VoterAnswer) -> None:
        _set(answered, answer)

    ask = wire.voter_ask_of(request)
    with _taking_part(quorum):
        if isinstance(ask, AddVoter):
            machine.add_voter(ask, now, done)
        elif isinstance(ask, RemoveVoter):
            machine.remove_voter(ask, now, done)
        else:
            machine.update_voter(ask, now, done)
    quorum.turn()
    return wire.voter_response_of(request, await answered)


@contextmanager
def _taking_part(quorum: QuorumDriver) -> Iterator[None]:
    """Ask the machine of a member that takes part: what one has in mind that does not may not be on disk. KafkaError."""
    if quorum.closed:
        raise error_for_code(ErrorCode.BROKER_NOT_AVAILABLE, "this controller takes no part in its quorum any more")
    try:
        quorum.check_log()
        yield
    except NoRoom as error:
        detail = f"this controller cannot write down what would follow for now: {error}"
        raise error_for_code(ErrorCode.BROKER_NOT_AVAILABLE, detail) from error
    except (KafkaStorageError, OSError) as error:
        if isinstance(error, KafkaStorageError) and passes(error):
            raise
        quorum.disk_failed(error)
        raise error_for_code(ErrorCode.KAFKA_STORAGE_ERROR, f"this controller cannot write: {error}") from error


def _set(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)
