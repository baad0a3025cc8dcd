"""The registry that the tests of schemas ask."""

import pytest

from fastq.testing import SchemaRegistry


@pytest.fixture
def server():
    """A registry of this test's own, in memory."""
    with SchemaRegistry() as registry:
        yield registry
