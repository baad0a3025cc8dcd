"""What Apache Kafka's tools and our commands print of three nodes of ours, word for word beside what they print of three of Apache Kafka's.

Rules: the same commands in the same order against each cluster, and one transcript of each. What differs by chance is put in one form
(ports, ids, times, how far logs are, which of two directories a new log is in), and of an error only its kind counts: our words say more.
"""

from __future__ import annotations

import difflib
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apache_kafka
import pytest
from test_rolling_replacement import NODES, Cluster

from fastq import Admin, Producer
from fastq.cli import main
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

TOOLS = "org.apache.kafka.tools."
CONFIGS = "kafka.admin.ConfigCommand"
REASSIGN = "reassign.ReassignPartitionsCommand"
NEVER_A_DIRECTORY = "AAAAAAAAAAAAAAAAAAAABQ"
BY_CHANCE = (
    (r"(?m)^\s+at .*\n|^\t\.\.\. .*\n|^null\n|^KafkaTools\$Ended\n|^Caused by: .*\n|^\tSuppressed: .*\n", ""),
    (r"(?m)^(\d{4}-\d\d-\d\dT\S+ .* ERROR .*|java\.util\.concurrent\.ExecutionException: .*)\n", ""),
    (r"(\w+(Exception|Error)): .*", r"\1"),
    (r"(?m)^((Could|Can) not \w+ \S+ to \d+)\. .*", r"\1"),
    (r"(?m)^(\S+-\d+): The replication factor .*", r"\1: another replication factor"),
    (r"\b1[789]\d{11}\b", "TIME"),
    (r"((HighWatermark|MaxFollowerLag|MaxFollowerLagTimeMs|Epoch): +)\d+", r"\1N"),
    (r"(high watermark|max follower lag|max follower lag ms) +\d+", r"\1 N"),
    (r"\d+ms ago|\d+ ms ago|\d+\.\d s ago", "AGO"),
    (r"(?m)^(\d +\S*UUID\S*\s+)\d+( +\t?\d+)", r"\1N\2"),
    (r"(?m)^( +\d  UUID +)\d+( +\d+)", r"\1N\2"),
    (r"(?m)[ \t]+$", ""),
    (r" {2,}", "  "),
)


