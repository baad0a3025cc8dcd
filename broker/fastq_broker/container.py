"""The command `fastq-broker container`: a broker whose settings are environment variables, named as those of Apache Kafka's image.

    KAFKA_LOG_RETENTION_HOURS=48        log.retention.hours            _ is a dot
    KAFKA_A__B_C___D=x                  a_b.c-d                        __ is an underscore, ___ a dash
    CLUSTER_ID=...                      the cluster's id, written at the first start of a new directory

Rules
- A variable that is no setting of Kafka refuses the start, as a file's key does; those for a JVM, and those that Kubernetes sets of its own
  accord for a service named kafka (KAFKA_PORT=tcp://...), are passed over, the latter with a word.
- Where no listener is named there are two, as a container has clients on both sides of its wall: port 9092, advertised as localhost, for
  the host that publishes it, and port 19092, advertised by the container's name, for other containers.
- What is done is what `fastq-broker format` and `fastq-broker --set ...` do; this is nothing but another way to say it.
Source: the README and KafkaDockerWrapper of Apache Kafka's image.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastq.errors import ConfigError

from .complaints import Parser, complain
from .exit_codes import WRONG_USAGE

PREFIX = "KAFKA_"
FOR_A_JVM = re.compile(
    r"KAFKA_(VERSION|HOME|HEAP_OPTS|OPTS|DEBUG|GC_LOG_OPTS|JMX_[A-Z_]*|JVM_PERFORMANCE_OPTS|(TOOLS_)?LOG4J_[A-Z_0-9]*)"
)
OF_KUBERNETES = re.compile(
    r"KAFKA_([A-Z0-9_]*_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP)[A-Z_]*)?)"
)
HOST_PORT, CONTAINER_PORT, CONTROLLER_PORT = 9092, 19092, 19093
BOTH_ROLES = "broker,controller"


def settings_of(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The settings that variables stand for, by Kafka's names, and the variables that are Kubernetes'."""
    found: dict[str, str] = {}
    passed: list[str] = []
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or FOR_A_JVM.fullmatch(variable):
            continue
        if OF_KUBERNETES.fullmatch(variable):
            passed.append(variable)
            continue
        found[_key(variable)] = value
    return found, passed


def _key(variable: str) -> str:
    """`KAFKA_A_B__C` is `a.b_c`."""
    text = variable[len(PREFIX) :].lower()
    return re.sub("_{1,3}", lambda found: {1: ".", 2: "_", 3: "-"}[len(found[0])], text)


def unknown_variables(settings: Mapping[str, str]) -> str:
    """What is said of those that stand for no setting; empty where all do."""
    from .config import check_known

    words = []
    for key in settings:
        try:
            check_known(key)
        except ConfigError as error:
            words.append(f"{_variable(key)}: {error}" if key else f"{PREFIX} names no setting")
    return "; ".join(words)


def _variable(key: str) -> str:
    """`KAFKA_A_B__C` of `a.b_c`."""
    return PREFIX + key.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def defaults(settings: Mapping[str, str], host: str) -> dict[str, str]:
    """What holds where nobody names a listener. Who names others in the settings beside it, or advertises with an older one, means the one
    listener that Apache Kafka has by default."""
    if "listeners" in settings:
        return {}
    named = {
        item.strip().upper().rpartition("://")[0] or "PLAINTEXT"
        for item in settings.get("advertised.listeners", "").split(",")
        if item.strip()
    }
    named |= {settings[key].strip().upper() for key in ("inter.broker.listener.name",) if key in settings}
    if named - {"HOST", "CONTAINERS"} or "advertised.host.name" in settings:
        return {"listeners": f"PLAINTEXT://:{HOST_PORT}"}
    return {
        "listeners": f"HOST://:{HOST_PORT},CONTAINERS://:{CONTAINER_PORT}",
        "advertised.listeners": f"HOST://localhost:{HOST_PORT},CONTAINERS://{host}:{CONTAINER_PORT}",
        "listener.security.protocol.map": "HOST:PLAINTEXT,CONTAINERS:PLAINTEXT",
        "inter.broker.listener.name": "CONTAINERS",
    }


def with_controller(settings: Mapping[str, str]) -> dict[str, str]:
    """The same with a listener for controllers, which a node that is one has to have to be formatted: within the container, where none is
    named."""
    if "controller.listener.names" in settings or "controller" not in settings.get("process.roles", BOTH_ROLES):
        return dict(settings)
    protocols = settings.get("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT")
    return {
        **settings,
        "listeners": f"{settings['listeners']},CONTROLLER://127.0.0.1:{CONTROLLER_PORT}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
    }


def format_arguments(settings: Mapping[str, str], cluster_id: str) -> list[str]:
    """What `fastq-broker format` is told for a new directory: a controller whose voters are not named is the first of its quorum."""
    roles = settings.get("process.roles", BOTH_ROLES)
    first = "controller" in roles and "controller.quorum.voters" not in settings
    return ["format", "--cluster-id", cluster_id, *(["--standalone"] if first else []), *_assignments(settings)]


def _assignments(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def _other_cluster(directories: Sequence[str], cluster_id: str) -> str:
    """What is said where a directory is another cluster's; a file that cannot be read is the start's to tell."""
    from .controller.storage import MetaProperties

    for each in directories:
        try:
            found = MetaProperties.read(Path(each.strip()))
        except (ConfigError, OSError):
            continue
        if found is not None and found.cluster_id != cluster_id:
            return (
                f"CLUSTER_ID is {cluster_id}, and {each.strip()} belongs to cluster {found.cluster_id}: "
                "give it that one, or another volume"
            )
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fastq-broker container",
        description="A broker whose settings are KAFKA_* variables, those of Apache Kafka's image; CLUSTER_ID formats a new directory.",
    )
    parser.add_argument(
        "--data-dir", default="/var/lib/fastq/data", help="where KAFKA_LOG_DIRS is not set (default: %(default)s)"
    )
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="serve /metrics and /health there")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="default: text")
    return parser


def main(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run the broker; answers the exit code."""
    from .__main__ import main as run

    parsed = _parser().parse_args(arguments)
    environment = os.environ if environment is None else environment
    settings, passed = settings_of(environment)
    unknown = unknown_variables(settings)
    if unknown:
        complain(unknown, "container")
        return WRONG_USAGE
    if passed:
        complain(
            f"{', '.join(passed)}: passed over, as Kubernetes sets such for a service named kafka; give the service another "
            "name, or set enableServiceLinks: false"
        )
    settings = {**defaults(settings, socket.gethostname()), **settings}
    cluster_id = environment.get("CLUSTER_ID", "")
    if cluster_id:
        settings = with_controller(settings)
    if not {"log.dirs", "log.dir"} & settings.keys():
        settings["log.dirs"] = parsed.data_dir
    directories = settings.get("log.dirs", settings.get("log.dir", "")).split(",")
    is_new = not any(os.path.exists(os.path.join(each.strip(), "meta.properties")) for each in directories)
    other = cluster_id and not is_new and _other_cluster(directories, cluster_id)
    if other:
        complain(other, "container")
        return WRONG_USAGE
    if cluster_id and is_new:
        code = run(format_arguments(settings, cluster_id))
        if code:
            return code
    more = ["--metrics-listen", parsed.metrics_listen] if parsed.metrics_listen is not None else []
    return run([*_assignments(settings), *more, "--log-format", parsed.log_format])
