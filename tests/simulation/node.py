"""A host with a real broker on it, its clock and its disk.

Rules: the disk is a directory of real files; what was not synced is gone after a loss of power. Syncs take virtual time, and may end in any
order. A process that is killed writes and closes nothing any more.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.formatting import one_voter, write_founders
from fastq_broker.controller.storage import METADATA_DIRECTORY, MetaProperties
from fastq_broker.descriptors import DescriptorPlan
from fastq_broker.log.cleaner import Failure
from fastq_broker.log.cleaner_job import CleaningJob, CleaningResult, DamagedAborts, Throttle, UncleanableLog, clean
from fastq_broker.log.files import FileHandle, Space
from fastq_broker.log.flusher import Done, ManualFlusher
from fastq_broker.log.log_manager import CLEAN_SHUTDOWN
from fastq_broker.raft.voters import VoterSet
from fastq_broker.surroundings import Surroundings
from forgetful_disk import ForgetfulFiles, inodes_below

from fastq.protocol.uuid import random_uuid
from simulation.network import Network
from simulation.story import PAGE_BYTES
from simulation.world import FIRST_MS, Host, Violation, World

CLUSTER = "c" * 22
PORT, CONTROLLER_PORT = 9092, 9093
COMPACTION_S = 1.0
"""How long a round of the cleaner may take."""
READS_S = 0.01, 0.1, 1.0
"""How long a read of what is not in memory may take."""
INTERRUPTED = 0.05
"""How often a request for room on the disk is, amid it."""
SETTINGS = {
    "controller.listener.names": "CONTROLLER",
    "process.roles": "broker,controller",
    "log.cleaner.enable": "false",  # its rounds are processes
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.election.timeout.ms": "400",
    "controller.quorum.fetch.timeout.ms": "1200",
    "replica.lag.time.max.ms": "3000",
    "group.initial.rebalance.delay.ms": "200",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


def ip_of(node_id: int) -> str:
    return f"10.0.0.{node_id}"


class Disk(ForgetfulFiles):
    """The files of one process, on a disk that the process before it has used. One that has ended reaches them no more.

    A disk that is full takes no bytes and no names, and gives no room ahead. What `fails(operation, path)` says fails. What a sync fails
    for is gone, and a later sync of it says that all is well: the system has dropped the pages. What was not synced may be there after a
    loss of power all the same: whole, up to a byte, or, but in the metadata log, in part of its pages; the names of a directory are all
    there or none.
    """

    def __init__(
        self,
        before: Disk | None,
        is_full: Callable[[], bool],
        fails: Callable[[str, str], bool] = lambda *what: False,
        interrupts: Random | None = None,
    ) -> None:
        super().__init__()
        self.gone = False
        self._interrupts = interrupts
        self._is_full, self._fails = is_full, fails
        self.room = Space(1 << 40, 1 << 41)  # what the machine has is nothing to a seed
        self._dropped: dict[int, list[tuple[int, int]]] = {}
        self._random: Random | None = None
        if before is not None:
            self._data, self._names, self._kept = before._data, before._names, before._kept

    def _strike(self, operation: Any, path: str) -> Any:
        self._check_there()
        if operation == "write" and self._is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._check_works(operation, path)
        return super()._strike(operation, path)

    def _check_works(self, operation: str, path: str) -> None:
        if self._fails(operation, path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _check_there(self) -> None:
        if self.gone:
            raise OSError(errno.EIO, "its process has ended")

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            self._check_room(path)
        return super().open(path, flags)

    def _check_room(self, path: str) -> None:
        if self._is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def reserve(self, fd: int, position: int, size: int) -> bool:
        self._check_there()
        self._check_room(self._paths[fd])
        if self._interrupts is not None and self._interrupts.random() < INTERRUPTED:
            super().reserve(fd, position, size // 2)
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR), self._paths[fd])
        return super().reserve(fd, position, size)

    def mkdir(self, path: str) -> None:  # type: ignore[override]
        self._check_there()
        self._check_works("mkdir", path)
        self._check_room(path)
        super().mkdir(path)

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        self._check_there()
        self._check_works("rmdir", path)
        super().rmdir(path)

    def sync_data(self, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        known = self._data.get(inode)
        try:
            super().sync_data(fd)
        except OSError:
            if known is not None and not self.gone:
                self._dropped.setdefault(inode, []).append((len(known), os.fstat(fd).st_size))
            raise
        for start, end in self._dropped.get(inode, ()):
            data = self._data[inode]
            self._data[inode] = data[:start] + bytes(min(end, len(data)) - start) + data[end:]

    def sync_filesystem(self, fd: int) -> None:
        """All that is in the directory of this file is on disk."""
        self._check("sync", self._paths.get(fd, ""))
        dropped = {inode: self._data[inode] for inode in self._dropped}
        data, names = dict(self._data), dict(self._names)
        self.all_on_disk(Path(os.readlink(f"/proc/self/fd/{fd}")).parent)
        self._data = data | self._data | dropped
        self._names = names | self._names

    def end(self, root: Path) -> None:
        """The process has ended: what its syncs have failed for is gone."""
        self.gone = True
        if self._dropped:
            paths = inodes_below(root)
            for inode in self._dropped:
                if inode in paths:
                    Path(paths[inode]).write_bytes(self._data[inode])

    def lose_power(self, root: Path, target: Path, random: Random | None = None) -> None:
        """What others than these files have written (votes, snapshots, identities) they have synced, with its name. Without `random`
        nothing else is left but what was synced."""
        self._random = random
        for folder, folders, names in os.walk(root):
            known = self._names.setdefault(os.stat(folder).st_ino, {})
            entries = {name: os.stat(os.path.join(folder, name)).st_ino for name in [*folders, *names]}
            for name, inode in entries.items():
                if inode not in self._data and inode not in self._names:
                    known[name] = inode
            for name in [name for name, inode in known.items() if not self._is_known(inode, entries)]:
                del known[name]
        super().lose_power(root, target)

    def _is_known(self, inode: int, entries: dict[str, int]) -> bool:
        return inode in self._data or inode in self._names or inode in entries.values()

    def _names_left(self, inode: int, path: str | None) -> dict[str, int]:
        if path is None or self._random is None or self._random.random() < 0.5:
            return super()._names_left(inode, path)
        return dict(sorted((name, os.stat(os.path.join(path, name)).st_ino) for name in os.listdir(path)))

    def _data_left(self, inode: int, path: str | None) -> bytes:
        synced, random = super()._data_left(inode, path), self._random
        if path is None or random is None or inode in self._dropped:
            return synced
        written = Path(path).read_bytes()
        kind = random.choice(("synced", "all", "torn", "pages"))
        if kind == "synced" or written == synced:
            return synced
        if kind == "all":
            return written
        if kind == "torn" or "__cluster_metadata" in path:
            at = random.randint(min(len(synced), len(written)), len(written))
            return written[:at] if written.startswith(synced[:at]) else synced
        size = random.choice((len(synced), len(written)))
        left = bytearray(synced[:size].ljust(size, b"\0"))
        for at in range(0, size, PAGE_BYTES):
            if random.random() < 0.5:
                left[at : at + PAGE_BYTES] = written[at : min(size, at + PAGE_BYTES)].ljust(
                    min(PAGE_BYTES, size - at), b"\0"
                )
        return bytes(left)


class SlowFlusher(ManualFlusher):
    """Ends each job after a while of virtual time, so in any order."""

    def __init__(self, files: Disk, host: Host, delay_s: tuple[float, float]) -> None:
        super().__init__(files)
        self._host, self.delay_s = host, delay_s
        self._random = host.world.random_of(f"disk of {host} {host.world.now}")

    def submit(self, handles: Sequence[FileHandle], done: Done) -> None:
        super().submit(handles, done)
        self._soon()

    def remove(self, paths: Sequence[str], directory: str | None, done: Done) -> None:
        super().remove(paths, directory, done)
        self._soon()

    def _soon(self) -> None:
        self._host.loop.call_later(self._random.uniform(*self.delay_s), self._end, self._jobs[-1])

    def _end(self, job: Any) -> None:
        if job not in self._jobs:
            return  # somebody has waited for it
        self._jobs.remove(job)
        others, self._jobs = self._jobs, type(self._jobs)([job])
        try:
            super().drain()
        finally:
            others.extend(self._jobs)
            self._jobs = others


class Compaction:
    """A round of the cleaner, which takes a while and is then done at once, in this process."""

    def __init__(self, host: Host, files: Disk, delay_s: float, job: CleaningJob) -> None:
        self._world, self._files, self._job = host.world, files, job
        self._done_at = host.world.now + delay_s

    def poll(self) -> CleaningResult | Failure | None:
        if self._world.now < self._done_at:
            return None
        throttle = Throttle(self._job.bytes_per_second_max, lambda seconds: None, lambda: self._world.now)
        try:
            return replace(clean(self._job, self._files, throttle=throttle), seconds=0.0)
        except DamagedAborts as error:
            return Failure(str(error), False, error.base_offset)
        except (UncleanableLog, OSError) as error:
            return Failure(str(error), isinstance(error, UncleanableLog))

    def close(self) -> None:
        """It does nothing by itself."""


class AtOnce(Executor):
    """Does what it is given, before anything else happens."""

    def __init__(self, count: int, name: str) -> None:
        """As ThreadPoolExecutor."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **options))
        except Exception as error:
            future.set_exception(error)
        return future


