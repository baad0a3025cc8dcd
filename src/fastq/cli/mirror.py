"""`fastq mirror`: topics of one cluster copied to another.

Rules: thin. The configuration is a file (`fastq.mirror.config`), because it names two clusters; what is done is done in `fastq.mirror`.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import CONNECT_TIMEOUT_S, CONNECTION_SETUP_MS
from fastq.cli.log_lines import infos_as_lines, warnings_held
from fastq.cli.output import Subparsers, Waiting, add_json_option, complain, nonempty, print_records, seconds
from fastq.errors import ConnectionFailed, FastqError, InvalidReplicationFactor
from fastq.settings import canonical
from fastq.words import counted

if TYPE_CHECKING:
    from fastq.metadata import TopicPartition
    from fastq.mirror import MirrorConfig
    from fastq.mirror.config import Side
    from fastq.mirror.failover import FailedOver

DEFAULT_CONFIG = "mirror.toml"
SETUP = "socket_connection_setup_timeout_ms"
PROBE_S = 3.0
NAMED = 5
FAILED_OVER = "the mirror was failed over, and copies nothing any more"


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "mirror",
        "Copy topics from one cluster to another, until it is interrupted.",
        "fastq mirror --config mirror.toml",
    )
    _add_config(parser, again=False)
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        type=address,
        help="answer Prometheus here with lag, rates and failures (HOST: 127.0.0.1; PORT 0: a free one)",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="tell what is no warning too: lanes, what is placed anew, a target that does not fetch by itself",
    )
    parser.set_defaults(run=run_mirror)
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=False))
    status = kinds.add(
        "status",
        "How far the mirror is: lag in records and seconds by partition, and what is not mirrored.",
        "fastq mirror status --config mirror.toml",
    )
    status.add_argument(
        "--interval", type=seconds, default=1.0, metavar="SECONDS", help="measure rates over this time (default: 1)"
    )
    add_json_option(status)
    status.add_argument("--prometheus", action="store_true", help="print metrics as Prometheus reads them")
    check = kinds.add(
        "check",
        "Read what was copied on both sides and compare it record by record; exit code 1 unless all is the same.",
        "fastq mirror check --config mirror.toml",
    )
    check.add_argument(
        "--topic",
        type=nonempty,
        action="append",
        default=[],
        metavar="TOPIC",
        help="a topic of the source; may be repeated (default: all)",
    )
    add_json_option(check)
    over = kinds.add(
        "fail-over",
        "End the mirror for good, so that the target can take the source's place; works without the source.",
        "fastq mirror fail-over --config mirror.toml",
    )
    back = kinds.add(
        "fail-back",
        "After a fail-over, prepare the mirror the other way: fastq mirror --reverse then runs it.",
        "fastq mirror fail-back --config mirror.toml",
    )
    for action, run in ((status, run_status), (check, run_check), (over, run_fail_over), (back, run_fail_back)):
        _add_config(action, again=True)
        action.set_defaults(run=run)


def address(text: str) -> tuple[str, int]:
    """The type of the option that takes HOST:PORT, or PORT alone."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"[HOST:]PORT is expected, such as 9404 or 0.0.0.0:9404, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _add_config(parser: argparse.ArgumentParser, *, again: bool) -> None:
    """`again`: the command above has it too, and what it was given counts."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS if again else DEFAULT_CONFIG,
        help=f"the TOML file that names both clusters and the topics (default: {DEFAULT_CONFIG})",
    )
    parser.add_argument(
        "--reverse",
        action="store_true",
        default=argparse.SUPPRESS if again else False,
        help="the other way: the file's target is the source, and its source the target",
    )


def _config(options: argparse.Namespace) -> MirrorConfig:
    from fastq.mirror import load_config
    from fastq.mirror.failover import reversed_config

    config = load_config(options.config)
    return reversed_config(config) if options.reverse else config


def _patient(config: MirrorConfig) -> MirrorConfig:
    """For a command that somebody waits for: a node that stands still does not have all the time, so that another one is asked in it."""
    return config._replace(source=_patient_side(config.source), target=_patient_side(config.target))


@contextlib.contextmanager
def _helped(config: MirrorConfig) -> Iterator[None]:
    """Of a cluster with too few nodes it is told which setting counts for both: it may be met at a fail-back first."""
    try:
        yield
    except InvalidReplicationFactor as error:
        factor, target = config.options.replication_factor, config.target.alias
        hint = (
            f"Give {target} a default.replication.factor that it can keep"
            if factor < 0
            else f"replication_factor = {factor} in [mirror] counts for {config.source.alias} and {target} alike: leave it out, and each "
            "has its own default.replication.factor"
        )
        raise error.with_context(hint=hint) from None


def _reach(side: Side, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    """Raises ConnectionFailed where no broker of this side answers: what reads there would wait for it as long as for records."""
    from fastq.mirror.survey import admin_of

    with admin_of(side) as admin:
        admin.describe_cluster(timeout=timeout_s)


def _patient_side(side: Side) -> Side:
    if any(canonical(key) == SETUP for key in side.common):
        return side
    return side._replace(common={**side.common, SETUP: CONNECTION_SETUP_MS})


def run_mirror(options: argparse.Namespace) -> int:
    from fastq.mirror import Mirror
    from fastq.mirror.metrics import MirrorExporter

    config = _config(options)
    mirror = Mirror(config)
    exporter = MirrorExporter(mirror)
    if options.metrics is not None:
        host, port = options.metrics
        complain(f"metrics at http://{host}:{exporter.serve(host, port)}/metrics")
    complain(f"mirroring {config.source.alias} to {config.target.alias}; interrupt to end")
    try:
        with _helped(config), infos_as_lines("fastq.mirror") if options.verbose else contextlib.nullcontext():
            mirror.run()
    finally:
        exporter.close()
        complain(f"ended; {counted(mirror.records, 'record')} copied by this process")
    return 0


def run_status(options: argparse.Namespace) -> int:
    from fastq.mirror.metrics import prometheus_text
    from fastq.mirror.report import status

    config = _patient(_config(options))
    try:
        found = status(config, options.interval)
    except ConnectionFailed:
        _tell_what_has_arrived(config)
        raise
    if options.prometheus:
        print(prometheus_text(config, found), end="")
        return 0
    rows = [
        {
            "topic": part.partition.topic,
            "partition": part.partition.partition,
            "target": part.target,
            "next": part.next_offset,
            "end": part.end,
            "lag": part.lag,
            "age": None if part.age_s is None else round(part.age_s, 1),
            "rate": round(part.rate),
            "state": part.state,
        }
        for part in found.partitions
    ]
    print_records(["topic", "partition", "target", "next", "end", "lag", "age", "rate", "state"], rows, options.json)
    for topic, why in found.refused.items():
        complain(f"{topic} is not mirrored: {why}")
    if found.stopped is not None:
        complain(FAILED_OVER)
    if not options.json and found.heartbeat_age_s is not None:
        print(f"\nthe last heartbeat that has arrived is {found.heartbeat_age_s:.1f} s old")
    return 0


def _tell_what_has_arrived(config: MirrorConfig) -> None:
    """What the target knows of a mirror that cannot be looked at; nothing, where that is because the target does not answer."""
    from fastq.mirror.report import failed_over, heartbeat_age_s

    try:
        _reach(config.target, PROBE_S)
    except FastqError:
        return
    if failed_over(config):
        complain(FAILED_OVER)
        return
    source, target, age_s = config.source.alias, config.target.alias, heartbeat_age_s(config)
    if age_s is not None:
        complain(
            f"the last heartbeat of {source} that has arrived in {target} was sent {age_s:.1f} s ago; fastq mirror fail-over has {target} "
            f"take its place, also while {source} does not answer"
        )


def run_check(options: argparse.Namespace) -> int:
    from fastq.mirror.comparison import Far, compare_all

    config, far = _patient(_config(options)), Far()

    def told() -> str:
        partitions, offsets = counted(far.partitions_in_all, "partition"), counted(far.offsets_in_all, "offset")
        return f" {far.partitions:,} of {partitions}, {far.offsets:,} of {offsets}" if far.partitions_in_all else ""

    _reach(config.source)
    with Waiting("compared", told):
        rows = [
            {
                "topic": found.partition.topic,
                "partition": found.partition.partition,
                "target": found.target,
                "start": found.start,
                "end": found.end,
                "compared": found.compared,
                "result": found.result,
                "detail": found.detail,
            }
            for found in compare_all(config, options.topic, far)
        ]
    print_records(["topic", "partition", "target", "start", "end", "compared", "result", "detail"], rows, options.json)
    if not rows:
        complain(
            "nothing was compared, which proves nothing: nothing has been mirrored yet; fastq mirror status shows what is"
        )
        return 1
    wrong, left = sum(row["result"] != "same" for row in rows), _not_begun(config, options.topic)
    if not options.json:
        same = "they are the same" if left else "source and target are the same"
        ending = f"{counted(wrong, 'partition')} to look at" if wrong else same
        print(f"\n{counted(len(rows), 'partition')} compared: {ending}")
    if left:
        complain(
            f"not compared: {', '.join(left[:NAMED])}{f' and {len(left) - NAMED} more' if len(left) > NAMED else ''}: "
            f"{config.source.alias} has records there or does not tell, and none was copied yet. fastq mirror says why when it is started"
        )
    return 1 if wrong or left else 0


def _not_begun(config: MirrorConfig, topics: Sequence[str]) -> list[str]:
    """Partitions with records that are to be mirrored, of which there is nothing to compare: the target may have refused them, or has none
    such, as where a topic was deleted there. Topics that are not mirrored are told, with the reason."""
    from fastq.mirror.names import HEARTBEATS
    from fastq.mirror.report import REFUSED, status

    with warnings_held() as lines:
        found = status(config, 0.0)
        lines.held = []  # which topics are not mirrored is told here
    for topic, why in found.refused.items():
        if not topics or topic in topics:
            complain(f"{topic} is not mirrored: {why}")
    if found.stopped is not None:
        return []  # what came since is not the mirror's

    def is_asked_for(tp: TopicPartition) -> bool:
        return tp.topic != HEARTBEATS and (not topics or tp.topic in topics)

    latest = config.options.start == "latest"  # what was there before is not the mirror's, either
    left = [
        part.partition
        for part in found.partitions
        if part.next_offset is None and part.lag and (part.state == REFUSED or not latest)
    ]
    if not latest and (to_come := list(filter(is_asked_for, found.to_come))):
        left += _with_records(config, to_come)
    return [str(tp) for tp in sorted(left) if is_asked_for(tp)]


def _with_records(config: MirrorConfig, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Those that have some, or do not tell."""
    from fastq.mirror.state import consumer_at, offsets_of

    options = config.options
    level = "read_committed" if options.read_committed and options.offsets != "same" else "read_uncommitted"
    with consumer_at(config.source, isolation_level=level) as consumer:
        begins, ends, missing = offsets_of(consumer, partitions, alone=False)
    return [tp for tp in partitions if tp in missing or ends[tp] > begins[tp]]


