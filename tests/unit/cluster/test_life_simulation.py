"""Channel and life of a broker under controllers that die, move, answer late and forget: in the end it runs, as the only one."""

from __future__ import annotations

import os

import pytest
from fastq_broker.cluster.lifecycle import BrokerState
from life_world import CONTROLLERS, Controller, PlannedController, World, outcome

SEEDS = range(400 if os.environ.get("FASTQ_SOAK") == "1" else 60)


def is_well(world: World) -> bool:
    process, found = world.processes[-1], outcome(world.history)
    return (
        process.life.state is BrokerState.RUNNING
        and found is not None
        and (found.incarnation, found.epoch) == (process.incarnation, process.life.epoch)
        and not found.fenced
        and process.ports == 1
    )


def test_without_faults_a_broker_runs_in_seconds() -> None:
    world = World(1)
    world.elect(CONTROLLERS[0])
    world.start_process()
    assert world.run(10, lambda: is_well(world)), world.history
    assert [record.kind for record in world.history] == ["register", "unfence"]


def test_a_second_process_of_the_same_id_has_to_wait_for_the_end_of_the_first() -> None:
    world = World(2)
    world.elect(CONTROLLERS[0])
    world.tick()
    first = world.start_process()
    assert world.run(10, lambda: is_well(world))
    second = world.start_process()
    assert not world.run(30, lambda: is_well(world))
    assert first.life.state is BrokerState.RUNNING and second.life.state is BrokerState.STARTING
    first.dead = True
    assert world.run(30, lambda: is_well(world))


def test_a_process_that_wakes_up_after_another_has_taken_its_place_stays_out_while_that_lives() -> None:
    world = World(3)
    world.elect(CONTROLLERS[0])
    world.tick()
    first = world.start_process()
    assert world.run(10, lambda: is_well(world))
    world.restart_process(hang_s=25)
    assert world.run(24, lambda: is_well(world))
    history = list(world.history)
    world.run(100)
    assert world.history == history and is_well(world)
    second = world.processes[-1]
    assert first.life.epoch < second.life.epoch
    second.dead = True
    assert world.run(
        30, lambda: world.history[-1].incarnation == first.incarnation and world.history[-1].kind == "unfence"
    )


@pytest.mark.parametrize("controller", [Controller, PlannedController])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_broker_runs_in_the_end_and_never_twice(seed: int, controller: type[Controller]) -> None:
    world = World(seed, controller)
    world.elect()
    world.tick()
    world.start_process()
    world.watch()
    world.loss = world.random.choice([0.0, 0.05, 0.3])
    for _ in range(12):
        world.run(world.random.uniform(0.1, 15))
        what = world.random.choice(["elect", "kill", "restart", "hang", "calm"])
        if what == "elect" and world.leader is not None:
            world.elect()
        elif what == "kill":
            world.kill_controller()
        elif what == "restart":
            world.restart_process()
        elif what == "hang":
            world.restart_process(hang_s=world.random.uniform(1, 40))
    world.loss = 0.0
    for process in world.processes[:-1]:
        process.dead = True
    assert world.run(150, lambda: is_well(world)), f"seed {seed}: {world.history}"
    world.run(30)
    assert is_well(world), f"seed {seed}: it does not stay so"
    process = world.processes[-1]
    process.event(lambda: process.life.shut_down(world.now))
    assert world.run(30, lambda: process.life.state is BrokerState.SHUTTING_DOWN), f"seed {seed}"
    found = outcome(world.history)
    assert found is not None and found.fenced, f"seed {seed}: it went without being let go"
