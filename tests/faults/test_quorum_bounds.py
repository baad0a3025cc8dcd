"""Requests that are well formed and make no sense, at the listeners of three controllers: each is answered in its version with Kafka's
error, or its connection is closed; no controller leaves its quorum, and the quorum works on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_semantic_bounds as bounds
from controllers import CLUSTER, Cluster
from fastq_broker.connection import ProtocolViolation
from fastq_broker.controller import NewTopic
from fastq_broker.router import Deferred
from fastq_broker.server import flexible_versions
from test_bad_frames import FakeConnection

from fastq._native.produce_path import scan_request
from fastq._native.wire import DecodeError, EncodeError, Reader
from fastq.errors import ErrorCode
from fastq.protocol.api import APIS
from fastq.protocol.frames import encode_request
from fastq.protocol.uuid import METADATA_TOPIC_ID

ROUNDS = 25
QUORUM = {"Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "Fetch", "FetchSnapshot"}
METADATA = "__cluster_metadata"
HOSTS = ["127.0.0.1", "", "..", "x" * 300, "é"]


class Link(FakeConnection):
    """A connection to a controller's listener."""

    peer = ("127.0.0.1", 1)
    listener = "CONTROLLER"
    software = ("", "")
    on_closed = None


class QuorumRequests(bounds.Requests):
    """Requests of which a good part is about the metadata log, in epochs about that of now."""

    def frame(self, api_key: int, version: int) -> bytearray | None:
        for _ in range(30):
            request: Any = self.make(APIS[api_key].request_class())
            if APIS[api_key].name in QUORUM and not self._is_of_metadata(request):
                continue
            try:
                return bytearray(encode_request(5, "bounds", request, version))
            except EncodeError:
                continue
        return None

    def _is_of_metadata(self, request: Any) -> bool:
        """Have it name the one partition that there is."""
        if not request.topics or not request.topics[0].partitions:
            return False
        del request.topics[1:], request.topics[0].partitions[1:]
        topic, part = request.topics[0], request.topics[0].partitions[0]
        for name in {"topic", "topic_name", "name"} & set(type(topic).__slots__):
            setattr(topic, name, METADATA)
        if "topic_id" in type(topic).__slots__:
            topic.topic_id = METADATA_TOPIC_ID
        setattr(part, "partition" if "partition" in type(part).__slots__ else "partition_index", 0)
        if "preferred_successors" in type(part).__slots__ and self.choose.random() < 0.3:
            part.preferred_successors = [self.choose.choice([0, 1, 2, 9])] * self.choose.choice([1, 40, 1500])
            part.preferred_candidates = []
        return True


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bounds of numbers, to which the epoch of now belongs."""
    numbers = list(bounds.BOUNDS)
    monkeypatch.setattr(bounds, "BOUNDS", numbers)
    monkeypatch.setattr(
        bounds,
        "WORDS",
        {**bounds.WORDS, "cluster_id": [CLUSTER, CLUSTER, CLUSTER, "other", ""], "host": HOSTS, "name": ["CONTROLLER"]},
    )
    yield numbers


@pytest.mark.parametrize("seed", range(2))
def test_a_quorum_stands_what_nobody_asks(
    tmp_path: Path, seed: int, words: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    answered = Counter[str]()

    async def ask(node: Any, flexible: Any, frame: bytearray, key: int, version: int) -> None:
        info = APIS[key]
        header = scan_request(frame, 0, len(frame), flexible, 1 << 20)
        assert header is not None
        try:
            result: Any = node.router.dispatch(Link(), frame, header)
        except (DecodeError, ProtocolViolation):
            return
        for _ in range(3):
            await asyncio.sleep(0)
        assert not [record for record in caplog.records if record.exc_info], (info.name, version, bytes(frame).hex())
        if isinstance(result, Deferred):
            if not result.answered:
                result.cancel()
                return
            result = result.answer
        if result is None:
            return
        start = 9 if version >= info.flexible_version and info.name != "ApiVersions" else 8
        body = info.response_class().decode(Reader(bytes(result)[start:]), version)
        codes = bounds.error_codes(body, Counter())
        assert ErrorCode.UNKNOWN_SERVER_ERROR not in codes, (info.name, version, bytes(frame).hex())
        answered[info.name] += 1

    async def scenario() -> None:
        requests, flexible = QuorumRequests(seed), flexible_versions()
        requests.topic_ids = [METADATA_TOPIC_ID, bytes(16)]
        left: list[str] = []
        async with Cluster(tmp_path) as cluster:
            for node in cluster.nodes:
                assert node.controller is not None
                node.controller.quorum.on_fatal = left.append
            versions = cluster.nodes[0].router.versions()
            for _ in range(ROUNDS):
                for key, served in versions.items():
                    for version in set(served):
                        node = requests.choose.choice(cluster.nodes)
                        node = next((one for one in cluster.nodes if one.is_active), node) if version % 2 else node
                        assert node.controller is not None
                        epoch = node.controller.epoch
                        words[:] = [
                            0,
                            1,
                            -1,
                            2,
                            *[epoch] * 5,
                            epoch + 1,
                            epoch - 1,
                            2**31 - 1,
                            -(2**31),
                            2**63 - 1,
                            -(2**63),
                        ]
                        frame = requests.frame(key, version)
                        if frame is not None:
                            await ask(node, flexible, frame, key, version)
                await asyncio.sleep(0.01)
                assert not left
            active = await cluster.active()
            controller = active.controller
            assert controller is not None
            (made,) = controller.create_topics([NewTopic("after")])
            assert made.error in (ErrorCode.NONE, ErrorCode.INVALID_REPLICATION_FACTOR)  # where no broker is there
            assert not left

    asyncio.run(scenario())
    assert set(answered) >= QUORUM | {
        "AddRaftVoter",
        "RemoveRaftVoter",
        "UpdateRaftVoter",
        "BrokerHeartbeat",
        "Envelope",
    }
    assert len(caplog.records) < sum(answered.values())
