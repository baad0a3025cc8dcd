"""Formatting directories before the first start: levels, first voters, credentials, and what is refused before a byte is written."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from pathlib import Path

import pytest
from fastq_broker.__main__ import main
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import Controller
from fastq_broker.controller.features import SUPPORTED
from fastq_broker.controller.formatting import Plan, feature_records, format_node, parse_controllers, write_bootstrap
from fastq_broker.controller.releases import LEVELS, level_of, levels_of, name_of
from fastq_broker.controller.scram_arguments import parse_credential
from fastq_broker.controller.snapshot import list_snapshots, read_snapshot
from fastq_broker.controller.storage import BOOTSTRAP_CHECKPOINT, METADATA_DIRECTORY, MetaProperties
from fastq_broker.format import _features as format_features
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.voters import Endpoint

from fastq.errors import ConfigError
from fastq.protocol.uuid import uuid_from_str, uuid_to_str

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
DIRECTORY = "JEXY6aqzQY-32P5TStzaFg"
ONE = f"1@localhost:9093:{DIRECTORY}"
NOW_MS = 1_700_000_000_000


# --- levels ---


def test_levels_have_names_and_releases_stand_for_their_last() -> None:
    assert (min(LEVELS.values()), max(LEVELS.values())) == SUPPORTED["metadata.version"]
    assert [name_of(level) for level in LEVELS.values()] == list(LEVELS)
    assert [name_of(level_of(text)) for text in ("3.3", "4.0", "4.0.1", "4.2-IV0")] == [
        "3.3-IV3",
        "4.0-IV3",
        "4.0-IV3",
        "4.2-IV0",
    ]


def test_levels_of_a_release_are_those_it_began_with_and_what_is_asked_for_wins() -> None:
    assert levels_of({}, "3.9", dynamic_quorum=True) == {
        "metadata.version": 21,
        "kraft.version": 1,
        "group.version": 0,
        "transaction.version": 0,
        "eligible.leader.replicas.version": 0,
        "share.version": 0,
        "streams.version": 0,
    }
    latest = levels_of({"group.version": 0}, dynamic_quorum=False)
    assert (latest["metadata.version"], latest["kraft.version"], latest["group.version"]) == (30, 0, 0)
    assert latest["transaction.version"] == 2
    assert levels_of({"metadata.version": 22}, dynamic_quorum=False)["transaction.version"] == 0


@pytest.mark.parametrize(
    ("asked", "release", "words"),
    [
        ({}, "3.2", ["'3.2'", "3.3-IV3", "4.3-IV0"]),
        ({"metadata.version": 30}, "4.3", ["4.3", "leave one out"]),
        ({"metadata.version": 31}, None, ["metadata.version=31", "7 to 30"]),
        ({"foo.version": 1}, None, ["'foo.version'", "group.version"]),
        ({"group.version": 2}, None, ["group.version=2", "0 to 1"]),
        ({"group.version": -1}, None, ["group.version=-1", "0 to 1"]),
        ({"eligible.leader.replicas.version": 1}, "4.0-IV0", ["eligible.leader.replicas", "4.0-IV1"]),
        ({"kraft.version": 0}, None, ["kraft.version=0", "--standalone"]),
    ],
)
def test_levels_that_cannot_be(asked: dict[str, int], release: str | None, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        levels_of(asked, release, dynamic_quorum=True)
    for word in words:
        assert word in str(caught.value)


# --- first voters ---


def test_first_voters_are_named_with_their_directories() -> None:
    voters = parse_controllers(f"2@[::1]:9095:MvDxzVmcRsaTz33bUuRU6A,{ONE}", "CONTROLLER")
    assert [voter.key.node_id for voter in voters] == [1, 2]
    one, two = voters
    assert one.key.directory_id == uuid_from_str(DIRECTORY) and one.versions == (0, 1)
    assert two.endpoints == {"CONTROLLER": Endpoint("0:0:0:0:0:0:0:1", 9095)}  # as Kafka writes it


@pytest.mark.parametrize(
    "text",
    [
        "foo",
        "",
        f"x@localhost:9093:{DIRECTORY}",
        f"-1@localhost:9093:{DIRECTORY}",
        f"1@:9093:{DIRECTORY}",
        f"1@::1:9093:{DIRECTORY}",
        f"1@localhost:0:{DIRECTORY}",
        f"1@localhost:99999:{DIRECTORY}",
        "1@localhost:9093:xx",
        "1@localhost:9093",
        "1@localhost:9093:AAAAAAAAAAAAAAAAAAAAAA",
        f"{ONE},{ONE}",
    ],
)
def test_first_voters_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_controllers(text, "CONTROLLER")


# --- credentials ---


def test_a_credential_is_what_a_server_knows_of_a_password() -> None:
    """The user of RFC 7677, section 3; the keys as PostgreSQL shows them for it."""
    found = parse_credential("SCRAM-SHA-256=[name=user,password=pencil,salt=W22ZaJ0SNY7soEsUEjb6gQ==,iterations=4096]")
    assert (found.name, found.mechanism, found.iterations) == ("user", 1, 4096)
    assert b64encode(found.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert b64encode(found.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    salted = b64encode(hashlib.pbkdf2_hmac("sha256", b"pencil", found.salt, 4096)).decode()
    same = parse_credential(f'SCRAM-SHA-256=[name=user,saltedpassword="{salted}",salt="W22ZaJ0SNY7soEsUEjb6gQ=="]')
    assert same == found


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("SCRAM-SHA-1=[name=a,password=secret-word]", "SCRAM-SHA-512"),
        ("SCRAM-SHA-256", "MECHANISM="),
        ("SCRAM-SHA-256=name=a,password=secret-word", "MECHANISM="),
        ("SCRAM-SHA-256=[password=secret-word]", "add name="),
        ("SCRAM-SHA-256=[name=a]", "add password="),
        ("SCRAM-SHA-256=[name=a,password=]", "add password="),
        ("SCRAM-SHA-256=[name=a,password=secret-word,saltedpassword=YQ==]", "leave one out"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=YQ==]", "add salt="),
        ("SCRAM-SHA-256=[name=a,password=secret-word,salt=!!]", "base64"),
        ("SCRAM-SHA-256=[name=a,password=secret-word,iterations=1]", "4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=secret-word,iterations=x]", "4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,secret-word=1]", "key=value"),
    ],
)
def test_a_credential_that_cannot_be(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        parse_credential(text)
    assert "secret-word" not in str(caught.value)


# --- directories ---


def plan_of(*directories: Path, node_id: int = 1, voters: str | None = ONE, cluster_id: str = CLUSTER) -> Plan:
    return Plan(
        cluster_id=cluster_id,
        node_id=node_id,
        directories=directories,
        metadata_directory=directories[0],
        levels=levels_of({}, dynamic_quorum=voters is not None),
        voters=None if voters is None else parse_controllers(voters, "CONTROLLER"),
    )


def format_(plan: Plan, *, ignore_formatted: bool = False) -> list[tuple[str, Path]]:
    return format_node(plan, ignore_formatted=ignore_formatted, now_ms=NOW_MS)


def test_each_directory_has_an_identity_and_the_first_has_the_voters(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    assert format_(plan_of(first, second)) == [
        ("dynamic metadata voter directory", first),
        ("data directory", second),
    ]
    one, two = MetaProperties.read(first), MetaProperties.read(second)
    assert one == MetaProperties(CLUSTER, 1, uuid_from_str(DIRECTORY))
    assert two is not None and two.directory_id != one.directory_id
    assert list_snapshots(first / METADATA_DIRECTORY) == [SnapshotId(0, 0)]
    assert (second / BOOTSTRAP_CHECKPOINT).exists() and not (second / METADATA_DIRECTORY).exists()
    records = [record for batch in read_snapshot(first / BOOTSTRAP_CHECKPOINT) for record in batch.records]
    assert [(record.name, record.feature_level) for record in records] == [
        ("metadata.version", 30),
        ("eligible.leader.replicas.version", 1),
        ("group.version", 1),
        ("share.version", 1),
        ("streams.version", 1),
        ("transaction.version", 2),
    ]


def test_who_is_no_first_voter_has_an_id_of_its_own(tmp_path: Path) -> None:
    assert format_(plan_of(tmp_path, node_id=2))[0][0] == "dynamic metadata directory"
    found = MetaProperties.read(tmp_path)
    assert found is not None and uuid_to_str(found.directory_id) != DIRECTORY
    assert format_(plan_of(tmp_path / "c", voters=None))[0][0] == "metadata directory"


def test_a_formatted_directory_is_left_as_it_is(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    format_(plan_of(first))
    before = (first / "meta.properties").read_bytes()
    with pytest.raises(ConfigError, match="a is formatted already: --ignore-formatted"):
        format_(plan_of(first, second))
    assert not second.exists()
    assert format_(plan_of(first, second), ignore_formatted=True) == [("data directory", second)]
    assert format_(plan_of(first, second), ignore_formatted=True) == []
    assert (first / "meta.properties").read_bytes() == before


@pytest.mark.parametrize(("change", "word"), [({"node_id": 2}, "node 1"), ({"cluster_id": "other"}, "expected other")])
def test_a_directory_of_another_is_refused(tmp_path: Path, change: dict[str, object], word: str) -> None:
    format_(plan_of(tmp_path / "a"))
    with pytest.raises(ConfigError, match=word):
        format_(plan_of(tmp_path / "a", tmp_path / "b", **change), ignore_formatted=True)  # type: ignore[arg-type]  # either
    assert not (tmp_path / "b").exists()


def test_a_metadata_log_that_lost_its_identity_is_not_formatted_over(tmp_path: Path) -> None:
    format_(plan_of(tmp_path))
    (tmp_path / METADATA_DIRECTORY / "00000000000000000000.log").write_bytes(b"")
    (tmp_path / "meta.properties").unlink()
    with pytest.raises(ConfigError, match=r"holds a metadata log but no meta\.properties"):
        format_(plan_of(tmp_path))


def test_what_a_stopped_format_has_left_is_written_again(tmp_path: Path) -> None:
    format_(plan_of(tmp_path))
    (tmp_path / "meta.properties").unlink()
    assert len(format_(plan_of(tmp_path))) == 1


# --- the commands ---

SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:9093
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093
advertised.listeners=PLAINTEXT://127.0.0.1:9092
"""


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(f"{SETTINGS}log.dirs={tmp_path / 'data'}\n")
    return path


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_a_node_that_was_formatted_begins_with_what_it_was_formatted_with(properties: Path, tmp_path: Path) -> None:
    assert run("format", "-t", CLUSTER, "-s", "-r", "4.0", "-c", properties) == 0
    controller = Controller(BrokerConfig.load(properties), clock=lambda: NOW_MS)
    image = controller.open()
    assert image.cluster_id == CLUSTER
    assert image.features["metadata.version"] == 25 and "share.version" not in image.features
    controller.close()


