"""ApiVersions: what the broker serves, and the cluster's features.

Rules
- Every API of the router's table is listed with its handler's versions. Produce is listed from version 0, though 0 to 2 are
  refused, because librdkafka takes a broker without them for one that is too old (KAFKA-18659).
- Every client asks on each of its connections, so a version's answer is encoded once and kept until what it says has changed. While
  a broker runs, only the finalized features and their epoch do, and which release the active controller is of; what is served is the same
  for all routers of a kind.
- Our own APIs are told to our own clients, who say that they are fastq: nobody else has a use for them.
- Of what is forwarded the versions are told that the active controller has too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.net.connection import SOFTWARE_NAME
from fastq.protocol.message import Message
from fastq.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from fastq.values import NamedTuple
from fastq_broker.controller import features

if TYPE_CHECKING:
    from fastq._native.wire import Writer
    from fastq_broker.router import RequestContext

API_KEY = 18
VERSIONS = (0, 4)

PRODUCE = 0
OWN_FROM = 10000
"""APIs from this key on are ours."""
FIRST_VERSION_WITH_SOFTWARE = 3
FIRST_VERSION_WITH_LEVEL_0 = 4

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class _Told(NamedTuple):
    """What of an answer changes while a broker runs. `finalized` is the image's own mapping, which nobody writes to."""

    epoch: int
    finalized: Mapping[str, int]
    kraft_version: int | None
    controller: Mapping[int, tuple[int, int]]
    """The versions of the active controller, where this node forwards to it; empty while they are not known."""


class _Answer(Message):
    """The answer in one version, encoded for the first client and the same bytes for the others. Event-loop thread only."""

    __slots__ = ("_body", "_response", "told")

    API_KEY = API_KEY

    def __init__(self, told: _Told, response: ApiVersionsResponse) -> None:
        self.told = told
        self._response = response
        self._body = b""

    def encode(self, writer: Writer, version: int) -> None:
        if not self._body:
            self._body = self._response.to_bytes(version)
        writer.write_raw(self._body)


_latest: dict[tuple[type, int, bool], _Answer] = {}
"""By the kind of router (a broker's listener, a controller's), version, and whether a client of ours asks."""


def handle(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse | _Answer:
    """Answer the table of APIs, and note the client's software."""
    version = context.api_version
    if version >= FIRST_VERSION_WITH_SOFTWARE:
        software = (request.client_software_name, request.client_software_version)
        if not all(map(_SOFTWARE_NAME.fullmatch, software)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.connection.software = software
    controller = context.controller
    image = controller.image
    cluster = context.cluster if context.router.forwards else None
    theirs = {} if cluster is None else cluster.controller_versions()
    told = _Told(image.offset, image.features, controller.quorum.kraft_version, theirs)
    ours = context.connection.software[0] == SOFTWARE_NAME
    key = type(context.router), version, ours
    answer = _latest.get(key)
    if answer is None or answer.told != told:
        answer = _latest[key] = _Answer(told, _table(context, version, theirs, ours))
    return answer


def _table(
    context: RequestContext, version: int, theirs: Mapping[int, tuple[int, int]], ours: bool
) -> ApiVersionsResponse:
    """All APIs, those that are told to our own clients only where `ours`, and features."""
    offered = {key: versions for key, versions in context.router.versions().items() if ours or key < OWN_FROM}
    if theirs:
        from fastq_broker.cluster.forwarding import shared_versions  # a node that is alone has no need of it

        offered = shared_versions(offered, theirs)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=0 if key == PRODUCE else versions[0], max_version=versions[1]
            )
            for key, versions in offered.items()
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in _supported(version).items()
        ],
        finalized_features_epoch=context.image.offset,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in context.controller.finalized_features.items()
        ],
    )


def _supported(api_version: int) -> dict[str, tuple[int, int]]:
    """Supported feature levels. Clients before version 4 stumble over a range that begins at 0 (KAFKA-17011)."""
    ranges = features.SUPPORTED.items()
    return {name: bounds for name, bounds in ranges if api_version >= FIRST_VERSION_WITH_LEVEL_0 or bounds[0] > 0}
