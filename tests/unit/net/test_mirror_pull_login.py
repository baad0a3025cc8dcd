"""A broker that fetches from a mirror's source with TLS and logins: with the credentials of its own settings, which nobody sees."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from net_fakes import FakeBroker
from raw_kafka import RawConnection

from fastq import Admin, TopicPartition
from fastq._native.records import build_batch
from fastq.admin import ConfigResource, OffsetSpec
from fastq.errors import ErrorCode
from fastq.mirror.config import Side
from fastq.mirror.same import MIRROR_SOURCE
from fastq.mirror.target_writer import Ask, TargetWriter
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import (
    FetchResponse,
    MirrorPullRequest,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from fastq.testing import Broker

PEM = Path(__file__).with_name("loopback.pem")
TOPIC = "logs"
THERE = TOPIC.encode().ljust(16, b".")
SOURCE = f"safe/fake/{THERE.hex()}"
SECRET = "Geheim3"


def batch(offset: int) -> bytes:
    return bytes(build_batch([(1, None, b"v%d" % offset)], base_offset=offset, leader_epoch=3))


class Safe:
    """A source that lets in who has the password, and has ten batches."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(PEM)
        self.broker = FakeBroker(tls=context)
        self.broker.topics = {TOPIC: 1}
        self.logins: list[bytes] = []
        self.secret = SECRET
        self.broker.handlers[ApiKey.SASL_HANDSHAKE] = lambda *_: SaslHandshakeResponse(mechanisms=["PLAIN"])
        self.broker.handlers[ApiKey.SASL_AUTHENTICATE] = self._login
        self.broker.handlers[ApiKey.FETCH] = self._fetch

    def _login(self, request: Any, _version: int) -> SaslAuthenticateResponse:
        self.logins.append(bytes(request.auth_bytes))
        if self.logins[-1] != b"\0me\0" + self.secret.encode():
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED)
        return SaslAuthenticateResponse()

    def _fetch(self, request: Any, _version: int) -> FetchResponse:
        (topic,) = request.topics
        (part,) = topic.partitions
        assert topic.topic_id == THERE
        data = b"".join(batch(offset) for offset in range(part.fetch_offset, 10))
        found = FetchResponse.PartitionData(partition_index=0, high_watermark=10, log_start_offset=0, records=data)
        return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic_id=THERE, partitions=[found])])


@pytest.fixture
def source() -> Iterator[Safe]:
    safe = Safe()
    yield safe
    safe.broker.close()


def made(target: Broker, source: str = SOURCE) -> bytes:
    """The id of a topic that ends at offset 1."""
    side = Side("B", {"bootstrap_servers": target.bootstrap_servers}, {}, {})
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        topic_id = admin.create_topic(TOPIC, 1, configs={MIRROR_SOURCE: source}).topic_id
    writer = TargetWriter(side)
    ask = Ask(topic_id, source, 0, records=memoryview(bytearray(batch(0))))
    assert writer.ask_until({TopicPartition(TOPIC, 0): ask}, lambda: None, 20)[TopicPartition(TOPIC, 0)].error is None
    writer.close()
    return topic_id


def pulled(target: Broker, topic_id: bytes, source: str = SOURCE) -> Any:
    part = MirrorPullRequest.PulledPartition(index=0, offset=1, epoch=3)
    topic = MirrorPullRequest.PulledTopic(topic_id=topic_id, source=source, name=TOPIC, partitions=[part])
    with RawConnection(target.bootstrap_servers) as raw:
        answer = raw.call(MirrorPullRequest(timeout_ms=10_000, bytes_max=1 << 20, topics=[topic]), 0)
    assert answer.error_code == 0, answer.error_message
    return answer.topics[0].partitions[0]


def settings(source: Safe, **more: str) -> dict[str, object]:
    found = {
        "bootstrap.servers": source.broker.address,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(PEM),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": SECRET,
    }
    return {f"mirror.pull.safe.{key}": value for key, value in {**found, **more}.items()}


def test_it_logs_in_with_its_own_settings_and_shows_them_to_nobody(source: Safe) -> None:
    with Broker(in_memory=True, config=settings(source)) as target:
        part = pulled(target, made(target))
        assert (part.error_code, part.source_error, part.next_offset, part.records) == (0, 0, 10, 9)
        with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            tp = TopicPartition(TOPIC, 0)
            assert admin.list_offsets({tp: OffsetSpec.LATEST})[tp].result().offset == 10
            resource = ConfigResource.broker(1)
            told = admin.describe_configs([resource])[resource].result()
        assert not any("mirror.pull" in name for name in told)
        assert SECRET not in repr(told) and SECRET not in target.log
    assert source.logins


def test_a_wrong_password_is_the_sources_error(source: Safe) -> None:
    more = {"sasl.password": "Geheim4"}
    with Broker(in_memory=True, config=settings(source, **more)) as target:
        part = pulled(target, made(target))
        assert (part.error_code, part.next_offset, part.records) == (0, 1, 0)
        assert part.source_error not in (0, ErrorCode.OFFSET_OUT_OF_RANGE)
        assert "Geheim" not in part.error_message and "Geheim" not in target.log


def test_who_was_refused_asks_anew_the_next_time_and_not_before(source: Safe) -> None:
    with Broker(in_memory=True, config=settings(source)) as target:
        topic_id = made(target)
        source.secret = "Geheim4"
        assert pulled(target, topic_id).source_error == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert len(source.logins) == 1
        source.secret = SECRET
        part = pulled(target, topic_id)
        assert (part.source_error, part.next_offset) == (0, 10)


def test_a_source_that_cannot_fetch_by_ids_is_not_pulled_from(source: Safe) -> None:
    for versions in source.broker.versions:
        if versions.api_key == ApiKey.FETCH:
            versions.max_version = 12
    with Broker(in_memory=True, config=settings(source)) as target:
        part = pulled(target, made(target))
        assert (part.source_error, part.next_offset) == (ErrorCode.UNSUPPORTED_VERSION, 1)
