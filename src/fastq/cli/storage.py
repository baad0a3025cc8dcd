"""`fastq storage`: what the log directories of a node are; of a node that need not run.

Rules: it is `fastq-broker info`, the broker's own code, which is loaded for this alone and may not be installed; what it finds and the exit
codes are its.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from fastq.cli.output import Subparsers, UsageError, nonempty

TOOL = "fastq_broker.format"


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "storage", "The log directories of a node.", "fastq storage info --config server.properties"
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))
    info = kinds.add(
        "info",
        "Say what a node's directories are: their cluster, node and feature levels, as fastq-broker info does.",
        "fastq storage info --data-dir data",
    )
    where = info.add_mutually_exclusive_group(required=True)
    where.add_argument("--config", "-c", type=nonempty, metavar="FILE", help="the node's configuration")
    where.add_argument("--data-dir", type=nonempty, metavar="DIR", help="its directory, or several with commas")
    info.set_defaults(run=run_info)


def run_info(options: argparse.Namespace) -> int:
    try:
        tool = importlib.import_module(TOOL)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("fastq_broker"):
            raise
        raise UsageError("fastq storage takes the broker's code, fastq_broker, which is not installed here") from None
    where = ["--config", options.config] if options.config is not None else ["--data-dir", options.data_dir]
    code: int = tool.main(["info", *where])
    return code