class LateReads(Executor):
    """What waits for the disk, each a while of virtual time: what is read then is what is there then."""

    def __init__(self, host: Host) -> None:
        self._loop = host.loop
        self._random = host.world.random_of(f"reads of {host} {host.world.now}")
        self._delay_s = self._random.choice(READS_S)

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        self._loop.call_later(self._random.uniform(0.0, self._delay_s), partial(work, *args, **options))
        return Future()


def threads_of(host: Host, count: int, name: str) -> Executor:
    """The threads of a process: where reads take time, so do those of the read-ahead."""
    late = name == "fastq-read-ahead" and host.world.reads_are_cold
    return LateReads(host) if late else AtOnce(count, name)


class Node:
    """One node of the cluster, through all its lives; the first `count` of them are controllers too. `founded`: they are the first voters
    of a quorum that says in its log who they are, else all have it from their settings. `directories`: how many it has for its logs, in
    the first of which the metadata is. The last of several fails until `fails_until`."""

    def __init__(
        self,
        world: World,
        network: Network,
        node_id: int,
        count: int,
        root: Path,
        *,
        founded: bool,
        directories: int = 1,
        **settings: str,
    ) -> None:
        self.world, self.network, self.node_id = world, network, node_id
        self.path = root / f"node-{node_id}"
        self.lives = 0
        self.skew_ms = 0
        self.sync_s = (0.0001, 0.002)
        self.host: Host
        self.disk: Disk | None = None
        self.full_until = self.fails_until = 0.0
        self.broker: Broker | None = None
        self.stopping = False
        self.ended = ""
        """Why it does not run."""
        self.directories = (
            [self.path / f"logs-{each}" for each in range(directories)] if directories > 1 else [self.path]
        )
        self._syncs_fail = settings.get("durability") == "fsync"
        controllers = range(1, count + 1)
        ids = {each: random_uuid(world.random_of(f"directory {each}")) for each in (*controllers, node_id)}
        self._settings = {
            **SETTINGS,
            **settings,
            "node.id": str(node_id),
            "log.dirs": ",".join(map(str, self.directories)),
            "listeners": f"PLAINTEXT://{ip_of(node_id)}:{PORT}",
        }
        places = [f"{ip_of(each)}:{CONTROLLER_PORT}" for each in controllers]
        if founded:
            self._settings["controller.quorum.bootstrap.servers"] = ",".join(places)
        else:
            voters = (f"{each}@{place}" for each, place in zip(controllers, places, strict=True))
            self._settings["controller.quorum.voters"] = ",".join(voters)
        if node_id <= count:
            self._settings["listeners"] += f",CONTROLLER://{ip_of(node_id)}:{CONTROLLER_PORT}"
        else:
            self._settings["process.roles"] = "broker"
        for directory in self.directories:
            directory.mkdir(parents=True)
            is_first = directory == self.directories[0]
            own = ids[node_id] if is_first else random_uuid(world.random_of(f"directory {directory.name} {node_id}"))
            MetaProperties(CLUSTER, node_id, own).write(directory)
        if founded and node_id <= count:
            metadata = self.directories[0] / METADATA_DIRECTORY
            metadata.mkdir()
            first = (one_voter(each, ids[each], "CONTROLLER", ip_of(each), CONTROLLER_PORT) for each in controllers)
            write_founders(metadata, VoterSet(first), FIRST_MS)

    def __str__(self) -> str:
        return f"node-{self.node_id}"

    def start(self) -> None:
        """A new process on this disk."""
        world = self.world
        self.lives += 1
        self.host = host = Host(world, str(self), ip_of(self.node_id))
        self.network.add(host)
        interrupts = world.random_of(f"interruptions of {self} {self.lives}")
        before, self.disk = self.disk, Disk(self.disk, lambda: world.now < self.full_until, self.fails, interrupts)
        if before is None:
            self.disk.all_on_disk(self.path)
        random = world.random_of(f"{self} {self.lives}")
        here = Surroundings(
            clock=lambda: FIRST_MS + self.skew_ms + int(host.uptime_s * 1000),
            monotonic_s=host.loop.time,
            random=random,
            new_id=lambda: random_uuid(random),
            files=self.disk,
            flusher=SlowFlusher(self.disk, host, self.sync_s),
            threads=partial(threads_of, host),
            turns_us=lambda turns_us: None,
            bind=lambda loop, name, port: self.network.bind(host, name, port),
        )
        config = BrokerConfig.from_mapping(self._settings)
        self.broker = broker = Broker(
            config, host.loop, surroundings=here, descriptors=DescriptorPlan(1000, 200, 200, 400, 50)
        )
        broker.cleaner._start_worker = partial(
            Compaction, host, self.disk, world.random_of(f"cleaner of {self}").uniform(0.0, COMPACTION_S)
        )
        broker.on_halt(partial(self._halted, host))
        self.ended, self.stopping = "", False
        world.tell(self, f"starts, the {self.lives}. time")
        task = host.loop.create_task(broker.start())
        task.add_done_callback(partial(self._started, host))

    def fails(self, operation: str, path: str) -> bool:
        """What a sync fails for is gone: nothing that was acknowledged, only where that waits for syncs."""
        if self.world.now >= self.fails_until or len(self.directories) == 1:
            return False
        return path.startswith(str(self.directories[-1])) and (operation != "sync" or self._syncs_fail)

    @property
    def has_failed_directory(self) -> bool:
        """Whether one of its directories is out of use, until it is started again."""
        return self.broker is not None and any(each.offline is not None for each in self.broker.logs.dirs)

    def _started(self, host: Host, task: Any) -> None:
        if host.dead or task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.world.tell(self, "serves clients")
        else:
            self.world.tell(self, f"could not start: {error!r}")
            self._halted(host, str(error))

    def _halted(self, host: Host, reason: str) -> None:
        """The process ends by itself: what it leaves is what a crash leaves."""
        if not host.dead:
            self.ended = reason
            host.loop.call_soon(self.kill)

    def restart(self) -> None:
        """It is killed, and there is another process at once."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """End in good order."""
        broker, host = self.broker, self.host
        if broker is None or self.stopping:
            return
        self.stopping = True
        self.world.tell(self, "is told to stop")
        task = host.loop.create_task(broker.close())
        task.add_done_callback(lambda task: None if host.dead else self._stopped())

    def _stopped(self) -> None:
        """Nothing takes room of the disk that it does not need, in a directory that says that all is in order."""
        for directory in self.directories:
            marked = (directory / CLEAN_SHUTDOWN).exists()
            for path in directory.glob("*/*.log") if marked else ():
                found = path.stat()
                if found.st_blocks * 512 > found.st_size + PAGE_BYTES and not path.parent.name.endswith("-delete"):
                    raise Violation(
                        f"{self} has stopped, and {path.name} of {path.parent.name} takes more than it needs"
                    )
        self.kill()

    def kill(self, *, power: bool = False) -> None:
        """The process is gone; with `power`, what was not synced too."""
        broker = self.broker
        if broker is None:
            return
        self.broker = None
        self.host.dead = True
        assert self.disk is not None
        self.disk.end(self.path)
        broker.logs.release_locks()  # as the system does
        self.network.died(self.host, power=power)
        if power:
            left = self.path.with_name(f"{self.path.name}-left")
            self.disk.lose_power(self.path, left, self.world.random_of(f"what is left of {self} {self.lives}"))
            shutil.rmtree(self.path)
            left.rename(self.path)
            self.disk = None

    @property
    def roles(self) -> str:
        """As process.roles has them."""
        return self._settings["process.roles"]

    @property
    def ready(self) -> bool:
        """Whether it serves clients, and goes on doing so."""
        return self.broker is not None and not self.stopping and self.broker._housekeeper is not None
