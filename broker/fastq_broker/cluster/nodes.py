"""The command `fastq-broker --nodes N`: one cluster of N nodes on this machine, each a process with a directory of its own.

    DIR/node-1 ... DIR/node-N      each what a node's directory is anywhere; the first start formats them as one cluster

Rules
- The first three nodes are brokers and controllers, the others brokers only.
- The controllers are named by controller.quorum.voters, not in the log: their ports follow from the arguments, which may change from one
  start to the next. They are reached at the loopback address alone.
- The first node may have been alone before: its directory is moved to where it belongs (`lone_node`). The voters of such a cluster are in
  its log, so the other controllers join by themselves, and what the log says of ports is overruled (controller.quorum.voter.addresses).
- N may grow. It does not shrink: what is on the nodes that are left out would be missing.
- What the arguments decide for each node is not to be set for all of them, and a configuration file holds such settings: it is refused.
- Nodes are stopped in SHUTDOWN_S at most: longer than a broker tries to hand over what it leads (`shutdown_timeout_s`, Kafka's five
  minutes, for which Kafka has no setting). One that is killed before recovers at its next start; who has no patience signals again.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from fastq.errors import ConfigError, FastqError
from fastq.protocol.uuid import random_uuid, uuid_to_str
from fastq.values import NamedTuple
from fastq_broker.cluster import lone_node
from fastq_broker.cluster.supervisor import (
    CONTROLLERS_MAX,
    NodePlan,
    SupervisorConfig,
    marked,
    marked_json,
    plan_nodes,
    run_nodes,
)
from fastq_broker.complaints import complain
from fastq_broker.config import BrokerConfig, parse_assignments
from fastq_broker.config_listeners import parse_listener
from fastq_broker.controller.storage import META_PROPERTIES, METADATA_DIRECTORY, MetaProperties, QuorumState
from fastq_broker.exit_codes import FAILED, OK, WRONG_USAGE
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.signals import hold_signals

if TYPE_CHECKING:
    from fastq_broker.config_keys import ConfigValue

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
LOCK = ".nodes.lock"
"""By it a process has the directory of all nodes; the nodes' own are locked by themselves."""
SHUTDOWN_S = 330.0
DECIDED = frozenset(
    (
        *("node.id", "broker.id", "process.roles", "log.dir", "log.dirs", "metadata.log.dir"),
        *("listeners", "advertised.listeners", "host.name", "port", "advertised.host.name", "advertised.port"),
        *("controller.listener.names", "controller.quorum.voters", "controller.quorum.bootstrap.servers"),
        *("controller.quorum.voter.addresses", "controller.quorum.auto.join.enable"),
    )
)
"""Settings that are each node's own."""
_REFUSED = {
    "config": "a file holds what is each node's own; give what all share by --set",
    "advertise": "each node has an address of its own, that of --listen",
    "node_id": "the nodes have the ids from 1 on",
    "control_fd": "each node has switches of its own",
}


def run(parsed: argparse.Namespace) -> int:
    """Run the nodes that the arguments of `fastq-broker` ask for, until a signal ends them; answers the exit code."""
    try:
        plans, settings = plan(parsed)
        configs = [
            BrokerConfig.from_mapping(settings[each.node_id], insecure_ignore=parsed.insecure_ignore) for each in plans
        ]
        metrics = _metrics(parsed.metrics_listen, plans)
    except (FastqError, ValueError) as error:
        complain(error)
        return WRONG_USAGE
    root = _root(parsed)
    from fastq_broker.log.directories import DirectoryLocks

    mine = DirectoryLocks()
    try:
        check_ports(plans, metrics)
        if lone_node.is_there(root):
            lone_node.move(root)
            logger.info(
                "the node of %s is %s now. Its topics keep the replicas that they have: "
                "`fastq partitions rebalance --replication-factor %d` gives them more",
                root,
                root / lone_node.FIRST,
                min(len(plans), 3),
            )
        mine.take(str(root), LOCK)  # two that begin at once have seen no port taken, and no node's lock
        check_locks(configs)
        prepare(root, configs)
    except PortsMeet as error:
        complain(error)
        return WRONG_USAGE
    except (FastqError, OSError) as error:
        complain(error)
        return FAILED
    except KeyboardInterrupt:
        return FAILED
    try:
        code = run_nodes(
            plans,
            lambda each: _command(parsed, settings[each.node_id], metrics.get(each.node_id)),
            SupervisorConfig(stop_timeout_s=SHUTDOWN_S),
            mark=marked_json if parsed.log_format == "json" else marked,
            at_end=hold_signals,
        )
    finally:
        mine.release()
    logger.info("all nodes have ended" if code == OK else "all nodes have ended, but not cleanly")
    return code


