"""The lines of docs/tools.md that need more than two commands on one broker: nodes of their own, what goes on for ever, other files.

Rules: a play runs Kafka's side and ours, and answers what each said, and what that means.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import apache_kafka
from tool_stage import CLASSES, PARTITIONS, RECORDS, Said, Stage, java

from fastq import Admin, Consumer
from fastq.testing import Broker


def replicas(stage: Stage, theirs: Sequence[str], ours: Sequence[str]) -> tuple[Said, Said]:
    """Kafka's goes on for ever, and tells the lag of a round each interval."""
    words = ("--broker-list", stage.servers, *theirs[1:], "--report-interval-ms", "500")
    lines: list[str] = []
    with java(CLASSES[theirs[0]], *words) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if re.search(
                    rf"max lag is 0 for partition logs-\d at offset {RECORDS} among {PARTITIONS} partitions", line
                ):
                    break
        finally:
            process.terminate()
    shown = stage.ours(*ours)
    told = json.loads(stage.ours(*ours, "--json"))
    return (
        Said("".join(lines[:1] + lines[-1:]), (0, RECORDS, PARTITIONS)),
        Said(shown, (sum(row["result"] != "same" for row in told), max(row["end"] for row in told), len(told))),
    )


def metadata(stage: Stage, theirs: Sequence[str], ours: Sequence[str]) -> tuple[Said, Said]:
    """Of a copy, as Kafka's takes a directory's lock; it may read before the log is loaded, and is asked again then."""
    shutil.copytree(stage.data_dir / "__cluster_metadata-0", stage.path / "__cluster_metadata-0")
    log = stage.path / "__cluster_metadata-0" / "00000000000000000000.log"
    here = [[str(log) if word == "FILE" else word for word in words] for words in (theirs, ours)]
    name = "logs" if "tree" in theirs else "topics"
    for _ in range(5):
        printed = apache_kafka.run_tool(CLASSES[here[0][0]], *here[0][1:]).stdout
        if name in printed:
            break
    shown = stage.ours(*here[1])
    return Said(printed, _tree(printed)), Said(shown, _tree(shown))


def _tree(text: str) -> object:
    lines = (line.rstrip().replace("cordonedDirectories=null", "cordonedDirectories=[]") for line in text.splitlines())
    return sorted(line for line in lines if line and not re.match(r"\d{4}-\d\d-\d\dT.* ERROR ", line))


LOG4J2 = """
Configuration:
  Appenders: {Console: {name: console, target: SYSTEM_OUT, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}}
  Loggers:
    Root: {level: WARN, AppenderRef: {ref: console}}
    logger: {name: kafka.server.KafkaRaftServer, level: INFO}
"""
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


def _properties(stage: Stage, name: str) -> Path:
    """The same node for each, on ports and in a directory of its own."""
    port, controllers = apache_kafka.free_port(), apache_kafka.free_port()
    path = stage.path / name / "server.properties"
    path.parent.mkdir()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controllers}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(path.parent / "data"),
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def _places(stage: Stage, words: Sequence[str], name: str) -> tuple[list[str], Path]:
    """The words about one configuration of its own, and where it is."""
    path = _properties(stage, name)
    names = {"server.properties": str(path), "ID": CLUSTER}
    return [names.get(word, word) for word in words], path


def _format(stage: Stage, path: Path) -> None:
    stage.ours("fastq-broker", "format", "-t", CLUSTER, "-c", str(path), "--standalone")


def formatted(stage: Stage, theirs: Sequence[str], ours: Sequence[str]) -> tuple[Said, Said]:
    told = []
    for name, words in (("theirs", theirs), ("ours", ours)):
        given, path = _places(stage, words, name)
        printed = (stage.kafkas if name == "theirs" else stage.ours)(*given)
        level = re.search(r"metadata.version (\S+?)\.?$", printed, re.MULTILINE)
        properties = sorted((path.parent / "data" / "meta.properties").read_text().splitlines()[-4:])
        kept = [line for line in properties if not line.startswith(("#", "directory.id"))]
        files = sorted(each.name for each in (path.parent / "data").iterdir())
        told.append(Said(printed, (level and level[1], kept, files)))
    return told[0], told[1]


def informed(stage: Stage, theirs: Sequence[str], ours: Sequence[str]) -> tuple[Said, Said]:
    told = []
    _, path = _places(stage, theirs, "node")
    _format(stage, path)
    for name, words in (("theirs", theirs), ("ours", ours)):
        given = [str(path) if word == "server.properties" else word for word in words]
        printed = (stage.kafkas if name == "theirs" else stage.ours)(*given)
        told.append(Said(printed, _information(printed, path.parent / "data")))
    return told[0], told[1]


def _information(printed: str, data: Path) -> object:
    return str(data) in printed, CLUSTER in printed, re.findall(r"node\.id['\"]?[=:] ?['\"]?(\d+)", printed)


