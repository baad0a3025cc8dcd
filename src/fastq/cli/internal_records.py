"""Records of Kafka's own topics as documents: what `dump-log --decode` and `consume --decode` show.

    topic                   a record's key                      its value
    __consumer_offsets      {"type": 1, "data": {...}}          {"version": 4, "data": {...}}
    __transaction_state     the same                            the same
    __share_group_state     the same                            the same
    __cluster_metadata      none                                {"type": "TOPIC_RECORD", "version": 0, "data": {...}}
    __remote_log_metadata   none                                {"type": "REMOTE_LOG_...", "version": 0, "data": {...}}

Rules: names, ids and bytes (base64) are written as Kafka's DumpLogSegments writes them; here a field that a version does not have is there
too, with its default. What a client has put into a classic group's records is decoded where it is the consumers' protocol. A record whose
type is not known, or that does not decode, is shown by its bytes, with why: it is never left out. A marker of the log has a type, no key.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fastq._native.wire import DecodeError, Reader
from fastq.protocol.api import group_record_classes, metadata_record_class
from fastq.protocol.message import Message, Struct
from fastq.protocol.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    EndTxnMarker,
    GroupMetadataValue,
    KRaftVersionRecord,
    LeaderChangeMessage,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataSnapshotRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    TransactionLogKey,
    TransactionLogValue,
    VotersRecord,
)
from fastq.protocol.uuid import ZERO_UUID, uuid_to_str

Decoded = tuple[Any, Any]
"""Key and value as documents."""
FRAME_VERSION = 1
"""What stands before the type of a record of metadata, or of remote logs."""


class Decoder(NamedTuple):
    """How the records of a topic are read."""

    topic: str
    decode: Callable[[bytes | None, bytes | None], Decoded]


def decoder_for(topic: str) -> Decoder | None:
    """That of a topic of Kafka's own by its name; None for any other."""
    return next((decoder for decoder in DECODERS.values() if decoder.topic == topic), None)


# -- coordinators


def _coordinator(
    classes: Callable[[int], tuple[type[Message], type[Message]]],
) -> Callable[[bytes | None, bytes | None], Decoded]:
    def decode(key: bytes | None, value: bytes | None) -> Decoded:
        if key is None or len(key) < 2:
            return _opaque(key, "a key has a type"), _opaque(value)
        kind = int.from_bytes(key[:2], "big", signed=True)
        try:
            of_key, of_value = classes(kind)
            first = of_key.decode(Reader(key, 2), 0)
        except (KeyError, DecodeError) as error:
            return {"type": kind, **_opaque(key, _why(error))}, _opaque(value)
        return {"type": kind, "data": document(first)}, _versioned(of_value, value)

    return decode


def _versioned(message: type[Message], value: bytes | None) -> Any:
    if value is None:
        return None
    if len(value) < 2:
        return _opaque(value, "a value has a version")
    version = int.from_bytes(value[:2], "big", signed=True)
    try:
        data = document(message.decode(Reader(value, 2), version))
    except DecodeError as error:
        return {"version": version, **_opaque(value, str(error))}
    if message is GroupMetadataValue and data["protocolType"] == "consumer":
        for member in data["members"]:
            member["subscription"] = _of_client(ConsumerProtocolSubscription, member["subscription"])
            member["assignment"] = _of_client(ConsumerProtocolAssignment, member["assignment"])
    return {"version": version, "data": data}


def _of_client(message: type[Message], text: str | None) -> Any:
    """A client's own bytes; as they are where they are not what most clients have."""
    data = base64.b64decode(text or "")
    if len(data) < 2:
        return text
    version = min(int.from_bytes(data[:2], "big", signed=True), message.MAX_VERSION)
    # Each version adds fields at the end, which some clients leave out although they name it: those of version 0 are there.
    for read_as in (version, 0) if version > 0 else (version,):
        with contextlib.suppress(DecodeError):
            return document(message.decode(Reader(data, 2), read_as))
    return text


def _transaction_classes(kind: int) -> tuple[type[Message], type[Message]]:
    return {0: (TransactionLogKey, TransactionLogValue)}[kind]


def _share_classes(kind: int) -> tuple[type[Message], type[Message]]:
    return {0: (ShareSnapshotKey, ShareSnapshotValue), 1: (ShareUpdateKey, ShareUpdateValue)}[kind]


# -- metadata, remote logs


