"""What a wrong call is told: one line, with what is known, and exit code 2. And what bytes become."""

from __future__ import annotations

import argparse
import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastq.cli import clients, entry, main, produce
from fastq.cli import console as console_command
from fastq.cli.clients import client_settings
from fastq.cli.entry import build_parser
from fastq.cli.output import Progress, UsageError, shown_in_json
from fastq.cli.produce_lines import without_end
from fastq.errors import ConnectionTimeout
from fastq.words import counted


def leaves(parser: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    """Every command that can be called, as its words."""
    found = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found = True
            for word, below in action.choices.items():
                yield from leaves(below, f"{name} {word}".strip())
    if not found:
        yield name


PARSER = build_parser()
COMMANDS = list(leaves(PARSER))


@pytest.fixture(autouse=True)
def one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process makes it once."""
    monkeypatch.setattr(entry, "build_parser", lambda: PARSER)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a wrong call gets."""
    capsys.readouterr()
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("fastq: ") and err.count("\n") == 1 and err.endswith("\n"), err
    return err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--bootstrap", "me:hush@127.0.0.1:9092"),
        ("--bootstrap", "127.0.0.1:9092,me:hush@127.0.0.1:9093"),
        ("--property", "bootstrap.servers=SASL_SSL://me:hush@127.0.0.1:9092"),
    ],
)
def test_a_login_in_an_address_is_not_shown_and_it_is_said_where_it_goes(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]
) -> None:
    line = complaint(capsys, "topics", "list", *arguments)
    assert "hush" not in line and "***@127.0.0.1" in line and "--property sasl.username=" in line


