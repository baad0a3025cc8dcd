"""Three nodes with real logs, handlers and fetchers, random produces, elections, restarts and delays: what is acknowledged survives, and
logs agree."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fastq_broker.log import LogConfig
from shared_bench import LAG_MS, Answer, Bench, Node

SEEDS = 12


def leader_of(bench: Bench) -> Node:
    return bench.nodes[bench.placed.leader]


def epochs_with_records(node: Node) -> list[tuple[int, int]]:
    return [entry for entry in node.log.epochs.entries() if entry[1] < node.log.log_end_offset]


def step(bench: Bench, random: Random, waiting: list[tuple[bytes, Answer]], number: int) -> None:
    draw = random.random()
    node = random.choice(list(bench.nodes.values()))
    if draw < 0.25:
        value = b"%d" % number
        waiting.append((value, leader_of(bench).produce(value, timeout_ms=60_000)))
    elif draw < 0.7:
        node.turn()
    elif draw < 0.85:
        bench.loop.pass_time(random.choice((0.0, 0.1, 0.6)))
    elif draw < 0.9:
        bench.loop.pass_time(LAG_MS / 1000 * random.random())
        leader_of(bench).replication.check()
    elif draw < 0.95:
        leader_of(bench).grant()
    elif draw < 0.97:
        if any(n != node.node_id for n in bench.placed.isr):
            bench.restart(node.node_id, checkpoint=random.random() < 0.5)
    elif len(bench.placed.isr) > 1:
        leader = random.choice([n for n in bench.placed.isr if n != bench.placed.leader])
        isr = tuple(n for n in bench.placed.isr if n != bench.placed.leader or random.random() < 0.5)
        bench.elect(leader, isr)


def look(bench: Bench, random: Random, seen: list[bytes]) -> None:
    """What consumers see anywhere is one history: nothing of it is taken back or changed."""
    values = random.choice(list(bench.nodes.values())).values()
    shared = min(len(values), len(seen))
    assert values[:shared] == seen[:shared], "readers saw two histories"
    seen += values[shared:]


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_acknowledged_records_survive_elections(tmp_path: Path, durability: str) -> None:
    acknowledged = elections = 0
    for seed in range(SEEDS):
        random = Random(seed)
        bench = Bench(tmp_path / str(seed), nodes=3, config=LogConfig(durability=durability), min_isr=2)
        waiting: list[tuple[bytes, Answer]] = []
        seen: list[bytes] = []
        for number in range(150):
            step(bench, random, waiting, number)
            look(bench, random, seen)
        for _ in range(4):
            bench.loop.pass_time(2.0)
            bench.settle()
        values = leader_of(bench).values()
        assert values[: len(seen)] == seen, f"seed {seed}"
        kept = [value for value, answer in waiting if answer.done and answer.code == 0]
        assert [value for value in values if value in set(kept)] == kept, f"seed {seed}"
        assert bench.placed.isr == (1, 2, 3), f"seed {seed}"
        for node in bench.nodes.values():
            assert node.values() == values, f"seed {seed}, node {node.node_id}"
            assert epochs_with_records(node) == epochs_with_records(leader_of(bench)), f"seed {seed}"
        acknowledged += len(kept)
        elections += bench.placed.leader_epoch
    assert acknowledged > 10 * SEEDS
    assert elections > 2 * SEEDS
