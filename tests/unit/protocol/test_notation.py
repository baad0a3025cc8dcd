"""The notation's parser, the import from Kafka's JSON, and that the committed code is what the generator makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import protocol_oracle as oracle
import pytest

sys.path.insert(0, str(oracle.ROOT / "tools"))

import generate_messages
import import_definitions
from message_notation import NEVER, NotationError, Versions, parse_file, parse_folder

TOOLS = oracle.ROOT / "tools"

EXAMPLE = """\
# A comment.
request TestRequest key=7 versions=1-4 flexible=3+ listeners=broker,controller unstable
    struct Shared
        text: string
    names: []string 2+ nullable 3+ default null ignorable
    items: []Item
        id: int32 key  # another
        more: Shared 2-3
        hint: int8 3+ tag 0 default -1
    shared: Shared
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "test.msg"
    path.write_text(text)
    return path


def test_a_definition_is_read_as_written(tmp_path: Path) -> None:
    (message,) = parse_file(write(tmp_path, EXAMPLE))
    assert (message.kind, message.name, message.key, message.module) == ("request", "TestRequest", 7, "test")
    assert (message.versions, message.flexible_version, message.unstable) == (Versions(1, 4), 3, True)
    assert message.listeners == ("broker", "controller")
    names, items, shared = message.fields
    assert (names.type, names.array, names.versions, names.nullable) == ("string", True, Versions(2, 4), Versions(3, 4))
    assert (names.default, names.ignorable, names.key) == ("null", True, False)
    assert (items.is_struct, items.versions, shared.type) == (True, Versions(1, 4), "Shared")
    identity, more, hint = message.structs["Item"].fields
    assert identity.key
    assert more.versions == Versions(2, 3)
    assert (hint.tag, hint.tagged, hint.versions, hint.default) == (0, Versions(3, 4), Versions(3, 4), "-1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reqest X versions=1", "reqest"),
        ("request X", "versions"),
        ("request X versions=1 colour=red", "colour"),
        ("request X versions=1-b", "1-b"),
        ("request X versions=1\n  a: int8", "indent"),
        ("request X versions=1\n    a: int8\n        b: int8", "indent"),
        ("request X versions=1\n    a int8", "not a field"),
        ("request X versions=1\n    a: int8 sometimes", "sometimes"),
        ("request X versions=1\n    a: []Nothing", "no fields"),
        ("request X versions=1\n    a: int8\n    a: int8", "two fields"),
        ("request X versions=1 flexible=0+\n    a: int8 tag 1", "tags"),
        ("request X versions=1\n    a: string default null", "not nullable"),
    ],
)
def test_a_bad_definition_names_file_and_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(NotationError, match=words) as caught:
        parse_file(write(tmp_path, text))
    assert "test.msg" in str(caught.value)


def test_the_committed_code_is_what_the_generator_makes() -> None:
    for path, text in generate_messages.outputs().items():
        assert path.read_text(encoding="utf-8") == text, path


def test_check_reports_drift(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate_messages.main(["--check"]) == 0
    wanted = dict(generate_messages.outputs())
    path = generate_messages.PACKAGE / "messages" / "produce.py"
    wanted[path] += "# another line\n"
    monkeypatch.setattr(generate_messages, "outputs", lambda: wanted)
    assert generate_messages.main(["--check"]) == 1
    assert "produce.py" in capsys.readouterr().err
    del wanted[path]
    assert generate_messages.main(["--check"]) == 1, "a file that nothing makes is drift as well"


def test_generation_is_deterministic() -> None:
    code = "import sys; sys.path.insert(0, {!r}); import generate_messages, hashlib; " + (
        "print(hashlib.sha256(repr(sorted((str(p), t) for p, t in generate_messages.outputs().items())).encode()).hexdigest())"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code.format(str(TOOLS))],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(oracle.ROOT / "src")},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1


def test_kafka_s_json_is_taken_over(tmp_path: Path) -> None:
    definition = {
        "apiKey": 7,
        "type": "request",
        "listeners": ["broker", "controller"],
        "name": "TestRequest",
        "validVersions": "1-4",
        "flexibleVersions": "3+",
        "latestVersionUnstable": True,
        "commonStructs": [
            {"name": "Shared", "versions": "0+", "fields": [{"name": "Text", "type": "string", "versions": "0+"}]}
        ],
        "fields": [
            {
                "name": "Names",
                "type": "[]string",
                "versions": "2+",
                "nullableVersions": "3+",
                "default": "null",
                "ignorable": True,
            },
            {
                "name": "Items",
                "type": "[]Item",
                "versions": "0+",
                "fields": [
                    {"name": "Id", "type": "int32", "versions": "0+", "mapKey": True, "entityType": "brokerId"},
                    {"name": "More", "type": "Shared", "versions": "2-3"},
                    {
                        "name": "Hint",
                        "type": "int8",
                        "versions": "3+",
                        "taggedVersions": "3+",
                        "tag": 0,
                        "default": "-1",
                    },
                ],
            },
            {"name": "Shared", "type": "Shared", "versions": "0+"},
        ],
    }
    source = tmp_path / "json" / "clients"
    source.mkdir(parents=True)
    (source / "TestRequest.json").write_text("// A licence.\n" + json.dumps(definition))
    assert import_definitions.main([str(tmp_path / "json"), str(tmp_path / "messages")]) == 0
    (taken,) = parse_folder(tmp_path / "messages")
    (written,) = parse_file(write(tmp_path, EXAMPLE))
    assert taken == written


@pytest.mark.parametrize(
    ("name", "spelling"),
    [
        ("TimeoutMs", "timeout_ms"),
        ("KRaftVersion", "kraft_version"),
        ("V3AndBelowTopics", "v3_and_below_topics"),
        ("LastKnownElr", "last_known_elr"),
        ("ISRNodes", "isr_nodes"),
        ("From", "from_"),
    ],
)
def test_names_in_python_s_spelling(name: str, spelling: str) -> None:
    assert import_definitions.snake(name) == spelling


def test_every_kind_of_message_is_there() -> None:
    messages = parse_folder(TOOLS / "messages")
    assert len(messages) == 284
    assert sum(not message.versions for message in messages) == 8, "the APIs that went with ZooKeeper"
    assert {message.flexible_version for message in messages if message.name == "SaslHandshakeRequest"} == {NEVER}
