"""Several nodes by one command: `fastq-broker --nodes N` starts each as a process of its own, and keeps it running.

    starting    started, its ready line has not come      -> running with it
    running                                               -> waiting when it ends by itself
    waiting     ended, started again after a pause        -> starting
    stopping    told to end, killed when it takes long    -> ended
    ended

Rules
- A node says that it is ready with the first line of its standard output; when all have, this process says so, once, with one of its own.
- A node that ends by itself is started again, after a pause that doubles with each time, and begins anew once it has run for a while.
  One that ends with a code that no other start will mend (its configuration is wrong) ends them all, before all were ready.
- The first three nodes are controllers. SIGTERM and SIGINT stop the nodes one at a time, the last one first, so that each can hand over
  what it leads, while a majority of the controllers is left: without one nobody would let the next node go, so the last ones stop
  together, and who is left without a majority is told once more, which is to say that there is nobody to hand over to.
- The same signal again stops all that are left at once, and once more kills them. Who does not end in time is killed. SIGHUP is
  passed on to those that are ready: one that begins knows no signal yet, and would end by it.
  Nodes have sessions of their own: a terminal's Ctrl-C reaches them through here alone.
- What a node logs goes to standard error, each line behind the node's name (JSON: with it).
- A node's standard input is a pipe that ends with this process, however that ends: so does the node then (`--supervised`).
- A process is ended by its pid, while it is ours to wait for: never by a name, never a group.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import BinaryIO, Protocol

from fastq.values import NamedTuple, Value
from fastq_broker import hang_ups
from fastq_broker.exit_codes import FAILED, OK, WRONG_USAGE
from fastq_broker.service_manager import ServiceManager
from fastq_broker.turns import NEVER, Turns

logger = logging.getLogger(__name__)

NOT_STARTED = -1
"""The code of a process that could not be started."""
PIECE_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 16
"""A longer line of a node's log is written in pieces."""
LAST_WORDS_S = 1.0
"""How long the log of a node that has ended is read on: a process that it has left behind may hold the pipe."""
ENDING = (signal.SIGTERM, signal.SIGINT)
CONTROLLERS_MAX = 3
"""Two of three are a majority; a quorum of more would only be slower."""


class NodePlan(NamedTuple):
    """A node's place: its id and name, where its data is, its port for clients, and that of its controller, None where it is a broker
    only."""

    node_id: int
    name: str
    data_dir: str
    host: str
    port: int
    controller_port: int | None

    @property
    def address(self) -> str:
        """Where clients find it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def plan_nodes(count: int, data_dir: str, host: str, first_port: int) -> list[NodePlan]:
    """Nodes 1 to `count`, each in a directory of its own below `data_dir`. Their ports for clients are `count` from `first_port` on, those
    of controllers follow. Raises ValueError when there are no such ports."""
    if count < 1:
        raise ValueError(f"--nodes {count}: it takes 1 or more")
    ports = count + min(count, CONTROLLERS_MAX)
    if not 0 < first_port <= 65536 - ports:
        raise ValueError(
            f"--nodes {count} takes the {ports} ports from {first_port} on: the first one lies between 1 and {65536 - ports}"
        )
    return [
        NodePlan(
            number,
            f"node-{number}",
            os.path.join(data_dir, f"node-{number}"),
            host,
            first_port + number - 1,
            first_port + count + number - 1 if number <= CONTROLLERS_MAX else None,
        )
        for number in range(1, count + 1)
    ]


# -- what to do


class SupervisorConfig(Value, kw_only=True):
    """Patience, in seconds. `steady_s`: who has run for so long begins with the first pause again; `stop_timeout_s`: how long one node may
    take to stop, one that hands over and writes down included; `hopeless`: codes that another start does not mend."""

    pause_s: float = 1.0
    pause_max_s: float = 30.0
    steady_s: float = 60.0
    stop_timeout_s: float = 60.0
    hopeless: frozenset[int] = frozenset({WRONG_USAGE})


class Spawn(NamedTuple):
    """Start a node."""

    plan: NodePlan


class Signal(NamedTuple):
    """Send a signal to a node."""

    plan: NodePlan
    number: signal.Signals


class AllReady(NamedTuple):
    """All nodes are ready, for the first time."""


class Finished(NamedTuple):
    """All nodes have ended; the code to end with."""

    code: int


Effect = Spawn | Signal | AllReady | Finished


class NodeState(Enum):
    """What a node does, as its supervisor knows."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass
class _Node:
    plan: NodePlan
    state: NodeState = NodeState.WAITING
    due: float = 0.0  # waiting: when to start it; stopping: when to kill it
    started: float = 0.0
    failures: int = 0
    hurried: bool = False


@dataclass
class Supervision:
    """Which node to start, stop and kill, without I/O. Invariant: a process is signalled only between its start and its end."""

    plans: Sequence[NodePlan]
    config: SupervisorConfig = field(default_factory=SupervisorConfig)

    def __post_init__(self) -> None:
        self._nodes = {plan.node_id: _Node(plan) for plan in self.plans}
        self._effects: list[Effect] = []
        self._stopping = self._at_once = self._no_mercy = self._told_ready = self._finished = False
        self._code = OK

    def state_of(self, plan: NodePlan) -> NodeState:
        """What a node does."""
        return self._nodes[plan.node_id].state

    def ready(self, plan: NodePlan) -> None:
        """A node's ready line has come."""
        node = self._nodes[plan.node_id]
        if node.state is not NodeState.STARTING:
            return
        node.state = NodeState.RUNNING
        if not self._told_ready and all(each.state is NodeState.RUNNING for each in self._nodes.values()):
            self._told_ready = True
            self._effects.append(AllReady())

    def ended(self, plan: NodePlan, code: int, now: float) -> None:
        """A node's process has ended; below 0: by that signal."""
        node, config = self._nodes[plan.node_id], self.config
        if node.state in (NodeState.ENDED, NodeState.WAITING):
            return
        if self._stopping:
            node.state = NodeState.ENDED
            if code not in (OK, -signal.SIGTERM):  # by the signal itself ends who has not begun to take signals
                self._fail(FAILED)
                logger.error("%s: %s", plan.name, _how(code))
            return
        if code in config.hopeless and not self._told_ready:
            logger.error("%s: %s; another start would not mend that, so all nodes are stopped", plan.name, _how(code))
            node.state = NodeState.ENDED
            self._fail(code)
            self._stopping = self._at_once = True
            return
        node.failures = 1 if now - node.started >= config.steady_s else node.failures + 1
        pause_s = min(config.pause_s * 2.0 ** min(node.failures - 1, 40), config.pause_max_s)
        node.state, node.due = NodeState.WAITING, now + pause_s
        logger.error("%s: %s; it is started again in %g s", plan.name, _how(code), pause_s)

    def signalled(self, number: signal.Signals) -> None:
        """This process got a signal."""
        if number not in ENDING:
            for node in self._nodes.values():
                if node.state is NodeState.RUNNING:
                    self._effects.append(Signal(node.plan, number))
        elif self._at_once:
            self._no_mercy = True
        elif self._stopping:
            logger.info("%s: stopping all nodes that are left at once; once more kills them", number.name)
            self._at_once = True
        else:
            logger.info(
                "%s: stopping the nodes, one at a time while a majority is left; once more stops them all", number.name
            )
            self._stopping = True

    def poll(self, now: float) -> list[Effect]:
        """What is to be done now."""
        if self._stopping:
            self._stop_next(now)
        else:
            for node in self._nodes.values():
                if node.state is NodeState.WAITING and now >= node.due:
                    node.state, node.started = NodeState.STARTING, now
                    self._effects.append(Spawn(node.plan))
        effects, self._effects = self._effects, []
        return effects

    def next_wakeup(self) -> float:
        """When `poll` is to be called at the latest, if nothing happens."""
        timed = (NodeState.WAITING, NodeState.STOPPING)
        return min((node.due for node in self._nodes.values() if node.state in timed), default=NEVER)

    def _stop_next(self, now: float) -> None:
        for node in self._nodes.values():
            if node.state is NodeState.WAITING:
                node.state = NodeState.ENDED
        living = [node for node in self._nodes.values() if node.state is not NodeState.ENDED]
        controllers = [node for node in living if node.plan.controller_port is not None]
        majority = sum(plan.controller_port is not None for plan in self.plans) // 2 + 1
        lost = len(controllers) < majority
        together = self._at_once or lost or len(living) == len(controllers) == majority
        alone = any(node.state is NodeState.STOPPING for node in living) and not together
        for node in reversed(living):
            if node.state is NodeState.STOPPING:
                if now >= node.due or (self._no_mercy and node.due < NEVER):
                    late = f" has not stopped in {self.config.stop_timeout_s:g} s:" if now >= node.due else ":"
                    logger.error("%s%s it is killed, and recovers at its next start", node.plan.name, late)
                    node.due, node.hurried = NEVER, True
                    self._effects.append(Signal(node.plan, signal.SIGKILL))
                elif lost and not node.hurried:
                    node.hurried = True
                    self._effects.append(Signal(node.plan, signal.SIGTERM))
            elif not alone:
                node.state, node.due = NodeState.STOPPING, now + self.config.stop_timeout_s
                self._effects.append(Signal(node.plan, signal.SIGTERM))
                alone = not together
        if not self._finished and all(node.state is NodeState.ENDED for node in self._nodes.values()):
            self._finished = True
            self._effects.append(Finished(self._code))

    def _fail(self, code: int) -> None:
        if self._code == OK:
            self._code = code


