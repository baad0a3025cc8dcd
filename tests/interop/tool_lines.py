"""The lines of docs/tools.md: what to run before each, and how to read the same values from what both of its commands print.

Rules: what is printed is read into the same values from both sides, as the words around them are each tool's own; of a command that changes
something the cluster is read after it, too. A line that needs more than two commands on one broker has a `play` of its own.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import tool_plays
from tool_stage import PARTITIONS, RECORDS, Said, Stage
from waiting import until

from fastq import Admin, Consumer, TopicPartition
from fastq.admin import (
    Acl,
    AclFilter,
    AclOperation,
    AclResourceType,
    ClientQuotaEntity,
    ConfigResource,
    OffsetSpec,
    ResourceType,
    UserScramCredentialDeletion,
)

ALL = str(PARTITIONS * RECORDS)

Read = Callable[[str], object]
Play = Callable[[Stage, Sequence[str], Sequence[str]], tuple[Said, Said]]


class Case(NamedTuple):
    """How the two are compared: by what `theirs` and `ours` read in what is printed (None: nothing), and what the cluster is `after`.
    `json`: ours is run once more for that, and read as such. `more` ends a command that goes on by itself; `numbers` stand for the
    page's."""

    theirs: Read | None = None
    ours: Read | None = None
    after: Callable[[Admin], object] | None = None
    json: bool = True
    before: Callable[[Admin], None] | None = None
    """Behind what all lines begin with (see `begin`)."""
    empty: bool = False
    """Begins without the topic."""
    more: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    numbers: tuple[str, str] = ("", "")
    stdin: str = ""
    code: int = 0
    file: object = None
    """What is in FILE, as JSON; a path for a file that is there."""
    with_authorizer: bool = False
    """On Apache Kafka with its authorizer: what it takes a broker of ours does not serve."""
    play: Play | None = None


# -- reading what is printed


def rows(*names: str) -> Read:
    """Of JSON rows of ours about the topic, these fields."""
    return lambda text: sorted(
        tuple(row[name] for name in names) for row in json.loads(text) if str(row.get("topic", "logs")) == "logs"
    )


def found(pattern: str) -> Read:
    """Groups of a pattern, with numbers as such."""

    def read(text: str) -> object:
        return sorted(
            tuple(int(part) if part.isdigit() else part for part in match.groups())
            for match in re.finditer(pattern, text, re.MULTILINE)
        )

    return read


def values(text: str) -> object:
    """The records, whichever partition came first."""
    return sorted(line for line in text.splitlines() if re.match(r"\d-\d+$", line))


def first_column(text: str) -> object:
    return sorted(line.split()[0] for line in text.splitlines() if line)


def sizes(text: str) -> object:
    (document,) = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    logs = [log for place in document["brokers"][0]["logDirs"] for log in place["partitions"]]
    return sorted((log["partition"], log["size"]) for log in logs if log["partition"].startswith("logs-"))


def versions(text: str) -> object:
    line = re.compile(r"\s(\w+)\((\d+)\): (\d+)(?: to (\d+))? \[(?:usable: (\d+)|unusable|unsupported)\]")
    return {
        api: (int(key), int(low), int(high or low), int(used or 0))
        for api, key, low, high, used in line.findall(text.replace("[usable: ]", "[unusable]"))
    }


def access(text: str) -> object:
    """The rows of what `kafka-acls.sh` lists."""
    told, resource = set(), ("", "", "")
    for line in text.splitlines():
        if of := re.search(r"resourceType=(\w+), name=(.*), patternType=(\w+)\)", line):
            resource = (of[1], of[2], of[3])
        if acl := re.search(r"principal=(.*), host=(.*), operation=(\w+), permissionType=(\w+)\)", line):
            told.add((*resource, acl[1], acl[4], acl[3], acl[2]))
    return sorted(told)


ACCESS_COLUMNS = ("resource", "name", "pattern", "principal", "permission", "operation", "host")
ACCESS = rows(*ACCESS_COLUMNS)


def all_access(text: str) -> object:
    return sorted(tuple(row[name] for name in ACCESS_COLUMNS) for row in json.loads(text))


