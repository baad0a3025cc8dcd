"""The files in ops/: each name that the dashboard and the alerts use is one that a running broker tells, each way out is there, and what
the containers are told makes a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastq_broker import container
from fastq_broker.config import BrokerConfig
from nodes import free_ports, running

from fastq import Admin, Consumer, Producer
from fastq.errors import MessageTooLarge
from fastq.mirror.config import parse_config
from fastq.mirror.metrics import MirrorExporter, families_of
from fastq.mirror.mirror import Mirror
from fastq.mirror.report import MirrorStatus
from fastq.testing import Broker

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\b(?:kminion_kafka|kafka|fastq|process)_[a-z_]+\b")
KAFKA = {
    "kafka_server_replicamanager": (
        "underreplicatedpartitions underminisrpartitioncount atminisrpartitioncount offlinereplicacount isrshrinks_total "
        "isrexpands_total failedisrupdates_total leadercount partitioncount reassigningpartitions"
    ),
    "kafka_server_replicafetchermanager": "maxlag",
    "kafka_controller_kafkacontroller": (
        "activecontrollercount offlinepartitionscount preferredreplicaimbalancecount activebrokercount fencedbrokercount "
        "globaltopiccount globalpartitioncount"
    ),
    "kafka_controller_controllerstats": "uncleanleaderelections_total",
    "kafka_server_raftmetrics": "current_leader current_epoch high_watermark log_end_offset commit_latency_avg",
    "kafka_server_brokertopicmetrics": (
        "messagesin_total bytesin_total bytesout_total totalproducerequests_total failedproducerequests_total "
        "failedfetchrequests_total replicationbytesin_total bytesrejected_total"
    ),
    "kafka_cluster_partition": "replicascount insyncreplicascount laststableoffsetlag",
    "kafka_network_requestmetrics": (
        "requests_total errors_total totaltimems totaltimems_count localtimems remotetimems"
    ),
    "kafka_network_socketserver": "networkprocessoravgidle_percent",
    "kafka_server_kafkarequesthandlerpool": "requesthandleravgidle_percent",
    "kafka_server_delayedoperationpurgatory": "purgatorysize",
    "kafka_coordinator_group_groupmetadatamanager": "numgroups",
    "kafka_log_logmanager": "offlinelogdirectorycount",
    "kafka_log_log": "size",
    "kafka_consumergroup": "lag",
    "kminion_kafka_consumer_group_topic": "lag",
}
"""What Strimzi's rules make of the MBeans that dashboards and alerts are about, and kminion's name, as far as it is known here."""


def told(url: str) -> set[str]:
    """The names of samples and families that a node tells."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=20).read().decode()
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    return families | {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line and line[0] != "#"}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    found: set[str] = set()
    with Broker(in_memory=True, metrics=True) as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic("small", configs={"max.message.bytes": "1000"})
        with Producer(bootstrap_servers=servers) as producer:
            producer.send("seen", b"value").result(20)
            with pytest.raises(MessageTooLarge):
                producer.send("small", b"v" * 2000).result(20)
        with Consumer("seen", bootstrap_servers=servers, group_id="readers", auto_offset_reset="earliest") as consumer:
            assert len(consumer.poll(timeout=20)) == 1
            consumer.commit()
        found |= told(broker.metrics_url)
        page = urllib.request.urlopen(f"{broker.metrics_url}/metrics", timeout=20).read().decode()
        rejected = re.findall(
            r'^kafka_server_brokertopicmetrics_bytesrejected_total(?:\{topic="small"\})? (\d+)$', page, re.MULTILINE
        )
        assert len(rejected) == 2 and int(rejected[0]) == int(rejected[1]) > 2000
    port = free_ports(9)
    with running(tmp_path_factory.mktemp("ops"), port, 1000, "--metrics-listen", f"127.0.0.1:{port + 6}") as nodes:
        nodes.ready()
        for at in range(3):
            found |= told(f"http://127.0.0.1:{port + 6 + at}")
    yield found | of_a_mirror()


