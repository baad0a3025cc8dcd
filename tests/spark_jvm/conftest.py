"""Two Spark sessions for the tests of this folder: one with Spark's own JVM connector, one with ours.

Rules: a session is started by the first test that needs it and kept for all; the broker is the one of all tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import spark_jvm

from fastq.testing import Broker

SCRIPTS = Path(__file__).with_name("connector_scripts.py")


@pytest.fixture(scope="session")
def jvm() -> Iterator[spark_jvm.SparkSession]:
    """The JVM connector's session; the tests are left out, with the reason, where it cannot run."""
    reason = spark_jvm.available()
    if reason is not None:
        pytest.skip(reason)
    with spark_jvm.jvm_session(SCRIPTS) as session:
        yield session


@pytest.fixture(scope="session")
def ours() -> Iterator[spark_jvm.SparkSession]:
    with spark_jvm.fastq_session(SCRIPTS) as session:
        yield session


@pytest.fixture(scope="session")
def servers(shared_broker: Broker) -> str:
    return shared_broker.bootstrap_servers
