"""`fastq dump-log`: files of any size in little memory, what is damaged told with its place, what is not known shown all the same."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastq._native.records import build_batch, encode_control_key
from fastq._native.wire import Writer
from fastq.cli import main
from fastq.cli.internal_records import DECODERS, decode_control, document
from fastq.protocol.message import Message
from fastq.protocol.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    RemotePartitionDeleteMetadataRecord,
)

NOW_MS = 1_800_000_000_000
NAME = "00000000000000000000.log"


def batch(offset: int, *values: bytes | None, key: bytes | None = None, **more: Any) -> bytes:
    return bytes(build_batch([(NOW_MS, key, value, ()) for value in values], base_offset=offset, **more))


def dumped(capfd: pytest.CaptureFixture[str], file: Path, *more: str, code: int = 0) -> dict[str, Any]:
    capfd.readouterr()
    assert main(["dump-log", str(file), "--json", *more]) == code
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


PEAK_OF = """
import resource, sys
from fastq.cli import main
code = main(sys.argv[1:])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def peak_kib(*command: str) -> int:
    """The most memory that the command takes, in a process of its own: what other tests have left is none of it."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK_OF, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    code, peak = map(int, done.stderr.split())
    assert code == 0
    return peak


@pytest.mark.parametrize("more", [[], ["--records"], ["--records", "--json"]], ids=" ".join)
def test_a_large_file_is_not_held(tmp_path: Path, more: list[str]) -> None:
    values = [b"x" * 5_000] * 100
    (small := tmp_path / NAME).write_bytes(batch(0, *values))
    (tmp_path / "large").mkdir()
    with (large := tmp_path / "large" / NAME).open("wb") as out:
        for at in range(64):
            out.write(batch(at * 100, *values))
    assert large.stat().st_size > 30 << 20
    assert peak_kib("dump-log", str(large), *more) - peak_kib("dump-log", str(small), *more) < 8 << 10


def test_what_is_damaged_is_told_with_its_place(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first, second = batch(0, b"one"), batch(1, b"two")
    file = tmp_path / NAME
    cases = {
        second[:-3]: f"{len(second) - 3} bytes from position {len(first)} on are no whole batch",
        second[:5]: f"5 bytes from position {len(first)} on are no whole batch",
        second[:8] + struct.pack(">i", 2**31 - 1) + second[12:]: f"position {len(first)} on are no whole batch",
        second[:8] + struct.pack(">i", -1) + second[12:]: f"position {len(first)} on are no whole batch",
        second[:16] + b"\x07" + second[17:]: f"the batch at position {len(first)}",
        second[:-1] + b"!": f"the batch at position {len(first)} (base offset 1) fails its checksum",
    }
    for data, expected in cases.items():
        file.write_bytes(first + data)
        found = dumped(capfd, file, "--records", code=1)
        assert [row["value"] for row in found["entries"]] == ["one"] and expected in found["fault"], expected
        assert main(["dump-log", str(file)]) == 1
        assert f"FAULT {file}: " in capfd.readouterr().out


def test_a_document_is_what_it_was_when_it_was_held(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / NAME
    for data, count in ((b"", 0), (batch(0, b"one", None), 2)):
        file.write_bytes(data)
        assert main(["dump-log", str(file), "--records", "--json"]) == 0
        text = capfd.readouterr().out
        document = json.loads(text)
        assert text == json.dumps(document, indent=2) + "\n" and len(document["entries"]) == count
        assert list(document) == ["file", "entries", "fault"] and document["fault"] is None


def test_a_wider_cell_pushes_its_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"".join(batch(at, b"x" * (1 + 50 * (at == 150))) for at in range(200)))
    assert main(["dump-log", str(tmp_path / NAME), "--records"]) == 0
    lines = capfd.readouterr().out.splitlines()[2:]
    assert len(lines) == 200 and [line.split()[0] for line in lines] == [str(at) for at in range(200)]
    assert lines[150].split()[3] == "x" * 51 and lines[151].split() == ["151", str(NOW_MS), "-", "x", "-", "False"]


def test_what_is_not_known_is_shown(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "__consumer_offsets-3" / NAME
    file.parent.mkdir()
    key = b"\x00\x01" + OffsetCommitKey(group="g", topic="t", partition=1).to_bytes(0)
    rows = [
        (b"\x7f\x00?", b"!"),
        (key, b"\x00\x63?"),
        (key, b"\x00\x04"),
        (b"\x00\x01\x00", None),
        (None, b"!"),
        (b"k", None),
        (key, b""),
        (key, b"\x00"),
    ]
    file.write_bytes(b"".join(batch(at, value, key=key) for at, (key, value) in enumerate(rows)))
    found = [(row["key"], row["value"]) for row in dumped(capfd, file, "--decode")["entries"]]
    assert found[0] == (
        {"type": 0x7F00, "base64": "fwA/", "undecoded": f"type {0x7F00} is not known"},
        {"base64": "IQ=="},
    )
    assert found[1][0] == {"type": 1, "data": {"group": "g", "topic": "t", "partition": 1}}
    assert found[1][1]["version"] == 99 and "version" in found[1][1]["undecoded"]
    assert found[2][1]["version"] == 4 and found[2][1]["base64"] == "AAQ="
    assert found[3][0]["type"] == 1 and found[3][1] is None
    assert found[4][1] == {"base64": "IQ=="} and found[5][0]["base64"] == "aw=="
    assert found[6][1] == {"base64": "", "undecoded": "a value has a version"} and found[7][1]["base64"] == "AA=="
    for kind in ("metadata", "remote-log"):
        decode = DECODERS[kind].decode
        assert decode(None, b"\x02\x00\x00")[1]["undecoded"].startswith("expected frame version 1")
        assert decode(None, b"\x01\x63\x00")[1]["undecoded"] == "type 99 is not known"
        assert decode(b"k", None) == ({"base64": "aw=="}, None)
    unknown = decode_control(encode_control_key(99), b"\x00\x00")
    assert unknown[0]["undecoded"] == "no control record that is known"
    assert decode_control(encode_control_key(2), b"\x00\x00")[1]["type"] == "LEADER_CHANGE"
    assert decode_control(encode_control_key(1), b"\x00")[1] == {
        "type": "COMMIT",
        "base64": "AA==",
        "undecoded": "a value has a version",
    }


@pytest.mark.parametrize("version", [1, 2, 9])
def test_a_subscription_without_what_its_version_adds_is_shown(version: int) -> None:
    """Some clients say version 1 and leave the owned partitions out; the topics stand in front of them."""

    def shown(kind: type[Message], message: Message, of: int, more: bytes = b"") -> Any:
        data = of.to_bytes(2, "big") + message.to_bytes(0) + more
        member = GroupMetadataValue.MemberMetadata(
            member_id="m", **{"subscription" if kind is ConsumerProtocolSubscription else "assignment": data}
        )
        value = GroupMetadataValue(protocol_type="consumer", members=[member])
        key = GroupMetadataKey(group="g")
        found = DECODERS["offsets"].decode(b"\0\2" + key.to_bytes(0), b"\0\4" + value.to_bytes(4))
        return found[1]["data"]["members"][0]

    subscription = ConsumerProtocolSubscription(topics=["b", "a"], user_data=b"\7")
    found = shown(ConsumerProtocolSubscription, subscription, version)["subscription"]
    assert found == document(subscription) and found["topics"] == ["b", "a"] and found["userData"] == "Bw=="
    torn = shown(ConsumerProtocolSubscription, subscription, version, b"\0\0")["subscription"]
    assert torn["topics"] == ["b", "a"]
    assert shown(ConsumerProtocolAssignment, ConsumerProtocolAssignment(), version)["subscription"] == ""
    rubbish = GroupMetadataValue.MemberMetadata(member_id="m", subscription=b"\0\1\0\0\0\7?", assignment=b"\0\1?")
    value = GroupMetadataValue(protocol_type="consumer", members=[rubbish])
    (member,) = DECODERS["offsets"].decode(
        b"\0\2" + GroupMetadataKey(group="g").to_bytes(0), b"\0\4" + value.to_bytes(4)
    )[1]["data"]["members"]
    assert (member["subscription"], member["assignment"]) == ("AAEAAAAHPw==", "AAE/")


def test_records_of_remote_logs() -> None:
    record = RemotePartitionDeleteMetadataRecord(
        broker_id=3, event_timestamp_ms=NOW_MS, remote_partition_delete_state=1
    )
    writer = Writer()
    for number in (1, record.API_KEY, 0):
        writer.write_uvarint(number)
    key, value = DECODERS["remote-log"].decode(None, writer.getvalue() + record.to_bytes(0))
    assert key is None and value["type"] == "REMOTE_PARTITION_DELETE_METADATA_RECORD" and value["version"] == 0
    assert value["data"]["brokerId"] == 3 and value["data"]["eventTimestampMs"] == NOW_MS


@pytest.mark.parametrize(
    ("ending", "data", "expected"),
    [
        (".txnindex", struct.pack(">hqqqq", 1, 5, 0, 1, 2), "entry 0 has version 1, not 0"),
        (".txnindex", b"x" * 33, "33 bytes are no multiple of an entry's 34"),
        (".index", b"x" * 7, "7 bytes are no multiple of an entry's 8"),
        (".snapshot", struct.pack(">hIi", 1, 0, 5), "version 1 with 5 producers in 10 bytes is no producer snapshot"),
    ],
)
def test_other_files_that_are_damaged(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, ending: str, data: bytes, expected: str
) -> None:
    file = (tmp_path / NAME).with_suffix(ending)
    file.write_bytes(data)
    assert dumped(capfd, file, code=1)["fault"] == expected


def test_files_with_many_entries(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """More than are read at once, and the zeros that a running broker has laid out ahead."""
    index = (tmp_path / NAME).with_suffix(".index")
    index.write_bytes(b"".join(struct.pack(">ii", at, at * 9) for at in range(10_000)) + bytes(800))
    rows = dumped(capfd, index)["entries"]
    assert len(rows) == 10_000 and rows[-1] == {"offset": 9_999, "position": 9_999 * 9}