# -- what each node is


def plan(parsed: argparse.Namespace) -> tuple[list[NodePlan], dict[int, dict[str, ConfigValue]]]:
    """The nodes, and the settings of each by its id. ConfigError and ValueError for arguments that do not go together."""
    for name, why in _REFUSED.items():
        if getattr(parsed, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} does not go with --nodes: {why}")
    shared = parse_assignments(parsed.set)
    for key in shared:
        if key in DECIDED or key.replace("_", ".") in DECIDED:
            raise ValueError(f"--set {key} does not go with --nodes, which decides it for each node: leave it out")
    address = parsed.listen or "127.0.0.1:9092"
    if "://" in address:
        raise ValueError(
            f"--listen {address!r} does not go with --nodes: it takes HOST:PORT, the address of the first node"
        )
    listener = parse_listener(address, key="--listen")
    root = _root(parsed)
    plans = plan_nodes(parsed.nodes, str(root), listener.host, listener.port)
    dynamic = has_dynamic_voters(root)
    return plans, {each.node_id: _settings(each, plans, shared, dynamic=dynamic) for each in plans}


def _root(parsed: argparse.Namespace) -> Path:
    return Path(parsed.data_dir or "data")


def has_dynamic_voters(root: Path) -> bool:
    """Whether the logs of this cluster name its voters, as that of a node that began alone does. ConfigError where nothing says so.

    A controller that is to join must never be started as one of a static quorum: two such would elect each other, and begin anew.
    """
    if lone_node.is_there(root):
        return True
    problem: ConfigError | None = None
    dynamic = static = False
    for directory in root.glob(f"node-[1-9]*/{METADATA_DIRECTORY}"):
        try:
            state = QuorumState.read(directory)
        except ConfigError as error:
            problem = error
            continue
        if (directory / SnapshotId(0, 0).file_name).exists():
            return True
        if state is not None:
            if state.data_version > 0 or not state.voters or lone_node.names_voters(directory):
                dynamic = True
            else:
                static = True
    if problem is not None and not (static or dynamic):
        raise problem
    # Who lacks the record may lead, and take it back: until all have it those that are configured count.
    return dynamic and not static


def _settings(
    own: NodePlan, plans: Sequence[NodePlan], shared: Mapping[str, ConfigValue], *, dynamic: bool
) -> dict[str, ConfigValue]:
    """The settings of one node."""
    controllers = [each for each in plans if each.controller_port is not None]
    listeners, roles = f"PLAINTEXT://{own.address}", "broker"
    if own.controller_port is not None:
        listeners += f",CONTROLLER://{LOOPBACK}:{own.controller_port}"
        roles += ",controller"
    voters = ",".join(f"{each.node_id}@{LOOPBACK}:{each.controller_port}" for each in controllers)
    quorum: dict[str, ConfigValue] = {"controller.quorum.voters": voters}
    if dynamic:
        quorum = {
            "controller.quorum.bootstrap.servers": ",".join(
                f"{LOOPBACK}:{each.controller_port}" for each in controllers
            ),
            "controller.quorum.voter.addresses": voters,
            "controller.quorum.auto.join.enable": "true",
        }
    few: dict[str, ConfigValue] = {}
    if len(plans) < 3:  # Kafka's defaults take three brokers
        few = {
            "offsets.topic.replication.factor": str(len(plans)),
            "transaction.state.log.replication.factor": str(len(plans)),
            "transaction.state.log.min.isr": "1",
        }
    return {
        **few,
        **shared,
        "node.id": str(own.node_id),
        "process.roles": roles,
        "log.dirs": own.data_dir,
        "listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        **quorum,
    }


