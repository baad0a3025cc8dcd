"""What the controller plans, beside Apache Kafka's own PartitionChangeBuilder and StripedReplicaPlacer: the same records, field for field,
and the same replicas out of the same randomness."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_kafka
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "controller"))

from control_world import Cluster, directory_id
from fastq_broker.controller.elections import Election, PartitionChange
from fastq_broker.controller.placement import place

from fastq.protocol import messages as m
from fastq.protocol.uuid import uuid_to_str

BROKERS = range(1, 7)
CHANGES, PLACEMENTS = 4000, 200


class JavaRandom(random.Random):
    """java.util.Random and Collections.shuffle."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._state = (seed ^ 0x5DEECE66D) & ((1 << 48) - 1)

    def _next31(self) -> int:
        self._state = (self._state * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        return self._state >> 17

    def randrange(self, start: int, *more: Any, **named: Any) -> int:
        """nextInt(start)."""
        if start & -start == start:
            return (start * self._next31()) >> 31
        while True:
            bits = self._next31()
            value = bits % start
            if bits - value + (start - 1) < 1 << 31:
                return value

    def shuffle(self, x: Any) -> None:
        for size in range(len(x), 1, -1):
            other = self.randrange(size)
            x[size - 1], x[other] = x[other], x[size - 1]


def kafka(asked: Sequence[dict[str, Any]]) -> list[Any]:
    """The answers of Apache Kafka's classes."""
    command = ["java", "-cp", apache_kafka.class_path(), str(Path(__file__).with_name("ControllerPlans.java"))]
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    run = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def some(rng: random.Random, items: Sequence[int], most: int | None = None) -> list[int]:
    return rng.sample(list(items), rng.randint(0, min(len(items), most or len(items))))


def partition(rng: random.Random, elr: bool) -> dict[str, Any]:
    """A partition as the metadata may have it."""
    replicas = rng.sample(BROKERS, rng.randint(1, 4))
    isr = some(rng, replicas)
    if not isr and not elr:
        isr = replicas[:1]
    adding, removing = [], []
    if len(replicas) > 1 and rng.random() < 0.5:
        adding = some(rng, replicas, len(replicas) - 1)
        removing = some(rng, [one for one in replicas if one not in adding], max(1, len(replicas) - len(adding) - 1))
        removing = removing if set(removing) != set(replicas) else []
    leader = rng.choice([*isr, -1]) if isr else -1
    return {
        "replicas": replicas,
        "isr": isr,
        "adding": sorted(adding),
        "removing": sorted(removing),
        "elr": sorted(some(rng, [one for one in replicas if one not in isr])) if elr else [],
        "last": rng.sample(replicas, 1) if elr and leader == -1 and rng.random() < 0.7 else [],
        "leader": leader,
        "recovery": int(rng.random() < 0.2),
        "directories": [uuid_to_str(directory_id(one)) for one in replicas],
    }


def question(rng: random.Random) -> dict[str, Any]:
    """A partition, and what is wanted of it."""
    elr = rng.random() < 0.7
    old = partition(rng, elr)
    asked = {
        "partition": old,
        "level": 30 if elr else rng.choice([7, 11, 12, 16, 17, 30]),
        "elr": elr,
        "min_isr": rng.randint(1, 3),
        "election": rng.choice([election.name for election in Election]),
        "there": some(rng, BROKERS),
        "unclean": [],
        **{name: old[name] for name in ("isr", "replicas", "adding", "removing", "recovery")},
    }
    asked["min_isr"] = min(asked["min_isr"], len(old["replicas"]))
    kind = rng.choice(["leave", "unclean", "alter", "move", "cancel", "elect"])
    if kind in ("leave", "unclean"):
        gone = rng.choice(BROKERS)
        asked["isr"] = [one for one in old["isr"] if one != gone]
        asked["there"] = [one for one in asked["there"] if one != gone]
        asked["unclean"] = [gone] if kind == "unclean" else []
    elif kind == "alter":
        asked["isr"] = some(rng, old["replicas"]) or old["replicas"][:1]
        asked["recovery"] = 0
    elif kind == "move":
        target = rng.sample(BROKERS, rng.randint(1, 4))
        asked["removing"] = sorted(set(old["replicas"]) - set(target))
        asked["adding"] = sorted(set(target) - set(old["replicas"]))
        asked["replicas"] = target + asked["removing"]
    elif kind == "cancel":
        asked["replicas"] = [one for one in old["replicas"] if one not in old["adding"]]
        asked["isr"] = [one for one in old["isr"] if one not in old["adding"]] or asked["replicas"][:1]
        asked["adding"] = asked["removing"] = []
    return asked


def ours(asked: dict[str, Any]) -> m.PartitionChangeRecord | None:
    old = asked["partition"]
    cluster = Cluster(elr=asked["elr"], level=asked["level"], min_isr=asked["min_isr"])
    for broker_id in BROKERS:
        cluster.broker(
            broker_id,
            fenced=broker_id not in asked["there"],
            log_dirs=[directory_id(broker_id), directory_id(broker_id, 1)],
        )
    found = cluster.partition(
        replicas=old["replicas"],
        isr=old["isr"],
        leader=old["leader"],
        adding_replicas=old["adding"],
        removing_replicas=old["removing"],
        eligible_leader_replicas=old["elr"],
        last_known_elr=old["last"],
        leader_recovery_state=old["recovery"],
    )
    change = PartitionChange(cluster.view, found)
    change.election = Election[asked["election"]]
    for name in ("isr", "replicas", "adding", "removing", "unclean", "recovery"):
        setattr(change, name, asked[name])
    return change.build()


FIELDS = {
    "isr": "isr",
    "leader": "leader",
    "replicas": "replicas",
    "removingReplicas": "removing_replicas",
    "addingReplicas": "adding_replicas",
    "leaderRecoveryState": "leader_recovery_state",
    "directories": "directories",
    "eligibleLeaderReplicas": "eligible_leader_replicas",
    "lastKnownElr": "last_known_elr",
}


def as_fields(record: m.PartitionChangeRecord | None) -> dict[str, Any] | None:
    """What a record changes, in the names and forms of Apache Kafka's JSON."""
    if record is None:
        return None
    unchanged = m.PartitionChangeRecord()
    values = {
        theirs: getattr(record, name)
        for theirs, name in FIELDS.items()
        if getattr(record, name) != getattr(unchanged, name)
    }
    if "directories" in values:
        values["directories"] = [uuid_to_str(directory) for directory in values["directories"]]
    return values


def departs(asked: dict[str, Any], record: dict[str, Any] | None) -> bool:
    """Where we mean to differ: Apache Kafka's ELR keeps who is no replica, its last known leader may be nobody (-1) or no replica, and it
    forgets who was in sync last where nobody had led."""
    old, new = asked["partition"], record or {}
    replicas = set(new.get("replicas", old["replicas"]))
    eligible = set(new.get("eligibleLeaderReplicas", old["elr"]))
    forgotten = new.get("isr") == [] and old["leader"] == -1 and not old["last"]
    return not eligible <= replicas or new.get("lastKnownElr") == [-1] or not set(old["last"]) <= replicas or forgotten


def needs_kafka() -> None:
    reason = apache_kafka.available()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.kafka
def test_changes_of_partitions_are_apache_kafkas() -> None:
    needs_kafka()
    rng = random.Random(20)
    asked = [question(rng) for _ in range(CHANGES)]
    compared = 0
    for one, theirs in zip(asked, kafka(asked), strict=True):
        record = {name: theirs[name] for name in FIELDS if theirs and name in theirs} if theirs else None
        if not departs(one, record):
            assert as_fields(ours(one)) == record, one
            compared += 1
    assert compared > CHANGES * 0.8


@pytest.mark.kafka
def test_placements_are_apache_kafkas() -> None:
    needs_kafka()
    rng = random.Random(21)
    asked = []
    for seed in range(PLACEMENTS):
        brokers = [[one, rng.choice([None, "A", "B", "C"]), rng.random() < 0.3] for one in range(rng.randint(1, 9))]
        brokers[0][2] = False
        asked.append({"brokers": brokers, "count": 30, "factor": rng.randint(1, len(brokers)), "seed": seed})
    for one, theirs in zip(asked, kafka(asked), strict=True):
        cluster = Cluster()
        for broker_id, rack, fenced in one["brokers"]:
            cluster.broker(broker_id, rack=rack, fenced=fenced)
        found = place(cluster.image.brokers.values(), one["count"], one["factor"], JavaRandom(one["seed"]))
        assert [list(replicas) for replicas in found] == theirs, one