def test_a_node_of_static_voters_begins_with_what_it_was_formatted_with(properties: Path, tmp_path: Path) -> None:
    static = "controller.quorum.voters=1@127.0.0.1:9093"
    assert run("format", "-t", CLUSTER, "-r", "4.0", "-c", properties, "--set", static) == 0
    assert not (tmp_path / "data" / METADATA_DIRECTORY).exists()
    controller = Controller(BrokerConfig.load(properties, dict([static.split("=")])), clock=lambda: NOW_MS)
    assert controller.open().features["metadata.version"] == 25
    controller.close()


def test_a_node_that_is_to_join_others_does_not_found_a_cluster(properties: Path, tmp_path: Path) -> None:
    assert run("format", "-t", CLUSTER, "-N", "-c", properties) == 0
    with pytest.raises(ConfigError, match=r"data was formatted to join other controllers .*--standalone"):
        Controller(BrokerConfig.load(properties), clock=lambda: NOW_MS).open()
    assert not (tmp_path / "data" / METADATA_DIRECTORY).exists()


def test_a_node_that_was_formatted_for_a_later_release_is_refused(properties: Path, tmp_path: Path) -> None:
    assert run("format", "-t", CLUSTER, "-s", "-c", properties) == 0
    levels = {"metadata.version": 31}
    write_bootstrap(tmp_path / "data", feature_records(levels), levels, NOW_MS)
    with pytest.raises(ConfigError, match=r"metadata\.version is finalized at 31, this node supports 7 to 30"):
        Controller(BrokerConfig.load(properties), clock=lambda: NOW_MS).open()


