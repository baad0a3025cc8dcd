"""meta.properties, quorum-state and the mark of a clean stop."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from fastq_broker.controller.storage import (
    MetaProperties,
    QuorumState,
    clean_shutdown_epoch,
    format_directories,
    sync_directory,
)

from fastq.errors import ConfigError
from fastq.protocol.uuid import uuid_from_str, uuid_to_str

KAFKA_META = """#
#Sat Nov 21 11:02:01 UTC 2026
node.id=1
directory.id=GNYAiHryQX-YuC4SnNGecQ
version=1
cluster.id=XSFemINrTWqiCDlV1FgMBA
"""
KAFKA_STATE = '{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
KAFKA_STATIC_STATE = (
    '{"clusterId":"c","leaderId":1,"leaderEpoch":3,"votedId":-1,"appliedOffset":0,'
    '"currentVoters":[{"voterId":1}],"data_version":0}'
)


def changed(**fields: object) -> str:
    """Kafka's state, with something else in it."""
    return json.dumps({**json.loads(KAFKA_STATE), **fields})


def test_meta_properties_of_kafka(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(KAFKA_META)
    found = MetaProperties.read(tmp_path)
    assert found == MetaProperties("XSFemINrTWqiCDlV1FgMBA", 1, uuid_from_str("GNYAiHryQX-YuC4SnNGecQ"))
    found.write(tmp_path)
    assert MetaProperties.read(tmp_path) == found
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert sorted(lines[1:]) == sorted(KAFKA_META.splitlines()[2:])
    assert MetaProperties.read(tmp_path / "missing") is None


@pytest.mark.parametrize("text", ["", "version=2\n", "version=1\nnode.id=x\ncluster.id=c\n", "version=1\nnode.id=1\n"])
def test_meta_properties_that_make_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(ConfigError, match=r"meta\.properties"):
        MetaProperties.read(tmp_path)


@pytest.mark.parametrize("text", [KAFKA_STATE, KAFKA_STATIC_STATE])
def test_quorum_state_is_written_as_kafka_writes_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "quorum-state").write_text(text)
    found = QuorumState.read(tmp_path)
    assert found is not None
    found.write(tmp_path)
    assert (tmp_path / "quorum-state").read_text() == text
    assert not (tmp_path / "quorum-state.tmp").exists()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"leaderId":"x"}', KAFKA_STATE.replace("AAAAAAAAAA", "A"), "[" * 100_000),
        *(changed(leaderEpoch=value) for value in (-1, 2**31, 1e400, None, [])),
        *(changed(leaderId=value) for value in (-2, 2**31)),
        *(changed(votedId=value) for value in (-2, 2**31)),
        *(changed(data_version=value) for value in (-1, 2)),
        *(changed(votedDirectoryId=value) for value in (1, "x", [1])),
        *(changed(currentVoters=value) for value in (1, [1], [{}])),
    ],
)
def test_quorum_state_that_makes_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "quorum-state").write_text(text)
    with pytest.raises(ConfigError, match="quorum-state"):
        QuorumState.read(tmp_path)


def test_formatting_gives_each_directory_its_own_identity(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directories = [tmp_path / "a", tmp_path / "b" / "c"]
    found = format_directories(directories, 3)
    assert [item.node_id for item in found] == [3, 3]
    assert found[0].cluster_id == found[1].cluster_id
    assert found[0].directory_id != found[1].directory_id
    assert len(uuid_to_str(found[0].directory_id)) == 22
    assert format_directories(directories, 3) == found
    assert not caplog.messages
    more = format_directories([*directories, tmp_path / "d"], 3)
    (told,) = caplog.messages
    assert told.startswith(f"{tmp_path / 'd'} was empty, unlike other directories of this node, and is formatted")
    assert more[:2] == found
    assert more[2].cluster_id == found[0].cluster_id


def test_a_directory_without_an_id_gets_one_for_good(tmp_path: Path) -> None:
    """It had another at each start, and the metadata names directories by their ids."""
    (tmp_path / "meta.properties").write_text("version=0\ncluster.id=c\nbroker.id=1\n")
    first = format_directories([tmp_path], 1)
    assert first[0].directory_id != bytes(16) and format_directories([tmp_path], 1) == first


def test_directories_of_somebody_else_are_refused_and_left_alone(tmp_path: Path) -> None:
    format_directories([tmp_path / "a"], 1)
    format_directories([tmp_path / "b"], 1)
    before = (tmp_path / "a" / "meta.properties").read_bytes()
    with pytest.raises(ConfigError, match=r"belongs to node 1, this is node 2: set node\.id"):
        format_directories([tmp_path / "a"], 2)
    with pytest.raises(ConfigError, match=r"belongs to cluster \S+, expected \S+: use that cluster's id"):
        format_directories([tmp_path / "a", tmp_path / "b"], 1)
    assert (tmp_path / "a" / "meta.properties").read_bytes() == before
    (tmp_path / "c" / "__cluster_metadata-0").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"holds a metadata log but no meta\.properties"):
        format_directories([tmp_path / "c"], 1)


def test_a_format_that_was_cut_short_is_not_taken_for_another_cluster(tmp_path: Path) -> None:
    begun = tmp_path / "a"
    begun.mkdir()
    (begun / "bootstrap.checkpoint").write_bytes(b"as it was asked for")
    for _ in range(2):
        with pytest.raises(ConfigError, match="format` was cut short there; run it again"):
            format_directories([begun, tmp_path / "b"], 1)
        assert (
            sorted(path.name for path in begun.iterdir()) == ["bootstrap.checkpoint"] and not (tmp_path / "b").exists()
        )
    (begun / "__cluster_metadata-0").mkdir()
    with pytest.raises(ConfigError, match="format` was cut short there; run it again"):
        format_directories([begun], 1)
    (begun / "__cluster_metadata-0").rmdir()
    known = format_directories([tmp_path / "c"], 1)  # whose cluster it is is known then
    assert format_directories([tmp_path / "c", begun], 1)[1].cluster_id == known[0].cluster_id


def test_a_stop_is_clean_when_all_directories_say_the_same_epoch(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
        (directory / ".kafka_cleanshutdown").write_text(json.dumps({"version": 0, "brokerEpoch": 13}))
    assert clean_shutdown_epoch(directories) == 13
    (directories[1] / ".kafka_cleanshutdown").write_text(json.dumps({"version": 0, "brokerEpoch": 14}))
    assert clean_shutdown_epoch(directories) == -1
    (directories[1] / ".kafka_cleanshutdown").write_text("rubbish")
    assert clean_shutdown_epoch(directories) == -1
    (directories[1] / ".kafka_cleanshutdown").unlink()
    assert clean_shutdown_epoch(directories) == -1


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_directory_without_a_sync_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As one of the partitions' logs is. A disk that fails says so."""

    def fsync(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    if code != errno.EIO:
        sync_directory(tmp_path)
        return
    with pytest.raises(OSError) as raised:
        sync_directory(tmp_path)
    assert raised.value.filename == str(tmp_path)
