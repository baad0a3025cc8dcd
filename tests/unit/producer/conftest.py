"""Topics and producers on the broker of the session."""

import pytest

from fastq.producer import Producer


@pytest.fixture
def topic(new_topic_name):
    """The name of a topic that the first send makes."""
    return new_topic_name()


@pytest.fixture
def wide(shared_broker, make_topic):
    """A topic with four partitions."""
    return make_topic(shared_broker.bootstrap_servers, 4)


@pytest.fixture
def make(shared_broker):
    """Producers for the shared broker, closed at the end."""
    made = []

    def make(**options):
        made.append(Producer(bootstrap_servers=shared_broker.bootstrap_servers, **options))
        return made[-1]

    yield make
    for producer in made:
        producer.close(10)
