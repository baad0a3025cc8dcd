"""The supervisor of several nodes, a rule a test: on a clock and with processes of the test's own, and once with real ones."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fastq_broker.cluster import supervisor
from fastq_broker.cluster.supervisor import (
    AllReady,
    Finished,
    NodePlan,
    NodeState,
    Signal,
    Spawn,
    Supervision,
    Supervisor,
    SupervisorConfig,
    marked,
    marked_json,
    plan_nodes,
    run_nodes,
)

TERM, KILL, HUP = signal.SIGTERM, signal.SIGKILL, signal.SIGHUP
PLANS = plan_nodes(3, "data", "127.0.0.1", 9092)
ONE, TWO, THREE = PLANS


def test_each_node_has_a_directory_and_ports_of_its_own() -> None:
    assert [(plan.node_id, plan.name, plan.data_dir, plan.address, plan.controller_port) for plan in PLANS] == [
        (1, "node-1", os.path.join("data", "node-1"), "127.0.0.1:9092", 9095),
        (2, "node-2", os.path.join("data", "node-2"), "127.0.0.1:9093", 9096),
        (3, "node-3", os.path.join("data", "node-3"), "127.0.0.1:9094", 9097),
    ]
    assert plan_nodes(1, "d", "::1", 9092)[0].address == "[::1]:9092"
    assert plan_nodes(3, "d", "h", 65530)[-1].controller_port == 65535
    assert [plan.controller_port for plan in plan_nodes(5, "d", "h", 9092)] == [9097, 9098, 9099, None, None]
    assert plan_nodes(100, "d", "h", 65433)[2].controller_port == 65535
    for count, port in ((0, 9092), (3, 0), (3, 65531)):
        with pytest.raises(ValueError, match="--nodes"):
            plan_nodes(count, "d", "h", port)


def started(**config: Any) -> Supervision:
    supervision = Supervision(PLANS, SupervisorConfig(**config))
    assert supervision.poll(0.0) == [Spawn(plan) for plan in PLANS]
    return supervision


def all_ready(**config: Any) -> Supervision:
    supervision = started(**config)
    for plan in PLANS:
        supervision.ready(plan)
    assert supervision.poll(0.0) == [AllReady()]
    return supervision


def test_one_line_says_that_all_are_ready() -> None:
    supervision = started()
    supervision.ready(ONE)
    supervision.ready(ONE)
    supervision.ready(THREE)
    assert supervision.poll(0.0) == []
    supervision.ready(TWO)
    assert supervision.poll(0.0) == [AllReady()]
    supervision.ended(TWO, 1, 1.0)
    assert supervision.poll(2.0) == [Spawn(TWO)]
    supervision.ready(TWO)
    assert supervision.poll(2.0) == []


def test_a_node_that_was_ready_once_and_died_is_not_ready() -> None:
    supervision = started()
    supervision.ready(ONE)
    supervision.ended(ONE, 1, 0.0)
    supervision.ready(TWO)
    supervision.ready(THREE)
    supervision.ready(ONE)  # a line that came late, of the process that has ended
    assert supervision.poll(0.5) == [] and supervision.state_of(ONE) is NodeState.WAITING


def test_a_node_that_dies_is_started_again_after_pauses_that_double() -> None:
    supervision = all_ready(pause_s=1.0, pause_max_s=5.0)
    now, pauses = 0.0, []
    for _ in range(5):
        supervision.ended(TWO, -9, now)
        pauses.append(supervision.next_wakeup() - now)
        assert supervision.poll(now + pauses[-1] - 0.01) == []
        now = supervision.next_wakeup()
        assert supervision.poll(now) == [Spawn(TWO)]
    assert pauses == [1, 2, 4, 5, 5]


def test_a_node_that_has_run_for_a_while_begins_with_the_first_pause_again() -> None:
    supervision = all_ready(steady_s=60.0)
    for now, pause in ((0.0, 1.0), (10.0, 2.0), (72.0, 1.0), (74.0, 2.0)):
        supervision.ended(ONE, 1, now)
        assert supervision.next_wakeup() == now + pause
        supervision.poll(now + pause)


def test_a_configuration_that_is_wrong_ends_all_at_once() -> None:
    supervision = started()
    supervision.ended(TWO, 2, 0.1)
    assert supervision.poll(0.1) == [Signal(THREE, TERM), Signal(ONE, TERM)]
    supervision.ended(ONE, 0, 0.2)
    supervision.ended(THREE, 1, 0.2)
    assert supervision.poll(0.2) == [Finished(2)]


def test_a_node_that_was_ready_before_is_started_again_whatever_its_code() -> None:
    supervision = all_ready()
    supervision.ended(TWO, 2, 0.1)
    assert supervision.poll(1.1) == [Spawn(TWO)]


def test_nodes_stop_one_at_a_time_the_last_one_first_while_a_majority_of_the_controllers_is_left() -> None:
    plans = plan_nodes(5, "data", "127.0.0.1", 9092)
    supervision = Supervision(plans)
    supervision.poll(0.0)
    supervision.signalled(TERM)
    for now, plan in enumerate((plans[4], plans[3], plans[2])):
        assert supervision.poll(float(now)) == [Signal(plan, TERM)]
        assert supervision.poll(now + 0.5) == [] and supervision.state_of(plan) is NodeState.STOPPING
        supervision.ended(plan, 0, now + 0.9)
    assert supervision.poll(3.0) == [Signal(plans[1], TERM), Signal(plans[0], TERM)]
    assert supervision.poll(3.0) == []
    supervision.ended(plans[1], 0, 3.5)
    assert supervision.poll(3.5) == [Signal(plans[0], TERM)]  # there is nobody to let it go
    assert supervision.poll(3.6) == []
    supervision.ended(plans[0], 0, 3.7)
    assert supervision.poll(4.0) == [Finished(0)]
    assert supervision.poll(5.0) == [] and supervision.next_wakeup() == float("inf")


@pytest.mark.parametrize("count", [1, 2])
def test_nodes_that_are_no_majority_without_each_other_stop_together(count: int) -> None:
    plans = plan_nodes(count, "data", "127.0.0.1", 9092)
    supervision = Supervision(plans)
    supervision.poll(0.0)
    supervision.signalled(TERM)
    assert supervision.poll(0.0) == [Signal(plan, TERM) for plan in reversed(plans)]


def test_a_second_signal_stops_the_others_at_once() -> None:
    supervision = all_ready()
    supervision.signalled(signal.SIGINT)
    assert supervision.poll(0.0) == [Signal(THREE, TERM)]
    supervision.signalled(signal.SIGINT)
    assert supervision.poll(1.0) == [Signal(TWO, TERM), Signal(ONE, TERM)]
    supervision.ended(TWO, 0, 1.5)
    supervision.signalled(signal.SIGINT)
    assert supervision.poll(2.0) == [Signal(THREE, KILL), Signal(ONE, KILL)]
    supervision.signalled(signal.SIGINT)
    assert supervision.poll(2.0) == []


def test_brokers_go_one_at_a_time_before_the_controllers_without_which_they_could_not() -> None:
    plans = plan_nodes(6, "data", "127.0.0.1", 9092)
    supervision = Supervision(plans)
    supervision.poll(0.0)
    supervision.ended(plans[1], 1, 0.0)  # of three controllers two are left
    supervision.signalled(TERM)
    for plan in (plans[5], plans[4], plans[3]):
        assert supervision.poll(1.0) == [Signal(plan, TERM)] and supervision.poll(1.0) == []
        supervision.ended(plan, 0, 1.0)
    assert supervision.poll(2.0) == [Signal(plans[2], TERM), Signal(plans[0], TERM)]


def test_without_a_majority_of_controllers_nobody_waits_for_another() -> None:
    plans = plan_nodes(5, "data", "127.0.0.1", 9092)
    supervision = Supervision(plans)
    supervision.poll(0.0)
    for plan in plans[1:3]:
        supervision.ended(plan, 1, 0.0)
    supervision.signalled(TERM)
    assert supervision.poll(1.0) == [Signal(plan, TERM) for plan in (plans[4], plans[3], plans[0])]


def test_who_does_not_stop_in_time_is_killed_and_the_next_one_is_its_turn() -> None:
    supervision = all_ready(stop_timeout_s=60.0)
    supervision.signalled(TERM)
    supervision.poll(0.0)
    assert supervision.next_wakeup() == 60.0 and supervision.poll(59.9) == []
    assert supervision.poll(60.0) == [Signal(THREE, KILL)]
    assert supervision.poll(200.0) == []
    supervision.ended(THREE, -9, 200.0)
    assert supervision.poll(200.0) == [Signal(TWO, TERM), Signal(ONE, TERM)]
    for plan in (TWO, ONE):
        supervision.ended(plan, 0, 201.0)
    assert supervision.poll(201.0) == [Finished(1)]


def test_a_node_that_waits_to_be_started_needs_no_stopping() -> None:
    supervision = all_ready()
    supervision.ended(THREE, 1, 0.0)
    supervision.signalled(TERM)
    assert supervision.poll(0.0) == [Signal(TWO, TERM), Signal(ONE, TERM)]
    supervision.ended(ONE, 0, 0.1)
    supervision.ended(TWO, 0, 0.2)
    assert supervision.poll(5.0) == [Finished(0)]


def test_a_node_that_ends_by_itself_during_the_stop_is_not_started_again() -> None:
    supervision = all_ready()
    supervision.signalled(TERM)
    supervision.poll(0.0)
    supervision.ended(ONE, 0, 0.1)  # it was not its turn yet
    assert supervision.poll(5.0) == [Signal(TWO, TERM)]
    for plan in (THREE, TWO):
        supervision.ended(plan, 0, 6.0)
    assert supervision.poll(6.0) == [Finished(0)]


def test_who_is_stopped_before_it_takes_signals_ends_by_the_signal_and_well() -> None:
    """A Ctrl-C while the nodes load their modules is no failure of theirs."""
    supervision = started()
    supervision.signalled(signal.SIGINT)
    supervision.poll(0.0)
    for plan in (THREE, TWO, ONE):
        supervision.ended(plan, -TERM, 0.5)
        effects = supervision.poll(0.5)
    assert effects[-1] == Finished(0)


def test_a_hang_up_is_passed_on_to_those_that_are_ready() -> None:
    supervision = all_ready()
    supervision.ended(TWO, 1, 0.0)
    supervision.signalled(HUP)
    assert supervision.poll(0.0) == [Signal(ONE, HUP), Signal(THREE, HUP)]
    assert supervision.poll(60.0) == [Spawn(TWO)]
    supervision.signalled(HUP)
    assert supervision.poll(60.0) == [Signal(ONE, HUP), Signal(THREE, HUP)], "one that begins would end by it"
    assert supervision.state_of(ONE) is NodeState.RUNNING


def test_an_end_that_is_told_twice_counts_once() -> None:
    supervision = all_ready()
    supervision.ended(TWO, 1, 0.0)
    supervision.ended(TWO, 1, 0.5)
    assert supervision.next_wakeup() == 1.0


def test_lines_of_json_stay_json() -> None:
    assert marked_json(ONE, b'{"time": 1}') == b'{"node": "node-1", "time": 1}\n'
    for line in (b"fastq-broker: cannot start", b"{}", b""):
        assert marked_json(ONE, line) == marked(ONE, line) == b"node-1 | " + line + b"\n"


# -- in a loop, with processes of our own


class FakeChild:
    """A process of the test's: it says what it is told to say, and ends by SIGTERM unless it is deaf."""

    def __init__(self, name: str, world: FakeWorld) -> None:
        self.name, self.world = name, world
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self.code = asyncio.get_running_loop().create_future()

    def send_signal(self, number: int) -> None:
        self.world.signals.append((self.name, number))
        if self.code.done():
            raise ProcessLookupError
        if number == KILL or (number == TERM and self.name not in self.world.deaf):
            self.end(0 if number == TERM else -number)

    def end(self, code: int) -> None:
        self.stdout.feed_eof()
        self.stderr.feed_eof()
        self.code.set_result(code)

    async def wait(self) -> int:
        code: int = await self.code
        return code


