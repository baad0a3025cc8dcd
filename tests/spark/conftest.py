"""Fixtures of the tests with Spark: one session for the whole run, because a Java machine takes seconds and much memory.

Rules: tests make topics of their own and name their queries and tables so that they share the session without seeing each other. The
workers use this Python and these sources. A test that needs another session (a cluster, one that is killed) starts a process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from fastq.spark import ensure_java
from fastq.spark.java import pyspark_version, session_defaults

ROOT = Path(__file__).resolve().parents[2]
WORKER_PATH = Path(__file__).parent / "worker_path"
"""What Spark's workers import first, in all processes that tests start."""
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(WORKER_PATH), os.environ.get("PYTHONPATH")]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs Spark, and the first test waits for it to start."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """What a process needs in its environment to start Spark with this Python and these sources."""
    found = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Spark looks for pyspark_* modules in folders, which an editable install does not add to the path.
        "PYTHONPATH": os.pathsep.join(map(str, (WORKER_PATH, ROOT / "src", ROOT / "broker"))),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ensure_java()
    if "JAVA_HOME" in os.environ:
        found["JAVA_HOME"] = os.environ["JAVA_HOME"]
    return found


@pytest.fixture(scope="session")
def spark(spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session."""
    os.environ.update(spark_environment)
    builder = SparkSession.builder.master("local[2]").appName("fastq tests")
    settings = {
        **session_defaults(pyspark_version()),
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.streaming.metricsEnabled": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def bootstrap_servers(shared_broker: Any) -> str:
    """The broker of the session, for clients."""
    return str(shared_broker.bootstrap_servers)


@pytest.fixture
def topic(bootstrap_servers: str, make_topic: Callable[..., str]) -> str:
    """A topic of three partitions."""
    return make_topic(bootstrap_servers, 3)


def loaded(reader: Any, bootstrap_servers: str, schema: str | None, options: Mapping[str, object]) -> DataFrame:
    reader = reader.format("fastq").option("kafka.bootstrap.servers", bootstrap_servers)
    if schema is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader.load()


@pytest.fixture
def load(spark: SparkSession, bootstrap_servers: str) -> Callable[..., DataFrame]:
    """`load(subscribe="topic", startingOffsets=...)`: a batch DataFrame of the format; `schema=` prunes columns."""
    return lambda schema=None, **options: loaded(spark.read, bootstrap_servers, schema, options)


@pytest.fixture
def load_stream(spark: SparkSession, bootstrap_servers: str) -> Callable[..., DataFrame]:
    """The same for a stream."""
    return lambda schema=None, **options: loaded(spark.readStream, bootstrap_servers, schema, options)
