"""`fastq consume` and `fastq produce`: schemas of a registry, Kafka's own topics decoded, CSV and Parquet."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from google.protobuf import descriptor_pb2

from fastq import Admin, Producer, read_topic
from fastq.cli import main
from fastq.testing import Broker, SchemaRegistry

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": ["null", "bytes"], "default": None},
    ],
}
JSON_SCHEMA = {
    "title": "Order",
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
}

Run = Callable[..., str]


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


@pytest.fixture
def fastq(shared_broker: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """What a command prints, to standard output or (with another code than 0) to standard error."""
    monkeypatch.setenv("FASTQ_BOOTSTRAP", shared_broker.bootstrap_servers)

    def run(*arguments: object, stdin: str = "", code: int = 0) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capfd.readouterr()
        found = main(list(map(str, arguments)))
        out, error = capfd.readouterr()
        assert found == code, error
        return error if code else out

    return run


@pytest.fixture
def topic(shared_broker: Broker, make_topic: Callable[..., str]) -> str:
    return make_topic(shared_broker.bootstrap_servers, 1)


def schema_file(folder: Path, kind: str) -> Path:
    if kind == "desc":
        field = {"name": "number", "number": 1, "type": 3, "label": 1, "json_name": "number"}
        message = descriptor_pb2.DescriptorProto(name="Order", field=[descriptor_pb2.FieldDescriptorProto(**field)])
        file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3", message_type=[message])
        (folder / "order.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    else:
        (folder / f"order.{kind}").write_text(json.dumps(AVRO if kind == "avsc" else JSON_SCHEMA))
    return folder / f"order.{kind}"


@pytest.mark.parametrize("kind", ["avsc", "json", "desc"])
def test_there_and_back_by_a_schema(
    fastq: Run, registry: SchemaRegistry, topic: str, new_topic_name: Callable[[], str], kind: str, tmp_path: Path
) -> None:
    schema = ["--schema-registry", registry.url, "--value-schema", schema_file(tmp_path, kind)]
    fastq("produce", topic, *schema, "--key", "k", "--null-marker", "-", stdin='{"number":1}\n{"number": 2}\n-\n')
    read = ["consume", topic, "--from-beginning", "--exit-at-end", "--schema-registry", registry.url]
    values = [None if line == "null" else json.loads(line)["number"] for line in fastq(*read).splitlines()]
    numbers = [1, 2] if kind != "desc" else ["1", "2"]  # as Protobuf has 64 bits in JSON
    assert values == [*numbers, None]
    lines = fastq(*read, "--json")
    assert [json.loads(line)["key"] for line in lines.splitlines()] == ["k"] * 3
    assert fastq(*read, "--filter", "value.number=2", "--key-separator", ":").startswith('k:{"number":')
    copy = new_topic_name()
    by_subject = ["--schema-registry", registry.url, "--value-subject", f"{topic}-value"]
    fastq("topics", "create", copy, "--partitions", "1")
    fastq("produce", copy, "--json", *by_subject, stdin=lines)
    assert fastq("consume", copy, *read[2:], "--json") == lines.replace(topic, copy)
    told = fastq("produce", topic, *schema, stdin='{"number": "x"}\n', code=2)
    assert "line 1: value: it does not fit its schema" in told
    assert "line 1: value: JSON is expected with a schema" in fastq("produce", topic, *schema, stdin="x\n", code=2)


def test_bytes_and_texts_by_a_schema(fastq: Run, registry: SchemaRegistry, topic: str, tmp_path: Path) -> None:
    """Keys too; and what has no frame is shown as it is."""
    key = tmp_path / "key.avsc"
    key.write_text('"string"')
    line = '{"key": "k", "value": {"number": 5, "note": "grün", "raw": {"base64": "AP8="}}}'
    schemas = ["--value-schema", schema_file(tmp_path, "avsc"), "--key-schema", key]
    fastq("produce", topic, "--json", "--schema-registry", registry.url, *schemas, stdin=line)
    fastq("produce", topic, "--key", "plain", stdin="text")
    read = ["consume", topic, "--from-beginning", "--exit-at-end", "--schema-registry", registry.url, "--json"]
    first, second = (json.loads(line) for line in fastq(*read).splitlines())
    assert {"key": first["key"], "value": first["value"]} == json.loads(line)
    assert (second["key"], second["value"]) == ("plain", "text")
    assert "-subject need --schema-registry" in fastq("produce", topic, "--value-subject", "s", code=2)
    assert "needs --value-schema" in fastq("produce", topic, "--schema-registry", registry.url, code=2)
    wrong = ["produce", topic, "--schema-registry", registry.url]
    assert "a schema is .avsc" in fastq(*wrong, "--value-schema", "x.proto", code=2)
    assert "Subject 's' not found" in fastq(*wrong, "--value-subject", "s", code=1)
    bad = tmp_path / "bad.desc"
    bad.write_bytes(b"\xff\xff")
    assert "no set of descriptors" in fastq(*wrong, "--value-schema", bad, code=2)
    assert "http://host:port" in fastq("consume", topic, "--schema-registry", "x", code=2)


def test_a_frame_that_cannot_be_read_ends_with_its_place(
    fastq: Run, shared_broker: Broker, registry: SchemaRegistry, topic: str, tmp_path: Path
) -> None:
    good = ["produce", topic, "--schema-registry", registry.url, "--value-schema", schema_file(tmp_path, "avsc")]
    fastq(*good, stdin='{"number": 1}\n')
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send(topic, b"\0\0\0\0\x01\xff")
    read = ["consume", topic, "--from-beginning", "--exit-at-end", "--schema-registry", registry.url]
    assert f"{topic}" in (told := fastq(*read, code=1)) and "schema 1 does not fit" in told and "offset 1" in told
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send(topic, b"\0\0\0\0\x63x")
    later = ["consume", topic, "--partition", "0", "--offset", "2", "--exit-at-end", "--schema-registry", registry.url]
    assert "Schema 99 not found" in fastq(*later, code=1)


@pytest.mark.parametrize("shape", ["text", "json", "csv"])
def test_half_of_a_surrogate_pair_in_json_stays_its_escape(
    fastq: Run, registry: SchemaRegistry, topic: str, tmp_path: Path, shape: str, shared_broker: Broker
) -> None:
    schema = tmp_path / "any.json"
    schema.write_text("{}")
    with_schema = ["--schema-registry", registry.url]
    fastq("produce", topic, *with_schema, "--value-schema", schema, stdin='"first"\n')
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send(topic, b'\0\0\0\0\x01"\\ud83d."')
    read = ["consume", topic, "--from-beginning", "--exit-at-end", "--output", shape]
    assert "\\ud83d." in fastq(*read, *with_schema).splitlines()[-1]


def test_a_schema_that_is_none_and_a_registry_of_a_type_that_is_not_known(
    fastq: Run, registry: SchemaRegistry, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = tmp_path / "some.json"
    send = ["produce", topic, "--schema-registry", registry.url, "--value-schema", schema]
    for text, told in (("[]", "is an object"), ('{"type": "no"}', "cannot be used"), ("", "is no JSON")):
        schema.write_text(text)
        assert f"{schema}: " in (error := fastq(*send, code=2)) and told in error
    schema.write_text("{}")
    fastq(*send, stdin="1\n")
    monkeypatch.setattr("fastq.cli.schemas.KINDS", ("AVRO",))
    read = ["consume", topic, "--from-beginning", "--exit-at-end", "--schema-registry", registry.url]
    assert "of the type JSON" in fastq(*read, code=2)
    subject = ["produce", topic, "--schema-registry", registry.url, "--value-subject", f"{topic}-value"]
    assert "of the type JSON" in fastq(*subject, code=2)


def test_csv_tells_null_from_empty(fastq: Run, shared_broker: Broker, topic: str) -> None:
    values = [b"plain", b"", None, b'a,"b"\nc', b"\xff", b" x "]
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, value, key=b"k", headers=[("h", b"1")], timestamp_ms=5)
    text = fastq("consume", topic, "--from-beginning", "--exit-at-end", "--output", "csv")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["value"] for row in rows] == ["plain", "", "", 'a,"b"\nc', '{"base64": "/w=="}', " x "]
    assert rows[0] | {"topic": "", "value": ""} == {
        "topic": "",
        "partition": "0",
        "offset": "0",
        "timestamp_ms": "5",
        "key": "k",
        "value": "",
        "headers": '[["h", "1"]]',
    }
    assert f'{topic},0,1,5,k,"",' in text and f"{topic},0,2,5,k,," in text


def test_parquet_has_what_read_topic_has(
    fastq: Run, shared_broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastq.cli.consume_shapes.ROWS_MAX", 300)
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(1000)])
        producer.send(topic, None, key=b"\xff", headers=[("h", b"1"), ("n", None)])
    file = tmp_path / "records.parquet"
    assert fastq("consume", topic, "--from-beginning", "--exit-at-end", "--parquet", file) == ""
    expected = read_topic(topic, headers=True, bootstrap_servers=shared_broker.bootstrap_servers).to_arrow()
    found = pyarrow.parquet.read_table(file)
    assert found.column_names == expected.column_names and found.to_pylist() == expected.to_pylist()
    assert pyarrow.parquet.ParquetFile(file).num_row_groups == 4
    some = ["consume", topic, "--from-beginning", "--max-records", "7", "--filter", "value>500"]
    fastq(*some, "--parquet", file)
    assert [row["value"] for row in pyarrow.parquet.read_table(file).to_pylist()] == [
        b"%d" % n for n in range(501, 508)
    ]
    assert "exclude each other" in fastq("consume", topic, "--group", "g", "--parquet", file, code=2)
    nowhere = tmp_path / "no" / "x"
    told = fastq("consume", topic, "--exit-at-end", "--parquet", nowhere, code=1)
    assert told == f"fastq: {nowhere}: no such file or directory\n"


def test_kafkas_own_topics_are_decoded(fastq: Run, shared_broker: Broker, topic: str) -> None:
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        admin.alter_group_offsets(topic, {(topic, 0): 3})
    with (
        Producer(bootstrap_servers=shared_broker.bootstrap_servers, transactional_id=topic) as producer,
        producer.transaction(),
    ):
        producer.send(topic, b"x")
    read = ["--from-beginning", "--exit-at-end", "--decode", "--filter"]
    mine = f"key.data.group={topic}"
    (line,) = fastq("consume", "__consumer_offsets", *read, mine, "--filter", f"key.data.topic={topic}").splitlines()
    document = json.loads(line)
    assert document["key"] == {"type": 1, "data": {"group": topic, "topic": topic, "partition": 0}}
    assert document["value"]["data"]["offset"] == 3
    lines = fastq("consume", "__transaction_state", *read, f"key.data.transactionalId={topic}", "--json").splitlines()
    states: list[Any] = [json.loads(line)["value"]["data"]["transactionStatus"] for line in lines]
    assert states[0] == 0 and states[-1] == 4  # empty, complete with a commit
    assert "--decode knows Kafka's own topics" in fastq("consume", topic, "--decode", code=2)


def test_places_of_a_file_and_all_groups(fastq: Run, shared_broker: Broker, topic: str, tmp_path: Path) -> None:
    fastq("produce", topic, stdin="a\nb\nc\n")
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        for group in ("x", "y"):
            admin.alter_group_offsets(f"{topic}-{group}", {(topic, 0): 1})
    rows = json.loads(fastq("groups", "describe", "--all-groups", "--json"))
    assert [(row["group"], row["lag"]) for row in rows if row["topic"] == topic] == [
        (f"{topic}-x", 2),
        (f"{topic}-y", 2),
    ]
    assert "say which" in fastq("groups", "describe", code=2)
    file = tmp_path / "places.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 2}]}))
    assert json.loads(fastq("topics", "delete-records", "--file", file, "--json"))[0]["start"] == 2
    assert "say what" in fastq("topics", "delete-records", code=2)
    item = {"topic": topic, "partition": 0, "offset": 2}
    for bad in ([], {}, {"partitions": []}, {"partitions": [{"topic": 1}]}, {"version": 2, "partitions": [item]}):
        file.write_text(json.dumps(bad))
        assert f"{file}: " in fastq("topics", "delete-records", "--file", file, code=2)
    for wrong in ({"partition": "x"}, {"offset": -2}, {"offset": 1.5}, {"topic": 7}):
        file.write_text(json.dumps({"partitions": [item | wrong]}))
        assert "expected" in (told := fastq("topics", "delete-records", "--file", file, code=2)) or "no name" in told


@pytest.mark.one_node  # what one node says of its disk
def test_a_directorys_disk_and_what_it_is(fastq: Run, shared_broker: Broker, topic: str) -> None:
    rows = json.loads(fastq("log-dirs", "--topic", topic, "--json"))
    disks = [row for row in rows if row["partition"] == "(all)"]
    assert disks and all(0 < row["free"] <= row["total"] for row in disks)
    assert {row["total"] for row in rows if row["partition"] != "(all)"} == {None}
    assert "FREE" in fastq("log-dirs", "--topic", topic)
    from fastq_broker.format import main as theirs

    told = fastq("storage", "info", "--data-dir", shared_broker.data_dir)
    assert theirs(["info", "--data-dir", str(shared_broker.data_dir)]) == 0 and "cluster.id=" in told
    assert "required" in _usage("storage", "info") and "/no" in fastq("storage", "info", "--config", "/no", code=2)


def _usage(*arguments: str) -> str:
    """What a parser says of arguments that it does not take."""
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()) as told:
        main(arguments)
    assert ended.value.code == 2
    return told.getvalue()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("offsets no-such", "fastq topics list shows those that are there"),
        ("topics describe no-such", "fastq topics list shows those that are there"),
        ("configs show --topic no-such", "fastq topics list shows those that are there"),
        ("configs set --topic no-such retention.ms=1", "fastq topics list shows those that are there"),
        ("groups describe no-such", "fastq groups list shows those that are there"),
        ("groups reset-offsets no-such --topic no-such --to-latest", "fastq topics list shows those that are there"),
        ("topics delete-records {topic}:7:1", "fastq topics describe {topic} shows its partitions"),
    ],
)
def test_an_error_names_the_command_that_helps(fastq: Run, topic: str, command: str, expected: str) -> None:
    assert expected.format(topic=topic) in fastq(*command.format(topic=topic).split(), code=1)
