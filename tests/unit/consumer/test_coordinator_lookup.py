"""A group's coordinator that was told wrongly: it is looked up again, at a bounded rate, until the one that is told is it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from consumer_fakes import SocketCluster

from fastq import Consumer
from fastq.errors import ProtocolError
from fastq.protocol.messages import FindCoordinatorResponse, JoinGroupResponse

UNKNOWN_SERVER_ERROR = -1


class Lookups(SocketCluster):
    """FindCoordinator answers the next of `answers`, and the last one again and again; a JoinGroup ends the test."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[FindCoordinatorResponse] = []
        self.lookups = self.joins = 0

    def handle(self, node: int, request: Any, version: int) -> Any:
        if request.API_KEY == 10:
            self.lookups += 1
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if request.API_KEY == 11:
            self.joins += 1
            return JoinGroupResponse(error_code=UNKNOWN_SERVER_ERROR, protocol_name="", leader="", member_id="")
        return super().handle(node, request, version)

    def found(self, node: int, key: str = "g") -> FindCoordinatorResponse:
        """What names a node."""
        host, port = self.nodes[node]
        entry = FindCoordinatorResponse.Coordinator(key=key, node_id=node, host=host, port=port)
        return FindCoordinatorResponse(coordinators=[entry])


@pytest.fixture
def cluster() -> Iterator[Lookups]:
    made = Lookups()
    made.create("a", 1)
    yield made
    made.close()


def polled(cluster: Lookups) -> list[Exception]:
    """Poll until the group is joined; the errors."""
    errors: list[Exception] = []
    options = {"group_id": "g", "group_protocol": "classic"}
    with Consumer("a", bootstrap_servers=cluster.bootstrap, **options) as consumer:
        for _ in range(100):
            try:
                consumer.poll(timeout=0.1)
            except Exception as error:
                errors.append(error)
            if cluster.joins:
                return errors
    raise AssertionError("the group was never joined")


def test_one_that_cannot_be_reached_is_looked_up_again(cluster: Lookups, caplog: pytest.LogCaptureFixture) -> None:
    """The broker that was it is down, and still in the metadata: another one is it before that one is back. It is lost once."""
    caplog.set_level("INFO", "fastq.consumer")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        cluster.nodes[2] = gone.getsockname()[:2]
    cluster.answers = [cluster.found(2), cluster.found(2), cluster.found(1)]
    polled(cluster)
    assert cluster.lookups == 3
    assert len([record for record in caplog.records if "(node 2) is lost" in record.getMessage()]) == 1


def test_an_answer_without_the_group_is_an_error_and_no_coordinator(cluster: Lookups) -> None:
    cluster.answers = [FindCoordinatorResponse(), cluster.found(1, key="another"), cluster.found(1)]
    errors = polled(cluster)
    assert cluster.lookups == 3
    assert isinstance(errors[0], ProtocolError) and "FindCoordinator response leaves the group out" in str(errors[0])
