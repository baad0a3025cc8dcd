"""Commands that name topics, partitions and groups as Kafka's tools do: by patterns, ranges, several at once; and a Streams application."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.cli import main
from fastq.cli.cluster import _updates
from fastq.cli.entry import build_parser
from fastq.testing import Broker

Run = Callable[..., str]
RECORDS = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(in_memory=True, config={"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


@pytest.fixture
def run(broker: Broker, capfd: pytest.CaptureFixture[str]) -> Run:
    """A command: what it prints, errors behind it."""

    def call(line: str, code: int = 0) -> str:
        capfd.readouterr()
        found = main([*line.split(), "--bootstrap", broker.bootstrap_servers])
        out, error = capfd.readouterr()
        assert found == code, out + error
        return out + error

    return call


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        yield admin


def filled(broker: Broker, admin: Admin, *topics: str, partitions: int = 4) -> None:
    for topic in topics:
        admin.create_topic(topic, partitions)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for topic in topics:
            for number in range(RECORDS * partitions):
                producer.send(topic, b"%d" % number, partition=number % partitions)


def committed(admin: Admin, group: str) -> dict[str, int]:
    offsets = admin.list_group_offsets(group).results()
    return {str(tp): found.offset for tp, found in offsets.items() if found is not None}


def test_partitions_by_numbers_and_ranges(run: Run, broker: Broker, admin: Admin) -> None:
    filled(broker, admin, "ranged")
    admin.delete_records({TopicPartition("ranged", 2): 5}).results()

    def told(line: str) -> list[tuple[int, int]]:
        return [(row["partition"], row["offset"]) for row in json.loads(run(f"offsets {line} --json"))]

    assert told("ranged:1") == [(1, RECORDS)]
    assert told("ranged:0-3") == [(0, RECORDS), (1, RECORDS), (2, RECORDS)], "3 is not among them, as with Kafka's"
    assert told("ranged:2- --at -2") == [(2, 5), (3, 0)]
    assert told("ranged:-1,3,2-9 --at earliest") == [(3, 0), (0, 0), (2, 5)]
    ((_, offset),) = told("ranged:0 --at -3")
    assert told("ranged:0 --at max-timestamp") == [(0, offset)] and 0 <= offset < RECORDS
    assert told("ranged:2 --at -4") == [(2, 5)]
    assert told("ranged:2 --at latest-tiered") == [(2, -1)], "there is nothing elsewhere"
    for wrong in ("ranged:", "ranged:-", "ranged:0-1-2", ":0", "ranged:a-b", "ranged:0--1"):
        assert "TOPIC:0-3" in run(f"offsets {wrong}", code=2)
    for line in ("offsets ranged:9", "offsets ranged:0,9"):
        assert "partition 9]: the topic has 4 partitions" in run(line, code=1)
    assert "--at takes latest (-1), earliest (-2)" in run("offsets ranged --at -7", code=2)


def test_topics_by_patterns(run: Run, broker: Broker, admin: Admin) -> None:
    filled(broker, admin, "pat.a", "pat.b", "pattern", partitions=1)
    assert run(r"topics list --include pat\..").split() == ["pat.a", "pat.b"]
    assert run("topics list --include nothing.*") == ""
    assert [row["topic"] for row in json.loads(run("topics describe --include pat.+ --json"))] == [
        "pat.a",
        "pat.b",
        "pattern",
    ]
    told = run(r"topics delete --include pat\..*")
    assert "would delete pat.a, pat.b" in told and "nothing was changed; --execute does it" in told
    assert {"pat.a", "pat.b", "pattern"} <= admin.list_topics().keys()
    assert run(r"topics delete --include pat\..* --execute") == "deleted pat.a, pat.b\n"
    assert "pattern" in admin.list_topics() and "pat.a" not in admin.list_topics()
    assert "no topic has a name that pat\\..* matches" in run(r"topics delete --include pat\..* --execute", code=1)
    assert "no topic has a name" in run("topics describe --include nothing.*", code=1)


def test_offsets_of_several_groups(run: Run, broker: Broker, admin: Admin, tmp_path: Path) -> None:
    filled(broker, admin, "read", partitions=2)
    for group in ("one", "two"):
        admin.alter_group_offsets(group, {TopicPartition("read", 0): 3, TopicPartition("read", 1): 4}).results()
    plan = run("groups reset-offsets one two --shift-by 1")
    assert "nothing was changed" in plan and committed(admin, "two") == {"read-0": 3, "read-1": 4}
    rows = json.loads(run("groups reset-offsets one two --shift-by 1 --execute --json"))
    assert [(row["group"], row["partition"], row["after"]) for row in rows] == [
        ("one", 0, 4), ("one", 1, 5), ("two", 0, 4), ("two", 1, 5),
    ]  # fmt: skip
    assert committed(admin, "two") == {"read-0": 4, "read-1": 5}
    exported = run("groups reset-offsets one two --to-current --export").splitlines()
    assert exported[:4] == ["one,read,0,4", "one,read,1,5", "two,read,0,4", "two,read,1,5"]
    path = tmp_path / "plan.csv"
    path.write_text("one,read,0,7\ntwo,read,1,9\n")
    run(f"groups reset-offsets one two --from-file {path} --execute")
    assert (committed(admin, "one"), committed(admin, "two")) == (
        {"read-0": 7, "read-1": 5},
        {"read-0": 4, "read-1": 9},
    )
    assert "says nothing about three" in run(f"groups reset-offsets one three --from-file {path} --execute", code=2)
    assert committed(admin, "one")["read-0"] == 7
    run("groups reset-offsets --all-groups --topic read:0 --to-latest --execute")
    assert committed(admin, "one")["read-0"] == committed(admin, "two")["read-0"] == RECORDS
    assert "say which: GROUP, or --all-groups" in run("groups reset-offsets --to-latest", code=2)
    assert "say which: GROUP, or --all-groups" in run("groups reset-offsets one --all-groups --to-latest", code=2)


def test_a_group_that_runs_leaves_the_others_done(run: Run, broker: Broker, admin: Admin) -> None:
    filled(broker, admin, "busy", partitions=1)
    for group in ("idle", "working"):
        admin.alter_group_offsets(group, {TopicPartition("busy", 0): 2}).results()
    with Consumer(
        "busy", bootstrap_servers=broker.bootstrap_servers, group_id="working", enable_auto_commit=False
    ) as reader:
        assert reader.poll(timeout=30)
        told = run("groups reset-offsets idle working --to-earliest --execute", code=1)
    assert "fastq: working: " in told and "stop them first, fastq groups describe working --members" in told
    assert (committed(admin, "idle"), committed(admin, "working")) == ({"busy-0": 0}, {"busy-0": 2})


def test_a_streams_application_begins_anew(run: Run, broker: Broker, admin: Admin) -> None:
    filled(broker, admin, "lines", "words", partitions=2)
    internal = [
        "count-store-changelog", "count-by-key-repartition", "count-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-07-topic",
        "count-x-subscription-registration-topic",
    ]  # fmt: skip
    kept = ["count-orders", "counter-store-changelog", "count-input-changelog"]
    for name in (*internal, *kept):
        admin.create_topic(name, 1)
    admin.alter_group_offsets("count", {TopicPartition("lines", 0): 9, TopicPartition("words", 1): 1}).results()
    line = "streams reset count --input-topics lines,count-input-changelog --intermediate-topics words"
    told = run(line)
    assert "nothing was changed" in told and all(f"would be deleted {name}" in told for name in internal)
    assert committed(admin, "count") == {"lines-0": 9, "words-1": 1}
    document = json.loads(run(f"{line} --execute --json"))
    assert document["deleted"] == sorted(internal) and document["executed"] is True
    assert committed(admin, "count") == {
        "lines-0": 0, "lines-1": 0, "count-input-changelog-0": 0, "words-0": RECORDS, "words-1": RECORDS,
    }  # fmt: skip
    assert {*kept, "lines", "words"} <= admin.list_topics().keys() and not {*internal} & admin.list_topics().keys()


def test_what_a_reset_of_an_application_refuses_changes_nothing(run: Run, broker: Broker, admin: Admin) -> None:
    filled(broker, admin, "source", partitions=1)
    for name in ("app-a-changelog", "app-b-changelog"):
        admin.create_topic(name, 1)
    admin.alter_group_offsets("app", {TopicPartition("source", 0): 9}).results()
    base = "streams reset app --input-topics source --execute"
    for more, words, code in (
        (
            "--internal-topics source",
            "is none that Kafka Streams has made for app; there are app-a-changelog, app-b-changelog",
            2,
        ),
        ("--intermediate-topics source", "source: an input topic or an intermediate one", 2),
        ("--input-topics nowhere", "nowhere", 1),
        ("--to-latest --to-earliest", "not allowed with", 2),
        ("--input-topics ,", "a name is expected", 2),
    ):
        if (code == 2 and "--to-" in more) or "," in more:
            with pytest.raises(SystemExit):
                run(f"{base} {more}")
        else:
            assert words in run(f"{base} {more}", code=code)
    with Consumer(
        "source", bootstrap_servers=broker.bootstrap_servers, group_id="app", enable_auto_commit=False
    ) as reader:
        assert reader.poll(timeout=30)
        assert "the application runs: its group has 1 member" in run(base, code=1)
        assert committed(admin, "app") == {"source-0": 9} and "app-a-changelog" in admin.list_topics()
        assert "The group has members" in run(f"{base} --force", code=1), (
            "of the consumer protocol, which nobody can put out"
        )
        assert committed(admin, "app") == {"source-0": 9} and "app-a-changelog" in admin.list_topics()
    command = [
        sys.executable,
        "-m",
        "fastq",
        "consume",
        "source",
        "--group",
        "app",
        "--bootstrap",
        broker.bootstrap_servers,
    ]
    classic = ("--property", "auto.offset.reset=earliest", "--property", "group.protocol=classic")
    with subprocess.Popen([*command, *classic], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.kill()
    assert "--force puts out members" in run(base, code=1), "it is a member until its session ends"
    told = run(f"{base} --force --to-offset 5 --internal-topics app-b-changelog")
    assert "1 member put out of the group" in told and "deleted app-b-changelog" in told
    assert committed(admin, "app") == {"source-0": 5}
    assert "app-a-changelog" in admin.list_topics() and "app-b-changelog" not in admin.list_topics()
    assert "there is nothing to do" in run("streams reset unknown --execute")


def test_rounds_of_a_verification(run: Run, broker: Broker, admin: Admin) -> None:
    filled(broker, admin, "copied", partitions=2)
    rows = json.loads(run("replicas verify copied --json"))
    assert [(row["partition"], row["lag"]) for row in rows] == [(0, 0), (1, 0)]
    lines = run("replicas verify copied --interval 0 --rounds 3").splitlines()
    assert len(lines) == 3 and all(
        line.endswith("2 partitions compared: all replicas are the same, none is behind") for line in lines
    )
    told = [json.loads(line) for line in run("replicas verify copied:1 --interval 0.01 --rounds 2 --json").splitlines()]
    assert [line["round"] for line in told] == [1, 2]
    assert told[1]["worst_lag"] == {"topic": "copied", "partition": 1, "node": 1, "end": RECORDS, "lag": 0}
    told_of_none = run("replicas verify copied:7 --interval 0 --rounds 1", code=1)
    assert "nothing was compared" in told_of_none and "all replicas are the same" not in told_of_none
    assert "--rounds is about --interval" in run("replicas verify copied --rounds 2", code=2)
    assert "a line a round" in run("replicas verify copied --interval 1 --rounds 1 --output csv", code=2)


def test_features_by_release(run: Run, admin: Admin) -> None:
    mapping = {row["feature"]: row["level"] for row in json.loads(run("cluster features --version-mapping --json"))}
    assert mapping["metadata.version"] == 30 and mapping["streams.version"] == 1
    assert "share.version. It is 0 here" in run("cluster features --upgrade-to 4.3 --validate-only", code=1)
    for line, without in (("--upgrade-to 4.1", 0), ("--downgrade-to 4.1", None)):
        updates = _updates(build_parser().parse_args(["cluster", "features", *line.split()]))
        older = {
            row["feature"]: row["level"] for row in json.loads(run("cluster features --version-mapping 4.1 --json"))
        }
        assert (
            {name: update.level for name, update in updates.items()}
            == {name: level for name, level in older.items() if name != "kraft.version" and level != without}
            != mapping
        )
    assert "'9.9' is not known" in run("cluster features --upgrade-to 9.9", code=2)
    assert "give one" in run("cluster features --upgrade-to 4.0 --downgrade-to 3.9", code=2)
    assert "give it alone" in run("cluster features --version-mapping 4.0 --upgrade-to 4.1", code=2)
    assert "name it once" in run("cluster features --upgrade-to 4.3 --upgrade metadata.version=29", code=2)