def _metrics(address: str | None, plans: Sequence[NodePlan]) -> dict[int, str]:
    """Where each node serves its metrics: at the ports from the given one on; with 0 at free ones. ValueError."""
    if address is None:
        return {}
    from fastq_broker.metrics_http import parse_address  # it brings the whole broker

    _, port = parse_address(address)
    if port + len(plans) > 65536:
        raise ValueError(f"--metrics-listen {address!r}: {len(plans)} nodes take the {len(plans)} ports from there on")
    host = address.rpartition(":")[0]
    return {each.node_id: f"{host}:{port + at if port else 0}" for at, each in enumerate(plans)}


def _command(parsed: argparse.Namespace, settings: Mapping[str, ConfigValue], metrics: str | None) -> list[str]:
    """What starts a node."""
    command = [sys.executable, "-m", "fastq_broker", "--supervised"]
    command += ["--log-format", parsed.log_format, "--log-level", parsed.log_level]
    for name in parsed.insecure_ignore:
        command += ["--insecure-ignore", name]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    if metrics is None:
        return command
    return [*command, "--metrics-listen", metrics, "--metrics-lag", str(parsed.metrics_lag)]


class _Place(NamedTuple):
    """What a node opens at an address, and the option that says which ports those are."""

    node: str
    does: str
    option: str
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_ports(plans: Sequence[NodePlan], metrics: Mapping[int, str]) -> None:
    """Look whether all ports are free, those of metrics (`metrics`: addresses by node) too, but those that are to be picked: nodes would be
    started again and again. ConfigError where one is taken, PortsMeet where two of the nodes' own are one."""
    places = [_Place(each.name, "listen", "--listen", each.host, each.port) for each in plans]
    controllers = [(each.name, each.controller_port) for each in plans]
    places += [_Place(name, "listen", "--listen", LOOPBACK, port) for name, port in controllers if port is not None]
    if metrics:
        from fastq_broker.metrics_http import parse_address

        served = [
            _Place(each.name, "serve metrics", "--metrics-listen", *parse_address(metrics[each.node_id]))
            for each in plans
        ]
        places += [place for place in served if place.port]
    with ExitStack() as held:  # all at once, by which two that are one are seen
        for at, place in enumerate(places):
            try:
                _listen(place, held)
            except OSError as error:
                held.close()
                raise _cannot_have(place, places, at, error) from error


def _cannot_have(place: _Place, places: Sequence[_Place], at: int, error: OSError) -> ConfigError:
    """Why the place with that index cannot be had; none of the others is held."""
    other = next((each for each in places[:at] if each.port == place.port), None)
    if other is not None and _is_free(place):
        first, count = places[0].port, sum(each.option == other.option for each in places)
        beyond = place._replace(port=first + count)
        return PortsMeet(
            f"{place.option}: {place.node} would serve metrics on {place.address}, where {other.node} listens ({other.address}): the nodes "
            f"listen on the {count} ports from {first} on, take one beyond them, as in {place.option} {beyond.address}"
        )
    count = sum(each.option == place.option for each in places)
    return ConfigError(
        f"{place.node} cannot {place.does} on {place.address}: {error.strerror}; {place.option} takes the first of {count} ports that are "
        "free"
    )


class PortsMeet(ConfigError):
    """Arguments by which two of the nodes' own would open one port: nothing but other arguments mends that."""


