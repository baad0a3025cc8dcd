"""What `fastq mirror` does by itself, beside the mirror: patience, what it tells, and when it gives up. No broker runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from fastq.cli import main, mirror
from fastq.errors import ConnectionFailed, FastqError, InvalidReplicationFactor, RequestTimedOut
from fastq.metadata import TopicPartition
from fastq.mirror import load_config
from fastq.mirror.report import MirrorStatus, PartitionStatus

SETUP = "socket_connection_setup_timeout_ms"


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "mirror.toml"
    file.write_text(
        """
        source = { alias = "east", bootstrap.servers = "127.0.0.1:1", socket.connection.setup.timeout.ms = 700 }
        target = { alias = "west", bootstrap.servers = "127.0.0.1:2" }
        mirror = { topics = ["orders"] }
        """
    )
    return str(file)


def no_comparison(*_: object) -> Any:
    raise AssertionError("nothing is compared without a source")


@pytest.mark.parametrize("action", ["status", "check", "fail-over", "fail-back"])
def test_who_waits_for_a_command_waits_less_for_a_node_that_stands_still(
    path: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is asked then, within the time that the command has; what the file says counts."""
    seen: list[Any] = []

    def looked(config: Any, *_: object) -> Any:
        seen.append(config)
        raise FastqError("enough was seen")

    for place in ("report.status", "comparison.compare_all", "failover.fail_over", "failover.fail_back"):
        monkeypatch.setattr(f"fastq.mirror.{place}", looked)
    monkeypatch.setattr(mirror, "_reach", lambda *_: None)
    assert main(["mirror", action, "--config", path]) == 1
    assert seen[0].source.common[SETUP] == 700
    assert seen[0].target.common[SETUP] == mirror.CONNECTION_SETUP_MS