def run_fail_over(options: argparse.Namespace) -> int:
    from fastq.mirror.failover import fail_over

    config = _patient(_config(options))
    source, target = config.source.alias, config.target.alias

    def ended(seconds: float) -> None:  # told at once: what follows asks the source, which may be gone
        text = f"the mirror from {source} to {target} has ended after {seconds:.1f} s; {target} may be written to"
        print(text, flush=True)

    found = fail_over(config, ended)
    print(f"{counted(found.groups, 'offset')} of groups committed in {target} now")
    for tp, offset in sorted(found.aborted.items()):
        print(f"{tp}: a transaction that had not ended in {target} is aborted there, from offset {offset} on")
    if found.missing is None:
        age = "there is none" if found.heartbeat_age_s is None else f"it was sent {found.heartbeat_age_s:.1f} s ago"
        print(
            f"{source} does not answer; of its last heartbeat that has arrived: {age}; what it took since then may be missing"
        )
        return 0
    _tell_what_is_missing(config, found, options)
    return 0


def _tell_what_is_missing(config: MirrorConfig, found: FailedOver, options: argparse.Namespace) -> None:
    """Each partition of which the target has not all, or of which that is not known, and what to do about it."""
    source, target = config.source.alias, config.target.alias
    missing = {tp: count for tp, count in sorted((found.missing or {}).items()) if count}
    for tp, count in missing.items():
        verb, reason = "is" if count == 1 else "are", found.reasons.get(tp)
        why = f": {reason}" if reason else ""
        print(f"{tp}: {counted(count, 'offset')} of {source} from {found.starts[tp]} on {verb} not in {target}{why}")
    for tp, why in sorted(found.unknown.items()):
        first = found.partitions[tp].next_offset if tp in found.partitions else "the first"
        print(f"{tp}: what of {source} from {first} on is not in {target} is not known: {why}")
    for tp in sorted(found.reasons.keys() - missing.keys()):  # nothing is lost with these
        complain(f"{tp}: {found.reasons[tp]}; it is empty in {source}. Make it where it is needed")
    if not missing and not found.unknown:
        what = f"{'all else' if found.aborted else 'all'} that {source} has"
        print(f"{what}{' of what is mirrored' if found.refused else ''} is in {target}")
    if first_ones := {**{tp: found.starts[tp] for tp in missing}, **found.aborted}:
        tp, offset = min(first_ones.items())
        command = f"fastq consume {tp.topic} --partition {tp.partition} --offset {offset}"
        complain(f"what is not in {target} stays in {source}: read it from there, as with {command}")
    if found.unknown:
        command = f"fastq mirror fail-over --config {options.config}{' --reverse' if options.reverse else ''}"
        complain(f"once {source} tells of these, {command} once more says what is missing; it may be done again")


def run_fail_back(options: argparse.Namespace) -> int:
    from fastq.mirror.failover import fail_back, reversed_config

    config = _patient(_config(options))
    source, target = config.source.alias, config.target.alias
    with _helped(reversed_config(config)):  # what is made is made in the former source
        found = fail_back(config)
    kept = found.diverged if config.options.offsets == "same" else {}
    for tp, (start, end) in sorted(kept.items()):
        complain(
            f"{tp}: offsets {start} to {end - 1} of {source} are not in {target}; they stay in {source} until {target} begins "
            f"behind offset {end}"
        )
    for tp, (start, end) in sorted({**found.diverged, **found.never_copied}.items()):
        if tp not in kept:
            complain(
                f"{tp}: offsets {start} to {end - 1} of {source} were never copied to {target}; they stay in {source}"
            )
    command = f"fastq mirror --config {options.config}{'' if options.reverse else ' --reverse'}"
    print(f"{counted(len(found.partitions), 'partition')} prepared: {command} copies {target} to {source}")
    return 0
