"""The `fastq` command against a real broker: what is printed, and the exit codes."""

from __future__ import annotations

import base64
import io
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastq import Producer
from fastq.cli import main
from fastq.cli.entry import build_parser
from fastq.testing import Broker


class Shell:
    """Runs commands in this process against one broker."""

    def __init__(self, broker: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FASTQ_BOOTSTRAP", broker.bootstrap_servers)
        self.bootstrap = broker.bootstrap_servers
        self.capfd = capfd
        self.monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        """What the command printed to standard output; fails when it ends with another code."""
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self.capfd.readouterr()
        found = main(arguments)
        self.out, self.err = self.capfd.readouterr()
        assert found == code, self.err
        return self.out

    def json(self, *arguments: str) -> object:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def fastq(shared_broker: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(shared_broker, capfd, monkeypatch)


@pytest.mark.one_node  # it prints how many copies one node gives
def test_topics_from_made_to_deleted(fastq: Shell, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    assert f"made {name}: 3 partitions, 1 copy of each" in fastq("topics", "create", name, "--partitions", "3")
    assert name in fastq("topics", "list").split()
    assert "already exists" in (told := _error(fastq, "topics", "create", name))
    assert "--if-not-exists" in told
    fastq("topics", "add-partitions", name, "5")
    rows = fastq.json("topics", "describe", name)
    assert [(row["partition"], row["start"], row["end"]) for row in rows] == [(index, 0, 0) for index in range(5)]
    assert "cannot be taken away" in _error(fastq, "topics", "add-partitions", name, "2")
    fastq("produce", name, "--partition", "1", stdin=b"a\nb\nc\n")
    assert fastq.json("topics", "delete-records", f"{name}:1:2") == [{"topic": name, "partition": 1, "start": 2}]
    assert "TOPIC:PARTITION:OFFSET is expected" in _error(fastq, "topics", "delete-records", name, code=2)
    fastq("topics", "delete", name)
    assert name not in fastq("topics", "list").split()


def _error(fastq: Shell, *arguments: str, code: int = 1, stdin: bytes = b"") -> str:
    fastq(*arguments, code=code, stdin=stdin)
    assert fastq.err.startswith("fastq: ")
    return fastq.err


def test_who_reads_from_the_end_and_finds_nothing_is_told_what_reads_the_rest(
    fastq: Shell, new_topic_name: Callable[[], str]
) -> None:
    name = new_topic_name()
    fastq("topics", "create", name)
    reads = ["consume", name, "--exit-at-end"]
    assert fastq(*reads) == "" and "no record came" not in fastq.err, "there is none"
    fastq("produce", name, stdin=b"one\n")
    for more in ([], ["--partition", "0"]):
        assert fastq(*reads, *more) == "" and "--from-beginning reads that too" in fastq.err
    assert fastq("consume", "--include", name, "--timeout", "1") == "" and "--from-beginning reads" in fastq.err
    assert fastq(*reads, "--group", name) == "" and f"fastq groups reset-offsets {name}" in fastq.err
    for more in (["--group", name], ["--from", "2100-01-01"], ["--from-beginning", "--filter", "value=two"]):
        assert fastq(*reads, *more) == "" and "no record came" not in fastq.err


def test_lines_in_and_records_out(fastq: Shell, new_topic_name: Callable[[], str], tmp_path: Path) -> None:
    name = new_topic_name()
    fastq("topics", "create", name, "--partitions", "1")
    source = tmp_path / "lines"
    source.write_bytes(b"k1=one\nk2=two\nk3=NULL\n")
    sent = ["--file", str(source), "--key-separator", "=", "--null-marker", "NULL", "--header", "from=test"]
    fastq("produce", name, *sent, "--compression", "zstd")
    assert fastq("consume", name, "--from-beginning", "--exit-at-end") == "one\ntwo\nnull\n"
    assert fastq("consume", name, "--from-beginning", "--max-records", "1", "--key-separator", ":") == "k1:one\n"
    last = fastq("consume", name, "--partition", "0", "--offset", "2", "--exit-at-end", "--json")
    record = json.loads(last)
    assert (record["offset"], record["key"], record["value"], record["headers"]) == (2, "k3", None, [["from", "test"]])
    assert f"{name}-0@0 " in fastq("consume", name, "--from-beginning", "--max-records", "1", "--verbose")
    assert "--offset needs --partition" in _error(fastq, "consume", name, "--offset", "1", code=2)


def test_what_consume_prints_is_produced_again(fastq: Shell, new_topic_name: Callable[[], str], tmp_path: Path) -> None:
    one, two, dead = new_topic_name(), new_topic_name(), tmp_path / "dead"
    for name in (one, two):
        fastq("topics", "create", name, "--partitions", "2")
    lines = b"a=1,b=NULL|k\tone\r\n|\ttwo\r\r\n|\xff\t\xfe\n"
    split = ["--header-separator", "|", "--key-separator", "\t", "--header", "x= 1", "--header", "x=2"]
    fastq("produce", one, *split, "--rate", "1000", stdin=lines)
    printed = _all(fastq, one, "--json")
    records = [json.loads(line) for line in printed.splitlines()]
    shown = {json.dumps(record["value"]): (record["key"], record["headers"]) for record in records}
    each = [["x", " 1"], ["x", "2"]]
    assert shown == {
        '"one"': ("k", [*each, ["a", "1"], ["b", None]]),
        '"two\\r"': ("", each),
        '{"base64": "/g=="}': ({"base64": "/w=="}, each),
    }
    bad = "no record\n"
    told = ["produce", two, "--json", "--keep-partition", "--dead-letter", str(dead)]
    assert "line 4: no JSON" in _error(fastq, *told, stdin=(printed + bad).encode())
    assert "3 of 4 records were acknowledged; 1 line put into" in fastq.err and dead.read_text() == bad
    # Partitions that nodes of their own lead come in any order.
    assert sorted(_all(fastq, two, "--json").splitlines()) == sorted(printed.replace(one, two).splitlines())


def test_a_record_that_is_refused_is_told_once_and_kept(
    fastq: Shell, new_topic_name: Callable[[], str], tmp_path: Path
) -> None:
    name, dead = new_topic_name(), tmp_path / "dead"
    fastq("topics", "create", name, "--config", "max.message.bytes=1000")
    assert "MESSAGE_TOO_LARGE" in _error(fastq, "produce", name, stdin=b"x" * 2000)
    large = ["produce", name, "--dead-letter", str(dead), "--property", "batch.size=1000"]
    _error(fastq, *large, stdin=b"a\n" + b"x" * 2000 + b"\nb")
    assert sorted(_all(fastq, name).split()) == ["a", "b"] and dead.read_bytes() == b"x" * 2000 + b"\n"


def test_consume_by_time_tail_key_pattern_and_filter(fastq: Shell, new_topic_name: Callable[[], str]) -> None:
    name, other = new_topic_name(), new_topic_name()
    for topic in (name, other):
        fastq("topics", "create", topic, "--partitions", "1")
    with Producer(bootstrap_servers=fastq.bootstrap) as producer:
        for number in range(10):
            producer.send(
                name, b'{"n": %d}' % number, key=b"k%d" % (number % 3), timestamp_ms=1_700_000_000_000 + number
            )
        producer.send(other, b"plain", headers=[("trace", b"7")])

    def numbers(*more: str) -> list[int]:
        return [json.loads(line)["n"] for line in fastq("consume", name, *more).splitlines()]

    assert numbers("--from", "1700000000004", "--to", "1700000000007") == [4, 5, 6]
    assert numbers("--to", "2023-11-14T22:13:20.002+00:00") == [0, 1]
    assert numbers("--from", "1700000000008", "--exit-at-end") == [8, 9]
    assert numbers("--from", "1700000000008", "--partition", "0", "--timeout", "0.2") == [8, 9]
    assert numbers("--from", "1700000099999", "--exit-at-end") == []
    assert numbers("--tail", "2", "--exit-at-end") == [8, 9]
    assert numbers("--tail", "99", "--to", "1700000000001") == [0]
    assert numbers("--last-of-each-key") == [7, 8, 9]
    assert numbers("--last-of-each-key", "--filter", "value.n<9", "--max-records", "1") == [7]
    assert numbers("--from-beginning", "--filter", "value.n>=7", "--filter", "key=k1", "--exit-at-end") == [7]
    assert numbers("--from-beginning", "--filter", "value.n>=7", "--max-records", "2") == [7, 8]
    both = ("consume", "--include", f"{re.escape(name)}|{re.escape(other)}", "--filter", "headers.trace?")
    assert fastq(*both, "--tail", "1", "--exit-at-end", "--format", "%t %o %s %h\\n") == f"{other} 0 plain trace=7\n"
    assert fastq(*both, "--from-beginning", "--max-records", "1") == "plain\n"
    assert "exclude each other" in _error(fastq, "consume", name, "--from", "1", "--tail", "1", code=2)
    assert "no such partition" in _error(fastq, "consume", name, "--partition", "7", "--tail", "1", code=2)
    assert "fastq topics list" in _error(fastq, "consume", f"{name}-x", "--tail", "1")


def test_a_group_is_committed_up_to_what_a_filter_has_shown(fastq: Shell, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    fastq("topics", "create", name, "--partitions", "1")
    fastq("produce", name, stdin=b"".join(b"%d\n" % number for number in range(20)))
    member = ("consume", name, "--group", name, "--from-beginning", "--filter", "value>=5", "--max-records", "3")
    assert fastq(*member) == "5\n6\n7\n"
    assert fastq(*member) == "8\n9\n10\n"


def test_configs_offsets_and_log_dirs(fastq: Shell, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    fastq("topics", "create", name, "--partitions", "2", "--config", "retention.ms=5000")
    fastq("configs", "set", "--topic", name, "max.message.bytes=12345", "retention.ms=")
    shown = {row["name"]: row["value"] for row in fastq.json("configs", "show", "--topic", name)}
    assert shown["max.message.bytes"] == "12345"
    assert "retention.ms" not in shown
    assert "retention.ms" in fastq("configs", "show", "--topic", name, "--all")
    assert "INVALID_CONFIG" in _error(fastq, "configs", "set", "--topic", name, "max.message.bytes=many")
    group = f"group-{name}"
    fastq("configs", "set", "--group", group, "consumer.session.timeout.ms=50000")
    (row,) = fastq.json("configs", "show", "--group", group)
    assert (row["name"], row["value"], row["source"]) == (
        "consumer.session.timeout.ms",
        "50000",
        "dynamic-group-config",
    )
    assert "consumer.heartbeat.interval.ms" in fastq("configs", "show", "--group", group, "--all")
    assert {"type": "group", "name": group} in fastq.json("configs", "list", "--type", "group")
    assert {"type": "topic", "name": name} in fastq.json("configs", "list")
    assert "must be less than" in _error(fastq, "configs", "set", "--group", group, "consumer.session.timeout.ms=70000")
    fastq("produce", name, "--partition", "1", stdin=b"a\nb\n")
    ends = fastq.json("offsets", name)
    assert [(row["partition"], row["offset"]) for row in ends] == [(0, 0), (1, 2)]
    assert [row["offset"] for row in fastq.json("offsets", name, "--at", "2001-01-01T00:00:00")] == [-1, 0]
    assert "--at takes" in _error(fastq, "offsets", name, "--at", "yesterday", code=2)
    sizes = {row["partition"]: row["bytes"] for row in fastq.json("log-dirs", "--topic", name)}
    assert sizes[f"{name}-0"] == 0 < sizes[f"{name}-1"]


@pytest.mark.one_node  # it reads the file of the one node
def test_dump_log_reads_what_the_broker_wrote(
    fastq: Shell, shared_broker: Broker, new_topic_name: Callable[[], str], tmp_path: Path
) -> None:
    name = new_topic_name()
    fastq("topics", "create", name, "--partitions", "1")
    fastq("produce", name, stdin=b"".join(b"line %d\n" % number for number in range(100)))
    segment = shared_broker.data_dir / f"{name}-0" / "00000000000000000000.log"
    document = fastq.json("dump-log", str(segment), "--records")
    assert [(row["offset"], row["value"]) for row in document["entries"]] == [(n, f"line {n}") for n in range(100)]
    damaged = tmp_path / segment.name
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    assert "fails its checksum" in fastq("dump-log", str(damaged), code=1)
    damaged.write_bytes(segment.read_bytes()[:-5])
    assert "are no whole batch" in fastq("dump-log", str(damaged), code=1)
    assert "a name ending in" in _error(fastq, "dump-log", str(tmp_path / "other.txt"), code=2)


@pytest.mark.parametrize("shape", ["records", "batches", "arrow"])
def test_perf(fastq: Shell, new_topic_name: Callable[[], str], shape: str) -> None:
    name = new_topic_name()
    fastq("topics", "create", name, "--partitions", "2")
    figures = fastq.json("perf", "produce", name, "--records", "20000", "--compression", "lz4")
    assert figures["records"] == 20_000
    assert fastq.json("perf", "consume", name, "--records", "20000", "--as", shape)["records"] == 20_000


def test_api_versions_and_client_metrics(fastq: Shell) -> None:
    rows = fastq.json("api-versions")
    assert isinstance(rows, list)
    (fetch,) = [row for row in rows if row["api"] == "Fetch"]
    assert fetch["key"] == 1 and fetch["used"] == min(fetch["max"], fetch["client_max"])
    assert fastq.json("api-versions", "--api", "fetch", "--broker", "1") == [{**fetch, "brokers": [1]}]
    assert "no broker takes an API with the name fitch" in _error(fastq, "api-versions", "--api", "fitch")
    assert fastq("client-metrics", "list") == ""
    assert fastq.json("client-metrics", "describe") == []
    assert "collects no metrics of its clients" in _error(fastq, "client-metrics", "set", "x", "--interval-ms", "1000")
    assert "fastq client-metrics list" in _error(fastq, "client-metrics", "delete", "x")
    assert "--interval-ms, --metrics or --match" in _error(fastq, "client-metrics", "set", "x", code=2)


def test_perf_of_several_topics_payloads_and_transactions(
    fastq: Shell, new_topic_name: Callable[[], str], tmp_path: Path
) -> None:
    names = [new_topic_name(), new_topic_name()]
    for name in names:
        fastq("topics", "create", name, "--partitions", "1")
    payloads, plot = tmp_path / "payloads", tmp_path / "plot.svg"
    payloads.write_bytes(b"one\ntwo\nthree\n")
    more = ["--payload-file", str(payloads), "--transaction-ms", "1", "--rate", "50000", "--plot", str(plot)]
    figures = fastq.json("perf", "produce", *names, "--records", "5000", *more)
    assert isinstance(figures, dict) and figures["records"] == 5_000 and figures["transactions"] > 1
    assert 0 < figures["p50_ms"] <= figures["p95_ms"] <= figures["p99_ms"] <= figures["p99.9_ms"] <= figures["max_ms"]
    assert "<svg" in plot.read_text()
    read = [
        fastq("consume", name, "--from-beginning", "--exit-at-end", "--isolation", "read_committed") for name in names
    ]
    values = "".join(read).split()
    assert {value: values.count(value) for value in set(values)} == {"one": 1667, "two": 1667, "three": 1666}
    assert all(read)
    assert "records a second" in fastq("perf", "produce", names[0], "--records", "100", "--one-by-one", "--plot")
    payloads.write_bytes(b"")
    assert "it has no line" in _error(fastq, "perf", "produce", names[0], "--payload-file", str(payloads), code=2)


@pytest.mark.parametrize("rate", [[], ["--rate", "2000"]], ids=["one-at-a-time", "rate"])
def test_perf_latency(fastq: Shell, new_topic_name: Callable[[], str], rate: list[str]) -> None:
    name = new_topic_name()
    fastq("topics", "create", name, "--partitions", "2")
    fastq("produce", name, stdin=b"not ours\n")
    found = fastq.json("perf", "latency", name, "--records", "50", *rate)
    assert isinstance(found, dict)
    assert found["records"] == sum(bar["records"] for bar in found["histogram"]) == 50
    assert 0 < found["p50_ms"] <= found["p99.9_ms"] <= found["max_ms"] <= found["histogram"][-1]["up_to_ms"]
    assert "UP TO MS" in fastq("perf", "latency", name, "--records", "5", *rate)
    assert "24 bytes or more" in _error(fastq, "perf", "latency", name, "--size", "3", code=2)


def test_offsets_of_a_group_go_out_and_come_back(
    fastq: Shell, new_topic_name: Callable[[], str], tmp_path: Path
) -> None:
    topic, group = new_topic_name(), new_topic_name()
    fastq("topics", "create", topic, "--partitions", "2")
    fastq("produce", topic, "--partition", "1", stdin=b"a\nb\nc\n")
    reset = ("groups", "reset-offsets", group)
    assert "name the topics with --topic" in _error(fastq, *reset, "--to-latest")
    rows = fastq.json(*reset, "--topic", topic, "--to-latest")
    assert [(row["before"], row["after"]) for row in rows] == [(None, 0), (None, 3)]
    assert "nothing was changed" in fastq.err and "no such group" in _error(fastq, "groups", "describe", group)
    fastq(*reset, "--topic", topic, "--to-latest", "--execute")
    exported = fastq(*reset, "--shift-by", "-2", "--export")
    assert exported == f"{topic},0,0\n{topic},1,1\n" and "0 is the nearest" in fastq.err
    (tmp_path / "plan.csv").write_text(exported)
    fastq(*reset, "--from-file", str(tmp_path / "plan.csv"), "--execute")
    rows = fastq.json("groups", "describe", group)
    assert [(row["committed"], row["lag"]) for row in rows] == [(0, 0), (1, 2)]
    fastq(*reset, "--from-file", "-", "--execute", stdin=f"{topic},1,3\n".encode())
    assert [row["lag"] for row in fastq.json("groups", "describe", group)] == [0, 0]
    assert fastq("groups", "delete-offsets", group, "--topic", f"{topic}:0") == f"deleted {topic}-0\n"
    assert group in fastq("groups", "list", "--state", "Empty")
    assert "a date like" in _error(fastq, *reset, "--to-datetime", "soon", code=2)
    assert fastq("groups", "delete", group) == f"deleted {group}\n"


def test_every_help_page_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        "topics",
        "topics create",
        "produce",
        "consume",
        "configs set",
        "configs list",
        "offsets",
        "log-dirs",
        "dump-log",
        "perf produce",
        "groups",
        "groups list",
        "groups describe",
        "groups reset-offsets",
        "groups delete",
        "groups delete-offsets",
        "groups remove-members",
        "transactions list",
        "transactions describe",
        "transactions abort",
        "transactions find-hanging",
        "producers describe",
    ):
        with pytest.raises(SystemExit) as ended:
            build_parser().parse_args([*command.split(), "--help"])
        assert ended.value.code == 0
        assert "example" in capsys.readouterr().out


# -- binary values, topics that are not there, several topics, groups


def test_json_loses_no_byte(fastq: Shell, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    values = [b"plain", "Grüße".encode(), b"\xff\xfe\x00", bytes(range(256))]
    lines = b"\n".join(base64.b64encode(value) for value in values)
    fastq("topics", "create", name, "--partitions", "1")
    fastq("produce", name, "--encoding", "base64", stdin=lines)
    documents = [json.loads(line) for line in _all(fastq, name, "--json").splitlines()]
    shown = [document["value"] for document in documents]
    assert shown[:2] == ["plain", "Grüße"]
    assert [base64.b64decode(value["base64"]) for value in shown[2:]] == values[2:]
    assert _all(fastq, name, "--encoding", "base64").encode().split() == [base64.b64encode(value) for value in values]
    assert "line 1: no base64" in _error(fastq, "produce", name, "--encoding", "base64", "--file", __file__, code=2)


def _all(fastq: Shell, *arguments: str) -> str:
    return fastq("consume", *arguments, "--from-beginning", "--exit-at-end")


@pytest.mark.parametrize("how", [["--exit-at-end"], ["--timeout", "30"], [], ["--group", "g"]], ids=" ".join)
def test_consuming_makes_no_topic(
    monkeypatch: pytest.MonkeyPatch, fastq: Shell, new_topic_name: Callable[[], str], how: list[str]
) -> None:
    for module in ("offsets", "topic_watch"):
        monkeypatch.setattr(f"fastq.consumer.{module}.UNKNOWN_GRACE_S", 0.1)
    name = new_topic_name()
    assert name in _error(fastq, "consume", name, *how)
    assert "no broker knows the topic" in fastq.err
    assert name in _error(fastq, "perf", "consume", name)
    assert name not in fastq("topics", "list").split()


def test_several_topics_and_a_group_that_goes_on(fastq: Shell, new_topic_name: Callable[[], str]) -> None:
    one, two, group = new_topic_name(), new_topic_name(), new_topic_name()
    for name in (one, two):
        fastq("topics", "create", name, "--partitions", "2")
        fastq("produce", name, stdin=f"{name}-a\n{name}-b\n".encode())
    expected = sorted(f"{name}-{letter}" for name in (one, two) for letter in "ab")
    assert sorted(_all(fastq, one, two).split()) == expected
    read = ("consume", one, two, "--group", group, "--from-beginning")
    assert sorted(fastq(*read, "--max-records", "4").split()) == expected
    assert fastq(*read, "--timeout", "1") == ""
    fastq("produce", two, stdin=b"later\n")
    assert fastq(*read, "--max-records", "1") == "later\n"


def test_properties_win(fastq: Shell, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    fastq("topics", "create", name, "--partitions", "1")
    fastq("produce", name, "--property", "compression.type=gzip", "--property", "acks=1", stdin=b"a\n")
    assert fastq("consume", name, "--property", "auto.offset.reset=earliest", "--max-records", "1") == "a\n"


def test_topics_that_are_there_and_that_are_not(fastq: Shell, new_topic_name: Callable[[], str]) -> None:
    name, other = new_topic_name(), new_topic_name()
    fastq("topics", "create", name, "--partitions", "2", "--if-not-exists")
    assert "is there, with 2 partitions" in fastq("topics", "create", name, "--partitions", "5", "--if-not-exists")
    fastq("topics", "delete", other, "--if-exists")
    assert other in (told := _error(fastq, "topics", "delete", name, other))
    assert "--if-exists" in told
    assert f"deleted {name}" in fastq.out


def test_an_idle_end_is_nobodys_speed(fastq: Shell, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    fastq("perf", "produce", name, "--records", "1000")
    began = time.monotonic()
    figures = json.loads(fastq("perf", "consume", name, "--records", "2000", "--timeout", "3", "--json", code=1))
    assert figures["records"] == 1000
    assert figures["seconds"] < time.monotonic() - began - 3
    assert "1,000 of 2,000 records came, then none for 3 s" in fastq.err


# -- no broker: said at once, and an exit code of its own


def test_no_broker_is_said_and_has_its_own_code() -> None:
    """In processes of their own: what a command tells of the log is that of the whole process, and other tests have clients too."""
    commands = [
        "topics list",
        "produce t",
        "consume t --timeout 5",
        "consume t",
        "perf produce t",
        "perf consume t",
        "groups list",
        "offsets t",
        "configs show --topic t",
        "log-dirs",
        "transactions list",
    ]

    def run(command: str) -> subprocess.CompletedProcess[bytes]:
        arguments = [*command.split(), "--bootstrap", "127.0.0.1:1", "--connect-timeout", "1.2"]
        return subprocess.run(
            [sys.executable, "-m", "fastq.cli", *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )

    with ThreadPoolExecutor(4) as pool:
        for command, ended in zip(commands, pool.map(run, commands), strict=True):
            lines = ended.stderr.decode().splitlines()
            assert ended.returncode == 3, (command, lines)
            assert "127.0.0.1:1" in lines[0] and "phase connect" in lines[0] and "trying on" in lines[0], command
            assert lines[1:] == ["fastq: given up, no broker could be reached"], command


def test_a_port_that_takes_connections_and_says_nothing(fastq: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        fastq("topics", "list", "--bootstrap", servers, "--connect-timeout", "1.5", code=3)
    assert f"broker {servers}, phase api versions" in fastq.err


def test_consume_of_what_is_not_there_is_told_however_short_the_wait(
    fastq: Shell, new_topic_name: Callable[[], str]
) -> None:
    name = new_topic_name()
    missing = f"{name}-missing"
    fastq("topics", "create", name, "--partitions", "2")
    fastq("produce", name, "--partition", "1", stdin=b"one\n")
    assert missing in _error(fastq, "consume", missing, "--from-beginning", "--timeout", "0.5")
    assert missing in _error(fastq, "consume", name, missing, "--group", f"{name}-group", "--timeout", "3")
    assert "partition 7" in _error(fastq, "consume", name, "--partition", "7", "--timeout", "0.5")
    assert "99" in _error(fastq, "consume", name, "--partition", "1", "--offset", "99", "--timeout", "5")
    assert fastq("consume", name, "--partition", "1", "--offset", "99", "--from-beginning", "--timeout", "1") == "one\n"


def test_access_controls_where_there_is_no_authorizer(fastq: Shell) -> None:
    add = ("acls", "add", "--allow", "User:alice", "--operation", "read", "--topic", "t")
    for arguments in (("acls", "list"), add, ("acls", "remove", "--topic", "t")):
        told = _error(fastq, *arguments)
        assert "SECURITY_DISABLED" in told and "A fastq broker has no authorizer" in told, told
        assert told.count("\n") == 1, told