class FakeWorld:
    def __init__(self) -> None:
        self.children: list[FakeChild] = []
        self.signals: list[tuple[str, int]] = []
        self.deaf: set[str] = set()
        self.refuses = 0
        self.now = 0.0
        self.on_signal: Callable[[signal.Signals], None]
        self.out, self.err = io.BytesIO(), io.BytesIO()

    async def start(self, argv: Sequence[str]) -> FakeChild:
        if self.refuses:
            self.refuses -= 1
            raise OSError("no more processes")
        child = FakeChild(argv[-1], self)
        self.children.append(child)
        return child

    def take(self, on_signal: Callable[[signal.Signals], None]) -> None:
        self.on_signal = on_signal

    def supervise(self, **config: Any) -> asyncio.Task[int]:
        work = Supervisor(
            Supervision(PLANS, SupervisorConfig(**config)),
            lambda plan: ["node", plan.name],
            start=self.start,
            signals=self.take,
            clock=lambda: self.now,
            out=self.out,
            err=self.err,
        )
        return asyncio.ensure_future(work.run())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_driver_starts_prefixes_restarts_and_stops() -> None:
    async def scenario() -> None:
        world = FakeWorld()
        world.deaf = {"node-1"}
        run = world.supervise(pause_s=0.0, stop_timeout_s=0.0)
        await turns()
        assert [child.name for child in world.children] == ["node-1", "node-2", "node-3"]
        for child in world.children:
            child.stdout.feed_data(b"ready on 127.0.0.1\nmore\n")
            await turns()
            child.stdout.feed_data(b"and more\n")
            child.stderr.feed_data(b"a li")
            child.stderr.feed_data(b"ne\nanother\n")
        await turns()
        assert (
            world.out.getvalue() == b"fastq-broker ready: 3 nodes on 127.0.0.1:9092, 127.0.0.1:9093, 127.0.0.1:9094\n"
        )
        lines = world.err.getvalue().splitlines()
        assert sorted(lines) == sorted(
            f"node-{number} | {text}".encode()
            for number in (1, 2, 3)
            for text in ("more", "and more", "a line", "another")
        )
        world.children[1].stderr.feed_data(b"last words")
        world.refuses = 1  # the first try to start it again fails too
        world.children[1].end(-11)
        await turns(60)
        assert world.err.getvalue().endswith(b"node-2 | last words\n")
        await asyncio.sleep(0.001)
        await turns(60)
        assert [child.name for child in world.children[3:]] == ["node-2"]
        world.children[3].stdout.feed_data(b"ready again\n")
        await turns()
        world.on_signal(HUP)
        assert {name for name, number in world.signals if number == HUP} == {"node-1", "node-2", "node-3"}
        world.on_signal(TERM)
        code = await asyncio.wait_for(run, 10)
        ended = [(name, number) for name, number in world.signals if number != HUP]
        assert ended[0] == ("node-3", TERM) and ended.index(("node-2", TERM)) < ended.index(("node-1", TERM))
        assert ended[-1] == ("node-1", KILL) and code == 1
        assert world.out.getvalue().count(b"\n") == 1

    asyncio.run(scenario())


