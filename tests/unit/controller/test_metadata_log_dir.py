"""A metadata.log.dir that becomes another directory between two starts: the metadata is found, or the start is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import Controller, NewTopic
from fastq_broker.controller.storage import META_PROPERTIES, METADATA_DIRECTORY

from fastq.errors import ConfigError

Run = Callable[..., set[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Start a node that is alone with some directories, make topics, and stop it; which topics it knows."""

    def start(*log_dirs: str, metadata: str | None = None, makes: tuple[str, ...] = ()) -> set[str]:
        given = {
            "log.dirs": ",".join(str(tmp_path / name) for name in log_dirs),
            "listeners": "PLAINTEXT://127.0.0.1:9092",
        }
        if metadata is not None:
            given["metadata.log.dir"] = str(tmp_path / metadata)
        config = BrokerConfig.from_mapping(given)
        controller = Controller(config, clock=lambda: 1_790_000_000_000)
        controller.open()
        controller.register_broker(config.advertised_listeners)
        controller.create_topics([NewTopic(name) for name in makes])
        known = set(controller.image.topics_by_name)
        controller.close()
        return known

    return start


def test_a_metadata_log_in_another_directory_of_the_node_has_the_start_refused(run: Run, tmp_path: Path) -> None:
    """A new one began beside it, without its topics, users and rules, where no partition had a log yet."""
    assert run("a", makes=("one",)) == {"one"}
    for log_dirs, metadata in ((("a",), "m"), (("a", "b"), "b"), (("b", "a"), None), (("a",), "a/m")):
        with pytest.raises(ConfigError, match=f"a/{METADATA_DIRECTORY} is the metadata log of this node") as refused:
            run(*log_dirs, metadata=metadata)
        assert f"set it to {tmp_path / 'a'}" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a"], "nothing was formatted"
    assert run("a") == run("a", "b") == run("a", "b", metadata="a") == {"one"}


def test_it_is_moved_as_the_refusal_says_and_back(run: Run, tmp_path: Path) -> None:
    run("a", makes=("one",))
    moved = tmp_path / "m"
    moved.mkdir()
    (tmp_path / "a" / METADATA_DIRECTORY).rename(moved / METADATA_DIRECTORY)
    with pytest.raises(ConfigError, match=f"holds a metadata log but no {META_PROPERTIES}"):
        run("a", metadata="m")
    lines = (tmp_path / "a" / META_PROPERTIES).read_text().splitlines(keepends=True)
    (moved / META_PROPERTIES).write_text("".join(line for line in lines if not line.startswith("directory.id")))
    assert run("a", metadata="m", makes=("two",)) == {"one", "two"}
    (moved / METADATA_DIRECTORY).rename(tmp_path / "a" / METADATA_DIRECTORY)
    assert run("a", makes=("three",)) == {"one", "two", "three"}


def test_of_two_metadata_logs_none_is_taken_for_the_other(run: Run, tmp_path: Path) -> None:
    run("a", makes=("one",))
    shutil.copytree(tmp_path / "a", tmp_path / "m")
    run("a", makes=("two",))
    with pytest.raises(ConfigError, match="find out which of them counts"):
        run("a", metadata="m")
    (tmp_path / "same").symlink_to(tmp_path / "a")
    assert run("a", metadata="same") == run("a") == {"one", "two"}, "it is one, by two names"


def test_a_node_that_was_started_before_is_told_that_its_metadata_begins_anew(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run("a", metadata="m", makes=("one",))
    assert "a new one begins" not in caplog.text
    assert run("a") == set()
    assert f"{tmp_path / 'a'} is of a node that was started before, and holds no metadata log" in caplog.text
    shutil.rmtree(tmp_path / "a" / METADATA_DIRECTORY)
    assert run("a", metadata="m") == {"one"}, "what is told to be done about it"
    caplog.clear()
    shutil.rmtree(tmp_path / "m")
    assert run("a", metadata="m") == set()
    assert f"{tmp_path / 'm'} is of a node that was started before, and holds no metadata log" in caplog.text