def latencies(text: str) -> object:
    """Whether each of those that are told is not below the one before."""
    told = [float(each) for each in re.findall(r"(?:50th|99th|99\.9th) = (\d+)", text)]
    return len(told), told == sorted(told), "Avg latency" in text


def our_latencies(text: str) -> object:
    told = [float(each) for each in re.findall(r"^(?:p50|p99|p99\.9) ms +([\d.]+)", text, re.MULTILINE)]
    return len(told), told == sorted(told), "average" in text


def events(text: str) -> object:
    """The verifiable tools' lines, without what is measured and how the records fell into polls."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    names = [line["name"] for line in lines]
    done = [(line.get("key"), line["value"]) for line in lines if line["name"] == "producer_send_success"]
    read = sum(line["count"] for line in lines if line["name"] == "records_consumed")
    fields = {line["name"]: [key for key in line if key not in ("key", "value")] for line in lines}
    last = {
        (place["topic"], place["partition"]): place["offset"]
        for line in lines if line["name"] == "offsets_committed"
        for place in line["offsets"]
    }  # fmt: skip
    return [*dict.fromkeys(names)], sorted(done), read, fields, last


# -- preparing and reading the cluster


def two_groups(admin: Admin) -> None:
    admin.alter_group_offsets("h", {TopicPartition("logs", 2): 1}).results()


def some_deleted(admin: Admin) -> None:
    admin.delete_records({TopicPartition("logs", 1): 40}).results()


INTERNAL = ("app-counts-changelog", "app-by-word-repartition")


def an_application(admin: Admin) -> None:
    """A Kafka Streams application that has stopped: its group, and its topics with one beside them that only begins like them."""
    admin.alter_group_offsets(
        "app", {TopicPartition("logs", partition): 90 for partition in range(PARTITIONS)}
    ).results()
    there = admin.list_topics()
    for name in (*INTERNAL, "app-others"):
        if name not in there:
            admin.create_topic(name, 1, 1)


def of_application(admin: Admin) -> object:
    offsets = {str(place): offset.result().offset for place, offset in admin.list_group_offsets("app").items()}
    left = sorted(name for name in admin.list_topics() if name.startswith("app-"))
    admin.delete_topics(left).results()
    return offsets, left


def application(text: str) -> object:
    """Where offsets go, and which topics are deleted."""
    (deleted,) = re.findall(r"^Deleting inferred internal topics \[(.*)\]", text, re.MULTILINE)
    return found(r"^Topic: (\S+) Partition: (\d+) Offset: (\d+)")(text), sorted(deleted.split(", "))


def our_application(text: str) -> object:
    document = json.loads(text)
    return sorted((r["topic"], r["partition"], r["after"]) for r in document["offsets"]), document["deleted"]


def topics(admin: Admin) -> object:
    return {name: len(topic.result().partitions) for name, topic in admin.describe_topics(admin.list_topics()).items()}


def settings(admin: Admin) -> object:
    entries = admin.describe_configs([ConfigResource.topic("logs")])[ConfigResource.topic("logs")].result()
    return {name: entry.value for name, entry in entries.items() if entry.source.name == "DYNAMIC_TOPIC_CONFIG"}


def ends(admin: Admin) -> object:
    (described,) = admin.describe_topics(["logs"]).values()
    places = [TopicPartition("logs", part.index) for part in described.result().partitions]
    first = admin.list_offsets(dict.fromkeys(places, OffsetSpec.EARLIEST))
    last = admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST))
    return sum(info.result().offset for info in first.values()), sum(info.result().offset for info in last.values())


def keys(admin: Admin) -> object:
    with Consumer("logs", bootstrap_servers=admin.config.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        return sorted((record.key, record.value) for record in consumer.read_to_end() if record.key is not None)


def committed(admin: Admin) -> object:
    return {str(place): offset.result().offset for place, offset in admin.list_group_offsets("g").items()}


def leaders(admin: Admin) -> object:
    (described,) = admin.describe_topics(["logs"]).values()
    return [(part.leader.node_id if part.leader else None, part.replicas) for part in described.result().partitions]


ALICE = Acl(AclResourceType.TOPIC, "logs", "User:alice", AclOperation.READ)


def granted(admin: Admin) -> object:
    _settle(admin)
    return admin.describe_acls()


def nothing_granted(admin: Admin) -> None:
    admin.delete_acls([AclFilter()]).results()
    _settle(admin)


def alice_granted(admin: Admin) -> None:
    nothing_granted(admin)
    admin.create_acls([ALICE, dataclasses.replace(ALICE, name="other")]).results()
    _settle(admin)


def _settle(admin: Admin) -> None:
    """Wait until the node answers by what has been changed: its controller tells that it is done before the node knows of it."""
    last = Acl(AclResourceType.GROUP, "settled", "User:nobody", AclOperation.READ)
    wanted = AclFilter(name=last.name)
    admin.create_acls([last]).results()
    until(lambda: admin.describe_acls(wanted) == [last])
    admin.delete_acls([wanted]).results()
    until(lambda: admin.describe_acls(wanted) == [])


APP = ClientQuotaEntity({"client-id": "app"})


def unlimited(admin: Admin) -> None:
    admin.alter_client_quotas({APP: {"consumer_byte_rate": None}}).results()
    _settle(admin)


def limited(admin: Admin) -> None:
    admin.alter_client_quotas({APP: {"consumer_byte_rate": 1024.0}}).results()
    _settle(admin)


def limits(admin: Admin) -> object:
    _settle(admin)
    return admin.describe_client_quotas()


def without_credentials(admin: Admin) -> None:
    there = admin.describe_user_scram_credentials()
    admin.alter_user_scram_credentials(
        [
            UserScramCredentialDeletion(user, info.mechanism)
            for user, outcome in there.items()
            for info in outcome.result()
        ]
    ).results()
    _settle(admin)


def credentials(admin: Admin) -> object:
    _settle(admin)
    return admin.describe_user_scram_credentials().results()


def subscribed(admin: Admin) -> None:
    admin.set_config(ConfigResource(ResourceType.CLIENT_METRICS, "latency"), "interval.ms", "5000")


LOG = Path("logs-0") / "00000000000000000000.log"


def _file(**more: object) -> object:
    return {"version": 1, "partitions": [{"topic": "logs", "partition": 0, **more}]}


PARTITION_LINES = found(r"Partition: (\d+)\tLeader: (\d+)\tReplicas: (\d+)\tIsr: (\d+)")
OFFSETS = found(r"^logs:(\d+):(\d+)$")


def partition_rows(text: str) -> object:
    return [(r["partition"], r["leader"], *r["replicas"], *r["isr"]) for r in json.loads(text)]


GRANT = "kafka-acls.sh --add --allow-principal User:alice"
CASES = {
    "kafka-topics.sh --create --topic logs --partitions 3": Case(
        found(r"Created topic (\w+)\."), found(r"made (\w+):"), topics, json=False, empty=True
    ),
    "kafka-topics.sh --list": Case(
        lambda text: sorted(name for name in re.findall(r"^\w+$", text, re.MULTILINE) if not name.startswith("__")),
        lambda text: sorted(json.loads(text)),
    ),
    "kafka-topics.sh --describe --topic logs": Case(PARTITION_LINES, partition_rows),
    "kafka-topics.sh --delete --topic logs": Case(after=topics),
    "kafka-topics.sh --list --topic 'lo.*'": Case(first_column, lambda text: sorted(json.loads(text))),
    "kafka-topics.sh --describe --topic 'lo.*'": Case(PARTITION_LINES, partition_rows),
    "kafka-topics.sh --delete --topic 'lo.*'": Case(after=topics),
    "kafka-configs.sh --describe --entity-type topics --entity-name logs": Case(
        found(r"^  (\S+)=(\S+) sensitive"),
        lambda text: [(r["name"], int(r["value"])) for r in json.loads(text) if r["source"] == "dynamic-topic-config"],
    ),
    "kafka-configs.sh --alter --entity-type topics --entity-name logs --add-config retention.ms=1000": Case(
        after=settings
    ),
    "kafka-configs.sh --describe --entity-type clients --entity-name app": Case(
        found(r"(\w+)=(\d+)\.0"),
        lambda text: sorted((r["name"], int(r["value"])) for r in json.loads(text)),
        before=limited,
        with_authorizer=True,
    ),
    "kafka-configs.sh --alter --entity-type clients --entity-name app --add-config consumer_byte_rate=2048": Case(
        after=limits, before=unlimited, with_authorizer=True
    ),
    "kafka-configs.sh --alter --entity-type users --entity-name carol --add-config 'SCRAM-SHA-512=[iterations=4096,password=P]'": Case(
        after=credentials, before=without_credentials, stdin="P\n", with_authorizer=True
    ),
    "kafka-console-producer.sh --topic logs": Case(after=ends, stdin="one\ntwo\n"),
    "kafka-console-producer.sh --topic logs --reader-property parse.key=true --reader-property key.separator=:": Case(
        after=keys, stdin="a:one\nb:two:three\n"
    ),
    "kafka-console-consumer.sh --topic logs --from-beginning": Case(
        values, values, json=False, more=(("--max-messages", ALL), ("--max-records", ALL))
    ),
    "kafka-console-consumer.sh --include 'log.*' --group g": Case(
        values, values, json=False, more=(("--max-messages", "330"), ("--max-records", "330"))
    ),
    "kafka-groups.sh --list": Case(
        found(r"^(g) +(\w+)"),
        lambda text: [(r["group"], r["type"].capitalize()) for r in json.loads(text) if r["group"] == "g"],
    ),
    "kafka-consumer-groups.sh --list": Case(
        first_column, lambda text: sorted(row["group"] for row in json.loads(text))
    ),
    "kafka-consumer-groups.sh --describe --group g": Case(
        found(r"^g +logs +(\d+) +(\d+) +(\d+) +(\d+)"), rows("partition", "committed", "end", "lag")
    ),
    "kafka-consumer-groups.sh --describe --all-groups": Case(
        found(r"^g +logs +(\d+) +(\d+) +(\d+) +(\d+)"), rows("partition", "committed", "end", "lag")
    ),
    "kafka-consumer-groups.sh --reset-offsets --group g --all-topics --to-earliest --execute": Case(
        found(r"^g +logs +(\d+) +(\d+)"), rows("partition", "after"), committed
    ),
    "kafka-consumer-groups.sh --reset-offsets --all-groups --topic logs --to-latest --execute": Case(
        found(r"^(\w+) +logs +(\d+) +(\d+)"), rows("group", "partition", "after"), committed, before=two_groups
    ),
    "kafka-consumer-groups.sh --reset-offsets --group g --topic logs:1 --shift-by 5 --dry-run": Case(
        found(r"^g +logs +(\d+) +(\d+)"), rows("partition", "after"), committed
    ),
    "kafka-streams-application-reset.sh --application-id app --input-topics logs --dry-run": Case(
        application, our_application, of_application, before=an_application
    ),
    "kafka-streams-application-reset.sh --application-id app --input-topics logs --to-offset 7": Case(
        application, our_application, of_application, before=an_application
    ),
    "kafka-get-offsets.sh --topic logs": Case(OFFSETS, rows("partition", "offset")),
    "kafka-get-offsets.sh --topic-partitions logs:0-2 --time -2": Case(
        OFFSETS, rows("partition", "offset"), before=some_deleted
    ),
    "kafka-get-offsets.sh --topic logs --partitions 1 --time max-timestamp": Case(OFFSETS, rows("partition", "offset")),
    "kafka-delete-records.sh --offset-json-file FILE": Case(after=ends, file=_file(offset=100)),
    "kafka-log-dirs.sh --describe --topic-list logs": Case(
        sizes,
        lambda text: sorted(
            (r["partition"], r["bytes"]) for r in json.loads(text) if r["partition"].startswith("logs-")
        ),
    ),
    "kafka-reassign-partitions.sh --execute --reassignment-json-file FILE": Case(
        after=leaders, file=_file(replicas=[1])
    ),
    "kafka-leader-election.sh --election-type preferred --all-topic-partitions": Case(after=leaders),
    "kafka-producer-perf-test.sh --topic logs --num-records 1000000 --record-size 100 --throughput -1": Case(
        found(r"^(300) records sent"),
        lambda text: [(json.loads(text)["records"],)],
        numbers=("1000000", "300"),
    ),
    "kafka-consumer-perf-test.sh --topic logs --num-records 1000000": Case(
        lambda text: int(text.splitlines()[-1].split(", ")[4]),
        lambda text: json.loads(text)["records"],
        numbers=("1000000", ALL),
    ),
    "kafka-e2e-latency.sh --topic logs --num-records 1000 --producer-acks all --record-size 100": Case(
        latencies, our_latencies, ends, json=False, numbers=("1000", "50")
    ),
    "kafka-verifiable-producer.sh --topic logs --max-messages 1000": Case(
        events, events, ends, json=False, numbers=("1000", "20")
    ),
    "kafka-verifiable-consumer.sh --topic logs --group-id g": Case(
        events, events, committed, json=False, more=(("--max-messages", "330"),) * 2
    ),
    "kafka-server-start.sh server.properties": Case(play=tool_plays.started),
    "kafka-server-stop.sh --node-id 1": Case(play=tool_plays.stopped),
    "kafka-storage.sh format -t ID -c server.properties --standalone": Case(play=tool_plays.formatted),
    "kafka-storage.sh info -c server.properties": Case(play=tool_plays.informed),
    "kafka-storage.sh random-uuid": Case(play=tool_plays.random_uuid),
    "kafka-metadata-quorum.sh describe --status": Case(
        lambda text: (re.findall(r"(?:ClusterId|LeaderId): +(\S+)", text), re.findall(r'"id": (\d+)', text)),
        lambda text: (
            [str(json.loads(text)[name]) for name in ("cluster_id", "leader")],
            [str(voter) for voter in json.loads(text)["voters"]],
        ),
    ),
    "kafka-metadata-shell.sh --snapshot FILE tree /image": Case(play=tool_plays.metadata),
    "kafka-metadata-shell.sh --snapshot FILE ls /image": Case(play=tool_plays.metadata),
    "kafka-features.sh describe": Case(
        lambda text: {
            name: int(level)
            for name, level in re.findall(r"^Feature: (\S+).*FinalizedVersionLevel: (\d+)", text, re.MULTILINE)
            if name != "metadata.version"  # told by its name there
        },
        lambda text: {row["feature"]: row["level"] for row in json.loads(text) if row["feature"] != "metadata.version"},
    ),
    "kafka-features.sh version-mapping --release-version 4.0": Case(
        found(r"^([\w.]+)=(\d+)"), lambda text: sorted((r["feature"], r["level"]) for r in json.loads(text))
    ),
    "kafka-cluster.sh cluster-id": Case(lambda text: text.split()[-1], lambda text: json.loads(text)["cluster_id"]),
    "kafka-cluster.sh unregister --id 3": Case(
        lambda text: "Broker ID 3 is not currently registered" in text,
        lambda text: "Broker ID 3 is not currently registered" in text,
        json=False,
        code=1,
    ),
    "kafka-broker-api-versions.sh": Case(
        versions,
        lambda text: {
            r["api"]: (r["key"], r["min"], r["max"], r["used"] or 0)
            for r in json.loads(text)
            if r["api"] not in ("MirrorAppend", "MirrorPull")  # told to fastq's clients alone
        },
    ),
    "kafka-client-metrics.sh --list": Case(
        first_column, lambda text: sorted(json.loads(text)), before=subscribed, with_authorizer=True
    ),
    f"{GRANT} --operation Read --topic logs": Case(
        access, ACCESS, granted, before=nothing_granted, with_authorizer=True
    ),
    f"{GRANT} --consumer --topic logs --group g": Case(
        access, all_access, granted, before=nothing_granted, with_authorizer=True
    ),
    "kafka-acls.sh --list --topic logs": Case(access, ACCESS, before=alice_granted, with_authorizer=True),
    "kafka-acls.sh --remove --topic logs --force": Case(after=granted, before=alice_granted, with_authorizer=True),
    "kafka-transactions.sh list": Case(
        found(r"^(\S+)\s+1\s+(\d+)\s+(\w+)"), rows("transactional_id", "producer_id", "state")
    ),
    "kafka-replica-verification.sh --topics-include logs --time -2": Case(play=tool_plays.replicas),
    "connect-mirror-maker.sh mm2.properties": Case(play=tool_plays.mirrored),
    "kafka-dump-log.sh --files FILE --print-data-log": Case(
        found(r"offset: (\d+) .* payload: (\S+)$"),
        lambda text: [(entry["offset"], entry["value"]) for entry in json.loads(text)["entries"]],
        file=LOG,
    ),
}
