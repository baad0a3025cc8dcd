"""Arguments of brokers and clusters of tests that cannot be meant are refused before a directory is made or a process begun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastq import testing
from fastq.testing import Broker, Cluster

NAN = float("nan")
SHARED: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"config": given}, TypeError, "config: a mapping is needed") for given in (5, True, "a=1", [1], b"a")),
    ({"config": {5: 1}}, TypeError, "the name of a setting is a str"),
    ({"config": {"log.retention.ms": None}}, ValueError, "log.retention.ms is None; leave it out"),
    *(({"env": given}, TypeError, "env: a mapping is needed") for given in (5, True, "A=1", ["A"])),
    ({"env": {"A": 5}}, TypeError, "env: A is a str, got 5"),
    ({"env": {5: "a"}}, TypeError, "the name of a variable is a str"),
    *(({"data_dir": given}, TypeError, "data_dir is a str or a path") for given in (5, True, b"/x")),
    ({"data_dir": ""}, ValueError, "data_dir is a str that is not empty"),
]
BROKERS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"host": given}, TypeError, "host is a str") for given in (None, 5, b"127.0.0.1")),
    ({"host": ""}, ValueError, "host is a str that is not empty"),
    *(({"port": given}, TypeError, "port is an int") for given in (None, True, "9092", 1.5, NAN)),
    *(({"port": given}, ValueError, "port is 0 to 65535") for given in (-1, 70_000)),
    *(({"node_id": given}, TypeError, "node_id is an int") for given in (True, "1", 1.5)),
    *(({"node_id": given}, ValueError, "node_id is 0 to") for given in (-1, 2**31)),
]
CLUSTERS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"nodes": given}, TypeError, "nodes is an int") for given in (None, True, "3", 1.5, NAN)),
    *(({"nodes": given}, ValueError, "nodes is 1 to 100") for given in (0, -1, 10**6)),
]


@pytest.mark.parametrize(
    ("make", "options", "kind", "words"),
    [(Broker, *each) for each in (*SHARED, *BROKERS)] + [(Cluster, *each) for each in (*SHARED, *CLUSTERS)],
)
def test_what_none_can_be_made_with(
    monkeypatch: pytest.MonkeyPatch, make: Any, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    def made(_: bool) -> Path:
        raise AssertionError("a directory was made first")

    monkeypatch.setattr(testing, "temporary_dir", made)
    monkeypatch.setattr("fastq.testing.cluster.temporary_dir", made)
    with pytest.raises(kind, match=words):
        make(**options)


SWITCHES: list[tuple[Callable[[Broker, Any], Any], tuple[Any, ...], str]] = [
    (lambda broker, given: broker.fail(given, error=6), (None, 5, True, b"Produce", "nope"), "there is no API"),
    (
        lambda broker, given: broker.fail("Produce", error=given),
        (None, 1.5, True, b"x", "nope", 9999),
        "there is no error",
    ),
    (lambda broker, given: broker.fail("Produce", error=6, times=given), (True, 1.5, "1", NAN), "times .* is an int"),
    (lambda broker, given: broker.disconnect("Produce", times=given), (0, -1, 2**70), "times .* is 1 or more"),
    (lambda broker, given: broker.delay("Produce", seconds=given), (None, True, "1", b"1"), "seconds is a number"),
    (
        lambda broker, given: broker.throttle("Produce", seconds=given),
        (-1, NAN, float("inf"), 2**70),
        "seconds is 0 to",
    ),
    (lambda broker, given: broker.change_leader(given), (None, 5, b"t", ""), "a topic is a str"),
    (lambda broker, given: broker.change_leader("t", given), (None, True, "0", 1.5, -1, 2**31), "partition is"),
]


@pytest.mark.parametrize(("call", "given", "words"), SWITCHES)
def test_what_no_switch_takes(tmp_path: Path, call: Callable[[Broker, Any], Any], given: Any, words: str) -> None:
    broker = Broker(tmp_path)  # which does not run: what is wrong is said first
    for one in given:
        with pytest.raises((TypeError, ValueError), match=words):
            call(broker, one)


def test_a_broker_that_was_not_started_has_no_address() -> None:
    """Port 0 is nobody's, and a client's error would be about its own settings."""
    broker = Broker()
    with pytest.raises(RuntimeError, match=r"no port yet: start\(\) it"):
        broker.bootstrap_servers  # noqa: B018
    assert Broker(port=9092).bootstrap_servers == "127.0.0.1:9092"
