"""A broker whose disk is full, in earnest: a small file system of its own, in a namespace that goes with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest
from small_disk import PLUG, fill, in_namespace, mount_command
from waiting import until

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.errors import DeliveryTimeout, FastqError

SIZE_MIB = 24
SETTINGS = (
    "log.segment.bytes=1048576",
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
    "group.initial.rebalance.delay.ms=0",
    "log.segment.delete.delay.ms=0",
    "log.flush.offset.checkpoint.interval.ms=200",
)
KEPT = TopicPartition("kept", 0)


class BrokerOnSmallDisk:
    """A broker on a tmpfs of its own, which is started anew when it ends."""

    def __init__(self, directory: Path, settings: Sequence[str]) -> None:
        directory.mkdir(exist_ok=True)
        broker = [sys.executable, "-m", "fastq_broker", "--data-dir", f"{directory}/data", "--listen", "127.0.0.1:0"]
        broker += ["--metrics-listen", "127.0.0.1:0"]
        for setting in (*SETTINGS, *settings):
            broker += ["--set", setting]
        mount = f'{mount_command(directory, SIZE_MIB)} && head -c 3m /dev/zero > "{directory}/{PLUG}"'
        script = f'{mount} && while :; do "$@"; done'
        self.errors = directory.parent / "errors.txt"
        with self.errors.open("w") as errors:
            self._shell = subprocess.Popen(
                [*in_namespace(), "sh", "-c", script, "sh", *broker],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._plug = f"/proc/{self._shell.pid}/root{directory}/{PLUG}"
        self.wait_ready()

    def wait_ready(self) -> None:
        assert self._shell.stdout is not None
        line = self._shell.stdout.readline()
        assert line.startswith("fastq-broker ready on "), self.errors.read_text()
        self.servers = line.split()[3]
        said = [each for each in self.errors.read_text().splitlines() if "metrics and health are served on" in each]
        self.metrics_url = f"http://{said[-1].split()[-1]}"

    def kill(self) -> None:
        """The broker dies; another one is started."""
        (pid,) = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text().split()
        os.kill(int(pid), signal.SIGKILL)
        self.wait_ready()

    def fill(self) -> None:
        """Not a byte is free any more."""
        fill(self._plug)

    def make_room(self) -> None:
        """What the plug takes, three MiB at the least, is free all at once."""
        os.unlink(self._plug)

    def metric(self, name: str) -> float:
        text = urlopen(f"{self.metrics_url}/metrics", timeout=10).read().decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name}{{"))

    def close(self) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerOnSmallDisk]:
    found = BrokerOnSmallDisk(tmp_path / "disk", request.param)
    try:
        yield found
    finally:
        found.close()


def tried(work: Callable[[], object]) -> bool:
    """Whether it could be done."""
    try:
        work()
    except FastqError:
        return False
    return True


def commit(admin: Admin, offset: int) -> bool:
    return tried(lambda: admin.alter_group_offsets("readers", {KEPT: offset}, timeout=1).results())


def read_all(servers: str, count: int) -> list[bytes | None]:
    """The values of what is kept, in their order."""
    found: list[bytes | None] = []
    with Consumer("kept", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        until(lambda: found.extend(record.value for record in consumer.poll(timeout=1)) or len(found) >= count)
    return found


@pytest.mark.parametrize("disk", [("disk.refuse.free.bytes=0", "disk.warn.free.bytes=0")], indirect=True, ids=["-"])
def test_a_full_disk_is_survived_without_a_restart(disk: BrokerOnSmallDisk) -> None:
    """Everything that writes meets it: records, indexes, offsets, transactions, metadata, checkpoints. When there is room all go on, and
    nothing that was acknowledged is missing, after a crash too."""
    short = {"bootstrap_servers": disk.servers, "delivery_timeout_ms": 400, "request_timeout_ms": 300, "linger_ms": 0}
    kept: list[bytes] = []
    with (
        Admin(bootstrap_servers=disk.servers) as admin,
        Producer(**short) as producer,
        Producer(**short, transactional_id="writer") as transactions,
    ):
        for name, partitions in (("kept", 1), ("filler", 4), ("transactional", 1)):
            admin.create_topic(name, partitions)
        assert commit(admin, 1)

        def keep() -> bool:
            value = b"%d" % len(kept)
            if not tried(lambda: producer.send("kept", value, partition=0).result(10)):
                return False
            kept.append(value)
            return True

        def transact() -> bool:
            with transactions.transaction():
                transactions.send("transactional", b"v" * 3000)
            return True

        assert transact()
        for size in (900_000, 60_000, 4_000):
            while tried(lambda: producer.send("filler", os.urandom(size)).result(10)):  # noqa: B023 - called at once
                keep()
        while keep():  # what is left of the last page
            pass
        committed = max([1, *(offset for offset in range(2, 8) if commit(admin, offset))])
        tried(lambda: admin.create_topic("new", 8, timeout=1))
        tried(transact)
        assert disk.metric("fastq_log_dir_full_total") > 0
        assert read_all(disk.servers, len(kept))[: len(kept)] == kept
        disk.make_room()
        until(keep)
        until(lambda: commit(admin, committed + 1))
        until(lambda: "new" in admin.list_topics() or tried(lambda: admin.create_topic("new", 8, timeout=1)))
        for partition in range(8):
            producer.send("new", b"v", partition=partition).result(10)
        admin.delete_topic("filler")
        until(lambda: tried(transact))
        assert keep()
        assert disk.metric("kafka_log_logmanager_offlinelogdirectorycount") == 0
    disk.kill()
    assert [value for value in read_all(disk.servers, len(kept)) if value in {*kept}] == kept
    with Admin(bootstrap_servers=disk.servers) as admin:
        assert {"kept", "new", "transactional"} == set(admin.list_topics())
        offsets = admin.list_group_offsets("readers")
        assert offsets[KEPT].result().offset == committed + 1
    assert "restart the broker" not in disk.errors.read_text()


@pytest.mark.parametrize("disk", [("disk.warn.free.bytes=0",)], indirect=True, ids=["-"])
def test_a_broker_that_is_killed_on_a_full_disk_starts_serves_and_heals(disk: BrokerOnSmallDisk) -> None:
    """However often: indexes wait in memory, and what a start must write has some room that is kept for it."""
    with Admin(bootstrap_servers=disk.servers) as admin, Producer(bootstrap_servers=disk.servers) as producer:
        admin.create_topic("kept", 1)
        kept: list[bytes | None] = [b"%d" % number * 5000 for number in range(8)]
        for value in kept:
            producer.send("kept", value or b"", partition=0).result(10)
        assert commit(admin, 3)
    for _ in range(2):
        disk.fill()
        disk.kill()
        assert read_all(disk.servers, len(kept)) == kept
        with (
            Admin(bootstrap_servers=disk.servers) as admin,
            Producer(bootstrap_servers=disk.servers, delivery_timeout_ms=400, request_timeout_ms=300) as producer,
        ):
            with pytest.raises(DeliveryTimeout, match="clients are refused"):
                producer.send("kept", b"refused", partition=0).result(10)
            assert admin.list_group_offsets("readers")[KEPT].result().offset == 3
    disk.make_room()
    with Producer(bootstrap_servers=disk.servers) as producer:
        producer.send("kept", b"last", partition=0).result(30)
    disk.kill()
    assert read_all(disk.servers, len(kept) + 1) == [*kept, b"last"]
    assert "Traceback" not in disk.errors.read_text()


MARKS = ("disk.warn.free.bytes=12000000", "disk.refuse.free.bytes=8000000", "disk.ballast.bytes=2000000")


@pytest.mark.parametrize("disk", [MARKS], indirect=True, ids=["-"])
def test_producers_wait_below_the_mark_and_nobody_else_does(disk: BrokerOnSmallDisk) -> None:
    """Ours and librdkafka try again until there is room; offsets are committed, topics made and deleted, transactions ended meanwhile."""
    from confluent_kafka import Producer as Librdkafka

    short = {"bootstrap_servers": disk.servers, "delivery_timeout_ms": 1000, "request_timeout_ms": 500, "linger_ms": 0}
    other = Librdkafka({"bootstrap.servers": disk.servers, "linger.ms": 0})
    delivered: list[object] = []
    until(lambda: disk.metric("fastq_log_dir_ballast_bytes") == 2_000_000)
    with (
        Admin(bootstrap_servers=disk.servers) as admin,
        Producer(**short) as filler,
        Producer(bootstrap_servers=disk.servers, linger_ms=0) as producer,
        Producer(bootstrap_servers=disk.servers, transactional_id="writer") as transactions,
    ):
        for name in ("kept", "filler", "transactional"):
            admin.create_topic(name, 1)
        producer.send("kept", b"first", partition=0).result(10)
        with transactions.transaction():
            transactions.send("transactional", b"v").result(10)
            level = 0.0
            while level < 2:  # at the pace of who looks
                free = disk.metric("fastq_log_dir_free_bytes")
                filler.send("filler", os.urandom(900_000)).result(10)
                until(lambda: disk.metric("fastq_log_dir_free_bytes") != free)  # noqa: B023 - called at once
                level = disk.metric("fastq_log_dir_space_level")
            assert not tried(lambda: filler.send("filler", b"v").result(10))
            assert disk.metric("fastq_log_dir_ballast_bytes") == 0
        waiting = producer.send("kept", b"waiting", partition=0)
        other.produce("kept", b"waiting too", on_delivery=lambda error, message: delivered.append(error))
        for offset in range(1, 20):
            assert commit(admin, offset)
        admin.create_topic("new", 4)
        assert read_all(disk.servers, 1) == [b"first"]
        assert not waiting.done() and other.poll(0) == 0
        assert disk.metric("fastq_log_dir_full_total") == 0
        admin.delete_topic("filler")
        waiting.result(30)
        until(lambda: other.poll(0.1) or delivered)
        assert delivered == [None]
        until(lambda: disk.metric("fastq_log_dir_ballast_bytes") == 2_000_000)
        assert disk.metric("fastq_log_dir_space_level") == 0
    said = [line for line in disk.errors.read_text().splitlines() if "bytes free" in line]
    assert ["WARNING" in line for line in said[:3]] == [True, False, True], said
    # The files of a topic that is deleted go one by one: a look between them finds room for clients, but below the first mark.
    assert all(line.endswith("bytes free again") for line in said[3:]) and len(said) <= 4, said
    assert len(set(read_all(disk.servers, 3))) == 3