@pytest.mark.parametrize("more", [(), ("--property", "socket.connection.setup.timeout.ms=5000")])
def test_one_broker_that_stands_still_has_not_all_the_time_that_a_command_has(
    monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """`fastq produce` and `fastq consume` gave up, where another address would have answered."""
    monkeypatch.setattr(clients, "reach", lambda *_: None)
    options = build_parser().parse_args(["produce", "logs", "--bootstrap", "127.0.0.1:1", *more])
    with (
        clients.opened_producer(options) as producer,
        clients.opened_consumer(options, []) as consumer,
        clients.opened_admin(options) as admin,
    ):
        for config in (producer.config, consumer.config, admin.config):
            assert config.socket_connection_setup_timeout_ms == (5000 if more else 2000)
            assert config.socket_connection_setup_timeout_ms < 1000 * options.connect_timeout


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_one_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    line = complaint(capsys, *command.split(), "--no-such-option", "x", "y", "z", "zz")
    assert "--help" in line


@pytest.mark.parametrize(
    "command", sorted({name.split()[0] for name in COMMANDS if " " in name} - {"log-dirs", "mirror"} | {""})
)
def test_a_command_without_its_action_is_one_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """But log-dirs, which lists them, and mirror, which is one."""
    assert "required" in complaint(capsys, *command.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topic", "list"], "did you mean topics?"),
        (["topics", "lsit"], "did you mean list?"),
        (["perf", "x"], "one of produce, consume"),
        (["perf", "latency", "t", "--rate", "0"], "more than 0"),
        (["perf", "latency", "t", "--size", "3"], "24 bytes or more"),
        (["perf", "produce", "t", "--plot", "x.png"], ".svg is expected"),
        (["perf", "produce", "t", "--size", "3", "--payload-file", "x"], "not allowed with"),
        (["consume"], "TOPIC"),
        (["consume", "t", "--max-records", "0"], "1 or more"),
        (["consume", "t", "--from-begining"], "did you mean --from-beginning?; see fastq consume --help"),
        (["topics", "create", "t", "--nothing-like-it"], "see fastq topics create --help"),
        (["console", "8080"], "'8080' is not known, hash-password is all"),
        (["console", "--lisen", "127.0.0.1:1"], "unrecognized arguments: --lisen 127.0.0.1:1, did you mean --listen?"),
        (["mirror", "other.toml"], "'other.toml' is not known, a file of settings is given with --config other.toml"),
        (["console", "other.toml"], "'other.toml' is not known, a file of settings is given with --config other.toml"),
        (["topics", "other.toml"], "is not known, it is one of"),
        (["mirror", "--confg", "x", "status"], "unrecognized arguments: --confg x, did you mean --config?"),
        (["--profil=x", "--prof", "x", "topic", "list"], "did you mean topics?"),
        (["--profiles", "x", "topics", "list"], "unrecognized arguments: --profiles x, did you mean --profile?"),
        (["topics", "--nothing=x", "lsit"], "did you mean list?"),
        (["--bootstrap", "b", "topics", "list"], "goes behind it, fastq COMMAND --bootstrap"),
        (
            ["--bootstrap-server", "b", "topics", "list"],
            "--bootstrap-server is no option of fastq topics, did you mean --bootstrap?; options go behind it",
        ),
        (
            ["topics", "create", "--topic", "t"],
            "unrecognized arguments: --topic: TOPIC is given by itself, without --topic",
        ),
        (
            ["consume", "--topic=t", "t"],
            "--topic=t: TOPIC is given by itself, without --topic; see fastq consume --help",
        ),
        (["produce", "t", "--property", "transactional.id=x"], "this command begins none"),
        (["topics", "create", "t", "--partitions", "three"], "1 or more"),
        (["topics", "create", "t", "--partitions", "0"], "1 or more"),
        (["topics", "create", "t", "--replication-factor", "0"], "1 or more"),
        (["topics", "add-partitions", "t", "0"], "1 or more"),
        (["consume", "t", "--timeout", "soon"], "seconds"),
        (["consume", "t", "--timeout", "nan"], "seconds"),
        (["consume", "t", "--offset", "1"], "--offset needs --partition"),
        (["consume", "t", "u", "--partition", "1"], "--partition is for one topic"),
        (["consume", "t", "--group", "g", "--partition", "1"], "exclude each other"),
        (["consume", "t", "--json", "--verbose"], "not allowed with"),
        (["consume", "t", "--include", "x"], "exclude each other"),
        (["consume", "--include", "("], "no regular expression"),
        (["consume", "t", "--format", "%x"], "'%x' is not known"),
        (["consume", "t", "--filter", "x"], "are expected"),
        (["consume", "t", "--group", "g", "--tail", "1"], "exclude each other"),
        (["consume", "t", "--from", "1", "--from-beginning"], "each says where to start"),
        (["consume", "t", "--encoding", "hex"], "auto, utf-8, base64"),
        (["consume", "t", "--property", "x"], "KEY=VALUE"),
        (["produce", "t", "--header", "x"], "KEY=VALUE"),
        (["perf", "produce", "t", "--records", "many"], "'many'"),
        (["topics", "create", "t", "--partitions", "many"], "'many'"),
        (["configs", "show"], "--topic"),
        (["configs", "show", "--broker", "first"], "'first'"),
        (["offsets", "t", "--at", "soon"], "'soon'"),
        (["groups", "reset-offsets", "g"], "--to-earliest"),
        (["groups", "remove-members", "g"], "--all"),
        (["dump-log", "x.txt"], ".log"),
        (["topics", "delete-records", "t:1"], "TOPIC:PARTITION:OFFSET"),
        (["topics", "describe"], "--under-replicated"),
        (["topics", "describe", "--unavailable", "--at-min-isr"], "not allowed with"),
        (["topics", "create", "t", "--replica-assignment", "1:x"], "1:2,2:3"),
        (["topics", "create", "t", "--replica-assignment", "1:1"], "partition 0 has a node twice"),
        (["topics", "create", "t", "--replica-assignment", "1", "--partitions", "2"], "leave --partitions"),
        (["cluster", "unregister", "first"], "'first'"),
        (["cluster", "features", "--upgrade", "metadata.version"], "KEY=VALUE"),
        (["cluster", "features", "--upgrade", "metadata.version=new"], "with a number"),
        (["cluster", "features", "--upgrade", "a=1", "--downgrade", "a=1"], "name it once"),
        (["cluster", "features", "--unsafe"], "--downgrade"),
        (["cluster", "features", "--validate-only"], "needs one of --upgrade, --downgrade"),
        (["quorum", "add-controller", "4@127.0.0.1:9094"], "ID@HOST:PORT:DIRECTORY_ID"),
        (["quorum", "add-controller", "4@127.0.0.1:9094:short"], "22 characters"),
        (["quorum", "add-controller", "4@127.0.0.1:99999:J5bVhg1zR6mYyIjDqIWfOg"], "ID@HOST:PORT:DIRECTORY_ID"),
        (["quorum", "remove-controller", "4", "--directory-id", "x"], "22 characters"),
        (["partitions", "reassign"], "--generate"),
        (["partitions", "reassign", "--generate", "t.json"], "--brokers"),
        (["partitions", "reassign", "--list", "--brokers", "1"], "--generate TOPICS"),
        (["partitions", "reassign", "--list", "--additional"], "--additional is about --execute"),
        (["partitions", "reassign", "--list", "--throttle", "5"], "--throttle is about --execute"),
        (["partitions", "reassign", "--execute", "t.json", "--throttle", "0"], "1 or more"),
        (["partitions", "reassign", "--list", "--preserve-throttles"], "--verify and --cancel"),
        (["topics", "list", "--output", "xml"], "one of table, json, csv, yaml is expected, not 'xml'"),
        (["topics", "list", "--output", "csv", "--json"], "not allowed with"),
        (["consume", ""], "a name is expected"),
        (["consume", "t", "--partition", "-1"], "a number of 0 or more is expected, not '-1'"),
        (["consume", "t", "--partition", "2147483648"], "a number of 2147483647 at most is expected"),
        (["consume", "t", "--partition", "0", "--offset", "9" * 20], "9223372036854775807 at most"),
        (["consume", "t", "--partition", "0", "--offset", "9" * 5000], "a number of 0 or more is expected"),
        (["consume", "t", "--max-records", "\u00b2"], "a number of 1 or more is expected"),
        (["consume", "t", "--from", "9" * 20], "takes milliseconds since 1970"),
        (["consume", "t", "--to", "2026-13-01"], "takes milliseconds since 1970"),
        (["topics", "create", "t", "--partitions", "99999999999"], "2147483647 at most"),
        (["produce", "t", "--partition", "-1"], "0 or more"),
        (["produce", "t", "--key-separator", ""], "--key-separator is empty"),
        (["produce", "t", "--header", "=1"], "KEY=VALUE"),
        (["--bootstrap", "127.0.0.1:1", "produce", "t"], "it goes behind it, fastq COMMAND --bootstrap ..."),
        (["--profile", "p", "--json=1", "topics", "list"], "COMMAND --json"),
        (["--profile=p", "--boot", "127.0.0.1:1", "topics", "list"], "COMMAND --boot"),
        (["--no-such-option", "produce", "t"], "unrecognized arguments: --no-such-option"),
        (["produce", "t", "--json", "--null-marker", "x"], "--json and --null-marker exclude each other"),
        (["produce", "t", "--keep-partition"], "needs --json"),
        (["produce", "t", "--json", "--keep-partition", "--partition", "1"], "exclude each other"),
        (["produce", "t", "--rate", "0"], "more than 0"),
        (["perf", "produce", "t", "--size", "9" * 15], "at most"),
        (["perf", "produce", "t", "--payload-file", "/dev/zero"], "more than 256 MiB"),
        (["perf", "produce", "t", "--plot", "/no/such/x.svg"], "/no/such is no directory"),
        (["perf", "latency", "t", "--size", "9" * 15], "at most"),
        (["api-versions", "--broker", "-1"], "0 or more"),
        (["configs", "set", "--topic", "t", "a"], "a setting takes KEY=VALUE, not 'a'"),
        (["verify", "produce", "--topic", ""], "a name is expected"),
        (["verify", "produce", "--topic", "t", "--message-create-time", "9" * 20], "whole number"),
        (["verify", "consume", "--topic", "t", "--group-id", ""], "a name is expected"),
        (["verify"], "SIDE"),
        (["verify", "produce"], "--topic"),
        (["verify", "produce", "--topic", "t", "--acks", "all"], "'all'"),
        (["verify", "produce", "--topic", "t", "--acks", "2"], "one of 0, 1, -1"),
        (["verify", "produce", "--topic", "t", "--max-messages", "many"], "whole number is expected, not 'many'"),
        (["verify", "produce", "--topic", "t", "--repeating-keys", "0"], "1 or more"),
        (["verify", "consume", "--topic", "t"], "--group-id"),
        (["verify", "consume", "--topic", "t", "--group-id", "g", "--group-protocol", "share"], "classic, consumer"),
        (["topics", "list", "--command-config", "/no/such/file"], "/no/such/file"),
        (["log-dirs", "move", "t:0"], "--to"),
        (["log-dirs", "move", "t:0", "--to", "disk2"], "an absolute path, not 'disk2'"),
        (["log-dirs", "--broker", "1", "move", "t:0", "--to", "/disk2"], "after it"),
        (["partitions", "elect", "unclean"], "--all"),
        (["partitions", "elect", "clean", "--all"], "did you mean unclean?"),
        (["offsets", "t", "--at", "9" * 20], "--at takes latest"),
        (["offsets", "t", "--at", "-6"], "earliest-local (-4), latest-tiered (-5)"),
        (["topics", "list", "--include", "("], "a regular expression is expected"),
        (["topics", "delete", "--include", ""], "a name is expected, not an empty text"),
        (["topics", "delete", "--include", ".*", "t"], "say which: TOPIC, or --include REGEX"),
        (["topics", "delete", "t", "--execute"], "--execute is about --include"),
        (["cluster", "features", "--upgrade-to", ""], "a name is expected, not an empty text"),
        (["cluster", "features", "--version-mapping", ""], "a name is expected, not an empty text"),
        (["cluster", "features", "--version-mapping", "9"], "takes a release, as in 4.0"),
        (["streams", "reset", "app", "--input-topics", "a,,b"], "a name is expected, not an empty text"),
        (["streams", "reset", "app", "--to-current"], "unrecognized arguments: --to-current"),
        (["replicas", "verify", "t", "--interval", "1", "--rounds", "0"], "a number of 1 or more"),
        (["offsets", "t" * 40_000], "a name of 32,767 bytes at most is expected, not one of 40,000"),
        (["offsets", "\udcff"], "a name in Unicode is expected"),
        (["groups", "delete", "g" * 40_000], "a name of 32,767 bytes at most is expected"),
        (["groups", "remove-members", "g", "--instance", ""], "a name is expected"),
        (["transactions", "describe", "\udcff"], "a name in Unicode is expected"),
        (["client-metrics", "set", "c", "--metrics", "m" * 40_000], "32,767 bytes at most"),
        (["acls", "add", "--allow", "alice", "--operation", "read", "--topic", "t"], "a principal such as User:alice"),
        (["acls", "add", "--allow", "User:a", "--operation", "raed", "--topic", "t"], "did you mean read?"),
        (["acls", "add", "--allow", "User:a", "--operation", "read"], "--transactional-id"),
        (["acls", "add", "--operation", "read", "--topic", "t"], "--allow or --deny"),
        (["acls", "add", "--allow", "User:a", "--topic", "t"], "--operation, or --producer"),
        (["acls", "add", "--allow", "User:a", "--consumer", "--operation", "read", "--topic", "t"], "--operation, or"),
        (["acls", "add", "--allow", "User:a", "--deny", "User:a", "--operation", "all", "--topic", "t"], "at once"),
        (["acls", "add", "--allow", "User:a", "--consumer", "--topic", "t"], "--consumer needs --group"),
        (["acls", "add", "--allow", "User:a", "--producer", "--transactional-id", "t"], "need --topic"),
        (
            ["acls", "add", "--allow", "User:a", "--producer", "--topic", "t", "--cluster"],
            "--cluster has nothing to do",
        ),
        (["acls", "add", "--allow", "User:a", "--operation", "write", "--group", "g"], "a group knows no write"),
        (["acls", "add", "--allow", "User:a", "--operation", "all", "--cluster", "--prefixed"], "one --cluster"),
        (["acls", "add", "--allow", "User:a", "--operation", "all", "--topic", ""], "a name is expected"),
        (["acls", "list", "--pattern", "match"], "give --topic"),
        (["acls", "list", "--pattern", "glob", "--topic", "t"], "literal, prefixed, any, match"),
        (["acls", "remove"], "or --all alone"),
        (["acls", "remove", "--all", "--topic", "t"], "or --all alone"),
        (["quorum", "add-controller", "4@h:1:x", "--listener", "l" * 40_000], "32,767 bytes at most"),
        (["configs", "set", "--topic", "t", "retention.ms=\udcff"], "a text in Unicode is expected"),
        (["topics", "create", "t", "--config", "a=" + "v" * 40_000], "a text of 32,767 bytes at most is expected"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--by-duration", "9" * 20 + "d"], "ends after 1970"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--by-duration", "9" * 400 + "s"], "ends after 1970"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-datetime", "0001-01-01"], "milliseconds since 1970"),
        (["offsets", "t", "--at", "1969-12-31T00:00:00"], "milliseconds since 1970"),
        (["topics", "create", "t", "--replica-assignment", "1:" + "9" * 25], "1:2,2:3"),
        (["quorum", "add-controller", "9" * 25 + "@h:1:J5bVhg1zR6mYyIjDqIWfOg"], "ID@HOST:PORT:DIRECTORY_ID"),
        (["quorum", "add-controller", "4@h:" + "9" * 5000 + ":J5bVhg1zR6mYyIjDqIWfOg"], "ID@HOST:PORT:DIRECTORY_ID"),
        (["quorum", "add-controller", "4@" + "h" * 40_000 + ":1:J5bVhg1zR6mYyIjDqIWfOg"], "ID@HOST:PORT:DIRECTORY_ID"),
        (["configs", "set", "--topic", "t", "a=1", "b=1", "a=2"], "names a twice, with '1' and '2'"),
        (["topics", "create", "t", "--config", "a=1", "--config", "a=1"], "--config names a twice"),
        (["topics", "delete-records", "t:0:1", "t:0:2"], "t-0 is named twice, with offset 1 and 2"),
        (["topics", "delete-records", ":0:1"], "TOPIC:PARTITION:OFFSET"),
        (["topics", "list", "--property", "client.id=\udcff"], r"'\udcff' was given, which is no Unicode"),
        (["transactions", "list", "--state", "x"], "it is one of Empty, Ongoing, PrepareCommit, PrepareAbort"),
        (["transactions", "list", "--state", "ongoin"], "--state 'ongoin' is not known, did you mean Ongoing?"),
        (["groups", "list", "--state", "x"], "it is one of Empty, PreparingRebalance"),
        (["groups", "list", "--type", "clasic"], "did you mean classic?"),
        (["offsets", "t", "--at", "\u00b2"], "--at takes latest"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-datetime", "9" * 20], "milliseconds since 1970"),
        (["configs", "show", "--broker", "9" * 20], "the id of a broker"),
        (["configs", "show", "--broker-logger", "default"], "--broker-logger takes the id of a broker, not"),
        (["configs", "show"], "give one of --topic"),
        (["configs", "show", "--topic", "t", "--user", "u"], "give one of --topic"),
        (["configs", "show", "--user", "u", "--ip", "1.2.3.4"], "give one of --topic"),
        (["configs", "show", "--user", "u", "--user-defaults"], "--user and --user-defaults are two things"),
        (
            ["configs", "set", "--user", "u", "producer_byte_rate=fast"],
            "producer_byte_rate is a quota, which is a number",
        ),
        (
            ["configs", "set", "--user", "u", "producer_byte_rate=nan"],
            "producer_byte_rate is a quota, which is a number",
        ),
        (["configs", "set", "--client", "c", "SCRAM-SHA-256=[password=x]"], "SCRAM-SHA-256 is of a user"),
        (["configs", "set", "--user", "u", "--client", "c", "SCRAM-SHA-256="], "SCRAM-SHA-256 is of a user"),
        (["configs", "set", "--user", "u", "SCRAM-SHA-256=[iterations=1,password=x]"], "4,096 to 10,000,000, got 1"),
        (["configs", "set", "--user", "u", "SCRAM-SHA-256=x"], "takes [iterations=8192,password=SECRET]"),
        (["topics", "delete-records", "t:99999999999:1"], "TOPIC:PARTITION:OFFSET"),
        (["topics", "delete-records", "t:0:-5"], "TOPIC:PARTITION:OFFSET"),
        (["cluster", "features", "--upgrade", "metadata.version=99999"], "a number of 0 to 32767"),
    ],
    ids=lambda given: (given if isinstance(given, str) else " ".join(given))[:80],
)
def test_wrong_calls(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert words in complaint(capsys, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["configs", "set", "--user", "u", "SCRAM-SHA-265=[iterations=8192,password=hush]"],
        ["configs", "set", "--user", "u", "scram-sha-512=[password=hush]"],
        ["configs", "set", "--user", "u", "SHA-512=[password=hush]"],
        ["configs", "set", "--user", "u", "SCRAM-SHA-512:[password=hush]"],
        ["configs", "set", "--user", "u", "SCRAM-SHA-512=[pasword=hush]"],
        ["configs", "set", "--user", "u", "SCRAM-SHA-512=[password=hush]", "SCRAM-SHA-512=[password=hush]"],
        ["configs", "set", "--user-defaults", "SCRAM-SHA-512=hush"],
        ["configs", "set", "--user", "u", "SCARM-512=[pwd=hush]"],
        ["topics", "list", "--property", "sasl_password:hush"],
        ["topics", "list", "--property", "sasl_plain_passwd:hush"],
        ["topics", "create", "t", "--config", "ssl.key.password=hush", "--config", "ssl.key.password=hush2"],
    ],
    ids=" ".join,
)
def test_a_secret_is_not_told_however_it_is_misspelt(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert "hush" not in complaint(capsys, *arguments)


PARSED_LATER = {
    *("--profile", "--property", "--command-config", "--bootstrap", "--config", "--file", "--plot", "--to"),
    *("--generate", "--execute", "--verify", "--cancel"),  # files and directories
    *(
        "--replica-assignment",
        "--broker",
        "--brokers",
        "--broker-logger",
        "--at",
        "--from",
        "--to-datetime",
        "--by-duration",
    ),
    *("controller", "--directory-id", "--listen", "--schema-registry", "--name", "--api"),
    *(
        "--key",
        "--key-separator",
        "--header",
        "--header-separator",
        "--null-marker",
        "--filter",
        "--format",
        "--include",
    ),
    *("--assignment-strategy", "paths", "--state", "--type"),
}
"""What has a form of its own, which the commands read, or stays here."""


def test_every_text_that_is_sent_is_one_that_can_be() -> None:
    untyped = set()
    for command in COMMANDS:
        parser = build_parser()
        for word in command.split():
            parser = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices[word]
        untyped |= {
            (action.option_strings or [action.dest])[-1]
            for action in parser._actions
            if action.nargs != 0 and action.type is None and action.choices is None
        }
    assert untyped <= PARSED_LATER | {"--bootstrap-server"}


def test_what_is_quoted_makes_no_lines_and_is_cut_where_it_is_long(capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "topics", "list", "--command-config", "/no/\x1b[31m\nfastq: all is well\u2028\x9b")
    assert r"/no/\x1b[31m\nfastq: all is well\u2028\x9b" in line
    line = complaint(capsys, "topics", "list", "--property", "x" * 70_000)
    assert "KEY=VALUE" in line and "characters left out)" in line and len(line) < 2100
    line = complaint(capsys, "topics", "list", "--connect-timeout", "x" * 70_000)
    assert "--connect-timeout" in line and "see fastq topics list --help" in line and len(line) < 2100


def test_properties_win_over_what_the_command_sets_in_any_spelling() -> None:
    options = argparse.Namespace(
        bootstrap="a:1", command_config=None, property=["auto.offset.reset=none", "client-id=me", "Retries = 3"]
    )
    settings = client_settings(options, auto_offset_reset="latest", acks="all")
    assert settings == {
        "bootstrap_servers": "a:1",
        "auto.offset.reset": "none",  # as it was written: an error names it so
        "acks": "all",
        "client-id": "me",
        "Retries": "3",
    }
    with pytest.raises(UsageError, match="KEY=VALUE"):
        client_settings(argparse.Namespace(bootstrap="a:1", command_config=None, property=["x"]))


def test_bytes_in_json() -> None:
    assert shown_in_json(None) is None
    assert shown_in_json("Grüße".encode()) == "Grüße"
    assert shown_in_json(b"\xff\x00") == {"base64": "/wA="}
    assert shown_in_json(b"\xff", "utf-8") == "\ufffd"
    assert shown_in_json(b"text", "base64") == {"base64": "dGV4dA=="}


def test_an_unknown_setting_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "t", "--bootstrap", "127.0.0.1:1", "--property", "linger.millis=1"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "key linger.millis; did you mean linger_ms" in err


def test_a_setting_with_a_bad_value_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", "t", "--bootstrap", "127.0.0.1:99999"]) == 2
    assert "bad value for bootstrap_servers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "thing", "words"),
    [(1, "record", "1 record"), (0, "record", "0 records"), (2000, "copy", "2,000 copies"), (1, "copy", "1 copy")],
)
def test_numbers_of_things(number: int, thing: str, words: str) -> None:
    assert counted(number, thing) == words


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_interrupt_leaves_the_prompt_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("fastq.cli.entry.run", interrupted)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(["topics", "list"]) == 130
    assert terminal.getvalue() == "\n"
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    assert main(["topics", "list"]) == 130
    assert pipe.getvalue() == ""


def test_progress_stays_out_of_what_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    ticks = iter(range(100))
    monkeypatch.setattr("fastq.cli.output.time.monotonic", lambda: float(next(ticks)))
    Progress("sent", shown=False).update(1)
    assert terminal.getvalue() == ""
    Progress("sent").update(1)
    assert "sent 1" in terminal.getvalue()


DEEP = b"[" * 200_000


TOO_DEEP = "maximum recursion depth" if sys.version_info >= (3, 11) else "nested more than the allowed"
"""The words of the library that reads TOML."""


@pytest.mark.parametrize(
    ("arguments", "data", "words"),
    [
        (["partitions", "reassign", "--execute"], DEEP, "JSON is expected"),
        (["partitions", "reassign", "--execute"], b"\xff", "byte 0xff at position 0 is no UTF-8"),
        (["partitions", "elect", "preferred", "--file"], b'{"partitions":[{"topic":"\\ud800","partition":0}]}', "NAME"),
        (
            ["partitions", "elect", "preferred", "--file"],
            b'{"partitions":[{"topic":"t","partition":9999999999}]}',
            "NUMBER",
        ),
        (
            ["groups", "reset-offsets", "g", "--from-file"],
            b't,0,"' + b"1" * 200_000,
            r"line 1: [group,]topic,partition,offset",
        ),
        (["groups", "reset-offsets", "g", "--from-file"], b"\xe9,0,1", "is no UTF-8"),
        (["mirror", "status", "--config"], b"a=" + DEEP, "this is no TOML"),
        (["console", "--config"], b"a=" + DEEP, TOO_DEEP),
        (["groups", "reset-offsets", "g", "--from-file"], b",0,1", "[group,]topic,partition,offset is expected"),
    ],
)
def test_files_that_are_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], data: bytes, words: str
) -> None:
    (tmp_path / "file").write_bytes(data)
    line = complaint(capsys, *arguments, str(tmp_path / "file"))
    assert words in line and str(tmp_path) in line


