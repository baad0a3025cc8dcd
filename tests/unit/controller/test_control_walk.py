"""Random walks over brokers and partitions: whatever is planned, what was committed is not lost but by an unclean election, and the
metadata stays one that all nodes agree about.

The oracle knows what the controller does not: how many committed records each replica really has. A commit reaches the ISR, and comes only
while that is large enough; who joins the ISR has everything; who stops uncleanly may have lost some of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from control_world import CLUSTER, Cluster, directory_id
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import NewPartitions, NewTopic, brokers, elections, features
from fastq_broker.controller.alter_partition import plan_alter_partition
from fastq_broker.controller.assign_directories import plan_assignments
from fastq_broker.controller.brokers import Sessions
from fastq_broker.controller.image import PartitionImage, Record
from fastq_broker.controller.reassignment import is_moving, plan_reassignments
from fastq_broker.controller.states import partition_state, replica_state, transitions
from fastq_broker.controller.topics import plan_create, plan_partitions

from fastq.errors import ErrorCode
from fastq.protocol import messages as m

Key = tuple[str, int]
CONFIG = BrokerConfig.from_mapping({"log.dirs": "/nowhere"})
BROKERS = range(1, 6)
TIMEOUT = 9000


class Walk:
    """A cluster, its sessions, and the truth about its records."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.elr = rng.random() < 0.7
        self.level = 30 if self.elr else rng.choice([11, 16, 30])
        self.cluster = Cluster(elr=self.elr, level=self.level)
        self.sessions = Sessions(TIMEOUT)
        self.now = 0
        self.stopped: set[int] = set()  # processes that are down
        self.committed: dict[Key, int] = {}
        self.has: dict[Key, dict[int, int]] = {}
        self.taken_back: set[Key] = set()  # moves that were taken back with a loss, to a replica that is not there
        self.lost = 0  # the broker that the step at hand takes the records from
        self.done: list[str] = []
        for broker_id in BROKERS:
            self.start_broker(broker_id)
        for name in ("t", "u"):
            self.create(name)
        self.set_config("u", "unclean.leader.election.enable", "true" if rng.random() < 0.5 else "false")

    # The truth

    @property
    def parts(self) -> dict[Key, PartitionImage]:
        topics = self.cluster.image.topics_by_name.values()
        return {(topic.name, number): found for topic in topics for number, found in enumerate(topic.partitions)}

    def is_unclean(self, name: str) -> bool:
        return self.cluster.image.topic_configs(name).get("unclean.leader.election.enable") == "true"

    def least_isr(self, key: Key) -> int:
        """As the leader has it."""
        wanted = int(self.cluster.image.topic_configs(key[0]).get("min.insync.replicas", "1"))
        return min(wanted, len(self.parts[key].replicas))

    def commit(self) -> None:
        """Records come in wherever they can be committed."""
        for key, part in self.parts.items():
            if part.leader != -1 and (not self.elr or len(part.isr) >= self.least_isr(key)):
                self.committed[key] += 1
                for replica in part.isr:
                    self.has[key][replica] = self.committed[key]

    def can_lead(self, part: PartitionImage, broker_id: int) -> bool:
        image = self.cluster.image
        return image.is_active(broker_id) and image.brokers[broker_id].is_online(part.directory_of(broker_id))

    # One step of the metadata

    def write(self, what: str, records: Sequence[Record], *, may_lose: Sequence[Key] = (), most: int = 1) -> None:
        """Apply what was planned, and look at what has become of it. `most`: changes of one partition."""
        self.done.append(what)
        image, before = self.cluster.image, self.parts
        changes: dict[Key, int] = {}
        names = {topic.topic_id: topic.name for topic in image.topics_by_name.values()}
        for record in records:
            if isinstance(record, m.PartitionChangeRecord):
                key = names[record.topic_id], record.partition_id
                changes[key] = changes.get(key, 0) + 1
        assert max(changes.values(), default=0) <= most
        self.cluster.apply(*records)
        if records:
            self.sessions.follow(self.cluster.image, self.now)
        for key, part in self.parts.items():
            if key not in before:
                self.committed[key] = 0
                self.has[key] = dict.fromkeys(part.replicas, 0)
            else:
                self.check_step(key, before[key], part, changes.get(key, 0), key in may_lose)
            self.check_state(key, part)
        told = {(found.topic, found.partition, found.replica) for found in transitions(image, self.cluster.image)}
        for key, part in self.parts.items():
            old = before.get(key)
            assert ((*key, None) in told) == (partition_state(old) is not partition_state(part))
            for replica in {*part.replicas, *(old.replicas if old else ())}:
                same = replica_state(image, old, replica) is replica_state(self.cluster.image, part, replica)
                assert ((*key, replica) in told) != same

    def check_step(self, key: Key, old: PartitionImage, new: PartitionImage, changes: int, may_lose: bool) -> None:
        """One partition, before and after: epochs, leaders, and what is lost."""
        cleared = old._replace(eligible_leader_replicas=(), last_known_elr=(), partition_epoch=old.partition_epoch + 1)
        if changes == 0:
            assert new == old or (new == cleared and old.isr)
            return
        kept = new.eligible_leader_replicas
        if old.has_eligible_alone and new == old._replace(
            eligible_leader_replicas=kept, partition_epoch=old.partition_epoch + 2
        ):
            assert bool(kept) == bool(old.eligible_leader_replicas)  # another least ISR: cleared, and said again
            assert set(kept) <= set(old.eligible_leader_replicas)
            return
        assert new.partition_epoch == old.partition_epoch + changes
        left = set(old.replicas) - set(new.replicas)
        grows = new.leader != old.leader or bool(left) or (self.level < 12 and bool(set(old.isr) - set(new.isr)))
        assert new.leader_epoch - old.leader_epoch == grows
        came = (set(old.adding_replicas) & set(new.replicas)) - {*new.adding_replicas, *new.removing_replicas}
        assert came <= set(new.isr)
        truth = self.has[key]
        for replica in left:
            del truth[replica]
        for replica in set(new.replicas) - set(old.replicas):
            truth[replica] = 0
        if new.leader != -1:
            self.taken_back.discard(key)
        if may_lose:
            first = new.isr[0]
            self.committed[key] = truth[first]
            for replica in truth:
                truth[replica] = min(truth[replica], truth[first])
            if new.leader == -1:
                self.taken_back.add(key)
        if new.leader == -1:
            if self.elr and old.leader != -1:
                assert new.last_known_elr == (old.leader,)
            return
        chosen = new.leader != old.leader and new.leader not in (*old.isr, *old.eligible_leader_replicas)
        unclean = chosen and new.leader_recovery_state == 1 and new.isr == (new.leader,)
        if unclean:
            surely = {*old.isr, *old.eligible_leader_replicas} - {self.lost}
            last_one = self.elr and not surely and old.last_known_elr == (new.leader,)
            assert self.is_unclean(key[0]) or last_one
            self.committed[key] = truth[new.leader]
            for replica in truth:
                truth[replica] = min(truth[replica], truth[new.leader])
        elif new.leader != old.leader:
            assert truth[new.leader] == self.committed[key]

    def check_state(self, key: Key, part: PartitionImage) -> None:
        """What holds of every partition at all times."""
        replicas, isr, elr = set(part.replicas), set(part.isr), set(part.eligible_leader_replicas)
        assert len(replicas) == len(part.replicas) == len(part.directories) > 0
        assert len(isr) == len(part.isr)
        assert isr <= replicas
        assert elr <= replicas
        assert elr <= self.cluster.image.brokers.keys()
        assert not isr & elr
        assert not elr or len(isr) < self.least_isr(key)  # or a commit would pass those by that are eligible
        adding, removing = set(part.adding_replicas), set(part.removing_replicas)
        assert adding | removing <= replicas
        assert not adding & removing
        assert removing != replicas
        if part.leader != -1:
            assert part.leader in isr
            assert self.can_lead(part, part.leader)
            assert not part.last_known_elr
            assert self.has[key][part.leader] == self.committed[key]
        else:
            wait = isr or elr
            assert not [replica for replica in wait if self.can_lead(part, replica)]
        if self.elr and key not in self.taken_back:
            assert all(self.can_lead(part, replica) for replica in isr)
        if not self.elr:
            assert isr
            assert not elr
            assert not part.last_known_elr
        assert all(self.has[key][replica] == self.committed[key] for replica in isr | elr)

    # Brokers

    def start_broker(self, broker_id: int, *, clean: bool = False) -> None:
        """Register a new incarnation; fenced until it is heard."""
        image = self.cluster.image
        old = image.brokers.get(broker_id)
        kind = m.BrokerRegistrationRequest
        request = kind(
            broker_id=broker_id,
            cluster_id=CLUSTER,
            incarnation_id=self.rng.randbytes(16),
            listeners=[],
            features=[
                kind.Feature(name=name, min_supported_version=0, max_supported_version=30)
                for name in (features.METADATA_VERSION, features.ELIGIBLE_LEADER_REPLICAS)
            ],
            rack=self.rng.choice([None, "a", "b"]),
            log_dirs=[directory_id(broker_id, number) for number in range(2)],
            previous_broker_epoch=old.epoch if old and clean else -1,
        )
        result, records = brokers.plan_registration(
            self.cluster.view,
            request,
            version=4,
            epoch=image.offset + 1,
            finalized=image.features,
            is_live=self.sessions.is_live(broker_id, request.incarnation_id, self.now),
        )
        if result.error:
            assert result.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION
            assert broker_id not in self.stopped or self.now < TIMEOUT * 1000
            return
        if not clean and self.elr:
            for truth in self.has.values():
                if broker_id in truth:
                    truth[broker_id] -= self.rng.randint(0, truth[broker_id])
        self.stopped.discard(broker_id)
        self.lost = 0 if clean else broker_id
        self.write(f"register {broker_id} clean={clean}", records)
        self.lost = 0

    def heartbeat(
        self, broker_id: int, *, fence: bool = False, stop: bool = False, offline: Sequence[bytes] = ()
    ) -> None:
        broker = self.cluster.image.brokers[broker_id]
        request = m.BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=broker.epoch,
            current_metadata_offset=self.cluster.image.offset - self.rng.choice([0, 0, 3]),
            want_fence=fence,
            want_shut_down=stop,
            offline_log_dirs=list(offline),
        )
        self.sessions.heard(broker_id, broker.epoch, self.now)
        result, records = brokers.plan_heartbeat(self.cluster.view, request, self.sessions.state(broker_id))
        assert not result.error
        self.sessions.heartbeat(request, result, self.cluster.image.offset + len(records))
        if result.should_shut_down:
            assert fence or not self.cluster.view.leads(broker_id)
            assert not self.sessions.is_live(broker_id, b"another", self.now)
        self.write(f"heartbeat {broker_id} fence={fence} stop={stop} offline={len(offline)}", records)
        assert self.cluster.image.brokers[broker_id].fenced == result.is_fenced
        if result.should_shut_down:
            self.stopped.add(broker_id)

    def heartbeats(self) -> None:
        """Everybody who runs."""
        for broker_id in self.running:
            self.heartbeat(broker_id)

    @property
    def running(self) -> list[int]:
        return [broker_id for broker_id in self.cluster.image.brokers if broker_id not in self.stopped]

    def crash(self) -> None:
        running = self.running
        if len(running) > 1:
            broker_id = self.rng.choice(running)
            self.stopped.add(broker_id)
            if self.rng.random() < 0.5:
                self.sessions.broken(broker_id, self.cluster.image.brokers[broker_id].epoch, None, self.now)

    def pass_time(self, passed: int | None = None) -> None:
        self.now += passed or self.rng.choice([1000, TIMEOUT + 1])
        for broker_id in self.running:
            self.sessions.heard(broker_id, self.cluster.image.brokers[broker_id].epoch, self.now)
        gone = self.sessions.expired(self.now)
        if gone is not None:
            assert gone in self.stopped
            self.write(f"fence {gone}", brokers.plan_fence(self.cluster.view, gone))

    def change_controller(self) -> None:
        """Another node leads the quorum, which knows of brokers what the metadata says."""
        self.sessions = Sessions(TIMEOUT)
        self.sessions.follow(self.cluster.image, self.now)

    def end(self) -> None:
        """Whoever is gone is fenced, one by one."""
        for _ in BROKERS:
            self.pass_time(TIMEOUT + 1)
        for broker_id, broker in self.cluster.image.brokers.items():
            assert broker.fenced or broker_id not in self.stopped

    def restart(self) -> None:
        gone = sorted(self.stopped) + [
            broker_id for broker_id in BROKERS if broker_id not in self.cluster.image.brokers
        ]
        if gone:
            self.start_broker(self.rng.choice(gone), clean=self.rng.random() < 0.5)

    def stop(self) -> None:
        if len(self.running) > 1:
            self.heartbeat(self.rng.choice(self.running), stop=True, fence=self.rng.random() < 0.2)

    def lose_directory(self) -> None:
        unfenced = [one for one in self.running if not self.cluster.image.brokers[one].fenced]
        if unfenced:
            broker_id = self.rng.choice(unfenced)
            directories = self.cluster.image.brokers[broker_id].directories
            if len(directories) > 1:
                self.heartbeat(broker_id, offline=[self.rng.choice(directories)])

    def unregister(self) -> None:
        fenced = [broker.broker_id for broker in self.cluster.image.brokers.values() if broker.fenced]
        if fenced:
            broker_id = self.rng.choice(fenced)
            self.lost = broker_id
            self.write(f"unregister {broker_id}", brokers.plan_unregistration(self.cluster.view, broker_id)[1])
            self.lost = 0
            self.stopped.discard(broker_id)

    # Partitions

    def create(self, name: str) -> None:
        live = sum(self.cluster.image.is_active(broker_id) for broker_id in BROKERS)
        if not live:
            self.heartbeats()
        factor = self.rng.randint(1, 3)
        (result,), records = plan_create(
            self.cluster.image, CONFIG, [NewTopic(name, self.rng.randint(1, 3), factor)], self.rng
        )
        assert result.error in (ErrorCode.NONE, ErrorCode.INVALID_REPLICATION_FACTOR)
        self.write(f"create {name}", records)
        if not result.error:
            self.set_config(name, "min.insync.replicas", str(self.rng.randint(1, 3)))

    def grow(self) -> None:
        name = self.rng.choice(["t", "u"])
        topic = self.cluster.image.topic(name)
        if topic is None:
            self.create(name)
        elif len(topic.partitions) < 5:
            wanted = NewPartitions(name, len(topic.partitions) + 1)
            self.write(f"grow {name}", plan_partitions(self.cluster.image, [wanted], self.rng)[1])

    def set_config(self, name: str, key: str, value: str) -> None:
        if self.cluster.image.topic(name) is None:
            return
        record = m.ConfigRecord(resource_type=2, resource_name=name, name=key, value=value)
        self.write(f"{name} {key}={value}", [record, *elections.clear_elr(self.cluster.view.after([record]), [record])])

    def configure(self) -> None:
        self.set_config(self.rng.choice(["t", "u"]), "min.insync.replicas", str(self.rng.randint(1, 3)))

    def one(self) -> tuple[Key, PartitionImage]:
        return self.rng.choice(sorted(self.parts.items()))

    def alter_isr(self) -> None:
        """A leader that drops or takes some; now and then one that knows too little or too much."""
        key, part = self.one()
        if part.leader == -1:
            return
        brokers_now = self.cluster.image.brokers
        isr = [part.leader]
        for replica in part.replicas:
            keeps = replica in part.isr and self.rng.random() < 0.6
            fetches = self.can_lead(part, replica) or not self.cluster.image.is_active(replica)  # or did until just now
            joins = replica not in part.isr and fetches and self.rng.random() < 0.7
            if replica != part.leader and (keeps or joins):
                isr.append(replica)
        delta = self.rng.choice([0, 0, 0, 0, 1, -1])
        kind = m.AlterPartitionRequest
        item = kind.PartitionData(
            partition_index=key[1],
            leader_epoch=part.leader_epoch,
            partition_epoch=part.partition_epoch + delta,
            leader_recovery_state=0,
            new_isr_with_epochs=[
                kind.BrokerState(broker_id=one, broker_epoch=brokers_now[one].epoch if one in brokers_now else -1)
                for one in isr
            ],
        )
        asked = kind(
            broker_id=part.leader,
            broker_epoch=brokers_now[part.leader].epoch,
            topics=[kind.TopicData(topic_id=self.cluster.located(*key).topic.topic_id, partitions=[item])],
        )
        answer, records = plan_alter_partition(self.cluster.view, asked, 3)
        (result,) = answer.topics[0].partitions
        active = all(self.cluster.image.is_active(one) for one in isr)
        if result.error_code == ErrorCode.NEW_LEADER_ELECTED:
            assert is_moving(part)
        else:
            assert (result.error_code == ErrorCode.NONE) == (delta == 0 and active)
        if records:
            for replica in isr:  # nobody is proposed who has not caught up
                self.has[key][replica] = self.committed[key]
        else:
            assert result.error_code != ErrorCode.NONE or set(part.isr) == set(isr)
        self.write(f"isr of {key} to {isr}", records)
        if not result.error_code:
            now = self.parts[key]
            assert (result.leader_epoch, result.partition_epoch) == (now.leader_epoch, now.partition_epoch)
            assert tuple(result.isr) == now.isr

    def reassign(self) -> None:
        key, part = self.one()
        known = sorted(self.cluster.image.brokers)
        target: list[int] | None = self.rng.sample(known, self.rng.randint(1, min(3, len(known))))
        if is_moving(part) and self.rng.random() < 0.4:
            target = None
        kind = m.AlterPartitionReassignmentsRequest
        item = kind.ReassignablePartition(partition_index=key[1], replicas=target)
        answer, records = plan_reassignments(
            self.cluster.view, kind(topics=[kind.ReassignableTopic(name=key[0], partitions=[item])])
        )
        ((result,),) = [response.partitions for response in answer.responses]
        old_ones = set(part.replicas) - set(part.adding_replicas)
        lost = target is None and not set(part.isr) & old_ones
        assert bool(result.error_code) == (lost and not self.is_unclean(key[0]))
        self.write(f"move {key} to {target}", records, may_lose=[key] if lost else ())
        if target is None and not result.error_code:
            now = self.parts[key]
            assert (set(now.replicas), now.adding_replicas, now.removing_replicas) == (old_ones, (), ())
        elif target is not None:
            now = self.parts[key]
            assert set(now.replicas) - set(now.removing_replicas) == set(target)
            assert set(target) - set(part.replicas) <= set(now.adding_replicas)

    def elect(self) -> None:
        kind = self.rng.choice([elections.PREFERRED_TYPE, elections.UNCLEAN_TYPE])
        before = self.parts
        if kind == elections.UNCLEAN_TYPE:  # who asks for it has what it takes
            for key, part in before.items():
                if part.leader == -1:
                    self.committed[key] = 0
                    self.has[key] = dict.fromkeys(self.has[key], 0)
            allowed = [name for name in ("t", "u") if not self.is_unclean(name)]
            for name in allowed:
                self.set_config(name, "unclean.leader.election.enable", "true")
        _, records = elections.plan_elect_leaders(self.cluster.view, kind, None)
        self.write(f"elect {kind}", records)
        if kind == elections.UNCLEAN_TYPE:
            for name in allowed:
                self.set_config(name, "unclean.leader.election.enable", "false")
            for part in self.parts.values():
                assert part.leader != -1 or not [one for one in part.replicas if self.can_lead(part, one)]

    def balance(self) -> None:
        for plan in (elections.plan_preferred_leaders, elections.plan_unclean_leaders):
            more, records = plan(self.cluster.view)
            assert not more
            self.write(plan.__name__, records)
        for key, part in self.parts.items():
            first = part.replicas[0]
            assert part.leader == first or first not in part.isr or not self.can_lead(part, first)
            if self.is_unclean(key[0]) and part.leader == -1:
                assert not [one for one in part.replicas if self.can_lead(part, one)]

    def place_replicas(self) -> None:
        """A broker moves replicas from one of its directories to another; it may be fenced, of an epoch of before, or
        mean a directory that has failed, partitions that are not there, and such as it has no replica of."""
        if self.level < 17 or not self.cluster.image.brokers:
            return
        broker = self.rng.choice(list(self.cluster.image.brokers.values()))
        directory = self.rng.choice([*broker.directories, directory_id(broker.broker_id, 7)])
        kind = m.AssignReplicasToDirsRequest
        topics = [
            kind.TopicData(
                topic_id=topic.topic_id,
                partitions=[
                    kind.PartitionData(partition_index=number)
                    for number, part in enumerate(topic.partitions)
                    if broker.broker_id not in part.replicas or broker.is_online(part.directory_of(broker.broker_id))
                ],
            )
            for topic in self.cluster.image.topics_by_name.values()
        ]
        nowhere = kind.TopicData(topic_id=b"n" * 16, partitions=[kind.PartitionData(partition_index=0)])
        said = [kind.DirectoryData(id=directory, topics=[*topics, nowhere])]
        late = self.rng.random() < 0.2
        asked = kind(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch - late,
            directories=said,
        )
        before = self.parts
        answer, records = plan_assignments(self.cluster.view, asked)
        assert answer.error_code == (ErrorCode.STALE_BROKER_EPOCH if late else ErrorCode.NONE)
        self.write(f"directories of {broker.broker_id}", records, most=2)  # where it is, and that it is lost
        for key, part in self.parts.items():
            if late or broker.broker_id not in before[key].replicas:
                assert part == before[key]
        for directory_said in answer.directories:
            for topic_said in directory_said.topics:
                topic = self.cluster.image.topic_of_id(topic_said.topic_id)
                for item in topic_said.partitions:
                    code = ErrorCode(item.error_code)
                    if topic is None:
                        assert code is ErrorCode.UNKNOWN_TOPIC_ID
                        continue
                    key = topic.name, item.partition_index
                    has_it = broker.broker_id in before[key].replicas
                    assert code is (ErrorCode.NONE if has_it else ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    if broker.broker_id in self.parts[key].replicas:  # and not gone with a move that this has completed
                        assert self.parts[key].directory_of(broker.broker_id) == directory

    def step(self) -> None:
        often: list[Callable[[], None]] = [self.heartbeats, self.alter_isr, self.alter_isr, self.restart, self.reassign]
        seldom = [self.crash, self.pass_time, self.stop, self.elect, self.balance, self.configure, self.place_replicas]
        rare = [self.lose_directory, self.unregister, self.grow, self.change_controller]
        self.rng.choice(often * 4 + seldom * 2 + rare)()
        if self.rng.random() < 0.7:
            self.commit()


@pytest.mark.parametrize("seed", range(40))
def test_a_walk_loses_nothing_and_agrees_with_itself(seed: int) -> None:
    walk = Walk(seed)
    try:
        for _ in range(120):
            walk.step()
        walk.end()
    except AssertionError as error:
        raise AssertionError(f"elr={walk.elr} level={walk.level}, the last steps: {walk.done[-8:]}") from error


def test_walks_come_everywhere() -> None:
    """What the walks never reach they say nothing of."""
    seen: set[str] = set()
    for seed in range(40):
        walk = Walk(seed)
        for _ in range(120):
            walk.step()
            for part in walk.parts.values():
                seen |= {
                    name
                    for name, is_so in {
                        "no leader": part.leader == -1,
                        "eligible": bool(part.eligible_leader_replicas),
                        "last leader": bool(part.last_known_elr),
                        "recovering": part.leader_recovery_state == 1,
                        "adding": bool(part.adding_replicas),
                        "removing": bool(part.removing_replicas),
                        "empty isr": not part.isr,
                        "committed": max(walk.committed.values()) > 20,
                    }.items()
                    if is_so
                }
    assert len(seen) == 8
