"""The brokers beside which ours is measured, each started on loopback from an empty directory, and ended by its process id.

Rules: none of them is a dependency of fastq. RabbitMQ is Debian's package; Artemis, RocketMQ, Jafka and the load tools of all come
through Maven (`peers/*.xml`), as Apache Kafka does for the tests. All keep what they are sent in files and leave it to the operating
system when those reach the disk, as Kafka does: no acknowledgement waits for an fsync. `missing()` says why one cannot run here.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import maven
from apache_kafka import free_port
from support import session_cpu_seconds

POMS = Path(__file__).resolve().parent / "peers"
HEAP = "1g"
START_S = 120.0
JAVA_17 = [
    f"--add-{what}=java.base/{package}=ALL-UNNAMED"
    for what, package in (
        *(("opens", each) for each in ("java.nio", "java.lang", "java.util", "sun.nio.ch", "jdk.internal.misc")),
        *(("exports", each) for each in ("jdk.internal.ref", "sun.nio.ch", "sun.security.action")),
    )
]
"""What RocketMQ's own start scripts open on Java 9 and later."""


@dataclass(frozen=True)
class Peer:
    """A broker at work: where it listens, and the sessions whose processes are its own."""

    name: str
    port: int
    sessions: tuple[int, ...]
    other_port: int = 0
    """RabbitMQ: that of streams; RocketMQ: the name server's."""
    data_dir: Path | None = None
    """Where its log is, if it is a plain one."""

    def cpu_seconds(self) -> float:
        return sum(map(session_cpu_seconds, self.sessions))


def missing(name: str) -> str | None:
    """None where this peer can be run, else why not, in words for a person."""
    reason = maven.missing(name)
    if reason is None and name == "rabbitmq" and shutil.which("rabbitmq-server") is None:
        reason = "rabbitmq-server is not installed (apt-get install rabbitmq-server, and stop its service)"
    return reason


def class_path(name: str) -> str:
    return ":".join(maven.jars(POMS / f"{name}.xml", name))


@contextmanager
def _process(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, which is asked to end, and made to after half a minute."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **(environment or {})}, start_new_session=True
        )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)  # the session that was made for it, and nobody else's
                process.wait(30)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _wait(process: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]) -> None:
    until = time.monotonic() + START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > until:
            shown = log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{process.args} did not start within {START_S:g} s; its log ends with\n{shown}")
        time.sleep(0.1)


def listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def rabbitmq() -> Iterator[Peer]:
    """One node with streams; everything on loopback, Erlang's port mapper too."""
    folder = Path(tempfile.mkdtemp(prefix="bench-rabbitmq-"))
    port, stream, mapper, distribution = (free_port() for _ in range(4))
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nstream.listeners.tcp.1 = 127.0.0.1:{stream}\n"
        f"stream.advertised_host = 127.0.0.1\nstream.advertised_port = {stream}\nlog.file.level = warning\n"
        "disk_free_limit.absolute = 1GB\n"
    )
    (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
    environment = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper),
    }
    log = folder / "output"
    script = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # what /usr/sbin has changes to the user of the service
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        names = stack.enter_context(_process(["epmd", "-address", "127.0.0.1", "-port", str(mapper)], log))
        _wait(names, log, lambda: listening(mapper))
        server = stack.enter_context(_process([script], log, environment))
        _wait(server, log, lambda: listening(port) and listening(stream))
        yield Peer("rabbitmq", port, (server.pid,), stream)


BROKER_XML = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <name>bench</name>
  <persistence-enabled>true</persistence-enabled>
  <security-enabled>false</security-enabled>
  <journal-type>MAPPED</journal-type>
  <journal-datasync>false</journal-datasync>
  <journal-sync-transactional>false</journal-sync-transactional>
  <journal-sync-non-transactional>false</journal-sync-non-transactional>
  <journal-directory>{folder}/journal</journal-directory>
  <bindings-directory>{folder}/bindings</bindings-directory>
  <paging-directory>{folder}/paging</paging-directory>
  <large-messages-directory>{folder}/large</large-messages-directory>
  <journal-file-size>100M</journal-file-size>
  <journal-pool-files>20</journal-pool-files>
  <global-max-size>4G</global-max-size>
  <acceptors><acceptor name="all">tcp://127.0.0.1:{port}?protocols=CORE;tcpSendBufferSize=1048576;tcpReceiveBufferSize=1048576</acceptor></acceptors>
  <address-settings><address-setting match="#">
    <address-full-policy>PAGE</address-full-policy>
    <auto-create-queues>true</auto-create-queues><auto-create-addresses>true</auto-create-addresses>
    <auto-delete-queues>false</auto-delete-queues><auto-delete-addresses>false</auto-delete-addresses>
  </address-setting></address-settings>
