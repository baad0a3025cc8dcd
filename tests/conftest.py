"""Fixtures of all tests: a broker of ours for a test session, and topics of their own for each test.

Rules: a broker is a process of its own on a free loopback port with a temporary directory; every test makes its own
topics, so that tests share a broker without seeing each other.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import os
import signal
import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import confluent_kafka
import hypothesis
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

if TYPE_CHECKING:
    from fastq.testing import Broker, Cluster

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import spark_classes

# A shell has what a script begins in the background ignore interrupts, and the processes that tests begin would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark's Java machines live for seconds.
os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_classes.options())

# No example has a time to be done in, nor has their making: a busy machine finds no defect.
hypothesis.settings.register_profile("fastq", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("fastq")

AT_ONCE = {"group.initial.rebalance.delay.ms": 0}
"""A new group waits for no other members, as Kafka's does for 3 s."""
_numbers = itertools.count(1)
SEVERAL_NODES = {"shared_broker", "quick_broker", "one_coordinator", "fastq_servers", "servers"}
"""Fixtures of brokers that are a cluster with FASTQ_NODES; see `under_test`."""
FIRST = (
    "test_pipeline.py",
    "test_mirror_calls.py",
    "test_simulation.py",
    "test_spark_batch_read.py",
    "test_spark_exactly_once.py",
    "test_spark_page.py",
    "test_spark_kills.py",
    "test_half_done.py",
    "test_cli.py",
    "test_mirror_same.py",
    "test_guides.py",
    "test_readme.py",
    "test_unserved.py",
    "test_nodes_histories.py",
    "test_storage_nodes.py",
    "test_operations.py",
)
"""Files that take longest come first, by their own order (`--no-loadscope-reorder`): the last one begun is waited for by one worker."""
FIRST_OF_SOAK = (
    "test_spark_kills.py",
    "test_simulation.py",
    "test_cleaner_model.py",
    "test_rolling_replacement.py",
    "test_broker_nodes.py",
    "test_raft_simulation.py",
    "test_transactions_nodes.py",
    "test_pipeline.py",
    "test_log_model.py",
    "test_java_histories.py",
    "test_mirror_same_kill.py",
)
"""The same of `make soak`."""
LONG_S, LAST_RESORT_S = 3600.0, 240.0
"""What a long form may take on a machine that others use too; how long after a test's own limit all ends."""


def left_out(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With FASTQ_NO_SKIPS=1, as the whole check sets it, what is left out has failed: what a machine lacks is said, not passed."""
    if report.skipped and os.environ.get("FASTQ_NO_SKIPS") == "1" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"left out, where nothing may be: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Of a test."""
    report = yield
    left_out(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Of a whole file, which leaves itself out before there are tests."""
    report = yield
    left_out(report)
    return report


class ClosedByItsTest(confluent_kafka.Consumer):
    """librdkafka's consumer, as all tests get it. One that a failed test leaves open is closed after the test: freed while open, it
    waits for its coordinator, without an end and without a signal, in whichever test the garbage is collected."""

    left_open: ClassVar[weakref.WeakSet[ClosedByItsTest]] = weakref.WeakSet()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.left_open.add(self)


confluent_kafka.Consumer = ClosedByItsTest  # type: ignore[misc]


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """See ClosedByItsTest."""
    yield
    while ClosedByItsTest.left_open:
        with contextlib.suppress(RuntimeError):  # it was closed, as it should be
            ClosedByItsTest.left_open.pop().close()


@pytest.fixture(scope="session")
def soak() -> bool:
    """True under `make soak`: long tests run at their full numbers."""
    return os.environ.get("FASTQ_SOAK") == "1"


def limit_s(item: pytest.Item) -> float:
    """What a test's mark gives it; 0 without one."""
    mark = item.get_closest_marker("timeout")
    return 0 if mark is None else float(mark.args[0] if mark.args else mark.kwargs["timeout"])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The last resort (`faulthandler_timeout`) waits for as long as a test may take. Under the sanitizers there is none."""
    if not item.config.pluginmanager.has_plugin("faulthandler"):
        return
    after_s = float(item.config.getini("faulthandler_timeout") or 0)
    if limit_s(item) and 0 < after_s < limit_s(item) + LAST_RESORT_S:
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit_s(item) + LAST_RESORT_S, file=stderr, exit=True)


def pytest_collection_finish() -> None:
    """What tests collect is what they have made: not, each time, thousands of tests and all libraries."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A long form ends when its work is done: its time is only for one that hangs. With FASTQ_NODES only the tests are left that say
    nothing of how many nodes there are."""
    soaks = os.environ.get("FASTQ_SOAK") == "1"
    first = {name: place for place, name in enumerate(FIRST_OF_SOAK if soaks else FIRST)}
    items.sort(key=lambda item: first.get(item.path.name, len(first)))
    for item in items:
        if (soaks or item.get_closest_marker("soak")) and limit_s(item) < LONG_S:
            item.add_marker(pytest.mark.timeout(LONG_S), append=False)
    if "FASTQ_NODES" not in os.environ:
        return
    several = [
        item
        for item in items
        if not item.get_closest_marker("one_node")
        and (item.get_closest_marker("any_nodes") or SEVERAL_NODES & set(getattr(item, "fixturenames", ())))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in several])
    items[:] = several


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | Cluster]:
    """One fastq broker for the whole session; see `under_test`."""
    from under_test import broker_under_test

    with broker_under_test(tmp_path_factory.mktemp("broker") / "data", AT_ONCE) as broker:
        yield broker


@pytest.fixture
def new_topic_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names of topics that no other test uses."""
    stem = "".join(char if char.isalnum() else "-" for char in request.node.originalname or "topic")

    return lambda: f"{stem}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def make_topic(new_topic_name: Callable[[], str]) -> Callable[..., str]:
    """`make_topic(servers, partitions=1, **configs)` makes a topic and returns its name; it keeps records of any timestamp."""

    from fastq import Admin

    def make(servers: str, partitions: int = 1, **configs: str) -> str:
        name = new_topic_name()
        with Admin(bootstrap_servers=servers) as admin:
            dotted = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in configs.items()}}
            admin.create_topic(name, partitions=partitions, configs=dotted)
        return name

    return make
