"""The pytest plugin as a user's test meets it: the fixture, its marker, the log of a failing test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

USER_TESTS = """
import pytest
from fastq import Admin, Producer

def test_a_record_is_sent(fastq_broker):
    with Producer(bootstrap_servers=fastq_broker.bootstrap_servers) as producer:
        assert producer.send("orders", b"x").result(20).offset == 0

@pytest.mark.fastq_broker(config={"auto.create.topics.enable": "false", "num.partitions": 3}, node_id=7)
def test_options(fastq_broker):
    with Admin(bootstrap_servers=fastq_broker.bootstrap_servers) as admin:
        assert admin.create_topic("three").partitions == 3
        assert [node.node_id for node in admin.describe_cluster().nodes] == [7]

@pytest.mark.fastq_broker({"num.partitions": 3})
def test_a_marker_of_one_value(fastq_broker):
    pass

@pytest.mark.fastq_broker(config={"num.partitions": 3})
def test_a_marker_that_nobody_hears(fastq_session_broker):
    pass

def test_fails(fastq_broker):
    fastq_broker.fail("Produce", error=6)
    assert False
"""


def users_pytest(at: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "fastq.testing.pytest_plugin", "-q"]
    # Where the package is installed the plugin is found by itself; naming it twice would be an error.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [*command, "--strict-markers", *options, str(at)],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        cwd=at,
    )


def test_a_users_tests(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(USER_TESTS)
    ended = users_pytest(tmp_path)
    assert "takes its arguments by name, as in config={...}, got {'num.partitions': 3}" in ended.stdout
    assert "the marker fastq_broker is for tests with the fixture fastq_broker: this one has it not" in ended.stdout
    assert "3 passed" in ended.stdout and "1 failed" in ended.stdout and "1 error" in ended.stdout, (
        ended.stdout + ended.stderr
    )
    assert "--- log of the broker at 127.0.0.1:" in ended.stdout


HEARD_BY_SOME = """
import pytest

pytestmark = pytest.mark.fastq_broker(config={"num.partitions": 3})

def test_of_another_kind():
    pass

@pytest.mark.fastq_broker(config={"num.partitions": 3})
def test_a_marker_that_nobody_hears():
    pass
"""


def test_a_marker_that_nobody_hears_ends_no_session_whose_warnings_are_errors(tmp_path: Path) -> None:
    """It was an internal error of pytest, of which no test was run; and one of a whole file, which some of its tests need, is no slip."""
    (tmp_path / "test_user.py").write_text(HEARD_BY_SOME)
    ended = users_pytest(tmp_path, "-W", "error")
    assert "1 passed" in ended.stdout and "1 error" in ended.stdout, ended.stdout + ended.stderr
    assert "this one has it not" in ended.stdout and "INTERNALERROR" not in ended.stdout
