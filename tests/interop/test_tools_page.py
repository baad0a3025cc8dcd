"""docs/tools.md: each line's two commands on one broker, and what they print or do beside each other; and the page has what they print.

    FASTQ_TOOLS_PAGE=1 python -m pytest tests/interop/test_tools_page.py

writes the page's section anew (`make tools-page`). Rules: see tool_lines and tool_stage.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import apache_kafka
import pytest
from tool_lines import CASES, Case
from tool_stage import LINES, PAGE, PARTITIONS, RECORDS, Said, Stage, block, blocks_of, even, with_blocks

from fastq import Admin, Producer
from fastq.errors import UnknownTopicOrPartition
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.one_node,
    pytest.mark.timeout(600),
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
WRITES = bool(os.environ.get("FASTQ_TOOLS_PAGE"))


@pytest.fixture(scope="module")
def tools() -> Iterator[apache_kafka.Tools]:
    with apache_kafka.Tools() as machine:
        yield machine


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The servers of a broker of ours, and its directory."""
    config = {"group.initial.rebalance.delay.ms": 0}
    data = tmp_path_factory.mktemp("page") / "data"
    with Broker(data_dir=data, config=config) as running:
        with (
            Producer(bootstrap_servers=running.bootstrap_servers, transactional_id="t") as producer,
            producer.transaction(),
        ):
            producer.send("other", b"1")
        yield running.bootstrap_servers, data


@pytest.fixture(scope="module")
def with_authorizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The same of an Apache Kafka that has access controls."""
    path = tmp_path_factory.mktemp("kafka") / "data"
    with apache_kafka.ApacheKafka(path, heap="512m", properties=AUTHORIZER) as kafka:
        yield kafka.bootstrap_servers, path


def begin(case: Case, admin: Admin) -> None:
    """The topic with its records and a group that has read ten of each partition, and what the case has more."""
    if case.with_authorizer:
        assert case.before is not None
        case.before(admin)
        return
    try:
        admin.delete_topics(["logs"]).results()
    except UnknownTopicOrPartition:
        pass
    admin.delete_groups(list(admin.list_groups())).results()
    if case.empty:
        return
    admin.create_topic("logs", PARTITIONS, 1, configs={"segment.bytes": "9999999"})
    with Producer(bootstrap_servers=admin.config.bootstrap_servers) as producer:
        for partition in range(PARTITIONS):
            for number in range(RECORDS):
                producer.send("logs", b"%d-%d" % (partition, number), partition=partition)
    admin.alter_group_offsets("g", {("logs", partition): 10 for partition in range(PARTITIONS)})  # type: ignore[arg-type]
    if case.before is not None:
        case.before(admin)


def both(case: Case, stage: Stage, theirs: list[str], ours: list[str]) -> tuple[Said, Said]:
    """What Kafka's command and ours say, each with the cluster as it was before."""
    if case.play is not None:
        begin(case, stage.admin)
        return case.play(stage, theirs, ours)
    changes = case.after is not None or bool(case.more[0])
    begin(case, stage.admin)
    printed = stage.kafkas(*theirs, *case.more[0], stdin=case.stdin)
    meaning = case.theirs and case.theirs(printed), case.after and case.after(stage.admin)
    if changes:
        begin(case, stage.admin)
    mine = stage.ours(*ours, *case.more[1], stdin=case.stdin, code=case.code)
    after = case.after and case.after(stage.admin)
    text = mine
    if case.ours is not None and case.json:
        if changes:
            begin(case, stage.admin)
        text = stage.ours(*ours, *case.more[1], "--json", stdin=case.stdin, code=case.code)
    return Said(printed, meaning), Said(mine, (case.ours and case.ours(text), after))


@pytest.mark.parametrize("line", LINES)
def test_both_say_the_same_and_the_page_has_it(
    line: str,
    request: pytest.FixtureRequest,
    tools: apache_kafka.Tools,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    case = CASES[line]
    servers, data_dir = request.getfixturevalue("with_authorizer" if case.with_authorizer else "ours")
    file = tmp_path / "file.json"
    if isinstance(case.file, Path):
        file = data_dir / case.file
    elif case.file is not None:
        file.write_text(json.dumps(case.file))
    names = {case.numbers[0]: case.numbers[1]} | ({"FILE": str(file)} if case.file is not None else {})
    theirs, ours = ([names.get(word, word) for word in shlex.split(text)] for text in (line, LINES[line]))
    with Admin(bootstrap_servers=servers) as admin:
        told, mine = both(case, Stage(admin, tools, data_dir, tmp_path, capfd, monkeypatch), theirs, ours)
    assert mine.meaning == told.meaning
    assert any(part not in (None, [], {}) for part in _parts(told.meaning)), "nothing was compared"
    places = [(servers, "127.0.0.1:9092"), (str(data_dir), "data"), (str(tmp_path), "."), (str(PAGE.parents[1]), ".")]
    made = block(line, told.printed, mine.printed, places)
    page = PAGE.read_text(encoding="utf-8")
    if WRITES:
        PAGE.write_text(with_blocks(page, {line: made}), encoding="utf-8")
    else:
        assert even(blocks_of(page).get(line, "")) == even(made), "make tools-page"


def _parts(meaning: object) -> tuple[object, ...]:
    return meaning if isinstance(meaning, tuple) else (meaning,)


def test_every_line_is_compared_and_shown() -> None:
    assert list(CASES) == list(LINES) or CASES.keys() == LINES.keys()
    if not WRITES:
        assert list(blocks_of(PAGE.read_text(encoding="utf-8"))) == list(LINES)