def _listen(place: _Place, held: ExitStack) -> None:
    """Listen on all addresses of a place's name, as a node does, until `held` is closed. OSError."""
    try:
        found = socket.getaddrinfo(place.host or None, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # no name of a host
        raise OSError(errno.EINVAL, str(error)) from error
    missing: OSError | None = None
    count = 0
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            held.enter_context(socket.create_server(address, family=family))
            count += 1
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
            missing = error  # no IPv6 here, say: another address of the name may do
    if missing is not None and not count:
        raise missing


def _is_free(place: _Place) -> bool:
    try:
        with ExitStack() as held:
            _listen(place, held)
    except OSError:
        return False
    return True


# -- their directories


def check_locks(configs: Sequence[BrokerConfig]) -> None:
    """ConfigError where a directory is in use: nodes would be started again and again. OSError."""
    from fastq_broker.log.directories import DirectoryLocks

    locks = DirectoryLocks()
    try:
        for config in configs:
            for directory in filter(os.path.isdir, config.log_dirs):
                locks.take(directory)
    finally:
        locks.release()


def prepare(root: Path, configs: Sequence[BrokerConfig]) -> None:
    """Format what is not formatted yet, as one cluster. ConfigError where the directories do not allow it, OSError."""
    formatted = {
        int(place.parent.name.removeprefix("node-"))
        for place in root.glob(f"node-[1-9]*/{META_PROPERTIES}")
        if place.parent.name.removeprefix("node-").isdecimal()
    }
    last = max(formatted, default=0)
    if last > len(configs):
        raise ConfigError(
            f"{root} holds {last} nodes, and --nodes {len(configs)} would leave some out: give --nodes {last} or more"
        )
    new = [config for config in configs if config.node_id not in formatted]
    if not new:
        return
    known = next((MetaProperties.read(root / f"node-{number}") for number in sorted(formatted)), None)
    dynamic = has_dynamic_voters(root)
    if dynamic:
        _refuse_lost_voters(root, formatted)
    elif any(any((root / f"node-{number}" / METADATA_DIRECTORY).glob("*.log")) for number in formatted):
        _refuse_lost_quorum(root, new, len(configs))
    from fastq_broker.controller.formatting import Plan, format_node
    from fastq_broker.controller.releases import levels_of

    cluster_id = uuid_to_str(random_uuid()) if known is None else known.cluster_id
    for config in new:
        directory = Path(config.metadata_log_dir)
        node = Plan(
            cluster_id=cluster_id,
            node_id=config.node_id,
            directories=[directory],
            metadata_directory=directory,
            levels=levels_of({}, dynamic_quorum=dynamic and "controller" in config.process_roles),
        )
        format_node(node, ignore_formatted=False, now_ms=time.time_ns() // 1_000_000)
    logger.info("new in cluster %s, %s: %s", cluster_id, root, ", ".join(f"node-{c.node_id}" for c in new))


def _refuse_lost_quorum(root: Path, new: Sequence[BrokerConfig], count: int) -> None:
    """ConfigError where controllers with nothing in their logs would be a majority, and forget what the cluster knows."""
    controllers = min(count, CONTROLLERS_MAX)
    empty = [config.node_id for config in new if config.node_id <= controllers]
    if len(empty) * 2 > controllers:
        names = ", ".join(f"node-{number}" for number in empty)
        raise ConfigError(
            f"{root} has lost {names}: without the metadata of most controllers the cluster would begin anew; bring the directories back"
        )
    for number in empty:
        logger.warning("node-%d has no directory in %s: it begins with an empty one", number, root)


def _refuse_lost_voters(root: Path, formatted: Iterable[int]) -> None:
    """ConfigError where most voters that the log names have lost their directories: nobody would be elected."""
    known = [(number, root / f"node-{number}" / METADATA_DIRECTORY) for number in sorted(formatted)]
    logs = [lone_node.read_metadata(directory) for _, directory in known if directory.is_dir()]
    voters, _ = max(logs, key=lambda found: found[1].offset, default=(None, None))
    if voters is None:
        return
    here = {number: MetaProperties.read(directory.parent) for number, directory in known}
    lost = [
        voter.key.node_id
        for voter in voters
        if (found := here.get(voter.key.node_id)) is None or found.directory_id != voter.key.directory_id
    ]
    if len(voters) - len(lost) < voters.majority:
        names = ", ".join(f"node-{number}" for number in lost)
        raise ConfigError(
            f"{root} has lost {names}, most of the controllers that its log names: no leader would be elected; bring the directories back"
        )
    for number in lost:
        logger.warning(
            "node-%d has no directory in %s: it begins with an empty one, and joins the quorum anew", number, root
        )
