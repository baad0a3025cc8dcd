"""`fastq dump-log --decode` beside Apache Kafka's DumpLogSegments with its decoders, on the same files.

The files hold a record of every type and version that the topics of Kafka's own may have, with random values; and what a broker of ours
writes of a transaction.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_kafka
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "protocol"))

import protocol_oracle as oracle
from protocol_oracle import DEFINITIONS

from fastq import Producer
from fastq._native.records import build_batch
from fastq._native.wire import Writer
from fastq.cli import main
from fastq.cli.internal_records import DECODERS
from fastq.protocol.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

DUMP = "org.apache.kafka.tools.DumpLogSegments"
NOW_MS = 1_800_000_000_000
OPTIONS = {
    "offsets": "--offsets-decoder",
    "transactions": "--transaction-log-decoder",
    "share-state": "--share-group-state-decoder",
    "metadata": "--cluster-metadata-decoder",
}
FAMILIES = {
    "offsets": "group_records",
    "transactions": "transaction_records",
    "share-state": "share_records",
    "metadata": "metadata_records",
}


@pytest.fixture(scope="module")
def tools() -> Iterator[apache_kafka.Tools]:
    with apache_kafka.Tools() as machine:
        yield machine


def messages_of(kind: str, ending: str = "") -> list[Any]:
    return [each for each in DEFINITIONS if each.module == FAMILIES[kind] and each.name.endswith(ending)]


def encoded(message: Any, version: int, salt: str) -> tuple[dict[str, Any], bytes]:
    values = oracle.random_values(message, version, random.Random(f"{message.name} {version} {salt}"))
    return values, oracle.build(message, values).to_bytes(version)


def coordinator_rows(kind: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Each type's key with a value of each version, and with none."""
    values = {each.key: each for each in messages_of(kind, "Value")}
    for key in messages_of(kind, "Key"):
        for version in values[key.key].versions:
            start = key.key.to_bytes(2, "big") + encoded(key, 0, str(version))[1]
            if values[key.key].name == "GroupMetadataValue":
                yield start, version.to_bytes(2, "big") + classic_group(values[key.key], version)
            yield start, version.to_bytes(2, "big") + encoded(values[key.key], version, "")[1]
        yield start, None


def classic_group(message: Any, version: int) -> bytes:
    """One whose members speak the consumers' protocol."""
    values = oracle.random_values(message, version, random.Random(version))
    values["protocol_type"] = "consumer"
    subscription = b"\x00\x01" + ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"\x00\xff").to_bytes(1)
    members = [oracle.random_values(message, version, random.Random(at))["members"] for at in range(20)]
    values["members"] = next(filter(None, members))[:1]
    values["members"][0].update(
        subscription=subscription, assignment=b"\x00\x00" + ConsumerProtocolAssignment().to_bytes(0)
    )
    return oracle.build(message, values).to_bytes(version)


def framed_rows() -> Iterator[tuple[None, bytes]]:
    """Values that begin with the version of a frame, a type and its version."""
    for message in messages_of("metadata"):
        for version in message.versions:
            writer = Writer()
            for number in (1, message.key, version):
                writer.write_uvarint(number)
            yield None, writer.getvalue() + encoded(message, version, "")[1]


def segment(folder: Path, kind: str, rows: list[tuple[bytes | None, bytes | None]]) -> Path:
    file = folder / f"{DECODERS[kind].topic}-0" / "00000000000000000000.log"
    file.parent.mkdir()
    batches = [
        build_batch([(NOW_MS, key, value, ())], base_offset=at, leader_epoch=1) for at, (key, value) in enumerate(rows)
    ]
    file.write_bytes(b"".join(batches))
    return file