def test_a_line_without_an_end_is_written_in_pieces() -> None:
    async def scenario() -> None:
        world = FakeWorld()
        run = world.supervise()
        await turns()
        world.children[0].stderr.feed_data(b"x" * (supervisor.LINE_BYTES_MAX + 1))
        await turns()
        assert b"node-1 | xxx" in world.err.getvalue()
        world.on_signal(TERM)
        assert await asyncio.wait_for(run, 10) == 0

    asyncio.run(scenario())


def test_a_signal_that_comes_while_a_process_is_being_started_reaches_it() -> None:
    async def scenario() -> None:
        world = FakeWorld()
        run = world.supervise()
        await asyncio.sleep(0)  # the supervisor runs, its processes are not there yet
        assert world.children == []
        world.on_signal(TERM)
        world.on_signal(TERM)
        assert await asyncio.wait_for(run, 10) == 0
        assert set(world.signals) == {("node-1", TERM), ("node-2", TERM), ("node-3", TERM)}

    asyncio.run(scenario())


def test_what_a_node_has_left_behind_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LAST_WORDS_S", 0.0)

    async def scenario() -> None:
        world = FakeWorld()
        run = world.supervise()
        await turns()
        orphaned = world.children[0]
        orphaned.code.set_result(-9)  # its pipes stay open: a process of its own holds them
        world.on_signal(TERM)
        assert await asyncio.wait_for(run, 10) == 1
        await turns()
        orphaned.stderr.feed_data(b"a ghost\n")
        await turns()
        assert b"ghost" not in world.err.getvalue()

    asyncio.run(scenario())