def test_credentials_that_a_node_was_formatted_with_are_not_forgotten(properties: Path) -> None:
    credential = "SCRAM-SHA-256=[name=alice,password=secret]"
    assert run("format", "-t", CLUSTER, "-s", "-S", credential, "-c", properties) == 0
    with pytest.raises(ConfigError, match=r"1 SCRAM credentials .*--insecure-ignore scram"):
        Controller(BrokerConfig.load(properties), clock=lambda: NOW_MS).open()
    config = BrokerConfig.from_mapping(dict(BrokerConfig.load(properties).settings), insecure_ignore=["scram"])
    controller = Controller(config, clock=lambda: NOW_MS)
    image = controller.open()
    assert [record.name for record in image.kept.values()] == ["alice"]
    assert controller.unprotected
    controller.close()


@pytest.mark.parametrize("cluster_id", ["", " a", "a ", "a\nnode.id=2", "a\\u0041", "\u00e9"])
def test_a_cluster_has_an_id_that_its_file_can_hold(
    properties: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster_id: str
) -> None:
    assert run("format", "-t", cluster_id, "-N", "-c", properties) == 2
    assert "--cluster-id" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_any_other_id_of_a_cluster_is_kept(properties: Path, tmp_path: Path) -> None:
    assert run("format", "-t", "my #1 cluster=it!", "-N", "-c", properties) == 0
    found = MetaProperties.read(tmp_path / "data")
    assert found is not None and found.cluster_id == "my #1 cluster=it!"


