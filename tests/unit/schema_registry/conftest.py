"""The registry that the tests of schemas ask."""

import pytest

from fastq.schema_registry import SchemaRegistryClient
from fastq.testing import SchemaRegistry


@pytest.fixture
def server():
    """A registry of this test's own, in memory."""
    with SchemaRegistry() as registry:
        yield registry


@pytest.fixture
def client(server):
    return SchemaRegistryClient(server.url, retries=0)
