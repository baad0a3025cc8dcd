"""A process that is stopped and goes on, as by Ctrl-Z or with its container, after more than max_poll_interval_ms."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from consumer_lives import CONFIG, PROTOCOLS, filled, options

from fastq import Producer
from fastq.testing import Broker

LIMIT_MS = 1000
WAITS = """
import sys
from fastq import Consumer
given = eval(sys.argv[2])
with Consumer(sys.argv[1], **given) as consumer:
    while "last" not in (values := [bytes(record.value).decode() for record in consumer.poll(timeout=60)]):
        print(*values, flush=True)
"""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_consumer_that_waits_for_records_joins_again_and_is_not_told_that_it_was_too_slow(
    protocol: str, make_topic: Callable[..., str]
) -> None:
    """The native thread finds that nobody has asked for long, and says farewell; who was asking all the time reads on."""
    with Broker(config={**CONFIG, "group.consumer.session.timeout.ms": 30_000}, in_memory=True) as broker:
        topic = filled(broker, make_topic)
        given = options(broker, topic, protocol, max_poll_interval_ms=LIMIT_MS, session_timeout_ms=30_000)
        child = subprocess.Popen(
            [sys.executable, "-c", WAITS, topic, repr(given)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            seen: set[str] = set()
            while len(seen) < 20:
                assert child.poll() is None
                seen |= set(child.stdout.readline().split())
            time.sleep(LIMIT_MS / 2000)
            os.kill(child.pid, signal.SIGSTOP)
            time.sleep(1.5 * LIMIT_MS / 1000)
            os.kill(child.pid, signal.SIGCONT)
            with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
                producer.send(topic, b"more", partition=0)
                producer.flush()
                while "more" not in child.stdout.readline().split():
                    assert child.poll() is None
                producer.send(topic, b"last", partition=0)
            errors = child.communicate(timeout=60)[1]
        finally:
            child.kill()
            child.wait()
        assert child.returncode == 0, errors