def of_a_mirror() -> set[str]:
    """The names that a mirror's process tells."""
    side = {"bootstrap.servers": "127.0.0.1:1"}
    document = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}, "mirror": {"topics": ["t"]}}
    config = parse_config(document)
    families = [*families_of(config, MirrorStatus([], {}, None, 1.0)), *MirrorExporter(Mirror(config)).families()]
    return {family.name for family in families}


def test_every_panel_shows_what_there_is(names: set[str]) -> None:
    dashboard = json.loads((ROOT / "ops" / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    used = {name for each in expressions for name in NAME.findall(each)}
    assert used - names == set()
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_every_alert_is_about_what_there_is_and_has_a_way_out(names: set[str]) -> None:
    text = (ROOT / "ops" / "prometheus-alerts.yml").read_text()
    alerts, expressions = re.findall(r"- alert: (\w+)", text), re.findall(r"expr: (.+)", text)
    runbooks = re.findall(r"runbook: (\S+)", text)
    assert len(alerts) == len(set(alerts)) == len(expressions) == len(runbooks) > 10
    used = {name for each in expressions for name in NAME.findall(each)}
    assert used - names == set()
    for runbook in runbooks:
        page, _, anchor = runbook.partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}, (
            runbook
        )


def test_a_process_that_is_gone_is_noticed_by_the_job_that_the_guides_name() -> None:
    """With it all that it told is gone, and no rule about that can hold."""
    text = (ROOT / "ops" / "prometheus-alerts.yml").read_text()
    jobs = set(re.findall(r'expr: up\{job="([^"]+)"\} == 0', text))
    assert jobs == {"fastq", "fastq-mirror"} == set(re.findall(r'job="([^"]+)"', text))
    guide = (ROOT / "docs" / "guides" / "observability.md").read_text()
    assert all(f"`{job}`" in guide for job in jobs)
    assert (
        "or absent(fastq_mirror_look_ok)" in text and "`fastq-mirror`" in (ROOT / "docs/guides/mirror.md").read_text()
    )


def test_the_alerts_have_the_form_that_prometheus_reads() -> None:
    """Of YAML one form, in which nothing can be meant otherwise: what is left beside the rules is the frame."""
    rule = re.compile(
        r"      - alert: (?P<name>\w+)\n        expr: (?P<expr>[^\n\"'#]*(?:\"[^\n\"]*\"[^\n\"'#]*)*)\n(?:        for: \d+[smh]\n)?"
        r"        labels: \{severity: (?:warning|critical)\}\n        annotations:\n"
        r'          summary: "(?P<summary>[^"\\\n]+)"\n          runbook: [\w/.#-]+\n'
    )
    text = (ROOT / "ops" / "prometheus-alerts.yml").read_text()
    rules = [match.groupdict() for match in rule.finditer(text)]
    assert len(rules) == text.count("- alert:")
    frame = [line for line in rule.sub("", text).splitlines() if not line.startswith("#")]
    assert frame == ["groups:", "  - name: fastq", "    rules:", "  - name: fastq-mirror", "    rules:"]
    for each in rules:
        assert each["expr"][0].isalpha() and ": " not in each["expr"], each
        assert each["expr"].count("(") == each["expr"].count(")"), each
        if by := re.search(r"\bby \(([a-z_, ]+)\)", each["expr"]):  # of the labels, nothing else is left
            used = set(re.findall(r"\$labels\.(\w+)", each["summary"]))
            assert used <= set(by[1].split(", ")), each


def test_what_dashboards_for_apache_kafka_ask_for_is_there(names: set[str]) -> None:
    wanted = {f"{of}_{name}" for of, each in KAFKA.items() for name in each.split()}
    assert wanted - names == set()


def instructions(name: str) -> list[tuple[str, str]]:
    """Of a Containerfile, its lines joined: instruction and the rest."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "ops" / name).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def test_the_image_is_what_the_broker_and_the_compose_files_take_it_for() -> None:
    build, image = [], []
    for instruction, rest in instructions("Containerfile"):
        stage = image if image or (instruction == "FROM" and build) else build
        stage.append((instruction, rest))
    assert [rest.partition(" AS ")[0] for name, rest in build + image if name == "FROM"] == [build[0][1].split()[0]] * 2
    version = re.fullmatch(r"docker\.io/library/python:(\d\.\d+)-slim", build[0][1].split()[0])
    assert version and f"Programming Language :: Python :: {version[1]}" in (ROOT / "pyproject.toml").read_text()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in [word for name, rest in build if name == "COPY" for word in rest.split()[:-1]]:
        assert (ROOT / source).exists() and f"!{source}" in ignored
    of_image = dict(image)
    assert int(of_image["USER"]) > 0, "a number, for who must see that it is not root's without the image's passwd"
    assert [name for name, _ in image].index("USER") > [name for name, _ in image].index("RUN"), "useradd is root's"
    assert container._parser().get_default("data_dir").startswith(f"{of_image['VOLUME']}/")
    entry = json.loads(of_image["ENTRYPOINT"])
    assert entry[:2] == ["fastq-broker", "container"] and "CMD" not in of_image
    metrics = container._parser().parse_args(entry[2:]).metrics_listen
    host, _, port = metrics.rpartition(":")
    assert host == "0.0.0.0" and f"http://127.0.0.1:{port}/health/ready" in of_image["HEALTHCHECK"]
    ports = {container.HOST_PORT, container.CONTAINER_PORT, int(port)}
    assert set(map(int, of_image["EXPOSE"].split())) == ports


def test_podman_is_told_of_the_format_that_has_health_checks() -> None:
    """Its own, OCI, has none: `podman build` warns, and leaves it out."""
    files = [
        *(ROOT / "ops").iterdir(),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md")),
    ]
    commands = [
        command
        for file in files
        for command in re.findall(r"podman build [^\n`]*(?:Containerfile|`)", file.read_text())
    ]
    assert len(commands) > 1 and [each for each in commands if "--format docker" not in each] == []
    for name in ("compose.yml", "compose-cluster.yml"):
        assert "BUILDAH_FORMAT=docker" in (ROOT / "ops" / name).read_text()


def services(name: str) -> dict[str, dict[str, Any]]:
    """Of a compose file, in the form that ours have: each service's ports, volumes and variables."""
    found = {}
    text = (ROOT / "ops" / name).read_text()
    named = re.findall(r"^  (\w[\w-]*): \{\}$", text.partition("\nvolumes:\n")[2], re.MULTILINE)
    body = text.partition("\nservices:\n")[2].partition("\nvolumes:\n")[0]
    for part in re.split(r"^(?=  \w[\w-]*:$)", body, flags=re.MULTILINE)[1:]:
        scalars = dict(re.findall(r"^    (\w+): ([^\n]+)$", part, re.MULTILINE))
        lists = {key: json.loads(scalars[key]) for key in ("ports", "volumes")}
        for volume in lists["volumes"]:
            assert volume.partition(":")[0] in named
        variables = dict(re.findall(r"^      ([A-Z_]+): \"?([^\"\n]+)\"?$", part, re.MULTILINE))
        found[part.strip().partition(":")[0]] = {**scalars, **lists, "environment": variables}
    return found


@pytest.mark.parametrize(("name", "count"), [("compose.yml", 1), ("compose-cluster.yml", 3)])
def test_a_compose_file_publishes_what_its_nodes_advertise_to_the_host(name: str, count: int) -> None:
    found = services(name)
    assert len(found) == count
    published, advertised = set(), set()
    for service, told in found.items():
        assert told["hostname"] == service, "what other containers call it is what it advertises to them"
        assert told["build"] == "{context: .., dockerfile: ops/Containerfile}"
        assert [volume.partition(":")[2] for volume in told["volumes"]] == [
            dict(instructions("Containerfile"))["VOLUME"]
        ]
        settings, passed = container.settings_of(told["environment"])
        assert not passed and not container.unknown_variables(settings)
        settings = {**container.defaults(settings, service), **settings, "log.dirs": "d"}
        listeners = BrokerConfig.from_mapping(settings).advertised_listeners
        assert {str(each) for each in listeners} >= {f"CONTAINERS://{service}:{container.CONTAINER_PORT}"}
        advertised |= {str(each).rpartition(":")[2] for each in listeners if str(each).startswith("HOST://localhost:")}
        for address, outside, inside in (port.split(":") for port in told["ports"]):
            assert (address, outside) == ("127.0.0.1", inside), "nobody logs in there: for this machine alone"
            published.add(outside)
    assert published == advertised and len(published) == count


def test_a_lone_container_serves_both_sides_of_its_wall(tmp_path: Path) -> None:
    """As compose.yml starts it: at other ports, and by another name, as those of a machine are shared."""
    (told,) = services("compose.yml").values()
    host = free_ports(3)
    inside, metrics = host + 1, host + 2
    program = (
        "import sys, socket; from fastq_broker import container; socket.gethostname = lambda: '127.0.0.1'; "
        f"container.HOST_PORT, container.CONTAINER_PORT = {host}, {inside}; sys.exit(container.main(sys.argv[1:]))"
    )
    arguments = json.loads(dict(instructions("Containerfile"))["ENTRYPOINT"])[2:]
    arguments = [word.replace("0.0.0.0:9644", f"127.0.0.1:{metrics}") for word in arguments]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}
    node = subprocess.Popen(
        [sys.executable, "-c", program, *arguments, "--data-dir", str(tmp_path / "data")],
        env={**plain, **told["environment"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert node.stdout is not None
        while not (line := node.stdout.readline()).startswith("fastq-broker ready"):
            assert line, node.communicate()
        for port, name in ((host, "localhost"), (inside, "127.0.0.1")):
            with Admin(bootstrap_servers=f"127.0.0.1:{port}") as admin:
                assert [(each.host, each.port) for each in admin.describe_cluster().nodes] == [(name, port)]
        with Producer(bootstrap_servers=f"127.0.0.1:{inside}") as producer:
            producer.send("seen", b"from a container").result(20)
        with Consumer("seen", bootstrap_servers=f"127.0.0.1:{host}", auto_offset_reset="earliest") as consumer:
            assert next(iter(consumer)).value == b"from a container"
        with Admin(bootstrap_servers=f"127.0.0.1:{host}") as admin:
            (seen,) = admin.describe_topics(["seen"]).values()
            assert len(seen.result().partitions) == int(told["environment"]["KAFKA_NUM_PARTITIONS"])
        assert urllib.request.urlopen(f"http://127.0.0.1:{metrics}/health/ready", timeout=20).status == 200
        node.terminate()
        _, log = node.communicate(timeout=30)
        assert node.returncode == 0, log
    finally:
        node.kill()
        node.communicate()


def test_three_containers_are_one_cluster(tmp_path: Path) -> None:
    """The variables of the compose file, with places of this machine for those of its network."""
    text = (ROOT / "ops" / "compose-cluster.yml").read_text()
    first = free_ports(9)
    nodes = []
    for number, service in enumerate(re.split(r"^  node-\d:\n", text, flags=re.MULTILINE)[1:]):
        told = dict(re.findall(r"^      ([A-Z_]+): \"?([^\"\n]+)\"?$", service, re.MULTILINE))
        for key, value in told.items():
            value = re.sub(r"node-(\d):19093", lambda at: f"127.0.0.1:{first + 5 + int(at[1])}", value)
            value = re.sub(r"node-\d:19092|(?<=CONTAINERS://):19092", f"127.0.0.1:{first + 3 + number}", value)
            value = re.sub(r"(?<=CONTROLLER://):19093", f"127.0.0.1:{first + 6 + number}", value)
            told[key] = re.sub(r"localhost:909\d|(?<=HOST://):909\d", f"127.0.0.1:{first + number}", value)
        command = [sys.executable, "-m", "fastq_broker", "container", "--data-dir", str(tmp_path / str(number))]
        nodes.append(
            subprocess.Popen(
                command, env={**os.environ, **told}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        )
    try:
        for node in nodes:
            assert node.stdout is not None
            assert any(line.startswith("fastq-broker ready") for line in iter(node.stdout.readline, ""))
        with Admin(bootstrap_servers=f"127.0.0.1:{first}") as admin:
            cluster = admin.describe_cluster()
            assert (len(cluster.nodes), cluster.cluster_id) == (3, "5L6g3nShT-eMCtK--X86sw")
            admin.create_topic("spread", 3, 3)
        with Producer(bootstrap_servers=f"127.0.0.1:{first}", acks="all") as producer:
            producer.send("spread", b"value").result(20)
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