def test_a_directory_with_two_spellings_is_one(properties: Path, tmp_path: Path) -> None:
    again = f"metadata.log.dir={tmp_path / 'data'}/"
    assert run("format", "-t", CLUSTER, "-s", "-c", properties, "--set", again) == 0
    assert list_snapshots(tmp_path / "data" / METADATA_DIRECTORY) == [SnapshotId(0, 0)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["--standalone", "--initial-controllers", "--no-initial-controllers"]),
        (("-s", "--set", "controller.quorum.voters=1@h:1"), ["controller.quorum.voters", "remove"]),
        (("-s", "--set", "listeners=PLAINTEXT://:9092"), ["CONTROLLER://host:port"]),
        (
            ("-s", "--set", "process.roles=broker", "--set", "listeners=PLAINTEXT://:9092"),
            ["--standalone", "process.roles is broker"],
        ),
        (("-N", "-f", "group.version"), ["'group.version'", "FEATURE=LEVEL"]),
        (("-N", "-r", "3.4", "-S", "SCRAM-SHA-256=[name=a,password=b]"), ["--add-scram", "3.5-IV2"]),
        (("-N", "--set", "node.id"), ["--set", "KEY=VALUE"]),
        (("-N", "--set", "node.idd=1"), ["node.idd", "did you mean node.id?"]),
    ],
)
def test_arguments_that_do_not_fit(
    properties: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: list[str]
) -> None:
    assert run("format", "-t", CLUSTER, *arguments, "-c", properties) == 2
    error = capsys.readouterr().err
    assert error.startswith("fastq-broker format: ") and error.count("\n") == 1
    for word in words:
        assert word in error


def test_info_says_what_the_directories_are(
    properties: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("info", "-c", properties) == 1
    assert "Found problem:\n" in (said := capsys.readouterr().out) and "data does not exist" in said
    assert run("format", "-t", CLUSTER, "-N", "-c", properties) == 0
    capsys.readouterr()
    assert run("info", "-c", properties) == 0
    said = capsys.readouterr().out
    assert said.startswith("Found log directory:\n") and f"{{cluster.id={CLUSTER}, directory.id=" in said
    (tmp_path / "more").mkdir()
    assert run("info", "-c", properties, "--set", f"log.dirs={tmp_path / 'data'},{tmp_path / 'more'}") == 1
    assert "more is not formatted." in capsys.readouterr().out
    assert run("format", "-t", "other", "-N", "-c", properties) == 1
    assert "expected other" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["group.version=--1", "group.version=\u00b2", "group.version=", "group.version"])
def test_a_level_that_is_no_number_is_refused_in_words(text: str) -> None:
    with pytest.raises(ConfigError, match=r"it takes FEATURE=LEVEL, as in group\.version=1"):
        format_features([text])
