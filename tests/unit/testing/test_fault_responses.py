"""Error responses made from the message definitions: every API, every version, with requests of one item."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from fastq_broker.cluster.forwarding import FORWARDED_KEYS
from fastq_broker.error_responses import _list_depth, encode_error, error_response, error_said
from fastq_broker.fault_switches import READING, _overwrite
from fastq_broker.router import HANDLERS, load_handler

from fastq._native.wire import EncodeError
from fastq.protocol import messages as m
from fastq.protocol.api import APIS
from fastq.protocol.frames import decode_response

NOT_LEADER = 6


def filled(kind: type, root: type) -> Any:
    """A struct with one item in each of its lists."""
    struct = kind()
    for name, annotation in kind.__init__.__annotations__.items():
        found = re.match(r"list\[(?:\w+\.)*(\w+)\]", annotation)
        if found is None:
            continue
        plain = {"str": "thing", "int": 4, "bytes": b"0" * 16}
        setattr(struct, name, [plain[found[1]] if found[1] in plain else filled(getattr(root, found[1]), root)])
    return struct


def codes(struct: Any) -> list[int]:
    """All error codes in a response."""
    found = []
    for name in struct.__slots__:
        value = getattr(struct, name)
        if name.endswith("error_code") and name != "topic_config_error_code":
            found.append(value)
        elif isinstance(value, list):
            found += [code for item in value if hasattr(item, "__slots__") for code in codes(item)]
    return found


def request_of(api_key: int, version: int) -> Any:
    """A request of one item in each list that the version has."""
    kind = APIS[api_key].request_class()
    full, request = filled(kind, kind), kind()
    for name in kind.__slots__:
        alone = kind()
        setattr(alone, name, getattr(full, name))
        with contextlib.suppress(EncodeError):  # a field of other versions
            alone.to_bytes(version)
            setattr(request, name, getattr(full, name))
    return kind.from_bytes(request.to_bytes(version), version)


VERSIONS = [
    (key, version)
    for key in sorted({*HANDLERS, *FORWARDED_KEYS, *range(8, 17), 24, 25, 26, 27, 28, 42, 47, 68})
    for version in range(APIS[key].min_version, APIS[key].max_stable_version + 1)
    if not APIS[key].name.startswith(("Describe", "List")) and APIS[key].name not in READING
]


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=[f"{APIS[key].name}-{v}" for key, v in VERSIONS])
def test_each_api_answers_with_the_code(key: int, version: int) -> None:
    request = request_of(key, version)
    frame = encode_error(77, error_response(request, NOT_LEADER), version)
    correlation_id, response = decode_response(frame[4:], key, version)
    assert correlation_id == 77
    assert NOT_LEADER in codes(response), response


def test_each_item_gets_its_own_answer() -> None:
    part, topic = m.ProduceRequest.PartitionProduceData, m.ProduceRequest.TopicProduceData
    request = m.ProduceRequest(
        topic_data=[
            topic(name="a", partition_data=[part(index=3), part(index=5)]),
            topic(name="b", partition_data=[part(index=0)]),
        ]
    )
    response: Any = error_response(request, NOT_LEADER)
    answers = [(t.name, p.index, p.error_code) for t in response.responses for p in t.partition_responses]
    assert answers == [("a", 3, 6), ("a", 5, 6), ("b", 0, 6)]


def test_names_and_indexes_that_are_no_structs() -> None:
    request = m.DeleteTopicsRequest(topic_names=["a", "b"])
    deleted: Any = error_response(request, 41)
    assert [(r.name, r.error_code) for r in deleted.responses] == [("a", 41), ("b", 41)]
    transaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id="t",
        topics=[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="a", partitions=[1, 2])],
    )
    batch = m.AddPartitionsToTxnRequest(transactions=[transaction])
    added: Any = error_response(batch, 51)
    (result,) = added.results_by_transaction
    assert added.results_by_topic_v3_and_below == [] and result.transactional_id == "t"
    parts = result.topic_results[0].results_by_partition
    assert [(part.partition_index, part.partition_error_code) for part in parts] == [(1, 51), (2, 51)]


def test_overwriting_reaches_every_code() -> None:
    kind = m.MetadataResponse
    response = filled(kind, kind)
    _overwrite(response, 5)
    assert set(codes(response)) == {5} and len(codes(response)) == 3


def test_the_depth_of_a_request() -> None:
    assert _list_depth([]) == 0 and _list_depth(["a"]) == 1 and _list_depth("a") == 0
    assert _list_depth(filled(m.ProduceRequest, m.ProduceRequest).topic_data) == 2


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_a_null_list_of_a_request_is_no_null_in_its_answer(api_key: int, version: int) -> None:
    kind = APIS[api_key].request_class()
    request = kind()
    for name, annotation in kind.__init__.__annotations__.items():
        if annotation.startswith("list["):
            setattr(request, name, None)
    encode_error(7, error_response(request, NOT_LEADER), version)


@pytest.mark.parametrize("key", sorted(HANDLERS))
def test_whatever_an_answer_can_say_it_says(key: int) -> None:
    """All but the older versions of Metadata have a place for an error; without items there is none to say it."""
    first, last = load_handler(key).VERSIONS
    silent = [
        version
        for version in range(first, last + 1)
        if error_said(request_of(key, version), version, NOT_LEADER, "words") is None
    ]
    assert silent == (list(range(13)) if key == m.MetadataRequest.API_KEY else [])
    if key == m.CreateTopicsRequest.API_KEY:
        assert error_said(m.CreateTopicsRequest(), last, NOT_LEADER, "words") is None