def test_a_check_without_its_source_gives_up_as_the_other_commands_do(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def reach(side: Any, *_: object) -> None:
        asked.append(side.alias)
        raise ConnectionFailed("nobody is there")

    monkeypatch.setattr(mirror, "_reach", reach)
    monkeypatch.setattr("fastq.mirror.comparison.compare_all", no_comparison)
    assert main(["mirror", "check", "--config", path]) == 3 and asked == ["east"]


def test_a_target_that_does_not_answer_is_not_asked_what_has_arrived(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> Any:
        raise ConnectionFailed("nobody is there")

    def asked(*_: object) -> Any:
        raise AssertionError("it was asked, and does not answer")

    monkeypatch.setattr("fastq.mirror.report.status", gone)
    monkeypatch.setattr("fastq.mirror.report.failed_over", asked)
    monkeypatch.setattr("fastq.mirror.report.heartbeat_age_s", asked)
    monkeypatch.setattr(mirror, "_reach", gone)
    assert main(["mirror", "status", "--config", path]) == 3


@pytest.mark.parametrize(
    ("lag", "next_offset", "code"), [(3, None, 1), (0, None, 0), (3, 7, 0)], ids=["refused", "empty", "behind"]
)
def test_a_check_names_what_there_was_nothing_to_compare_of(
    path: str,
    lag: int,
    next_offset: int | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same is what both have: a partition with records that the target has refused is no such."""
    from fastq.mirror.comparison import Comparison

    other, tp = TopicPartition("other", 0), TopicPartition("orders", 4)
    part = PartitionStatus(tp, "east.orders", next_offset, lag, lag, 0.0, 0.0, "new", None)
    beats = part._replace(partition=TopicPartition("heartbeats", 0), next_offset=None, lag=1)
    monkeypatch.setattr("fastq.mirror.report.status", lambda *_: MirrorStatus([part, beats], {}, None, None))
    monkeypatch.setattr(
        "fastq.mirror.comparison.compare_all", lambda *_: iter([Comparison(other, "east.other", "same", 1, 0, 1)])
    )
    monkeypatch.setattr(mirror, "_reach", lambda *_: None)
    assert main(["mirror", "check", "--config", path]) == code
    told = capsys.readouterr()
    assert ("not compared: orders-4: east has records there or does not tell" in told.err) == bool(code)
    assert ("source and target are the same" in told.out) == (not code) and "heartbeats" not in told.err


@pytest.mark.parametrize(
    ("start", "left"), [("earliest", "gone-0, orders-3, orders-4"), ("latest", "orders-4")], ids=["earliest", "latest"]
)
def test_a_check_names_what_the_target_has_not_and_what_it_refuses(
    path: str, start: str, left: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Source and target were the same where a topic was deleted in the target, and where it refused one from "latest" on."""
    from fastq.mirror.comparison import Comparison

    file = Path(path)
    file.write_text(file.read_text().replace('["orders"]', f'["orders"], start = "{start}"'))
    new = PartitionStatus(TopicPartition("orders", 3), "east.orders", None, 3, 3, 0.0, 0.0, "new", None)
    refused = new._replace(partition=TopicPartition("orders", 4), state="refused")
    to_come = [TopicPartition("gone", 0), TopicPartition("heartbeats", 0)]
    found = MirrorStatus([new, refused], {"orders": "it is another's"}, None, None, to_come)
    same = Comparison(TopicPartition("other", 0), "east.other", "same", 1, 0, 1)
    monkeypatch.setattr("fastq.mirror.report.status", lambda *_: found)
    monkeypatch.setattr("fastq.mirror.comparison.compare_all", lambda *_: iter([same]))
    monkeypatch.setattr(mirror, "_reach", lambda *_: None)
    monkeypatch.setattr(mirror, "_with_records", lambda _, partitions: partitions)
    assert main(["mirror", "check", "--config", path]) == 1
    told = capsys.readouterr()
    assert f"not compared: {left}: east has records there or does not tell" in told.err
    assert "orders is not mirrored: it is another's" in told.err
    assert "source and target are the same" not in told.out
    assert main(["mirror", "check", "--topic", "other", "--config", path]) == 0
    assert "orders" not in capsys.readouterr().err


def test_what_is_no_warning_is_told_on_demand(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("fastq.mirror")
    monkeypatch.setattr("fastq.mirror.Mirror.run", lambda _: logger.info("west does not fetch by itself"))
    level = logger.level
    for options, shown in (([], False), (["--verbose"], True), ([], False)):
        assert main(["mirror", "--config", path, *options]) == 0
        assert ("west does not fetch by itself" in capsys.readouterr().err) == shown
    assert logger.level == level


def test_too_few_nodes_of_the_way_back_name_the_setting(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> Any:
        raise InvalidReplicationFactor("only 1 broker is registered", topic="fastq-mirror.west.internal")

    file = Path(path)
    monkeypatch.setattr("fastq.mirror.Mirror.run", refused)
    monkeypatch.setattr("fastq.mirror.failover.fail_back", refused)
    for arguments, target in (([], "west"), (["fail-back"], "east")):
        assert main(["mirror", *arguments, "--config", path]) == 1
        assert f"Give {target} a default.replication.factor that it can keep" in capsys.readouterr().err
    file.write_text(file.read_text().replace('["orders"]', '["orders"], replication_factor = 3'))
    assert main(["mirror", "fail-back", "--config", path]) == 1
    assert "replication_factor = 3 in [mirror] counts for west and east alike" in capsys.readouterr().err


def test_a_check_takes_what_nobody_tells_of_for_something_to_come(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with the error of a partition that nobody leads, when all others had been compared."""

    class Silent:
        def __enter__(self) -> Silent:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def beginning_offsets(self, partitions: list[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
            raise RequestTimedOut(f"{partitions[0]} has no leader")

        def leader(self, partition: TopicPartition) -> None:
            return None

    monkeypatch.setattr("fastq.mirror.state.consumer_at", lambda *_, **__: Silent())
    monkeypatch.setattr("fastq.mirror.state._by_leader", lambda _, wanted: [wanted])
    gone = TopicPartition("gone", 0)
    assert mirror._with_records(load_config(path), [gone]) == [gone]
