"""The command `fastq-broker repair`: accepts the loss that a damaged metadata log means, so that the node starts again.

Rules
- Without `--execute` nothing is changed: it says what is damaged, what would be lost and what would be kept.
- The data directory is locked meanwhile: a running broker is never repaired.
- Ends with 0 when nothing is damaged or the repair is done, 1 when there is something to accept, 2 when it cannot look.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .complaints import Parser, complain
from .exit_codes import FAILED, OK, WRONG_USAGE

if TYPE_CHECKING:
    from .config import BrokerConfig
    from .config_keys import ConfigValue
    from .controller.repair import Plan

_EPILOG = """example:
  fastq-broker repair --data-dir ./data             says what it would do
  fastq-broker repair --data-dir ./data --execute   does it; what was there is kept in a .tar beside the metadata
"""


def main(arguments: Sequence[str]) -> int:
    """Look, say, and with `--execute` repair; answers the exit code."""
    parsed = _parser().parse_args(arguments)
    from fastq.errors import FastqError

    from .config import BrokerConfig

    try:
        config = BrokerConfig.load(parsed.config, _overrides(parsed))
        return _repair(config, execute=parsed.execute)
    except (FastqError, ValueError, OSError) as error:
        complain(error, "repair")
        return WRONG_USAGE


def _repair(config: BrokerConfig, *, execute: bool) -> int:
    from .controller.directory import MetadataDirectory
    from .controller.repair import repair
    from .controller.storage import CLEAN_SHUTDOWN, clean_shutdown_epoch, sync_directory
    from .log.log_dir import system_clock_ms
    from .log.log_manager import LogManager

    roots = [Path(path) for path in config.log_dirs]
    missing = [str(root) for root in roots if not root.is_dir()]
    if missing:
        raise ValueError(f"{', '.join(missing)}: there is no such directory")
    logs = LogManager(config.log_dirs)
    logs.lock(config.metadata_log_dir)
    try:
        directory = MetadataDirectory(config, clock=system_clock_ms, monotonic_ms=system_clock_ms)
        plan = directory.plan_repair(clean_shutdown_epoch(roots))
        if plan is None:
            print(f"{directory.path}: nothing that a repair is needed for")
            return OK
        _print(plan)
        if not execute:
            print("nothing was changed; the same command with --execute does it")
            return FAILED
        copy = repair(plan)
        for root in roots:  # the next start recovers every log, as after a crash
            (root / CLEAN_SHUTDOWN).unlink(missing_ok=True)
            sync_directory(root)
        print(f"done; what was there is in {copy}")
        return OK
    finally:
        logs.release_locks()


def _print(plan: Plan) -> None:
    for reason in plan.reasons:
        print(reason)
    print(f"kept: the metadata up to offset {plan.end_offset}, {len(plan.kept)} batches from offset {plan.begin_at} on")
    if not plan.lost:
        print("lost: nothing that can be read")
    for text in plan.lost:
        print(f"lost: {text}")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fastq-broker repair",
        description="Say what is damaged in the metadata log of a broker that does not start, and accept what is lost.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data-dir", metavar="DIR", help="the broker's data directory (default: ./data)")
    add("--config", metavar="FILE", help="the broker's configuration, where it has one")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="one setting; wins over the file; repeatable")
    add("--execute", action="store_true", help="repair; without it nothing is changed")
    return parser


def _overrides(parsed: argparse.Namespace) -> dict[str, ConfigValue]:
    from .config import parse_assignments

    overrides: dict[str, ConfigValue] = {} if parsed.config else {"log.dirs": "data"}
    overrides |= parse_assignments(parsed.set)
    if parsed.data_dir is not None:
        overrides["log.dirs"] = parsed.data_dir
    return overrides
