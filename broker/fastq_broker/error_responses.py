"""Error responses made from the message definitions: each item of a request is answered with the code.

Rules: an answer has the names and indexes of its request, and the code wherever it has one. Where a version has no code at the top, those
of the items say it. A request without items is answered with none, as Kafka does (AbstractRequest.getErrorResponse).
"""

from __future__ import annotations

import re
from typing import Any

from fastq._native.wire import EncodeError
from fastq.errors import ErrorCode
from fastq.protocol.api import APIS
from fastq.protocol.frames import encode_response
from fastq.protocol.message import Message, Struct

API_VERSIONS = 18

_LIST_OF = re.compile(r"list\[(?:\w+\.)*(\w+)\]")


def error_response(request: Message, code: int, words: str | None = None) -> Message:
    """The answer to a request of which nothing was done, but for the code, and `words` wherever there is room for a message."""
    response_class = APIS[request.API_KEY].response_class()
    response = _mirrored(request, response_class, response_class, code)
    assert isinstance(response, Message)
    if words is not None:
        _say(response, words)
    return response


def _say(struct: Struct, words: str) -> None:
    for name in struct.__slots__:
        if name == "error_message":
            setattr(struct, name, words)
            continue
        value = getattr(struct, name)
        for item in value if isinstance(value, list) else ():
            if isinstance(item, Struct):
                _say(item, words)


def encode_error(correlation_id: int, response: Message, version: int) -> bytes:
    """The frame of an error response, in a version that may have no code at the top."""
    top: Any = response
    if response.API_KEY == API_VERSIONS and top.error_code == ErrorCode.UNSUPPORTED_VERSION:
        version = 0
    return encode_response(correlation_id, fitted(response, version), version)


def fitted(response: Message, version: int) -> Message:
    """An error response as a version can say it that may have no code at the top: those of the items say it then."""
    try:
        response.to_bytes(version)
    except EncodeError:
        for name in _codes(response):
            setattr(response, name, 0)
    return response


def error_said(request: Message, version: int, code: int, words: str) -> Message | None:
    """The answer that says a code in this version, and `words` where that has room for them; None where it has none for the code: neither
    at the top, nor in an item."""
    for message in (words, None):
        response = fitted(error_response(request, code, message), version)
        try:
            if response.to_bytes(version) != error_response(request, ErrorCode.NONE, message).to_bytes(version):
                return response
        except EncodeError:
            continue
    return None


def _codes(struct: Struct) -> list[str]:
    return [name for name in struct.__slots__ if name.endswith("error_code")]


def _lists(root: type[Struct], kind: type[Struct]) -> dict[str, type[Struct] | None]:
    """The list fields of a struct and what is in them: a struct of the message `root`, or None for plain values."""
    found: dict[str, type[Struct] | None] = {}
    for name, annotation in kind.__init__.__annotations__.items():
        match = _LIST_OF.match(annotation)
        if match is not None:
            item = getattr(root, match[1], None)
            found[name] = item if isinstance(item, type) and issubclass(item, Struct) else None
    return found


def _depth(root: type[Struct], kind: type[Struct]) -> int:
    """How many lists deep the deepest error code of a struct lies; -1 when there is none."""
    own = 0 if any(name.endswith("error_code") for name in kind.__slots__) else -1
    below = [_depth(root, item) for item in _lists(root, kind).values() if item is not None]
    deepest = max(below, default=-1)
    return max(own, deepest + 1 if deepest >= 0 else -1)


def _list_depth(value: object) -> int:
    """How many lists deep a request's field goes; 0 for what is no list, or is empty."""
    if not isinstance(value, list) or not value:
        return 0
    first = value[0]
    if not isinstance(first, Struct):
        return 1
    return 1 + max((_list_depth(getattr(first, name)) for name in first.__slots__), default=0)


def _mirrored(source: Any, kind: type[Struct], root: type[Struct], code: int) -> Struct:
    """A response struct for a request struct (or one of its plain values): the same names and indexes, and the code."""
    answer: Any = kind()
    for name in kind.__slots__:
        if name.endswith("error_code"):
            setattr(answer, name, code)
    if not isinstance(source, Struct):
        _name_plain(answer, kind, source)
        plain: Struct = answer
        return plain
    for name in kind.__slots__:
        ours = "index" if name == "partition_index" and "index" in source.__slots__ else name
        ours = "partition" if name == "partition_index" and "partition" in source.__slots__ else ours
        if ours in source.__slots__ and not isinstance(getattr(source, ours), list) and getattr(answer, name) != []:
            setattr(answer, name, getattr(source, ours))
    pairs = [
        (abs(_list_depth(getattr(source, theirs)) - 1 - _depth(root, item)), name, item, theirs)
        for name, item in _lists(root, kind).items()
        if item is not None and _depth(root, item) >= 0
        for theirs in source.__slots__
        if _list_depth(getattr(source, theirs)) > 0
    ]
    # An answer's items have as many lists in them as the request's. Those of DeleteAcls have more, and alone have codes.
    whole = [pair for pair in pairs if _list_depth(getattr(source, pair[3])) > _depth(root, pair[2])]
    pairs = whole if whole or any(name.endswith("error_code") for name in kind.__slots__) else pairs
    if pairs:
        _, name, item, theirs = min(pairs, key=lambda pair: pair[0])
        setattr(answer, name, [_mirrored(each, item, root, code) for each in getattr(source, theirs)])
    mirrored: Struct = answer
    return mirrored


def _name_plain(answer: Any, kind: type[Struct], value: object) -> None:
    """A topic's name or a partition's index goes into the first field of its type."""
    for name in kind.__slots__:
        if type(getattr(answer, name)) is type(value) and not name.endswith("error_code"):
            setattr(answer, name, value)
            return
