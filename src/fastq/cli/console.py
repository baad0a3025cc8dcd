"""`fastq console`: the web console, a process of its own; and hashes for its file of users."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import Default, add_client_options, client_settings
from fastq.cli.output import Subparsers, UsageError, complain

if TYPE_CHECKING:
    from fastq.console.config import ConsoleConfig

DEFAULT_LISTEN = "127.0.0.1:8080"


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "console",
        "A web console for clusters (needs pip install starlette uvicorn jinja2); hash-password makes a hash for --users.",
        "fastq console --bootstrap 127.0.0.1:9092 --listen 127.0.0.1:8080",
    )
    parser.add_argument(
        "action",
        nargs="?",
        metavar="hash-password",
        choices=["hash-password"],
        help="ask for a password, print its hash",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=DEFAULT_LISTEN,
        help=f"where browsers find it; anything but loopback needs --users or [oidc] (default: {DEFAULT_LISTEN}; port 0: a free one)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML with [clusters.NAME], [[mask]], [oidc] and [mirrors.NAME], in place of --bootstrap",
    )
    parser.add_argument(
        "--users",
        type=Path,
        metavar="FILE",
        help="who may log in: name:role:hash[:TOPIC-PATTERNS], a line each; read anew when it changes",
    )
    parser.add_argument("--read-only", action="store_true", help="change nothing, whoever asks")
    parser.add_argument(
        "--audit-log", type=Path, metavar="FILE", help="append what was changed by whom, a JSON line each"
    )
    parser.add_argument("--schema-registry", metavar="URL", help="of the cluster of --bootstrap, to read records by")
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="serve HTTPS with this PEM chain")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="and this key")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name that browsers call the console by, as behind a proxy; may be repeated",
    )
    add_client_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.action is not None:
        return _hash_password()
    try:
        from fastq.console.server import run as serve
    except ImportError as error:
        complain(f"the console needs more packages: pip install starlette uvicorn jinja2 ({error})")
        return 1
    serve(_config(options), lambda url: print(f"fastq console on {url}", flush=True))
    return 0


def _config(options: argparse.Namespace) -> ConsoleConfig:
    from fastq.console.config import ClusterConfig, ConsoleConfig, Loaded, load_file, parse_listen
    from fastq.console.users import Users

    host, port = parse_listen(options.listen)
    if options.config is not None:
        _check_no_cluster_beside(options)
        loaded = load_file(options.config)
    else:
        loaded = Loaded([ClusterConfig("cluster", client_settings(options), options.schema_registry)])
    return ConsoleConfig(
        clusters=tuple(loaded.clusters),
        host=host,
        port=port,
        users=None if options.users is None else Users.load(options.users),
        read_only=options.read_only,
        audit_log=options.audit_log,
        masks=loaded.masks,
        oidc=loaded.oidc,
        mirrors=loaded.mirrors,
        certificate=options.tls_certificate,
        key=options.tls_key,
        names=frozenset(options.name),
    ).check()


def _check_no_cluster_beside(options: argparse.Namespace) -> None:
    """Raises UsageError for options of a cluster, which would have no effect; what the environment says is every command's."""
    given = {
        "--bootstrap": not isinstance(options.bootstrap, Default),
        "--property": bool(options.property),
        "--command-config": options.command_config is not None,
        "--profile": not isinstance(options.profile, Default | None),
        "--schema-registry": options.schema_registry is not None,
    }
    if beside := [name for name, is_given in given.items() if is_given]:
        raise UsageError(
            f"{', '.join(beside)} would have no effect beside --config: bootstrap, properties and schema_registry stand in its "
            "[clusters.NAME]"
        )


def _hash_password() -> int:
    """Asked for twice on a terminal, else a line of standard input: never an argument, which others can see."""
    from getpass import getpass

    from fastq.console.users import hash_password

    if sys.stdin is not None and os.isatty(sys.stdin.fileno()):
        password = getpass("password: ")
        if getpass("again: ") != password:
            raise UsageError("the two are not the same")
    else:
        password = (sys.stdin.readline() if sys.stdin is not None else "").rstrip("\r\n")
    print(hash_password(password))
    return 0