def ours(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capfd.readouterr()
    assert main(["dump-log", *arguments, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capfd.readouterr().out)["entries"]
    return found


def theirs(tools: apache_kafka.Tools, kind: str, file: Path) -> list[tuple[Any, Any]]:
    """Keys and values of the records."""
    code, printed = tools.run(DUMP, OPTIONS[kind], "--files", str(file))
    assert code == 0, printed
    lines = re.findall(
        r"^\| offset: \d+ .*?headerKeys: \[\](?: key: (.*?))?(?: payload: (.*))?$", printed, re.MULTILINE
    )
    return [tuple(_json(text) for text in line) for line in lines]  # type: ignore[misc]


def _json(text: str) -> Any:
    """Types and versions of coordinators' records are texts there."""
    if not text.startswith("{"):
        return None if text in ("", "<DELETE>") else text
    found = json.loads(text)
    return found | {name: int(found[name]) for name in ("type", "version") if str(found.get(name)).isdigit()}


def is_within(part: Any, whole: Any, path: str = "") -> str | None:
    """What Kafka says and we do not: where; None where there is nothing."""
    if isinstance(part, dict) and isinstance(whole, dict):
        missing = part.keys() - whole.keys()
        if missing:
            return f"{path}: {missing} are missing"
        return next(filter(None, (is_within(part[name], whole[name], f"{path}.{name}") for name in part)), None)
    if isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        pairs = zip(part, whole, strict=True)
        return next(filter(None, (is_within(*pair, f"{path}[{at}]") for at, pair in enumerate(pairs))), None)
    return None if part == whole else f"{path}: {part!r} there, {whole!r} here"


@pytest.mark.parametrize("kind", OPTIONS)
def test_records_of_every_type_and_version(
    kind: str, tools: apache_kafka.Tools, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows: list[Any] = list(framed_rows() if kind == "metadata" else coordinator_rows(kind))
    file = segment(tmp_path, kind, rows)
    mine, others = ours(capfd, str(file), "--decode"), theirs(tools, kind, file)
    assert len(mine) == len(others) == len(rows) >= 3
    different = []
    for row, (key, value) in zip(mine, others, strict=True):
        assert "undecoded" not in json.dumps(row), row
        for part, other in (("key", key), ("value", value)):
            if problem := is_within(other, row[part], part):
                different.append((row["offset"], problem, other))
    assert different == []
    moved = tmp_path / file.name
    moved.write_bytes(file.read_bytes())
    assert ours(capfd, str(moved), "--decoder", kind) == mine


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker of ours has written: a transaction that was committed, and one that was aborted."""
    directory = tmp_path_factory.mktemp("dump") / "data"
    with (
        Broker(data_dir=directory) as broker,
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="x") as producer,
    ):
        with producer.transaction():
            producer.send("t", b"1")
        producer.begin_transaction()
        producer.send("t", b"2")
        producer.flush()
        producer.abort_transaction()
    return directory


def test_markers_and_aborted_transactions(
    data: Path, tools: apache_kafka.Tools, capfd: pytest.CaptureFixture[str]
) -> None:
    log, index = data / "t-0" / "00000000000000000000.log", data / "t-0" / "00000000000000000000.txnindex"
    _, printed = tools.run(DUMP, "--print-data-log", "--files", f"{log},{index}")
    markers = re.findall(r"offset: (\d+) .*endTxnMarker: (\w+) coordinatorEpoch: (\d+)", printed)
    found = [row for row in ours(capfd, str(log), "--decode") if row["control"]]
    assert (
        len(found) == 2
        and [(str(row["offset"]), row["value"]["type"], str(row["value"]["data"]["coordinatorEpoch"])) for row in found]
        == markers
    )
    names = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
    aborted = re.findall(" ".join(rf"{name}: (\d+)" for name in names), printed)
    assert len(aborted) == 1 and [tuple(map(str, row.values())) for row in ours(capfd, str(index))] == aborted
    (snapshot,) = log.parent.glob("*.snapshot")
    _, printed = tools.run(DUMP, "--files", str(snapshot))
    (mine,) = ours(capfd, str(snapshot))
    assert f"producerId: {mine['producer_id']} producerEpoch: {mine['producer_epoch']} " in printed


@pytest.mark.parametrize("ending", [".log", ".checkpoint"])
def test_a_log_of_the_metadata_and_a_snapshot(
    data: Path, ending: str, tools: apache_kafka.Tools, capfd: pytest.CaptureFixture[str]
) -> None:
    (file,) = (data / "__cluster_metadata-0").glob(f"*{ending}")
    _, printed = tools.run(DUMP, "--cluster-metadata-decoder", "--files", str(file))
    others = re.findall(r"^\| offset: (\d+) .*headerKeys: \[\] (.*?):? (\{.*\})$", printed, re.MULTILINE)
    mine = {row["offset"]: row["value"] for row in ours(capfd, str(file), "--decode")}
    assert len(mine) == len(others) >= 4
    for offset, name, text in others:
        row, document = mine[int(offset)], json.loads(text)
        if name != "payload":
            assert row["type"].replace("_", "").lower() == name.lower()
            document = {"data": document}
        assert is_within(document, row) is None


def test_tables_have_decoded_records_too(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (file,) = (file for file in data.glob("__transaction_state-*/*.log") if file.stat().st_size)
    assert main(["dump-log", str(file), "--decode", "--limit", "1"]) == 0
    assert '{"type":0,"data":{"transactionalId":"x"}}' in capfd.readouterr().out