class Side:
    """One cluster, and the transcript of what was printed of it."""

    def __init__(self, path: Path, tools: apache_kafka.Tools, capfd: pytest.CaptureFixture[str], *, ours: bool) -> None:
        path.mkdir()
        self.path, self.tools, self.capfd, self.ours = path, tools, capfd, ours
        self.cluster = Cluster(path, static=False)
        self.servers = self.cluster.servers
        self.transcript: list[str] = []

    def start(self) -> None:
        places = self.cluster.places.values()
        for place in places:
            place.kafka.heap = "512m"  # a quarter of it, and as much again, is the cleaner's once it has two threads
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda place: place.kafka.format(), places))
            list(pool.map(lambda place: place.start(ours=self.ours), places))
        self.cluster.whole()

    def kafka(self, name: str, *arguments: str, at: str = "") -> str:
        """A tool of Apache Kafka's; `at`: its own way to name servers."""
        main_class = name if name.startswith("kafka.") else TOOLS + name
        words = arguments if at else ("--bootstrap-server", self.servers, *arguments)
        code, printed = self.tools.run(main_class, *words)
        for _ in range(20):
            if "NotLeaderOrFollowerException" not in printed:  # the quorum elects another leader
                break
            time.sleep(1)
            code, printed = self.tools.run(main_class, *words)
        return self._note(f"{name} {' '.join(arguments)}", "" if "TopicCommand" in name else str(code), printed)

    def fastq(self, *arguments: str) -> str:
        self.capfd.readouterr()
        code = main([*arguments, "--bootstrap", self.servers])
        out, error = self.capfd.readouterr()
        return self._note(f"fastq {' '.join(arguments)}", str(code), out + ("an error\n" if error else ""))

    def _note(self, command: str, code: str, printed: str) -> str:
        self.transcript.append(self._even(f"$ {command}\n{printed}\n-> {code}\n"))
        return printed

    def _even(self, text: str) -> str:
        """Without what differs by chance."""
        text = "".join(self._directories(line) for line in text.splitlines(keepends=True))
        for node in NODES:
            for name, port in (("B", self.cluster.ports + node), ("C", self.cluster.ports + 20 + node)):
                text = re.sub(rf"\b{port}\b", f"{name}{node}", text)
        text = text.replace(str(self.path), "PATH").replace(self.cluster.cluster_id, "CLUSTER")
        text = re.sub(r"/tmp/apache-kafka-\w+", "HOME", text)
        text = re.sub(r"(PATH/node-\d)-more", r"\1", text)
        text = re.sub(r"(?<![\w-])(?!\w+Exception)(?=[\w-]*[A-Z\d_])[\w-]{22}(?![\w-])", "UUID", text)
        for pattern, instead in BY_CHANCE:
            text = re.sub(pattern, instead, text)
        return text

    @staticmethod
    def _directories(line: str) -> str:
        """What kafka-log-dirs tells, in one order, whichever of two directories a new log has come to be in."""
        if not line.startswith('{"brokers"'):
            return line
        told: list[Any] = []
        for broker in json.loads(line)["brokers"]:
            logs = [log for place in broker["logDirs"] for log in place["partitions"]]
            told.append(
                (broker["broker"], sorted((log["partition"], log["size"] // 10_000, log["isFuture"]) for log in logs))
            )
        return f"{told}\n"

    def file(self, name: str, partitions: list[dict[str, Any]], key: str = "partitions") -> str:
        path = self.path / name
        path.write_text(json.dumps({"version": 1, key: partitions}))
        return str(path)

    def fill(self, topic: str, partitions: int, count: int, size: int) -> None:
        now_ms = time.time_ns() // 1_000_000 - count
        with Producer(bootstrap_servers=self.servers, batch_size=16384) as producer:
            for number in range(count):
                producer.send(topic, b"v" * size, partition=number % partitions, timestamp_ms=now_ms + number)

    def until_nothing_moves(self) -> None:
        self.cluster.until(lambda: not self._moves())

    def _moves(self) -> Any:
        with Admin(bootstrap_servers=self.servers) as admin:
            return admin.list_partition_reassignments()

    def directory_id(self, node: int) -> str:
        found = re.search(r"directory\.id=(\S+)", (self.path / f"node-{node}" / "meta.properties").read_text())
        assert found is not None
        return found[1]


def the_quorum(side: Side) -> None:
    """Who leads is chance, so which two follow too; who goes for a while is 3, or 2 where that leads."""
    tool, begin = "MetadataQuorumCommand", len(side.transcript)
    controller = ("--bootstrap-controller", side.cluster.controller_of(1))
    leader = re.search(r"LeaderId: +(\d)", side.kafka(tool, "describe", "--status"))
    assert leader is not None
    gone = 2 if leader[1] == "3" else 3
    for arguments in (("--status",), ("--replication",)):
        side.kafka(tool, "describe", *arguments)
        side.kafka(tool, *controller, "describe", *arguments, at="controller")
    removed = ("remove-controller", "--controller-id")
    side.kafka(tool, *removed, "1", "--controller-directory-id", NEVER_A_DIRECTORY)
    side.kafka(tool, *removed, "9", "--controller-directory-id", NEVER_A_DIRECTORY)
    configs = {node: str(place.kafka.write_config()) for node, place in side.cluster.places.items()}
    side.kafka(tool, "--command-config", configs[1], "add-controller")
    side.kafka(tool, *removed, str(gone), "--controller-directory-id", side.directory_id(gone))
    side.kafka(tool, "describe", "--status")
    side.kafka(tool, "describe", "--replication")
    side.kafka(tool, "--command-config", configs[gone], "add-controller")
    side.kafka(tool, "describe", "--status")
    for at in range(begin, len(side.transcript)):
        text = re.sub(r"(LeaderId|LeaderEpoch): +\d+", r"\1: N", side.transcript[at])
        text = re.sub(r"\t(Leader|Follower)(?=\n)", "\tVoter", text)
        text = re.sub(r"(?m)^(\d\s+UUID\s+)\d+(\s+)\d+", r"\1N\2N", text)
        if gone == 2:  # it is told as 3 would be
            text = re.sub(r"\b([BC]?)([23])\b", lambda found: f"{found[1]}{5 - int(found[2])}", text)
        side.transcript[at] = "\n".join(
            sorted(re.sub(r"(?=\{\"id\")", "\n", text).replace("]", "").replace(", \n", "\n").splitlines())
        )


def features_and_endpoints(side: Side) -> None:
    tool = "FeatureCommand"
    side.kafka(tool, "describe")
    for arguments in (
        ("upgrade", "--feature", "group.version=1", "--dry-run"),
        ("downgrade", "--feature", "group.version=0"),
        ("upgrade", "--feature", "group.version=1"),
        ("upgrade", "--feature", "group.version=9"),
        ("upgrade", "--feature", "no.such=1"),
        ("disable", "--feature", "transaction.version", "--dry-run"),
        ("downgrade", "--feature", "transaction.version=1"),
        ("upgrade", "--feature", "transaction.version=2"),
        ("upgrade", "--release-version", "4.3"),
        ("upgrade", "--release-version", "4.1"),
        ("downgrade", "--metadata", "3.9-IV0"),
    ):
        side.kafka(tool, *arguments)
    side.kafka(tool, "describe")
    servers = ("--bootstrap-server", side.servers)
    controllers = ("--bootstrap-controller", side.cluster.controller_of(1))
    for arguments in (
        ("cluster-id", *servers),
        ("list-endpoints", *servers, "--include-fenced-brokers"),
        ("list-endpoints", *controllers),
        ("cluster-id", *controllers),
        ("unregister", *servers, "--id", "99"),
    ):
        side.kafka("ClusterTool", *arguments, at="each")


def offsets_records_and_elections(side: Side) -> None:
    side.fill("moved", 3, 30, 10)
    for when in ("-1", "-2", "-3", "-4", "latest", "max-timestamp", "9999999999999"):
        side.kafka("GetOffsetShell", "--topic", "moved", "--time", when)
    side.kafka("GetOffsetShell", "--topic-partitions", "mov.*:0,other", "--exclude-internal-topics")
    side.kafka("GetOffsetShell", "--topic", "absent")
    for offset in (4, -1, 400):
        record = {"topic": "moved", "partition": 0, "offset": offset}
        side.kafka("DeleteRecordsCommand", "--offset-json-file", side.file("delete.json", [record]))
    side.kafka("GetOffsetShell", "--topic", "moved", "--time", "-2")
    for arguments in (("--topic-list", "moved,other"), ("--broker-list", "9"), ("--topic-list", "absent")):
        side.kafka("LogDirsCommand", "--describe", *arguments)
    tool, some = "LeaderElectionCommand", ("--topic", "moved", "--partition", "0")
    for kind in ("preferred", "unclean"):
        side.kafka(tool, "--election-type", kind, *some)
        side.kafka(tool, "--election-type", kind, "--all-topic-partitions")
        side.kafka(tool, "--election-type", kind, "--topic", "absent", "--partition", "0")
    side.kafka(tool, "--election-type", "preferred", "--topic", "moved", "--partition", "9")


def settings_and_transactions(side: Side) -> None:
    replicas = "leader.replication.throttled.replicas=[0:1,1:2],follower.replication.throttled.replicas=*"
    moved = ("--entity-type", "topics", "--entity-name", "moved")
    for arguments in (
        (*moved, "--alter", "--add-config", replicas),
        (*moved, "--describe"),
        (*moved, "--alter", "--add-config", "leader.replication.throttled.replicas=rubbish"),
        (*moved, "--alter", "--add-config", "no.such=1"),
        (*moved, "--alter", "--delete-config", ",".join(one.split("=")[0] for one in REPLICAS)),
        ("--entity-type", "topics", "--entity-name", "absent", "--alter", "--add-config", "retention.ms=1"),
        ("--entity-type", "brokers", "--entity-name", "1", "--alter", "--add-config", "node.id=4"),
        ("--entity-type", "brokers", "--entity-default", "--alter", "--add-config", "log.cleaner.threads=2"),
        ("--entity-type", "brokers", "--entity-default", "--describe"),
    ):
        side.kafka(CONFIGS, *arguments)
        time.sleep(0.5)  # a broker that is asked may be behind the controller that has changed it
    tool = "TransactionsCommand"
    side.kafka(tool, "list")
    side.kafka(tool, "describe", "--transactional-id", "nobody")
    for node in NODES:
        side.kafka(tool, "find-hanging", "--broker-id", str(node))
        printed = side.kafka(
            tool, "describe-producers", "--topic", "moved", "--partition", "0", "--broker-id", str(node)
        )
        side.transcript[-1] = re.sub(r"\n\d+\s+\d+\s+-1\s", "\nPRODUCER ", side.transcript[-1])
        assert printed
    side.kafka(tool, "find-hanging", "--topic", "moved")


REPLICAS = ("leader.replication.throttled.replicas=", "follower.replication.throttled.replicas=")


def throttles(side: Side) -> None:
    for node in NODES:
        side.kafka(CONFIGS, "--entity-type", "brokers", "--entity-name", str(node), "--describe")
    side.kafka(CONFIGS, "--entity-type", "topics", "--entity-name", "big", "--describe")


def moves(side: Side) -> None:
    """Replicas of 6 MB that take minutes at the rates they get, so what is under way is seen."""
    side.fill("big", 3, 1800, 10_000)
    plan = side.file(
        "plan.json",
        [
            {"topic": "big", "partition": 0, "replicas": [3, 1]},
            {"topic": "big", "partition": 1, "replicas": [3, 2]},
        ],
    )
    more = side.file("more.json", [{"topic": "big", "partition": 2, "replicas": [3, 2]}])
    given = ("--reassignment-json-file", plan)
    topics = side.file("topics.json", [{"topic": "absent"}], "topics")
    side.kafka(REASSIGN, "--generate", "--topics-to-move-json-file", topics, "--broker-list", "2,3")
    side.kafka(REASSIGN, "--execute", "--throttle", "20000", *given)
    throttles(side)
    time.sleep(1)  # the first fetch of each is not held back
    side.kafka(REASSIGN, "--list")
    side.kafka(REASSIGN, "--verify", *given)
    side.fastq("partitions", "reassign", "--list")
    side.transcript[-1] = re.sub(r"\d+$", "N", side.transcript[-1], flags=re.MULTILINE)  # how much was copied
    side.fastq("partitions", "reassign", "--verify", plan)
    side.transcript[-1] = re.sub(r"\d+ % copied", "N % copied", side.transcript[-1])
    side.kafka("TopicCommand", "--describe", "--topic", "big")
    side.kafka(REASSIGN, "--execute", "--throttle", "20000", *given)  # refused while others move
    side.kafka(REASSIGN, "--execute", "--additional", "--throttle", "30000", "--reassignment-json-file", more)
    throttles(side)
    side.kafka(REASSIGN, "--list")
    side.kafka(REASSIGN, "--cancel", "--preserve-throttles", "--reassignment-json-file", more)
    throttles(side)
    side.kafka(REASSIGN, "--cancel", *given)
    throttles(side)
    side.kafka(REASSIGN, "--list")
    side.kafka(REASSIGN, "--cancel", *given)
    # Begun by ours, gone on with by Kafka's.
    side.fastq("partitions", "reassign", "--execute", plan, "--throttle", "20000")
    throttles(side)
    side.kafka(REASSIGN, "--list")
    side.fastq("partitions", "reassign", "--cancel", plan)
    throttles(side)
    side.kafka(REASSIGN, "--execute", "--throttle", "100000000", *given)
    side.until_nothing_moves()
    side.kafka(REASSIGN, "--verify", "--preserve-throttles", *given)
    throttles(side)
    side.kafka(REASSIGN, "--verify", *given)
    throttles(side)
    for number, replicas in enumerate(([1, 9], [1, 1], [], [-1, 2])):
        bad = side.file(f"bad{number}.json", [{"topic": "big", "partition": 0, "replicas": replicas}])
        side.kafka(REASSIGN, "--execute", "--reassignment-json-file", bad)
    for name, partition in (("absent", 0), ("big", 9)):
        bad = side.file("bad.json", [{"topic": name, "partition": partition, "replicas": [1]}])
        side.kafka(REASSIGN, "--execute", "--reassignment-json-file", bad)
        side.kafka(REASSIGN, "--cancel", "--reassignment-json-file", bad)


def moves_between_directories(side: Side) -> None:
    def moved_to(path: Path, rate: int) -> tuple[str, ...]:
        place = {"topic": "big", "partition": 2, "replicas": [1, 2], "log_dirs": [str(path), "any"]}
        given = ("--reassignment-json-file", side.file("directories.json", [place]))
        side.kafka(REASSIGN, "--execute", *given, "--replica-alter-log-dirs-throttle", str(rate))
        return given

    places = [side.path / "node-1", side.path / "node-1-more"]
    here = next(at for at in (0, 1) if (places[at] / "big-2").exists())
    given = moved_to(places[1 - here], 20_000)
    throttles(side)
    side.kafka(REASSIGN, "--verify", *given)
    side.kafka(REASSIGN, "--cancel", *given)
    throttles(side)
    given = moved_to(places[1 - here], 100_000_000)
    side.cluster.until(lambda: not (places[here] / "big-2").exists())
    side.kafka(REASSIGN, "--verify", *given)
    throttles(side)
    side.kafka("LogDirsCommand", "--describe", "--topic-list", "big")
    place = {"topic": "big", "partition": 2, "replicas": [1, 2], "log_dirs": ["/nowhere", "any"]}
    bad = ("--reassignment-json-file", side.file("nowhere.json", [place]))
    side.kafka(REASSIGN, "--execute", *bad, "--timeout", "2000")


def our_commands(side: Side) -> None:
    for arguments in (
        "cluster describe",
        "cluster nodes",
        "cluster features",
        "quorum status",
        "topics describe big",
        "offsets moved",
        "replicas verify big",
        "partitions elect preferred --all",
        "topics delete absent",
        "cluster unregister 77",
        "transactions list",
        "transactions find-hanging",
        "partitions reassign --list",
    ):
        side.fastq(*arguments.split())
        side.transcript[-1] = re.sub(r"(leader(  epoch| epoch)?|controller) +\d+", r"\1 N", side.transcript[-1])
        side.transcript[-1] = re.sub(r"(running(  \d+){2})  \d+", r"\1  N", side.transcript[-1])  # who leads


PARTS: tuple[Callable[[Side], None], ...] = (
    the_quorum,
    features_and_endpoints,
    offsets_records_and_elections,
    settings_and_transactions,
    moves,
    moves_between_directories,
    our_commands,
)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_of_ours_and_of_their_own_the_tools_print_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    transcripts = []
    with apache_kafka.Tools() as tools:
        for ours in (True, False):
            side = Side(tmp_path / ("ours" if ours else "theirs"), tools, capfd, ours=ours)
            try:
                side.start()
                for name, placed in (("moved", "1:2,2:1,3:1"), ("other", "1:2,2:1"), ("big", "1:2,2:1,1:2")):
                    side.kafka("TopicCommand", "--create", "--topic", name, "--replica-assignment", placed)
                side.transcript.clear()
                for part in PARTS:
                    part(side)
            except BaseException:
                print(*(place.log_text() for place in side.cluster.places.values()), sep="\n")
                raise
            finally:
                side.cluster.kill()
            transcripts.append("\n".join(side.transcript).splitlines())
    ours_said, theirs_said = transcripts
    assert len(theirs_said) > 300
    differences = list(difflib.unified_diff(theirs_said, ours_said, "of theirs", "of ours", n=2, lineterm=""))
    assert not differences, "\n".join(differences)


def test_kafkas_tools_read_our_metadata(tmp_path: Path) -> None:
    """kafka-metadata-shell and kafka-dump-log, the log and a snapshot that was made from it."""
    with Broker(data_dir=tmp_path, config={"metadata.log.max.record.bytes.between.snapshots": 2000}) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            for number in range(40):
                admin.create_topic(f"topic-{number}", 2)
        folder = tmp_path / "__cluster_metadata-0"
        # It is written beside the requests: a stop does not wait for one that has not begun.
        deadline = time.monotonic() + 30
        while max(folder.glob("*.checkpoint")).name < "00000000000000000001":
            assert time.monotonic() < deadline, sorted(folder.iterdir())
            time.sleep(0.05)
        broker.stop()
    snapshot = max(folder.glob("*.checkpoint"))
    log = max(folder.glob("*.log"))
    found = shell(snapshot, "find", "/image/topics/byName", until="/image/topics/byName/topic-0")
    made = sum(line.startswith("/image/topics/byName/topic-") and line.count("/") == 4 for line in found.splitlines())
    assert 0 < made <= 40
    for file in (snapshot, log):
        shell(file, "ls", "/image/topics/byName", until="topic-0")
        shell(file, "tree", "/image", until="nextProducerId")
        shell(file, "cat", "/image/cluster/brokers/1", until="BrokerRegistration(id=1")
    for file in (snapshot, log):
        printed = apache_kafka.run_tool(
            f"{TOOLS}DumpLogSegments", "--cluster-metadata-decoder", "--skip-record-metadata", "--files", str(file)
        ).stdout
        assert "isvalid: false" not in printed and "Could not decode" not in printed, printed
        if file is snapshot:
            assert printed.count('"type":"TOPIC_RECORD"') == made
            assert printed.count("PARTITION_RECORD") == 2 * made
            assert printed.count("isControl: true") == 2  # how it begins, and how it ends


def shell(file: Path, *command: str, until: str) -> str:
    """It may print before it has read the file: then it is asked again."""
    for _ in range(8):
        printed = apache_kafka.run_tool(
            "org.apache.kafka.shell.MetadataShell", "--snapshot", str(file), *command
        ).stdout
        if until in printed:
            return printed
    raise AssertionError(printed)
