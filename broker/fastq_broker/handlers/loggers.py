"""The loggers of this process as a configurable resource (KIP-412): names to levels.

Levels carry Kafka's names (TRACE to FATAL, OFF); Python's nearest level stands behind each. They last until the
process ends.
"""

from __future__ import annotations

import logging

from fastq.errors import ErrorCode
from fastq_broker.config_keys import shown
from fastq_broker.controller.config_changes import ConfigOperation, ResourceChange
from fastq_broker.controller.topics import Refused, Result

ROOT = "root"
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 10,
}


def levels() -> dict[str, str]:
    """Every logger of this process and the level in force."""
    manager = logging.Logger.manager
    named = {name: item for name, item in manager.loggerDict.items() if isinstance(item, logging.Logger)}
    found = {ROOT: logging.getLogger(), **named}
    return {name: level_name(item.getEffectiveLevel()) for name, item in sorted(found.items())}


def level_name(level: int) -> str:
    """Kafka's name of the highest level at or below a Python level."""
    return max((value, name) for name, value in LEVELS.items() if value <= max(level, LEVELS["TRACE"]))[1]


def alter(node_id: int, change: ResourceChange, validate_only: bool) -> Result:
    """Set levels (SET) or let a logger follow its parent again (DELETE)."""
    try:
        check_node(node_id, change.name)
        levels_to_set = [(item.name, _level(item.name, item.operation, item.value)) for item in change.changes]
    except Refused as refused:
        return Result(refused.error, refused.message)
    if not validate_only:
        for name, level in levels_to_set:
            logging.getLogger(None if name == ROOT else name).setLevel(level)
    return Result()


def check_node(node_id: int, name: str) -> None:
    """Loggers belong to one process: the request must name this node."""
    if name != str(node_id):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {node_id}, but received {shown(name)}: ask that broker",
        )


def _level(name: str, operation: int, value: str | None) -> int:
    if name not in levels():
        raise Refused(ErrorCode.INVALID_CONFIG, f"Logger {shown(name)} does not exist!")
    if operation == ConfigOperation.DELETE:
        if name == ROOT:
            raise Refused(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
        return logging.NOTSET
    if operation != ConfigOperation.SET:
        raise Refused(ErrorCode.INVALID_REQUEST, f"A log level can be set or deleted, not {operation}")
    if value not in LEVELS:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{name} = {shown(value)} is not allowed: it takes {', '.join(LEVELS)}")
    return LEVELS[value]
