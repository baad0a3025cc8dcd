"""The APIs of the protocol: which exist, in which versions, and which header a version takes.

Rules: nothing here loads a message; `ApiInfo.request_class()` does, at its first call. Facts are of Apache Kafka 4.3.
"""

from __future__ import annotations

from fastq.protocol import messages
from fastq.protocol._apis import API_ROWS, GROUP_RECORD_KEYS, GROUP_RECORD_VALUES, METADATA_RECORDS, ApiKey
from fastq.protocol.message import Message
from fastq.values import Value

__all__ = [
    "APIS",
    "ApiInfo",
    "ApiKey",
    "api_name",
    "group_record_classes",
    "metadata_record_class",
    "request_header_version",
    "response_header_version",
]


class ApiInfo(Value):
    """One API. Versions `min_version` to `max_version` are defined; up to `max_stable_version` they may be advertised."""

    key: ApiKey
    name: str  # Kafka's: "Produce"
    min_version: int
    max_version: int
    flexible_version: int  # the first one with compact lengths and tagged fields; 32767 when there is none
    latest_version_unstable: bool  # the last version is still being worked on in Kafka itself
    listeners: tuple[str, ...]  # "broker", "controller": where it is served

    @property
    def max_stable_version(self) -> int:
        return self.max_version - self.latest_version_unstable

    def supports(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def request_class(self) -> type[Message]:
        cls: type[Message] = getattr(messages, f"{self.name}Request")
        return cls

    def response_class(self) -> type[Message]:
        cls: type[Message] = getattr(messages, f"{self.name}Response")
        return cls


APIS: dict[int, ApiInfo] = {row[0]: ApiInfo(ApiKey(row[0]), *row[1:]) for row in API_ROWS}
"""All APIs that have versions, by key; an ApiKey is an int and finds its entry too."""


def api_name(key: int) -> str:
    """Kafka's name of an API, or "api 123" for a key that is not known: for messages to people."""
    info = APIS.get(key)
    return info.name if info is not None else f"api {key}"


def request_header_version(key: int, version: int) -> int:
    """2 for flexible versions, else 1 (header 0 went with ControlledShutdown). KeyError for an unknown API."""
    return 2 if version >= APIS[key].flexible_version else 1


def response_header_version(key: int, version: int) -> int:
    """1 for flexible versions, else 0; always 0 for ApiVersions, whose reader does not know the version yet (KIP-511)."""
    return 1 if version >= APIS[key].flexible_version and key != ApiKey.API_VERSIONS else 0


def metadata_record_class(record_type: int) -> type[Message]:
    """The class of a record of `__cluster_metadata` by its type. KeyError for an unknown one."""
    cls: type[Message] = getattr(messages, METADATA_RECORDS[record_type])
    return cls


def group_record_classes(record_type: int) -> tuple[type[Message], type[Message]]:
    """Key and value classes of a record of `__consumer_offsets` by its type, which is its key's version on the wire."""
    return getattr(messages, GROUP_RECORD_KEYS[record_type]), getattr(messages, GROUP_RECORD_VALUES[record_type])