def test_a_signal_to_a_process_that_has_just_ended_is_let_be() -> None:
    async def scenario() -> None:
        world = FakeWorld()
        run = world.supervise()
        await turns()
        world.children[0].stdout.feed_data(b"ready\n")
        await turns()
        world.children[0].end(0)
        world.on_signal(HUP)  # its end is not known here yet
        assert ("node-1", HUP) in world.signals
        world.on_signal(TERM)
        assert await asyncio.wait_for(run, 10) == 0

    asyncio.run(scenario())


def test_a_supervisor_that_is_cancelled_leaves_no_node_behind() -> None:
    async def scenario() -> None:
        world = FakeWorld()
        run = world.supervise()
        await turns()
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        await turns()
        assert {name for name, number in world.signals if number == TERM} == {"node-1", "node-2", "node-3"}

    asyncio.run(scenario())


def test_nobody_to_read_the_log_stops_no_node() -> None:
    tried: list[Any] = []

    class Gone(io.BytesIO):
        def write(self, data: Any) -> int:
            tried.append(data)
            raise BrokenPipeError

    async def scenario() -> None:
        world = FakeWorld()
        world.err = Gone()
        run = world.supervise()
        await turns()
        for _ in range(2):  # what it says is read on: a full pipe would stop it
            world.children[0].stderr.feed_data(b"a line\n")
            await turns()
        assert tried == [b"node-1 | a line\n"] * 2
        world.on_signal(TERM)
        assert await asyncio.wait_for(run, 10) == 0

    asyncio.run(scenario())


