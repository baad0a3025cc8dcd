"""What the small broker answers as a coordinator, of any age."""

from __future__ import annotations

from typing import Any

from net_fakes import FakeBroker

from fastq.metadata import TopicPartition
from fastq.protocol import messages as m

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Coordinators:
    """Answers FindCoordinator with the broker itself, after the codes in `first` are used up."""

    def __init__(self, broker: FakeBroker, *first: int) -> None:
        self.broker, self.codes, self.asked = broker, list(first), 0

    def __call__(self, request: Any, version: int) -> m.FindCoordinatorResponse:
        self.asked += 1
        code = self.codes.pop(0) if self.codes else 0
        node = {"node_id": self.broker.node_id, "host": self.broker.host, "port": self.broker.port, "error_code": code}
        if version < 4:
            return m.FindCoordinatorResponse(error_message=None, **node)
        answer = m.FindCoordinatorResponse.Coordinator
        return m.FindCoordinatorResponse(
            coordinators=[answer(key=key, error_message=None, **node) for key in request.coordinator_keys]
        )


def limit(broker: FakeBroker, api_key: int, max_version: int) -> None:
    """Make the broker an old one in this API; -1 takes it away."""
    broker.versions = [entry for entry in broker.versions if entry.api_key != api_key]
    if max_version >= 0:
        low = m.ApiVersionsResponse.ApiVersion(api_key=api_key, min_version=0, max_version=max_version)
        broker.versions.append(low)


def answer_once(broker: FakeBroker, api_key: int, *responses: Any) -> list[Any]:
    """Answer with each response in turn, the last one for good; the requests that came."""
    requests: list[Any] = []

    def handle(request: Any, version: int) -> Any:
        requests.append(request)
        return responses[min(len(requests), len(responses)) - 1]

    broker.handlers[api_key] = handle
    return requests
