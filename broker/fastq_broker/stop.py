"""The commands `fastq-broker stop` and `fastq-broker status`: the node of a directory, or of an id, on this machine.

Rules
- A node is found by the lock on its directory (see processes). `--data-dir` may be the directory of `fastq-broker --nodes`, which is then
  stopped itself: it would start again a node that is stopped behind its back.
- `stop` asks by SIGTERM, waits, and says how it ended. It kills nothing.
- `stop` ends with 0 when all have stopped cleanly, 1 when not, or when nothing runs there; `status` with 0 when all run, else with 1. Both
  end with 2 when the arguments are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastq.errors import ConfigError, FastqError
from fastq.values import NamedTuple

from . import processes
from .complaints import Parser, complain, whole_number
from .controller.storage import CLEAN_SHUTDOWN, META_PROPERTIES, MetaProperties
from .exit_codes import FAILED, OK, WRONG_USAGE

if TYPE_CHECKING:
    from .processes import Process

TIMEOUT_S = 330.0
"""Longer than a broker tries to hand over what it leads."""

_EPILOG = {
    "stop": """examples:
  fastq-broker stop --data-dir ./data
  fastq-broker stop --node-id 3 --timeout 60
""",
    "status": """examples:
  fastq-broker status                    every node of this user
  fastq-broker status --data-dir ./data --json
""",
}


class Node(NamedTuple):
    """A directory of a node, what it says of itself, and the process that holds it: None for nobody."""

    directory: Path
    properties: MetaProperties | None
    pid: int | None

    @property
    def name(self) -> str:
        return "a node" if self.properties is None else f"node {self.properties.node_id}"


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands; answers the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        processes.check_supported()
        nodes = _nodes(parsed)
        return _status(nodes, as_json=parsed.json) if parsed.command == "status" else _stop(nodes, parsed.timeout)
    except ConfigError as error:
        complain(error, parsed.command)
        return WRONG_USAGE
    except BrokenPipeError:
        raise  # its reader's business, as with every command
    except (FastqError, OSError) as error:
        complain(error, parsed.command)
        return FAILED


def _nodes(parsed: argparse.Namespace) -> list[Node]:
    """The nodes that the arguments mean. ConfigError when there is none."""
    if parsed.data_dir is not None or parsed.config is not None:
        directories = _directories(parsed)
        held = processes.holders(directories)
        nodes = [Node(path, MetaProperties.read(path), held.get(path)) for path in directories]
        if parsed.node_id is None:
            return nodes
        where = ", ".join(map(str, directories))
    else:
        held = processes.locked_directories()
        nodes = [Node(path, _readable(path), pid) for path, pid in sorted(held.items())]
        nodes = [node for node in nodes if node.properties is not None]
        if parsed.node_id is None and parsed.command == "status":
            return nodes
        if parsed.node_id is None:
            raise ConfigError(
                "which one? give --data-dir, --config or --node-id; fastq-broker status lists those that run"
            )
        where = "this machine"
    chosen = [node for node in nodes if node.properties is not None and node.properties.node_id == parsed.node_id]
    clusters = {node.properties.cluster_id for node in chosen if node.properties is not None}
    if len(clusters) > 1:
        places = ", ".join(str(node.directory) for node in chosen)
        raise ConfigError(f"--node-id {parsed.node_id} is a node of several clusters: give --data-dir, one of {places}")
    if not chosen and parsed.data_dir is not None:
        raise ConfigError(f"--node-id {parsed.node_id}: {where} holds no such node")
    if not chosen:
        raise NotRunning(
            f"no node {parsed.node_id} of this user runs on {where}; fastq-broker status lists those that do"
        )
    return chosen


class NotRunning(FastqError):
    """Nothing to stop, or to tell of."""


def _readable(directory: Path) -> MetaProperties | None:
    try:
        return MetaProperties.read(directory)
    except ConfigError:
        return None


def _directories(parsed: argparse.Namespace) -> list[Path]:
    """The log directories of a node, or of the nodes below a directory of --nodes."""
    if parsed.config is not None:
        from .config import BrokerConfig

        config = BrokerConfig.load(parsed.config, {} if parsed.data_dir is None else {"log.dirs": parsed.data_dir})
        roots = [Path(path) for path in config.log_dirs]
    else:
        roots = [Path(path.strip()) for path in parsed.data_dir.split(",") if path.strip()]
        if not roots:
            raise ConfigError("--data-dir is empty: the directory of a node is expected")
    for root in roots:
        if not root.is_dir():
            raise ConfigError(f"{root} is no directory")
    nodes = [
        path.parent for root in roots for path in sorted(root.glob(f"node-[1-9]*/{META_PROPERTIES}"), key=_node_number)
    ]
    if nodes and not any((root / META_PROPERTIES).exists() for root in roots):
        return nodes
    if not any((root / META_PROPERTIES).exists() for root in roots):
        raise ConfigError(
            f"{', '.join(map(str, roots))}: no {META_PROPERTIES} is there, so it is no directory of a broker"
        )
    return roots


def _node_number(path: Path) -> int:
    text = path.parent.name.removeprefix("node-")
    return int(text) if text.isdecimal() else 0


# -- status


def _status(nodes: Sequence[Node], *, as_json: bool) -> int:
    rows: list[dict[str, object]] = []
    for node in nodes:
        process = None if node.pid in (None, -1) else processes.process(node.pid)
        properties = node.properties
        rows.append(
            {
                "node_id": None if properties is None else properties.node_id,
                "cluster_id": None if properties is None else properties.cluster_id,
                "directory": str(node.directory),
                "running": node.pid is not None,
                "pid": None if process is None else process.pid,
                "supervisor_pid": process.parent if process is not None and process.is_supervised else None,
                "started": None if process is None else round(process.started),
                "listening": [] if process is None else processes.listening(process.pid),
                "held_by": None if process is None or process.is_broker else " ".join(process.arguments)[:200],
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
    for row in rows if not as_json else ():
        print(_told(row))
    if not rows and not as_json:
        print("no node of this user runs")
    return OK if rows and all(row["running"] for row in rows) else FAILED


def _told(row: dict[str, object]) -> str:
    name = "a node" if row["node_id"] is None else f"node {row['node_id']} of cluster {row['cluster_id']}"
    start = f"{name} in {row['directory']}: "
    if not row["running"]:
        return start + "does not run"
    if row["pid"] is None:
        return start + "runs, as a process of another user"
    if row["held_by"] is not None:
        return start + f"held by pid {row['pid']}, which is no fastq-broker: {row['held_by']}"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(str(row["started"]))))
    above = f" (of fastq-broker --nodes, pid {row['supervisor_pid']})" if row["supervisor_pid"] is not None else ""
    listening = row["listening"]
    where = f", listens on {', '.join(listening)}" if isinstance(listening, list) and listening else ""
    return start + f"runs as pid {row['pid']}{above} since {since}{where}"


# -- stop


def _stop(nodes: Sequence[Node], timeout_s: float) -> int:
    running = [node for node in nodes if node.pid is not None]
    if not running:
        raise NotRunning(f"{nodes[0].name} in {', '.join(str(node.directory) for node in nodes)} does not run")
    code, end = OK, time.monotonic() + timeout_s
    for pid, those in _targets(running, nodes).items():
        if not _stop_one(pid, those, end):
            code = FAILED
    return code


def _targets(running: Sequence[Node], all_nodes: Sequence[Node]) -> dict[int, list[Node]]:
    """Which processes to stop: those that hold directories, or who supervises them when all of its nodes are meant. ConfigError."""
    targets: dict[int, list[Node]] = {}
    for node in running:
        process = _broker(node)
        pid = process.pid
        if process.is_supervised:
            root = node.directory.parent
            below = {path.parent.resolve() for path in root.glob(f"node-[1-9]*/{META_PROPERTIES}")}
            if not below <= {each.directory.resolve() for each in all_nodes}:
                raise ConfigError(
                    f"{node.name} in {node.directory} belongs to fastq-broker --nodes (pid {process.parent}), which would start it "
                    f"again: stop all of them with --data-dir {root}"
                )
            pid = process.parent
        targets.setdefault(pid, []).append(node)
    return targets


def _broker(node: Node) -> Process:
    """The process that holds a node's directory. ConfigError when it is none that we may stop."""
    if node.pid == -1:
        raise ConfigError(f"{node.directory} is held by a process of another user: stop it as that user")
    process = None if node.pid is None else processes.process(node.pid)
    if process is None:
        raise NotRunning(f"{node.name} in {node.directory} has just ended")
    if not process.is_broker:
        shown = " ".join(process.arguments)[:200]
        raise ConfigError(f"{node.directory} is held by pid {process.pid}, which is no fastq-broker: {shown}")
    return process