def random_uuid(stage: Stage, theirs: Sequence[str], ours: Sequence[str]) -> tuple[Said, Said]:
    printed, mine = stage.kafkas(*theirs), stage.ours(*ours)
    assert printed != mine
    return Said(printed, bool(re.fullmatch(r"[\w-]{22}\s*", printed))), Said(
        mine, bool(re.fullmatch(r"[\w-]{22}\s*", mine))
    )


def _started(stage: Stage, name: str, line: Sequence[str]) -> tuple[subprocess.Popen[str], Path, str]:
    """A node of either, and its line that it has started."""
    words, path = _places(stage, line, name)
    _format(stage, path)
    if name == "theirs":
        log = path.with_name("log4j2.yaml")
        log.write_text(LOG4J2)
        process = java(CLASSES[words[0]], *words[1:], log=log)
    else:
        process = _ours(words)
    assert process.stdout is not None
    line_of = r"Kafka Server started" if name == "theirs" else r"listening|ready"
    for printed in process.stdout:
        if re.search(line_of, printed):
            return process, path, printed
    raise AssertionError(f"{name} has ended with {process.wait()}")


def _ours(words: Sequence[str]) -> subprocess.Popen[str]:
    """A command of ours that goes on until it is ended."""
    command = [sys.executable, "-m", words[0].replace("-", "_"), *words[1:]]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _servers(path: Path) -> str:
    (listener,) = re.findall(r"PLAINTEXT://([\d.:]+)", path.read_text())
    return str(listener)


def started(stage: Stage, theirs: Sequence[str], ours: Sequence[str]) -> tuple[Said, Said]:
    told = []
    for name, words in (("theirs", theirs), ("ours", ours)):
        process, path, printed = _started(stage, name, words)
        with process:
            try:
                with Admin(bootstrap_servers=_servers(path)) as admin:
                    cluster = admin.describe_cluster()
                told.append(Said(printed, (cluster.cluster_id, [node.node_id for node in cluster.nodes])))
            finally:
                process.terminate()
    return told[0], told[1]


def stopped(stage: Stage, theirs: Sequence[str], ours: Sequence[str]) -> tuple[Said, Said]:
    """Kafka's is a script that finds the process by its arguments and sends it SIGTERM: that is what is done here in its place."""
    told = []
    for name, start in (
        ("theirs", ["kafka-server-start.sh", "server.properties"]),
        ("ours", ["fastq-broker", "--config", "server.properties"]),
    ):
        process, path, _ = _started(stage, name, start)
        with process:
            printed = ""
            if name == "theirs":
                process.send_signal(signal.SIGTERM)
            else:
                printed = stage.ours(*ours, "--config", str(path))
            process.communicate()
        told.append(Said(printed, (path.parent / "data" / ".kafka_cleanshutdown").exists()))
    return told[0], told[1]


MIRROR_WAIT_S = 240.0
"""MirrorMaker 2 needs a minute to begin on two busy cores."""
MIRROR_MAKER = """
clusters = A, B
A.bootstrap.servers = {source}
B.bootstrap.servers = {target}
A->B.enabled = true
A->B.topics = logs
B->A.enabled = false
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
"""
MIRROR = """
[source]
alias = "A"
bootstrap.servers = "{source}"
[target]
alias = "B"
bootstrap.servers = "{target}"
[mirror]
topics = ["logs"]
"""


def mirrored(stage: Stage, theirs: Sequence[str], ours: Sequence[str]) -> tuple[Said, Said]:
    """Each to a cluster of its own, until as many records have come as the topic has."""
    told = []
    for words, template in ((theirs, MIRROR_MAKER), (ours, MIRROR)):
        with Broker(in_memory=True) as target, Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            path = stage.path / words[-1]
            path.write_text(template.format(source=stage.servers, target=target.bootstrap_servers))
            given = [*words[:-1], str(path)]
            with java(CLASSES[given[0]], *given[1:]) if words is theirs else _ours(given) as mirror:
                try:
                    found = _arrived(admin, mirror)
                finally:
                    mirror.terminate()
                printed, _ = mirror.communicate()
            told.append(Said(printed, (found, found == _records(stage.servers, "logs"))))
    return told[0], told[1]


def _arrived(admin: Admin, mirror: subprocess.Popen[str]) -> list[tuple[object, ...]]:
    (servers,) = map(str, admin.config.bootstrap_servers)
    end = time.monotonic() + MIRROR_WAIT_S
    found: list[tuple[object, ...]] = []
    while len(found) < PARTITIONS * RECORDS:
        assert time.monotonic() < end and mirror.poll() is None, found
        time.sleep(0.1)
        found = _records(servers, "A.logs") if "A.logs" in admin.list_topics() else []
    return found


def _records(servers: str, topic: str) -> list[tuple[object, ...]]:
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        return sorted((r.partition, r.offset, r.timestamp_ms, r.key, r.value) for r in consumer.read_to_end())