def _how(code: int) -> str:
    if code == NOT_STARTED:
        return "its process could not be started"
    return f"its process ended with code {code}" if code >= 0 else f"its process was ended by signal {-code}"


# -- doing it


class Child(Protocol):
    """A process, as asyncio has it."""

    stdout: asyncio.StreamReader | None
    stderr: asyncio.StreamReader | None

    def send_signal(self, signal: int) -> None:
        """Does nothing, or raises ProcessLookupError, once the process has been waited for."""

    async def wait(self) -> int:
        """Its code."""


def marked(plan: NodePlan, line: bytes) -> bytes:
    """A line of a node's log, behind its name."""
    return b"%s | %s\n" % (plan.name.encode(), line)


def marked_json(plan: NodePlan, line: bytes) -> bytes:
    """A line of a node's log, with its name as the first field where it is an object of JSON."""
    return b'{"node": "%s", %s\n' % (plan.name.encode(), line[1:]) if line[:2] == b'{"' else marked(plan, line)


StartChild = Callable[[Sequence[str]], Awaitable[Child]]
TakeSignals = Callable[[Callable[[signal.Signals], None]], object]


class _Process:
    """A process of asyncio's that is told of a signal without being waited for: Popen.send_signal looks first whether it has ended, and
    takes its code away from who waits (it is 255 then)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.stdout, self.stderr, self.wait = process.stdout, process.stderr, process.wait

    def send_signal(self, signal: int) -> None:
        if self._process.returncode is None:
            os.kill(self._process.pid, signal)


async def start_child(argv: Sequence[str]) -> Child:
    """Start a process, without a shell, in a session of its own."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    return _Process(process)


def take_signals(on_signal: Callable[[signal.Signals], None]) -> None:
    """Have this process's signals told instead of ending it."""
    loop = asyncio.get_running_loop()
    for number in (*ENDING, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal, number)
    hang_ups.release()


