"""What the faults of a seed do to its cluster: who is killed, cut off or slow, whose disk fails, whose clock jumps."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from faulty_files import Fault as DiskFault
from faulty_files import Operation

from simulation.faults import NODES, Fault, Moment, vote_of, watermarks_of
from simulation.node import Node, ip_of

if TYPE_CHECKING:
    from simulation.scenario import Cluster


class Trouble:
    """Has faults befall a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._armed: list[Callable[[], bool]] = []
        """What befalls the cluster once something happens: asked after each step until it says that it has."""

    def stepped(self) -> None:
        if self._armed:
            self._armed = [each for each in self._armed if not each()]

    def mend(self) -> None:
        """What has not befallen it will not any more, and what is broken is whole again."""
        self._armed.clear()
        self._cluster.network.mend()
        self._cluster.world.reads_are_cold = False
        for node in self._cluster.nodes:
            node.full_until = node.fails_until = 0.0
            if node.disk is not None:
                node.disk.heal()

    def befall(self, fault: Fault) -> None:
        world, network = self._cluster.world, self._cluster.network
        nodes, durable = self._cluster.nodes, self._cluster.durable
        node, other = nodes[fault.first - 1], nodes[fault.second - 1]
        if len(nodes) > NODES and fault.first == fault.second:
            node = nodes[-1]
        client = self._cluster.clients[fault.second]
        here, there = ip_of(node.node_id), ip_of(other.node_id)
        kind = fault.kind
        world.tell("FAULT", str(fault))
        if kind == "kill":
            node.kill()
        elif kind == "power":
            node.kill(power=durable)
        elif kind == "kill all":
            self._kill_all()
        elif kind == "stand still" and node.broker is not None:
            node.host.stands_until = max(node.host.stands_until, world.now + fault.seconds)
        elif kind == "isolate":
            others = [each for each in network.hosts if each != here]
            network.cut |= {(here, each) for each in others} | {(each, here) for each in others}
        elif kind == "isolate from nodes":
            others = [ip_of(each.node_id) for each in nodes if each is not node]
            network.cut |= {(here, each) for each in others} | {(each, here) for each in others}
        elif kind == "one way" and here != there:
            network.cut.add((here, there))
        elif kind == "part":
            network.cut |= {(here, there), (there, here)} if here != there else set()
        elif kind == "slow":
            network.slow[here, there] = fault.seconds / 10
        elif kind == "resets":
            for link in network.links:
                if world.random_of(f"{fault} {link.number}").random() < 0.5:
                    network.reset(link)
        elif kind == "clock":
            # Up to two hours apart; who is an hour behind its clients refuses their records (message.timestamp.after.max.ms).
            node.skew_ms = int((fault.seconds - 2.0) * 1_700_000)
        elif kind == "client away":
            network.cut |= {(here, client.host.ip), (client.host.ip, here)}
        elif kind == "disk error" and node.disk is not None:
            # What a sync fails for is gone: nothing that was acknowledged, only where that waits for syncs.
            operation: Operation = ("sync" if durable else "write", "write", "truncate")[fault.second - 1]
            node.disk.plan(DiskFault(operation, errno.EIO, passes=int(fault.seconds * 5), repeat=False))
        elif kind == "directory fails":
            node.fails_until = max(node.fails_until, world.now + fault.seconds)
        elif kind == "disk full":
            node.full_until = max(node.full_until, world.now + fault.seconds)
        elif kind == "restart":
            node.restart()
        elif kind == "restart at a vote":
            one, two = [ip_of(each.node_id) for each in nodes[:NODES] if each is not node][:2]
            network.cut |= {(one, two), (two, one)}  # both may ask it alone
            node.restart()
            self._armed.append(
                partial(self._restarts_after, Moment(partial(vote_of, node), fault.seconds / 10_000), node)
            )
        elif kind == "power at a commit":
            self._armed.append(partial(self._power_goes_at, Moment(partial(watermarks_of, node), fault.seconds / 1000)))
        elif kind == "power of one":
            self._armed.append(partial(self._power_of_one_goes, node))
        elif kind == "stop" and node.ready:
            node.stop()
        elif kind == "mend":
            network.mend()
        elif kind == "start":
            self._cluster.revive()

    def _restarts_after(self, moment: Moment, node: Node) -> bool:
        if moment.has_come(self._cluster.world.now):
            self._cluster.world.tell("FAULT", f"{node} has voted, and is killed")
            node.restart()
            return True
        return False

    def _power_goes_at(self, moment: Moment) -> bool:
        if moment.has_come(self._cluster.world.now):
            self._cluster.world.tell("FAULT", "something was committed, and power goes")
            self._kill_all()
            return True
        return False

    def _power_of_one_goes(self, node: Node) -> bool:
        if node.broker is not None and not self._cluster.is_well():
            return False
        self._cluster.world.tell("FAULT", f"{node} has no power, and the others have all that was acknowledged")
        node.kill(power=True)
        return True

    def _kill_all(self) -> None:
        for each in self._cluster.nodes:
            each.kill(power=self._cluster.durable)