# -- real processes

NODE = """
import os, signal, sys, time
name, mark = sys.argv[1:]
print("up", name, file=sys.stderr, flush=True)
if name == "node-2" and not os.path.exists(mark):
    open(mark, "w").close()
    os._exit(7)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # at once: who is without a majority is told twice
print("ready", flush=True)
while True:
    time.sleep(60)
"""


class StopsWhenReady(io.BytesIO):
    """A standard output whose reader ends the supervisor once it is ready."""

    def write(self, data: Any) -> int:
        os.kill(os.getpid(), TERM)
        return super().write(data)


@pytest.mark.slow
def test_real_processes_start_die_come_back_and_stop(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    out, err = StopsWhenReady(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err))
    code = run_nodes(
        PLANS,
        lambda plan: [sys.executable, "-c", NODE, plan.name, str(tmp_path / "died")],
        SupervisorConfig(pause_s=0.01, stop_timeout_s=20),
    )
    assert code == 0
    assert out.getvalue().startswith(b"fastq-broker ready: 3 nodes") and out.getvalue().count(b"\n") == 1
    lines = err.getvalue().splitlines()
    assert lines.count(b"node-2 | up node-2") == 2 and lines.count(b"node-1 | up node-1") == 1
    assert "node-2: its process ended with code 7; it is started again" in caplog.text
    assert "one at a time" in caplog.text


ENDED = """
import os, signal, sys
from fastq_broker.cluster.supervisor import plan_nodes, run_nodes
from fastq_broker.signals import HELD, hold_signals

node = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit()); print('up', flush=True); signal.pause()"
code = run_nodes(plan_nodes(1, "data", "h", 1), lambda plan: [sys.executable, "-c", node], at_end=hold_signals)
for number in HELD:
    os.kill(os.getpid(), number)
sys.exit(code)
"""


def test_a_signal_at_the_very_end_does_not_change_how_it_ends() -> None:
    """A reload, or an impatient second Ctrl-C, while the process of all nodes ends."""
    with subprocess.Popen([sys.executable, "-c", ENDED], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline().startswith(b"fastq-broker ready")
        process.send_signal(TERM)
        assert process.wait(60) == 0


def test_a_nodes_standard_input_ends_with_the_supervisor_alone() -> None:
    async def scenario() -> None:
        child = await supervisor.start_child(
            [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
        )
        assert child.stdout is not None and await child.stdout.readline() == b"up\n"
        child._process.stdin.close()  # type: ignore[attr-defined]  # what its death would do
        assert await asyncio.wait_for(child.wait(), 30) == 0

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_command_that_does_not_exist_is_tried_again_and_said(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    tried: list[NodePlan] = []

    async def scenario() -> int:
        world = FakeWorld()

        async def start(argv: Sequence[str]) -> Any:
            tried.append(ONE)
            if len(tried) == 3:
                world.on_signal(TERM)
            return await supervisor.start_child(argv)

        work = Supervisor(
            Supervision([ONE], SupervisorConfig(pause_s=0.001)),
            lambda plan: [str(tmp_path / "no-such-program")],
            start=start,
            signals=world.take,
            out=world.out,
            err=world.err,
        )
        return await asyncio.wait_for(work.run(), 20)

    assert asyncio.run(scenario()) == 1
    assert len(tried) == 3 and "node-1 cannot be started" in caplog.text
