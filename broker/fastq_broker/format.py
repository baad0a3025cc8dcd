"""The commands `fastq-broker format`, `info` and `random-uuid`: what Apache Kafka's `kafka-storage.sh` does with a node's directories.

Rules
- `format` writes the files that Apache Kafka's tool writes for the same arguments, so that either broker opens them.
- Ends with 0 when it is done, 1 when the directories do not allow it (`info`: have a problem), 2 when arguments or configuration are wrong.
- No error shows a secret.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastq.errors import ConfigError
from fastq.protocol.uuid import random_uuid, uuid_to_str

from .complaints import Parser, complain
from .config import BrokerConfig, parse_assignments, read_file
from .config_keys import is_count
from .exit_codes import FAILED, OK, WRONG_USAGE

if TYPE_CHECKING:
    from .controller.formatting import Plan
    from .raft.voters import VoterSet

_CLUSTER_ID = re.compile(r"[!-\[\]-~]([ -\[\]-~]*[!-\[\]-~])?")
"""What meta.properties holds as it is written."""

_EPILOG = """example:
  fastq-broker format --cluster-id "$(fastq-broker random-uuid)" --standalone --config server.properties
  fastq-broker format --cluster-id ID --initial-controllers 1@a:9093:DIR1,2@b:9093:DIR2,3@c:9093:DIR3 --config server.properties
  fastq-broker format --cluster-id ID --no-initial-controllers --config server.properties    a broker, or a controller that joins
"""


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands; answers the exit code."""
    parsed = _parser().parse_args(arguments)
    if parsed.command == "random-uuid":
        print(uuid_to_str(random_uuid()))
        return OK
    try:
        given = {} if parsed.config is None else read_file(Path(parsed.config))
        if parsed.data_dir is not None:
            given["log.dirs"] = parsed.data_dir
        given |= parse_assignments(parsed.set)
        if parsed.config is None and not {"log.dirs", "log.dir"} & given.keys():
            raise ConfigError("which directories? Give --config FILE, or --set log.dirs=DIR")
        config = BrokerConfig.from_mapping(given, insecure_ignore=parsed.insecure_ignore)
        if parsed.command == "info":
            return _info(config)
        plan = _plan(config, parsed)
    except (ConfigError, ValueError) as error:
        complain(error, parsed.command)
        return WRONG_USAGE
    try:
        return _format(plan, ignore_formatted=parsed.ignore_formatted)
    except (ConfigError, OSError) as error:
        complain(error, "format")
        return FAILED


def _directories(config: BrokerConfig) -> list[Path]:
    """All directories of a node, each once, as Kafka's tool sorts them."""
    return sorted({Path(path) for path in (*config.log_dirs, config.metadata_log_dir)})


def _plan(config: BrokerConfig, parsed: argparse.Namespace) -> Plan:
    """What the arguments ask for, checked. ConfigError."""
    from .controller.features import METADATA_VERSION
    from .controller.formatting import Plan
    from .controller.releases import SCRAM_SINCE, levels_of, name_of
    from .controller.scram_arguments import parse_credential

    if not _CLUSTER_ID.fullmatch(parsed.cluster_id):
        raise ConfigError(
            f"--cluster-id {parsed.cluster_id!r}: it takes printable ASCII without blanks at its ends and without backslashes, as "
            "fastq-broker random-uuid prints it"
        )
    is_static, is_controller = bool(config.controller_quorum_voters), "controller" in config.process_roles
    has_voters = parsed.standalone or parsed.initial_controllers is not None
    if is_static and has_voters:
        raise ConfigError(
            "controller.quorum.voters is set, and names controllers that never change; with --standalone or --initial-controllers they "
            "are in the log: remove controller.quorum.voters and set controller.quorum.bootstrap.servers"
        )
    if not is_static and is_controller and not has_voters and not parsed.no_initial_controllers:
        raise ConfigError(
            "controller.quorum.voters is not set on this controller: give --standalone (the first of its cluster), --initial-controllers, "
            "or --no-initial-controllers (it joins others)"
        )
    dynamic = not is_static and (has_voters or parsed.no_initial_controllers)
    levels = levels_of(_features(parsed.feature), parsed.release_version, dynamic_quorum=dynamic)
    if parsed.add_scram and levels[METADATA_VERSION] < SCRAM_SINCE:
        raise ConfigError(
            f"--add-scram takes metadata.version {name_of(SCRAM_SINCE)} or later, and {name_of(levels[METADATA_VERSION])} was asked for"
        )
    return Plan(
        cluster_id=parsed.cluster_id,
        node_id=config.node_id,
        directories=_directories(config),
        metadata_directory=Path(config.metadata_log_dir),
        levels=levels,
        credentials=[parse_credential(text) for text in parsed.add_scram],
        voters=_voters(config, parsed) if has_voters else None,
    )