</core></configuration>
"""


@contextmanager
def artemis() -> Iterator[Peer]:
    """One broker whose journal is mapped and not synced, with room for a round's messages in memory: 4 GiB of heap more than the others."""
    folder = Path(tempfile.mkdtemp(prefix="bench-artemis-"))
    port, log = free_port(), folder / "output"
    (folder / "broker.xml").write_text(BROKER_XML.format(folder=folder, port=port))
    command = ["java", "-Xms5g", "-Xmx5g", "-XX:+UseParallelGC", "-cp", class_path("artemis")]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = stack.enter_context(
            _process([*command, str(POMS / "ArtemisBroker.java"), str(folder / "broker.xml")], log)
        )
        _wait(server, log, lambda: b"ready" in log.read_bytes())
        yield Peer("artemis", port, (server.pid,))


@contextmanager
def rocketmq() -> Iterator[Peer]:
    """A name server and one broker that flushes to disk in the background, which is its default."""
    folder = Path(tempfile.mkdtemp(prefix="bench-rocketmq-"))
    names, port, replicas, log = free_port(), _free_with_second(), free_port(), folder / "output"
    (folder / "names.conf").write_text(
        f"listenPort={names}\nbindAddress=127.0.0.1\nkvConfigPath={folder}/kv.json\nconfigStorePath={folder}/names\n"
    )
    (folder / "broker.conf").write_text(
        "brokerClusterName=bench\nbrokerName=bench\nbrokerId=0\nbrokerRole=ASYNC_MASTER\nflushDiskType=ASYNC_FLUSH\n"
        f"namesrvAddr=127.0.0.1:{names}\nlistenPort={port}\nhaListenPort={replicas}\nbrokerIP1=127.0.0.1\n"
        f"bindAddress=127.0.0.1\nstorePathRootDir={folder}/store\nstorePathCommitLog={folder}/store/commitlog\n"
        "autoCreateTopicEnable=true\ndefaultTopicQueueNums=4\ntimerWheelEnable=false\nwaitTimeMillsInSendQueue=10000\n"
    )
    environment = {"ROCKETMQ_HOME": str(folder)}
    java = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseG1GC", *JAVA_17, f"-Duser.home={folder}"]
    java += ["-cp", class_path("rocketmq")]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        first = [*java, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(folder / "names.conf")]
        naming = stack.enter_context(_process(first, log, environment))
        _wait(naming, log, lambda: listening(names))
        second = [*java, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(folder / "broker.conf")]
        server = stack.enter_context(_process(second, log, environment))
        _wait(server, log, lambda: listening(port) and b"boot success" in log.read_bytes())
        yield Peer("rocketmq", port, (naming.pid, server.pid), names)


JAFKA = """brokerid=1
hostname=127.0.0.1
port={port}
http.port={http}
num.threads=2
socket.send.buffer=1048576
socket.receive.buffer=1048576
max.socket.request.bytes=104857600
log.dir={folder}/data
num.partitions=1
log.flush.interval=1000000000
log.default.flush.interval.ms=1000
log.default.flush.scheduler.interval.ms=1000
log.retention.hours=168
log.file.size=536870912
enable.zookeeper=false
"""


@contextmanager
def jafka() -> Iterator[Peer]:
    """One broker without ZooKeeper, which flushes once a second in the background; what is not flushed cannot be read."""
    folder = Path(tempfile.mkdtemp(prefix="bench-jafka-"))
    port, http, log = free_port(), free_port(), folder / "output"
    (folder / "server.properties").write_text(JAFKA.format(port=port, http=http, folder=folder))
    java = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseG1GC", *JAVA_17, "-cp", class_path("jafka")]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = stack.enter_context(_process([*java, "io.jafka.Jafka", str(folder / "server.properties")], log))
        _wait(server, log, lambda: listening(port))
        yield Peer("jafka", port, (server.pid,), data_dir=folder / "data")


def _free_with_second() -> int:
    """A port for the broker, which also takes the one two before it."""
    while True:
        port = free_port()
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port - 2))
        except OSError:
            continue
        return port


STARTED: Mapping[str, Callable[[], AbstractContextManager[Peer]]] = {
    "rabbitmq": rabbitmq,
    "artemis": artemis,
    "rocketmq": rocketmq,
    "jafka": jafka,
}
