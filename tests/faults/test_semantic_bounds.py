"""Requests that are well formed and make no sense: every API in its oldest and newest version, each field at its bounds, names that are
there and that are not, the same item twice. Each is answered in its version or refused; nothing raises, and nothing is answered with
UNKNOWN_SERVER_ERROR."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.connection import ProtocolViolation
from fastq_broker.controller import NewTopic
from fastq_broker.router import HANDLERS, Deferred
from fastq_broker.server import flexible_versions
from test_bad_frames import FakeConnection

from fastq._native.produce_path import scan_request
from fastq._native.records import build_batch
from fastq._native.wire import DecodeError, EncodeError, Reader
from fastq.errors import ErrorCode
from fastq.protocol import messages
from fastq.protocol.api import APIS
from fastq.protocol.frames import encode_request

ROUNDS = 60 if os.environ.get("FASTQ_SOAK") == "1" else 30
BOUNDS = [0, 1, -1, 2, -2, 5, 127, -128, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
TOPICS = ["t", "c", "no-such", "", "x" * 249, "x" * 250, "__consumer_offsets", "__cluster_metadata", "..", "é", "a b"]
WORDS = {
    "topic": TOPICS,
    "name": TOPICS,
    "group": ["g", "h", "", "x" * 300, "é"],
    "transactional": ["x", "y", ""],
    "member": ["", "m", "x" * 300],
    "protocol": ["consumer", "range", ""],
    "assignor": ["uniform", "range", "no-such", ""],
    "regex": ["t.*", "(", "[a-z", "a{1000000}", ""],
    "pattern": ["t.*", "(", "[a-z", "a{1000000}", ""],
}
OTHER_WORDS = ["", "a", "retention.ms", "1", "-1", "x" * 300, "9" * 400]


class Requests:
    """Requests made from the declared types of their fields."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.topic_ids: list[bytes] = [bytes(16)]

    def make(self, cls: Any) -> Any:
        fields = inspect.signature(cls.__init__).parameters
        return cls(**{name: self.value(field.annotation, name) for name, field in fields.items() if name != "self"})

    def value(self, kind: str, name: str) -> Any:
        choose = self.choose
        kind = kind.strip()
        if kind.endswith("| None"):
            if choose.random() < 0.25:
                return None
            kind = kind[:-6].strip()
        if kind.startswith("list["):
            items = [self.value(kind[5:-1], name) for _ in range(choose.choice([0, 1, 1, 2]))]
            return items + items[:1] if choose.random() < 0.3 else items
        if kind == "int":
            return choose.choice(BOUNDS if choose.random() < 0.6 else BOUNDS[:4])
        if kind == "bool":
            return choose.random() < 0.5
        if kind == "float":
            return choose.choice([0.0, -1.0, float("nan"), float("inf")])
        if kind == "str":
            return choose.choice(next((WORDS[part] for part in WORDS if part in name), OTHER_WORDS))
        if kind.startswith("bytes"):
            if "id" in name and "record" not in name:
                return choose.choice([*self.topic_ids, choose.randbytes(16)])
            return choose.choice([b"", b"\0", choose.randbytes(30), build_batch([(0, b"k", b"v")])])
        found: Any = messages
        for part in kind.split("."):
            found = getattr(found, part)
        return self.make(found)

    def frame(self, api_key: int, version: int) -> bytearray | None:
        """One that this version can carry; None when none was found."""
        for _ in range(30):
            try:
                return bytearray(encode_request(5, "bounds", self.make(APIS[api_key].request_class()), version))
            except EncodeError:
                continue
        return None


def error_codes(part: Any, found: Counter[int]) -> Counter[int]:
    """All error codes of a response."""
    if isinstance(part, list):
        for item in part:
            error_codes(item, found)
    else:
        for name in (name for cls in type(part).__mro__ for name in getattr(cls, "__slots__", ())):
            value = getattr(part, name, None)
            if name.endswith("error_code") and isinstance(value, int):
                found[value] += 1
            else:
                error_codes(value, found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_well_formed_requests_at_their_bounds(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> Counter[str]:
        settings = {
            "log.dirs": str(tmp_path),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.num.partitions": 1,
        }
        broker = Broker(BrokerConfig.from_mapping(settings), asyncio.get_running_loop())
        await broker.start()
        requests, flexible, answered = Requests(seed), flexible_versions(), Counter[str]()
        compacted = [("cleanup.policy", "compact")]
        try:
            for _ in range(ROUNDS):
                broker.controller.create_topics([NewTopic("t", 2), NewTopic("c", 1, configs=compacted)])
                broker.controller.settle()
                topics = broker.image.topics_by_name
                requests.topic_ids = [bytes(16), *(topics[name].topic_id for name in ("t", "c") if name in topics)]
                for key in HANDLERS:
                    for version in set(broker.router.versions()[key]):
                        frame = requests.frame(key, version)
                        if frame is not None and await ask(broker, flexible, frame, key, version):
                            answered[APIS[key].name] += 1
        finally:
            assert await broker.close()
        return answered

    async def ask(broker: Broker, flexible: Any, frame: bytearray, key: int, version: int) -> bool:
        """Whether it was answered at once, in its version."""
        info = APIS[key]
        header = scan_request(frame, 0, len(frame), flexible, 1 << 20)
        assert header is not None
        try:
            result: Any = broker.router.dispatch(FakeConnection(), frame, header)  # type: ignore[arg-type]
        except (DecodeError, ProtocolViolation):
            return False
        await asyncio.sleep(0)
        assert not [record for record in caplog.records if record.exc_info], (info.name, version, bytes(frame).hex())
        if isinstance(result, Deferred):
            if not result.answered:
                result.cancel()
                return False
            result = result.answer
        if result is None:  # acks=0
            return False
        body = b"".join(bytes(part) for part in result) if isinstance(result, list) else bytes(result)
        start = 9 if version >= info.flexible_version and info.name != "ApiVersions" else 8
        codes = error_codes(info.response_class().decode(Reader(body[start:]), version), Counter())
        assert ErrorCode.UNKNOWN_SERVER_ERROR not in codes, (info.name, version, bytes(frame).hex())
        return True

    answered = asyncio.run(run())
    assert len(answered) > len(HANDLERS) * 3 // 4, "most APIs answer"