def _voters(config: BrokerConfig, parsed: argparse.Namespace) -> VoterSet:
    """The first voters that the arguments name."""
    from .controller.formatting import one_voter, parse_controllers
    from .raft.voters import VoterSet

    listener = config.controller_listener_names[0]
    if parsed.initial_controllers is not None:
        return parse_controllers(parsed.initial_controllers, listener)
    if "controller" not in config.process_roles:
        raise ConfigError(
            f"--standalone is for a controller, and process.roles is {','.join(config.process_roles)}: leave it out"
        )
    told = next((item for item in config.advertised_controller_listeners if item.name == listener), None)
    if told is None or not told.port:
        raise ConfigError(
            f"--standalone takes a controller's listener with a port: add {listener}://host:port to listeners, as in {listener}://:9093"
        )
    return VoterSet([one_voter(config.node_id, random_uuid(), listener, told.host or "localhost", told.port)])


def _features(texts: Sequence[str]) -> dict[str, int]:
    """name=level of each --feature; the last of a name counts. ConfigError."""
    levels = {}
    for text in texts:
        name, equals, level = text.partition("=")
        if not equals or not is_count(level.strip().removeprefix("-")) or len(level) > 6:
            raise ConfigError(f"--feature {text!r}: it takes FEATURE=LEVEL, as in group.version=1")
        levels[name.strip()] = int(level)
    return levels


def _format(plan: Plan, *, ignore_formatted: bool) -> int:
    from .controller.features import METADATA_VERSION
    from .controller.formatting import format_node
    from .controller.releases import name_of

    written = format_node(plan, ignore_formatted=ignore_formatted, now_ms=time.time_ns() // 1_000_000)
    if not written:
        print("All of the log directories are already formatted.")
    for kind, directory in written:
        level = plan.levels[METADATA_VERSION]
        print(f"Formatting {kind} {directory} with {METADATA_VERSION} {name_of(level)}.")
    return OK


def _info(config: BrokerConfig) -> int:
    """Which directories there are, whose they are, and what is wrong with them."""
    from .controller.storage import MetaProperties

    there: list[Path] = []
    problems: list[str] = []
    first: MetaProperties | None = None
    for directory in _directories(config):
        if not directory.is_dir():
            problems.append(f"{directory} {'is not a directory' if directory.exists() else 'does not exist'}")
            continue
        there.append(directory)
        try:
            found = MetaProperties.read(directory)
        except ConfigError as error:
            problems.append(str(error))
            continue
        if found is None:
            problems.append(f"{directory} is not formatted.")
        elif first is None:
            first = found
        elif found.cluster_id != first.cluster_id:
            problems.append("Mismatched cluster IDs between storage directories.")
        elif found.node_id != first.node_id:
            problems.append("Mismatched node IDs between storage directories.")
    if there:
        _list("Found log director", ("y", "ies"), there)
    if first is not None:
        directory_id = uuid_to_str(first.directory_id)
        print(
            f"Found metadata: {{cluster.id={first.cluster_id}, directory.id={directory_id}, node.id={first.node_id}, version=1}}\n"
        )
    if problems:
        _list("Found problem", ("", "s"), problems)
    return FAILED if problems else OK


def _list(what: str, endings: tuple[str, str], items: Sequence[object]) -> None:
    print(f"{what}{endings[len(items) > 1]}:")
    for item in items:
        print(f"  {item}")
    print()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fastq-broker")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("random-uuid", description="Print a new id, for a cluster or a directory.")
    info = commands.add_parser("info", description="Say what a node's directories are.")
    made = commands.add_parser(
        "format",
        description="Give a node's directories their cluster, feature levels and first controllers, before its first start.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(data_dir=None)
    made.add_argument("--config", "-c", metavar="FILE", help="the node's configuration, unless --set says all of it")
    where = info.add_mutually_exclusive_group(required=True)
    where.add_argument("--config", "-c", metavar="FILE", help="the node's configuration")
    where.add_argument("--data-dir", metavar="DIR", help="its directory, or several with commas")
    for command in (made, info):
        command.add_argument(
            "--set",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="one setting; wins over the file; repeatable",
        )
        command.add_argument(
            "--insecure-ignore",
            metavar="KEY",
            action="append",
            default=[],
            help="a setting that would protect and is not honoured, as for the broker; repeatable",
        )
    add = made.add_argument
    add("--cluster-id", "-t", metavar="ID", required=True, help="the cluster's id; all its nodes have the same")
    add("--ignore-formatted", "-g", action="store_true", help="leave directories that are formatted as they are")
    add("--release-version", "-r", metavar="RELEASE", help="feature levels of that release, as in 4.0 (default: 4.3)")
    add("--feature", "-f", metavar="F=N", action="append", default=[], help="the level of one feature; repeatable")
    add(
        "--add-scram",
        "-S",
        metavar="CREDENTIAL",
        action="append",
        default=[],
        help="a credential, as in 'SCRAM-SHA-256=[name=alice,password=secret]'; repeatable",
    )
    quorum = made.add_mutually_exclusive_group()
    quorum.add_argument("--standalone", "-s", action="store_true", help="this controller is the only first voter")
    quorum.add_argument("--no-initial-controllers", "-N", action="store_true", help="the voters are not known here")
    quorum.add_argument(
        "--initial-controllers", "-I", metavar="VOTERS", help="the first voters: id@host:port:directory-id,..."
    )
    return parser
