"""Every message in every version, encoded by Apache Kafka's own classes: the bytes must be ours."""

from __future__ import annotations

import base64
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import apache_kafka
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "protocol"))

import json

import protocol_oracle as oracle
from fastq_broker.handlers.api_versions import OWN_FROM
from protocol_oracle import DEFINITIONS

PACKAGES = {  # by our module; messages of all other modules are in kafka-clients
    "metadata_records": "org.apache.kafka.common.metadata",
    "group_records": "org.apache.kafka.coordinator.group.generated",
    "transaction_records": "org.apache.kafka.coordinator.transaction.generated",
    "share_records": "org.apache.kafka.coordinator.share.generated",
    "quorum_state": "org.apache.kafka.raft.generated",
    "remote_log_records": "org.apache.kafka.server.log.remote.metadata.storage.generated",
    "producer_snapshot": "org.apache.kafka.server.log.remote.metadata.storage.generated",
}
SAMPLES = 3


def java_class(message: Any) -> str:
    suffix = "Data" if message.kind in ("request", "response", "header") else ""
    return f"{PACKAGES.get(message.module, 'org.apache.kafka.common.message')}.{message.name}{suffix}"


def java_name(name: str) -> str:
    first, *rest = name.rstrip("_").replace("kraft", "k_raft").split("_")
    return first + "".join(part.capitalize() for part in rest)


def as_json(message: Any, fields: Any, values: dict[str, Any], version: int) -> dict[str, Any]:
    """Values in the form that Kafka's JSON converters take."""

    def one(field: Any, value: Any) -> Any:
        if value is None:
            return None
        if field.is_struct:
            return as_json(message, message.structs[field.type].fields, value, version)
        if field.type == "uuid":
            return base64.urlsafe_b64encode(value).decode().rstrip("=")
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    result: dict[str, Any] = {}
    for field in fields:
        if version in field.versions:
            value = values[field.name]
            many = field.array and value is not None
            result[java_name(field.name)] = [one(field, item) for item in value] if many else one(field, value)
    return result


def without_records(message: Any, fields: Any, values: dict[str, Any], version: int) -> None:
    """Empty the fields of type records, which the JSON converters do not take."""
    for field in fields:
        value = values[field.name]
        if field.type == "records":
            values[field.name] = None if version in field.nullable else b""
        elif field.is_struct and value is not None:
            for item in value if field.array else [value]:
                without_records(message, message.structs[field.type].fields, item, version)


@pytest.mark.kafka
def test_apache_kafka_encodes_every_message_to_the_same_bytes() -> None:
    reason = apache_kafka.available()
    if reason is not None:
        pytest.skip(reason)
    lines, expected = [], []
    for message in (m for m in DEFINITIONS if m.key < OWN_FROM):
        for version in message.versions:
            for sample in range(SAMPLES):
                values = oracle.random_values(message, version, random.Random(f"{message.name} {version} {sample}"))
                without_records(message, message.fields, values, version)
                document = json.dumps(as_json(message, message.fields, values, version))
                lines.append(f"{java_class(message)} {version} {document}\n")
                expected.append((message.name, version, oracle.build(message, values).to_bytes(version).hex()))
    command = ["java", "-cp", apache_kafka.class_path(), str(Path(__file__).with_name("EncodeMessages.java"))]
    done = subprocess.run(command, input="".join(lines), capture_output=True, text=True, timeout=300, check=False)
    theirs = done.stdout.splitlines()
    assert len(theirs) == len(expected), done.stderr
    different = [(*ours, other) for ours, other in zip(expected, theirs, strict=True) if ours[2] != other]
    assert different == []
    assert len(expected) > 2000