def _stop_one(pid: int, nodes: Sequence[Node], end: float) -> bool:
    """Whether a process, and with it these nodes, has stopped in time and cleanly."""
    supervises = nodes[0].pid != pid
    what = f"fastq-broker --nodes of {nodes[0].directory.parent}" if supervises else nodes[0].name
    with processes.handle(pid) as descriptor:
        if descriptor is not None:
            held = processes.holders([node.directory for node in nodes])
            if any(held.get(node.directory) != node.pid for node in nodes):
                # The number may be another process's by now.
                raise NotRunning(f"{what} has just ended, or been started again: fastq-broker status tells")
            print(f"stopping {what} (pid {pid})", flush=True)
            processes.terminate(descriptor)
            if not processes.has_ended(descriptor, end - time.monotonic()):
                complain(
                    f"{what} (pid {pid}) was asked to stop and still runs: its log says what it waits for; "
                    "SIGKILL would end it at once, and its next start recover",
                    "stop",
                )
                return False
    unclean = [str(node.directory) for node in nodes if not os.path.exists(node.directory / CLEAN_SHUTDOWN)]
    if unclean:
        print(f"{what} has ended, but not cleanly: its next start recovers {', '.join(unclean)}")
        return False
    print(f"{what} has stopped")
    return True


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fastq-broker")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("stop", "Stop a node, and wait until it has."), ("status", "Say which nodes run, and where.")):
        command = commands.add_parser(
            name, description=text, epilog=_EPILOG[name], formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add = command.add_argument
        add("--data-dir", metavar="DIR", help="the node's directory, or that of fastq-broker --nodes")
        add("--config", metavar="FILE", help="the node's configuration, which names its directories")
        add(
            "--node-id",
            type=whole_number,
            metavar="N",
            help="the node with this id, on this machine or in the directory",
        )
        if name == "stop":
            add("--timeout", type=_seconds, default=TIMEOUT_S, metavar="SECONDS", help="wait so long (default: 330)")
        else:
            add("--json", action="store_true", help="print JSON")
    return parser


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e6:
        raise argparse.ArgumentTypeError(f"a number of seconds is expected, not {text!r}")
    return found