class Supervisor:
    """Does what a Supervision wants, in an event loop. Loop thread only."""

    def __init__(
        self,
        supervision: Supervision,
        argv: Callable[[NodePlan], Sequence[str]],
        *,
        start: StartChild = start_child,
        signals: TakeSignals = take_signals,
        clock: Callable[[], float] = time.monotonic,
        mark: Callable[[NodePlan, bytes], bytes] = marked,
        out: BinaryIO | None = None,
        err: BinaryIO | None = None,
        manager: ServiceManager | None = None,
    ) -> None:
        self.supervision = supervision
        self._manager = manager or ServiceManager({}, 0)
        self._argv = {plan.node_id: list(argv(plan)) for plan in supervision.plans}
        self._start = start
        self._signals = signals
        self._clock = clock
        self._mark = mark
        self._out = sys.stdout.buffer if out is None else out
        self._err = sys.stderr.buffer if err is None else err
        self._children: dict[int, Child] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._finished: asyncio.Future[int] | None = None
        self._turns: Turns

    async def run(self) -> int:
        """Until all nodes have ended; the code to end with."""
        loop = asyncio.get_running_loop()
        self._finished = loop.create_future()
        self._turns = Turns(loop, self._clock, self._work, lambda now: self.supervision.next_wakeup())
        self._signals(self._signalled)
        self._manager.starting(loop, lambda: "starting")
        self._turns.turn()
        try:
            return await self._finished
        finally:
            self._manager.close()
            self._turns.close()
            for plan in self.supervision.plans:  # none is left but after a mistake of ours
                self._send_signal(plan, signal.SIGTERM)

    def _signalled(self, number: signal.Signals) -> None:
        if number in ENDING:
            self._manager.stopping(asyncio.get_running_loop())
        self.supervision.signalled(number)
        self._turns.turn()

    def _work(self, now: float) -> None:
        for effect in self.supervision.poll(now):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Spawn):
            life = asyncio.get_running_loop().create_task(self._live(effect.plan))
            self._lives.add(life)
            life.add_done_callback(self._lives.discard)
        elif isinstance(effect, Signal):
            self._send_signal(effect.plan, effect.number)
        elif isinstance(effect, AllReady):
            addresses = ", ".join(plan.address for plan in self.supervision.plans)
            ready = f"ready: {len(self.supervision.plans)} nodes on {addresses}"
            self._write(self._out, f"fastq-broker {ready}\n".encode())
            self._manager.ready(asyncio.get_running_loop(), ready)
        elif self._finished is not None and not self._finished.done():
            self._finished.set_result(effect.code)

    def _send_signal(self, plan: NodePlan, number: signal.Signals) -> None:
        child = self._children.get(plan.node_id)
        if child is not None:
            try:
                child.send_signal(number)
            except ProcessLookupError:
                pass  # it has just ended, which is about to be told

    async def _live(self, plan: NodePlan) -> None:
        """One process of a node, from its start to its end."""
        code = NOT_STARTED
        try:
            child = await self._start(self._argv[plan.node_id])
        except OSError as error:
            logger.error("%s cannot be started: %s", plan.name, error)
        else:
            self._children[plan.node_id] = child
            if self.supervision.state_of(plan) is NodeState.STOPPING:
                self._send_signal(plan, signal.SIGTERM)  # it was told before it was there
            readers = [
                asyncio.ensure_future(self._read(plan, child.stdout, says_ready=True)),
                asyncio.ensure_future(self._read(plan, child.stderr, says_ready=False)),
            ]
            code = await child.wait()
            _, unread = await asyncio.wait(readers, timeout=LAST_WORDS_S)
            for reader in unread:
                reader.cancel()
            del self._children[plan.node_id]
        self.supervision.ended(plan, code, self._clock())
        self._turns.turn()

    async def _read(self, plan: NodePlan, stream: asyncio.StreamReader | None, *, says_ready: bool) -> None:
        """Pass a node's lines on, the first one of its standard output excepted: that one says that it is ready."""
        assert stream is not None
        rest = b""
        while True:
            piece = await stream.read(PIECE_BYTES)
            rest += piece
            *lines, rest = rest.split(b"\n")
            if rest and (not piece or len(rest) > LINE_BYTES_MAX):
                lines, rest = [*lines, rest], b""
            if says_ready and lines:
                says_ready = False
                del lines[0]
                self.supervision.ready(plan)
                self._turns.turn()
            if lines:
                self._write(self._err, b"".join(self._mark(plan, line) for line in lines))
            if not piece:
                return

    def _write(self, to: BinaryIO, data: bytes) -> None:
        try:
            to.write(data)
            to.flush()
        except OSError as error:  # who listened is gone; the nodes go on
            logger.debug("cannot write: %s", error)


def run_nodes(
    plans: Sequence[NodePlan],
    argv: Callable[[NodePlan], Sequence[str]],
    config: SupervisorConfig | None = None,
    *,
    mark: Callable[[NodePlan, bytes], bytes] = marked,
    at_end: Callable[[asyncio.AbstractEventLoop], object] = lambda loop: None,
) -> int:
    """Run nodes until a signal ends them. `argv(plan)` is the command of a node, which says that it is ready with a line on its standard
    output; `mark` makes lines of its log those of all nodes; `at_end` is called once all have ended, before the loop gives up its signals.
    Answers the exit code: 0 when all ended well."""
    manager = ServiceManager(os.environ, os.getpid())
    supervisor = Supervisor(Supervision(plans, config or SupervisorConfig()), argv, mark=mark, manager=manager)

    async def run() -> int:
        code = await supervisor.run()
        at_end(asyncio.get_running_loop())
        return code

    return asyncio.run(run())