def _framed(classes: Callable[[int], type[Message]]) -> Callable[[bytes | None, bytes | None], Decoded]:
    def decode(key: bytes | None, value: bytes | None) -> Decoded:
        if value is None:
            return _opaque(key), None
        reader = Reader(value)
        try:
            if (frame := reader.read_uvarint()) != FRAME_VERSION:
                raise DecodeError(f"frame version {FRAME_VERSION}", 0, str(frame), "a record")
            kind, version = reader.read_uvarint(), reader.read_uvarint()
            message = classes(kind).decode(reader, version)
        except (KeyError, DecodeError) as error:
            return _opaque(key), _opaque(value, _why(error))
        return _opaque(key), {"type": _type_name(type(message)), "version": version, "data": document(message)}

    return decode


def _why(error: Exception) -> str:
    return f"type {error.args[0]} is not known" if isinstance(error, KeyError) else str(error)


_REMOTE_LOG: dict[int, type[Message]] = {
    message.API_KEY: message
    for message in (
        RemoteLogSegmentMetadataRecord,
        RemoteLogSegmentMetadataUpdateRecord,
        RemotePartitionDeleteMetadataRecord,
        RemoteLogSegmentMetadataSnapshotRecord,
    )
}


# -- markers of a log

_CONTROLS: dict[int, tuple[str, type[Message]]] = {
    0: ("ABORT", EndTxnMarker),
    1: ("COMMIT", EndTxnMarker),
    2: ("LEADER_CHANGE", LeaderChangeMessage),
    3: ("SNAPSHOT_HEADER", SnapshotHeaderRecord),
    4: ("SNAPSHOT_FOOTER", SnapshotFooterRecord),
    5: ("KRAFT_VERSION", KRaftVersionRecord),
    6: ("KRAFT_VOTERS", VotersRecord),
}


def decode_control(key: bytes | None, value: bytes | None) -> Decoded:
    """A control record, which any topic may have: the end of a transaction, or what the metadata's quorum writes for itself."""
    kind = int.from_bytes(key[2:4], "big", signed=True) if key is not None and len(key) >= 4 else -1
    if kind not in _CONTROLS or value is None:
        return _opaque(key, "no control record that is known"), _opaque(value)
    name, message = _CONTROLS[kind]
    if len(value) < 2:
        return None, {"type": name, **_opaque(value, "a value has a version")}
    version = int.from_bytes(value[:2], "big", signed=True)
    # The version stands before a marker's fields, and is the first field of the others.
    reader = Reader(value, 2 if message is EndTxnMarker else 0)
    try:
        found = message.decode(reader, min(version, message.MAX_VERSION))
    except DecodeError as error:
        return None, {"type": name, **_opaque(value, str(error))}
    return None, {"type": name, "version": version, "data": document(found)}


# -- documents


def document(value: Any, *, is_uuid: bool = False) -> Any:
    """A message, or a value in it, as JSON has it."""
    if isinstance(value, Struct):
        names = _fields(type(value))
        return {name: document(getattr(value, slot), is_uuid=uuid) for slot, name, uuid in names}
    if isinstance(value, list):
        # Lists of bytes are lists of ids in all of these messages.
        return [document(item, is_uuid=True) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return uuid_to_str(bytes(value)) if is_uuid and len(value) == 16 else base64.b64encode(value).decode()
    return value


_known_fields: dict[type[Struct], list[tuple[str, str, bool]]] = {}


def _fields(message: type[Struct]) -> list[tuple[str, str, bool]]:
    """Slots, their names in Kafka, and which are ids: those that are no id by default."""
    found = _known_fields.get(message)
    if found is None:
        defaults: dict[str, Any] = message.__init__.__kwdefaults__ or {}
        found = _known_fields[message] = [
            (slot, _name(slot), defaults.get(slot) == ZERO_UUID) for slot in message.__slots__
        ]
    return found


def _name(slot: str) -> str:
    """A field's name as Kafka spells it."""
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), slot.rstrip("_").replace("kraft", "k_raft"))


def _type_name(message: type[Message]) -> str:
    """As Kafka's enumerations have it: TopicRecord is TOPIC_RECORD."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", message.__name__).upper()


def as_bytes(key: bytes | None, value: bytes | None) -> Decoded:
    """A record of a topic that is not Kafka's own."""
    return key, value


def _opaque(data: bytes | None, why: str | None = None) -> Any:
    """Bytes that are nothing else."""
    if data is None:
        return None
    shown = {"base64": base64.b64encode(data).decode()}
    return shown if why is None else {**shown, "undecoded": why}


DECODERS = {
    "offsets": Decoder("__consumer_offsets", _coordinator(group_record_classes)),
    "transactions": Decoder("__transaction_state", _coordinator(_transaction_classes)),
    "share-state": Decoder("__share_group_state", _coordinator(_share_classes)),
    "metadata": Decoder("__cluster_metadata", _framed(metadata_record_class)),
    "remote-log": Decoder("__remote_log_metadata", _framed(_REMOTE_LOG.__getitem__)),
}
"""By the names that `--decoder` takes."""
