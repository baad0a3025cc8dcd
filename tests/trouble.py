"""What befalls three nodes: killed, paused for longer than their session, cut off, out of disk, with a disk that fails.

Rules: trouble comes from a seed, mostly to one node at a time, often before all has recovered from the trouble before, and is over in
seconds. Every send gets its answer, and the histories of all clients are checked (`clients_at_work.py`).
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from random import Random

from clients_at_work import ClientsAtWork
from java_clients import JavaClients
from nodes_apart import CLIENTS, NODES, SESSION_MS, NodesApart

LONG_S = 2 * SESSION_MS / 1000
KINDS = (
    "kill",
    "stop",
    "pause",
    "apart",
    "deaf",
    "mute",
    "apart from clients",
    "full disk",
    "failing writes",
    "failing syncs",
    "kill all",
    "pause two",
)


class Trouble:
    """What happens to the nodes, a thing at a time."""

    def __init__(self, nodes: NodesApart, random: Random) -> None:
        self.nodes, self.random = nodes, random
        self.told: list[str] = []

    def happen(self, kind: str) -> None:
        node = self.random.choice(NODES)
        self.told.append(f"{time.strftime('%H:%M:%S')} node {node}: {kind}")
        others = [other for other in NODES if other != node]
        inward, outward = [(other, node) for other in others], [(node, other) for other in others]
        network = self.nodes.network
        long_s = self.random.choice([LONG_S, LONG_S, LONG_S / 4])
        if kind in ("kill", "stop"):
            self.nodes.signal(node, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            self.nodes.wait_for_end(node)
            time.sleep(self.random.choice([0, long_s]))
        elif kind == "pause":
            self.nodes.signal(node, signal.SIGSTOP)
            time.sleep(long_s)
            self.nodes.signal(node, signal.SIGCONT)
        elif kind == "kill all":
            for each in NODES:
                self.nodes.signal(each, signal.SIGKILL)
                self.nodes.wait_for_end(each)
        elif kind == "pause two":
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for other in others:
                    self.nodes.signal(other, number)
                time.sleep(long_s)
        elif kind == "full disk":
            self.nodes.full_disk(node, long_s)
        elif kind in ("failing writes", "failing syncs"):
            (self.nodes.fail_writes if kind == "failing writes" else self.nodes.fail_syncs)(node)
            self.nodes.wait_for_end(node)
        else:
            network.cut(*(outward if kind != "deaf" else ()), *(inward if kind != "mute" else ()))
            if kind == "apart from clients":
                network.cut((CLIENTS, node), (node, CLIENTS))
            time.sleep(long_s)
            network.heal(reset=self.random.random() < 0.5)
        self.nodes.start_what_ended()


def go(
    tmp_path: Path,
    kinds: list[str],
    random: Random,
    protocol: str = "classic",
    copiers: tuple[str, ...] = ("ours",),
    *,
    java_clients: bool = False,
    **settings: object,
) -> None:
    """Clients at work while this happens, one after the other; then what they saw is judged. `settings`: of the nodes."""
    nodes = NodesApart(tmp_path, **settings)
    work = ClientsAtWork(nodes.servers, copiers=copiers, group_protocol=protocol)
    trouble = Trouble(nodes, random)
    stack = contextlib.ExitStack()
    try:
        nodes.start_what_ended()
        nodes.whole()
        work.make_topics()
        work.start()
        java = stack.enter_context(JavaClients(nodes.servers, tmp_path)) if java_clients else None
        for kind in kinds:
            time.sleep(random.uniform(0.2, 1))
            trouble.happen(kind)
            work.no_failure()
            if random.random() < 0.7:
                nodes.whole()
        nodes.whole()
        work.finish()
        assert not work.anomalies(), work.anomalies()
        if java is not None:
            java.check(work)
        assert len(work.log.final) > 200
    except BaseException:
        print(*trouble.told, *work.errors, nodes.log_text(), sep="\n")
        raise
    finally:
        with contextlib.suppress(AssertionError):
            nodes.network.heal(reset=True)
        work.stop()
        stack.close()
        nodes.close()
