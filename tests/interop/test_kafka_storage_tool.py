"""`fastq-broker format` beside Apache Kafka's storage tool: the same files for the same arguments, the same verdict on a configuration, and
each broker starts on what the other's tool has formatted."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

import apache_kafka
import pytest
from fastq_broker.__main__ import main
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.storage import BOOTSTRAP_CHECKPOINT, METADATA_DIRECTORY, MetaProperties

from fastq import Admin
from fastq._native.records import iter_headers
from fastq.errors import ConfigError
from fastq.properties import parse_properties
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
BASE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
}
STATIC = {"controller.quorum.voters": "1@127.0.0.1:9093", "controller.quorum.bootstrap.servers": ""}
BROKER = {"process.roles": "broker", "listeners": "PLAINTEXT://127.0.0.1:9092"}
CONTROLLER = {"process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:9093"}
ONE = "1@localhost:9093:JEXY6aqzQY-32P5TStzaFg"
TWO = "2@[::1]:9095:MvDxzVmcRsaTz33bUuRU6A"
SCRAM = (
    'SCRAM-SHA-256=[name=alice,salt="MWx2NHBkbnc0ZndxN25vdGN4bTB5eTFrN3E=",'
    'saltedpassword="mT0yyUUxnlJaC99HXgRTSYlbuqa4FSGtJCJfTMvjYCE=",iterations=8192]'
)
SCRAM_512 = "SCRAM-SHA-512=[name=bob,password=secret,salt=YWJj]"


class Case(NamedTuple):
    """Arguments of `format` beside cluster and configuration, changes of the configuration, directories (`{}`: where they are)."""

    arguments: tuple[str, ...] = ()
    changes: Mapping[str, str] = {}
    directories: str = "{}/data"


CASES = {
    "standalone": Case(("-s",)),
    "long names": Case(("--standalone", "--feature", "group.version=0")),
    "initial controllers": Case(("-I", f"{ONE},{TWO}")),
    "initial controllers without this one": Case(("-I", TWO)),
    "no initial controllers": Case(("-N",)),
    "none of them": Case(),
    "static": Case((), STATIC),
    "static, standalone": Case(("-s",), STATIC),
    "static, joining": Case(("-N",), STATIC),
    "static, initial": Case(("-I", ONE), STATIC),
    "broker": Case((), BROKER),
    "broker, standalone": Case(("-s",), BROKER),
    "broker, joining": Case(("-N",), BROKER),
    "controller": Case(("-s",), CONTROLLER),
    "two flags": Case(("-s", "-N")),
    "release 3.3": Case(("-N", "-r", "3.3")),
    "release 3.9": Case(("-s", "-r", "3.9")),
    "release 4.0": Case(("-s", "-r", "4.0")),
    "release 4.0.1": Case(("-s", "-r", "4.0.1")),
    "release 4.2-IV0": Case(("-s", "-r", "4.2-IV0")),
    "release 3.2": Case(("-s", "-r", "3.2")),
    "release 9.9": Case(("-s", "-r", "9.9")),
    "levels": Case(("-s", "-f", "transaction.version=1", "-f", "share.version=0", "-f", "group.version=0")),
    "a level twice": Case(("-s", "-f", "group.version=1", "-f", "group.version=0")),
    "metadata.version": Case(("-s", "-f", "metadata.version=22")),
    "metadata.version and release": Case(("-s", "-f", "metadata.version=22", "-r", "4.0")),
    "metadata.version too low": Case(("-s", "-f", "metadata.version=6")),
    "metadata.version too high": Case(("-s", "-f", "metadata.version=31")),
    "kraft.version 0": Case(("-s", "-f", "kraft.version=0")),
    "kraft.version 1": Case(("-s", "-f", "kraft.version=1")),
    "kraft.version 1, static": Case(("-f", "kraft.version=1"), STATIC),
    "unknown feature": Case(("-s", "-f", "foo.version=1")),
    "unknown level": Case(("-s", "-f", "group.version=9")),
    "no level": Case(("-s", "-f", "group.version")),
    "no number": Case(("-s", "-f", "group.version=x")),
    "what a feature needs": Case(("-s", "-r", "3.9", "-f", "eligible.leader.replicas.version=1")),
    "feature of a later release": Case(("-s", "-r", "3.9", "-f", "transaction.version=2")),
    "controllers: no id": Case(("-I", "foo")),
    "controllers: port": Case(("-I", "1@localhost:x:JEXY6aqzQY-32P5TStzaFg")),
    "controllers: port range": Case(("-I", "1@localhost:99999:JEXY6aqzQY-32P5TStzaFg")),
    "controllers: directory": Case(("-I", "1@localhost:9093:xx")),
    "controllers: twice": Case(("-I", f"{ONE},{ONE}")),
    "controllers: empty": Case(("-I", "")),
    "two directories": Case(("-s",), {}, "{0}/a,{0}/b"),
    "metadata in another": Case(("-s",), {"metadata.log.dir": "{0}/c"}, "{0}/a,{0}/b"),
    "all interfaces": Case(("-s",), {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"}),
    "advertised": Case(("-s",), {"advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://c.example:99"}),
    "scram": Case(("-s", "-S", SCRAM, "-S", SCRAM_512)),
    "scram: no secret": Case(("-s", "-S", "SCRAM-SHA-256=[name=alice]")),
    "scram: no name": Case(("-s", "-S", "SCRAM-SHA-256=[password=x]")),
    "scram: no salt": Case(("-s", "-S", "SCRAM-SHA-256=[name=a,saltedpassword=YCE=]")),
    "scram: mechanism": Case(("-s", "-S", "SCRAM-SHA-1=[name=alice,password=x]")),
    "scram: iterations": Case(("-s", "-S", "SCRAM-SHA-256=[name=alice,password=x,iterations=1]")),
    "scram: key": Case(("-s", "-S", "SCRAM-SHA-256=[name=alice,password=x,foo=1]")),
    "scram: release": Case(("-s", "-r", "3.4", "-S", SCRAM)),
}
VERDICTS: dict[str, Mapping[str, str]] = {
    "taken: combined": {},
    "taken: static": STATIC,
    "taken: broker": BROKER,
    "taken: controller": CONTROLLER,
    "broker without a quorum": {**BROKER, "controller.quorum.bootstrap.servers": ""},
    "controller without a quorum": {**CONTROLLER, "controller.quorum.bootstrap.servers": ""},
    "voters without this": {**STATIC, "controller.quorum.voters": "2@h:1"},
    "broker among the voters": {**BROKER, **STATIC},
    "voters without a port": {**STATIC, "controller.quorum.voters": "1@h"},
    "voters without an id": {**STATIC, "controller.quorum.voters": "h:1"},
    "servers without a port": {"controller.quorum.bootstrap.servers": "h,g:1"},
    "controller listener that is none": {
        **STATIC,
        "controller.quorum.voters": "1@h:1,2@h:2",
        "listeners": "PLAINTEXT://h:1",
    },
    "two controller names": {
        "controller.quorum.bootstrap.servers": "a:1,b:1",
        "controller.listener.names": "CONTROLLER,C2",
    },
    "broker with two controller names": {**BROKER, "controller.listener.names": "CONTROLLER,C2"},
    "broker with a controller listener": {"process.roles": "broker"},
    "controller with a broker listener": {"process.roles": "controller"},
    "no controller names": {"controller.listener.names": ""},
    "map of a broker": {**BROKER, "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"},
    "map without the controller": {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"},
    "map with an unknown protocol": {"listener.security.protocol.map": "PLAINTEXT:FOO,CONTROLLER:PLAINTEXT"},
    "map with more": {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,FOO:SSL"},
    "map in lower case": {"listener.security.protocol.map": "plaintext:PLAINTEXT,controller:plaintext"},
    "map with a name twice": {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,plaintext:SSL"
    },
    "listener that is not mapped": {"listeners": "FOO://h:1,CONTROLLER://h:2"},
    "listeners in lower case": {"listeners": "plaintext://h:1,controller://h:2"},
    "a port twice": {"listeners": "PLAINTEXT://h:1,CONTROLLER://h:1"},
    "a name twice": {"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2,CONTROLLER://h:3"},
    "advertised wildcard": {"advertised.listeners": "PLAINTEXT://0.0.0.0:1"},
    "advertised wildcard of the controller": {"advertised.listeners": "PLAINTEXT://h:1,CONTROLLER://0.0.0.0:1"},
    "advertised no listener": {
        "advertised.listeners": "PLAINTEXT://h:1,FOO://h:1",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,FOO:PLAINTEXT",
    },
    "advertised controllers only": {"advertised.listeners": "CONTROLLER://h:1"},
    "advertised both": {"advertised.listeners": "PLAINTEXT://h:1,CONTROLLER://h:1"},
    "advertised twice": {"advertised.listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"},
    "advertised by a broker": {**BROKER, "advertised.listeners": "PLAINTEXT://h:1,CONTROLLER://h:2"},
    "advertised by a controller": {**CONTROLLER, "advertised.listeners": "PLAINTEXT://h:1"},
    "controller on all interfaces": {**CONTROLLER, "listeners": "CONTROLLER://0.0.0.0:9093"},
    "between brokers: the controller's": {"inter.broker.listener.name": "CONTROLLER"},
    "between brokers: unknown": {"inter.broker.listener.name": "FOO"},
    "between brokers: lower case": {"inter.broker.listener.name": "plaintext"},
    "between brokers: twice": {
        "inter.broker.listener.name": "PLAINTEXT",
        "security.inter.broker.protocol": "PLAINTEXT",
    },
    "between brokers: a protocol": {"security.inter.broker.protocol": "FOO"},
    "between brokers: the default": {
        "controller.quorum.bootstrap.servers": "a:1,b:1",
        "listeners": "IN://h:1,CONTROLLER://h:2",
        "listener.security.protocol.map": "IN:PLAINTEXT,CONTROLLER:PLAINTEXT",
    },
    "between brokers: a controller": {**CONTROLLER, "inter.broker.listener.name": "CONTROLLER"},
    "between brokers: a controller's other": {**CONTROLLER, "inter.broker.listener.name": "PLAINTEXT"},
    "wait and socket": {"replica.fetch.wait.max.ms": "31000"},
    "wait and lag": {"replica.lag.time.max.ms": "499"},
    "session": {"broker.session.timeout.ms": "4000"},
    "a role that is none": {"process.roles": "broker,foo"},
    "no role": {"process.roles": ""},
    "a negative node": {"node.id": "-1"},
    "early start": {"early.start.listeners": "FOO"},
    "early start of a listener": {"early.start.listeners": "PLAINTEXT"},
    "a negative time": {"controller.quorum.election.timeout.ms": "-1"},
    "no fetchers": {"num.replica.fetchers": "0"},
    "rack-aware": {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"},
}


def drawn(random: Random) -> dict[str, str]:
    """A configuration of roles, quorum and listeners, of which most do not fit together."""
    names = random.choice([["PLAINTEXT", "CONTROLLER", "C2", "IN", "OUT"], ["PLAINTEXT", "CONTROLLER", "IN"]])

    def listeners(*hosts: str) -> str:
        chosen = random.sample(names, random.randint(1, 3))
        return ",".join(f"{name}://{random.choice(hosts)}:{random.randint(1000, 60000)}" for name in chosen)

    settings = {
        "process.roles": random.choice(["broker", "controller", "broker,controller", "controller,broker"]),
        "node.id": random.choice("112"),
        "controller.listener.names": random.choice(["CONTROLLER", "CONTROLLER", "C2", "CONTROLLER,C2"]),
        "controller.quorum.voters": random.choice(["", "1@h:1,2@h:2,3@h:3", "2@h:5,3@g:5"]),
        "controller.quorum.bootstrap.servers": "a:1,b:1",
        "listeners": random.choice(
            ["PLAINTEXT://h:1", "PLAINTEXT://h:1,CONTROLLER://h:2", "CONTROLLER://h:2", listeners("h", "", "127.0.0.1")]
        ),
    }
    for chance, key, value in (
        (0.25, "advertised.listeners", listeners("h", "127.0.0.1", "0.0.0.0")),
        (
            0.3,
            "listener.security.protocol.map",
            ",".join(f"{name}:PLAINTEXT" for name in names if random.random() < 0.93),
        ),
        (0.25, "inter.broker.listener.name", random.choice(names)),
        (0.1, "security.inter.broker.protocol", "PLAINTEXT"),
        (0.1, "early.start.listeners", random.choice(names)),
    ):
        settings |= {key: value} if random.random() < chance else {}
    return settings


DRAWN = {f"drawn {number}": drawn(Random(number)) for number in range(400)}


def write_config(home: Path, changes: Mapping[str, str], directories: str = "{}/data") -> Path:
    home.mkdir(parents=True, exist_ok=True)
    settings = {**BASE, "log.dirs": directories, **changes}
    path = home / "server.properties"
    path.write_text("".join(f"{key}={value.format(home)}\n" for key, value in settings.items()))
    return path


def arguments_of(case: Case, config: Path) -> list[str]:
    return ["format", "-t", CLUSTER, *case.arguments, "-c", str(config)]


@pytest.fixture(scope="module")
def kafkas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[int, str, Path]]]:
    """What Apache Kafka's tool makes of each case and each configuration: code, output, and where it was."""
    root = tmp_path_factory.mktemp("kafka")
    homes = {name: root / str(number) for number, name in enumerate((*CASES, *VERDICTS, *DRAWN))}
    commands = {
        name: arguments_of(case, write_config(homes[name], case.changes, case.directories))
        for name, case in CASES.items()
    }
    commands |= {
        name: ["info", "-c", str(write_config(homes[name], changes))] for name, changes in (VERDICTS | DRAWN).items()
    }
    done = subprocess.run(
        ["java", "-cp", apache_kafka.class_path(), str(Path(__file__).with_name("FormatStorage.java"))],
        input="".join("\t".join(command) + "\n" for command in commands.values()),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = (line.split("\t", 1) for line in done.stdout.splitlines())
    yield {name: (int(code), output, homes[name]) for name, (code, output) in zip(commands, lines, strict=True)}


def files(home: Path) -> dict[str, object]:
    """Everything below, without what is drawn or comes from a clock."""
    found: dict[str, object] = {}
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if path.name == "meta.properties":
            properties = parse_properties(path.read_text())
            found[name] = {key: value for key, value in properties.items() if key != "directory.id"}
        elif path.suffix == ".checkpoint":
            root = path.parent if path.name == BOOTSTRAP_CHECKPOINT else path.parent.parent
            identity = MetaProperties.read(root)
            assert identity is not None
            found[name] = without_times(path.read_bytes()).replace(identity.directory_id, b"*directory id. *")
        elif path.is_file() and path.name != "server.properties":
            found[name] = path.read_bytes()
    return found


def without_times(data: bytes) -> bytes:
    """A snapshot without its times and checksums."""
    kept = bytearray(data)
    for position, _ in iter_headers(data):
        kept[position + 17 : position + 21] = bytes(4)  # checksum
        kept[position + 27 : position + 43] = bytes(16)  # first and last timestamp
        if position == 0 and kept[position + 61 :].find(b"\0\0\0\3", 0, 12) >= 0:
            at = position + 61 + kept[position + 61 :].find(b"\0\0\0\3", 0, 12) + 4 + 1 + 2
            kept[at : at + 8] = bytes(8)  # the header's own
    return bytes(kept)


@pytest.mark.parametrize("name", CASES)
def test_the_same_files_for_the_same_arguments(
    name: str, kafkas: dict[str, tuple[int, str, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    code, output, home = kafkas[name]
    config = write_config(tmp_path, case.changes, case.directories)
    try:
        ours = main(arguments_of(case, config))
    except SystemExit as error:  # argparse
        ours = int(str(error))
    printed = capsys.readouterr()
    assert (ours == 0) == (code == 0), (output, printed)
    assert files(tmp_path) == files(home)
    kinds = re.findall(r"Formatting ([a-z ]+) \S+/([a-z]+) with (\S+ [^.]+\.\S+)\.", output.replace("\\n", "\n"))
    assert sorted(re.findall(r"Formatting ([a-z ]+) \S+/([a-z]+) with (\S+ [^.]+\.\S+)\.", printed.out)) == sorted(
        kinds
    )


def check_verdict(output: str, home: Path) -> bool:
    """That both take a configuration, or neither; answers which."""
    taken = output.startswith(("Found log", "Found problem"))
    settings = parse_properties((home / "server.properties").read_text())
    try:
        BrokerConfig.from_mapping(settings)
    except ConfigError as error:
        assert not taken, (settings, error)
    else:
        assert taken, (settings, output)
    return taken


@pytest.mark.parametrize("name", VERDICTS)
def test_the_same_verdict_on_a_configuration(name: str, kafkas: dict[str, tuple[int, str, Path]]) -> None:
    _, output, home = kafkas[name]
    check_verdict(output, home)


def test_the_same_verdict_on_drawn_configurations(kafkas: dict[str, tuple[int, str, Path]]) -> None:
    verdicts = [check_verdict(*kafkas[name][1:]) for name in DRAWN]
    assert 10 < sum(verdicts) < len(DRAWN) / 2


def test_apache_kafka_starts_on_a_directory_of_ours(tmp_path: Path) -> None:
    kafka = apache_kafka.ApacheKafka(tmp_path / "data", heap="512m", format_storage=False)
    config = tmp_path / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in kafka.properties.items()))
    assert main(["format", "-t", CLUSTER, "-s", "-c", str(config)]) == 0
    with kafka, Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.create_topic("made-by-kafka", partitions=1, replication_factor=1)
        assert admin.describe_cluster().cluster_id == CLUSTER


def test_our_broker_starts_on_a_directory_of_apache_kafkas(kafkas: dict[str, tuple[int, str, Path]]) -> None:
    _, _, home = kafkas["standalone"]
    with (
        Broker(data_dir=home / "data") as broker,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        admin.create_topic("made-by-us", partitions=1, replication_factor=1)
        assert admin.describe_cluster().cluster_id == CLUSTER
        assert (home / "data" / METADATA_DIRECTORY).is_dir()