def test_a_line_without_an_end_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "LINE_BYTES_MAX", 1 << 20)
    with open("/dev/zero", "rb") as endless:
        records = produce._records(endless, without_end, None)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="line 1 has more than 1 MiB"):
            next(records)


@pytest.mark.parametrize("name", ["00000000000000000000.snapshot", "x.index", "x.timeindex"])
def test_files_of_a_log_that_are_none_are_faults(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x" * (1 if name.endswith("snapshot") else 24))
    assert main(["dump-log", str(tmp_path / name)]) == 1
    assert f"FAULT {tmp_path / name}: " in capsys.readouterr().out


@pytest.mark.parametrize(("given", "expected"), [([], 30_000), (["--session-timeout", "7000"], 7_000)])
def test_a_verifying_member_has_the_session_that_kafkas_tool_has(
    given: list[str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the facts of the tool: 30 s, where a consumer of either kind has 45."""
    settings: dict[str, object] = {}

    def opened(*_: object, **found: object) -> object:
        settings.update(found)
        raise UsageError("far enough")

    monkeypatch.setattr("fastq.cli.verify.opened_consumer", opened)
    assert main(["verify", "consume", "--topic", "t", "--group-id", "g", *given]) == 2
    assert settings["session_timeout_ms"] == expected


@pytest.mark.parametrize(
    ("broker", "phase", "words"),
    [
        ("b:9092", "connect", "given up, no broker could be reached"),
        # Another one has told of it.
        ("b:9092 (node 2)", "connect", "given up, b:9092 (node 2) could not be reached, which this takes"),
        ("b:9092", "ready", "given up, no answer came from the broker"),  # as of one that stands still
    ],
)
def test_who_did_not_answer_was_reached(
    broker: str, phase: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ConnectionTimeout("nothing came", broker=broker, phase=phase)

    def runs(options: object) -> int:
        logging.getLogger("fastq.net.core").warning("%s; trying on", error)
        raise error

    parser = SimpleNamespace(parse_args=lambda arguments: SimpleNamespace(run=runs))
    monkeypatch.setattr(entry, "build_parser", lambda: parser)
    assert entry.run([]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == f"fastq: {words}"


@pytest.mark.parametrize(
    "given", ["--bootstrap=b:1", "--command-config=f", "--property=a=b", "--schema-registry=http://r:1"]
)
def test_a_console_of_a_file_takes_no_cluster_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    file = tmp_path / "console.toml"
    file.write_text('[clusters.east]\nbootstrap = "east:9092"\n')
    console = ["console", "--config", str(file)]
    assert main([*console, given]) == 2
    assert given.split("=")[0] in capsys.readouterr().err
    assert main(["--profile", "east", *console]) == 2
    assert "--profile" in capsys.readouterr().err
    monkeypatch.setenv("FASTQ_PROFILE", "east")
    monkeypatch.setenv("FASTQ_BOOTSTRAP", "east:9092")
    options = build_parser().parse_args(console)
    assert [cluster.name for cluster in console_command._config(options).clusters] == ["east"]
