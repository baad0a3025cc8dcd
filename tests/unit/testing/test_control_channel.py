"""The channel between a test and its broker: each command gets its own answer."""

import json
import os
import signal
import socket
import threading

import pytest

from fastq.testing import switches
from fastq.testing.switches import Channel, FaultSwitches


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours, 0.2)
        yield channel, theirs
        channel.close()


def asked(theirs):
    return [json.loads(line) for line in theirs.recv(65536).splitlines()]


def said(number, result):
    return json.dumps({"number": number, "result": result}).encode() + b"\n"


def test_an_answer_that_comes_too_late_is_not_the_next_ones(ends):
    channel, theirs = ends
    late = said(1, "of the first")
    for _ in range(2):
        with pytest.raises(TimeoutError):
            channel.ask({"do": "left"})
        theirs.send(late[:5])  # the rest comes later
        late = late[5:]
    theirs.send(late + said(2, "of the second") + said(3, "of the third"))
    assert channel.ask({"do": "left"}) == {"number": 3, "result": "of the third"}
    assert [command["number"] for command in asked(theirs)] == [1, 2, 3]


def test_a_time_out_says_which_command_and_that_it_may_be_done(ends):
    broken = FaultSwitches()
    broken._control = ends[0]
    with pytest.raises(RuntimeError, match="not answered clear within 10 s, and may still do it"):
        broken.clear_faults()
    ends[1].close()
    with pytest.raises(RuntimeError, match="does not answer"):
        broken.clear_faults()


def test_a_broker_that_stood_still(fastq_broker, monkeypatch):
    broker = fastq_broker
    broker.fail("Produce", error=6, times=3)
    broker._control._socket.settimeout(0.2)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RuntimeError, match="not answered fail"):
            broker.fail("Heartbeat", error=6)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    broker._control._socket.settimeout(switches.COMMAND_TIMEOUT_S)
    assert broker.faults_left() == {"Produce": [("fail", 3)], "Heartbeat": [("fail", 1)]}
    broker.clear_faults()
    assert broker.faults_left() == {}


def test_threads_get_their_own_answers(fastq_broker):
    found = []

    def look():
        found.extend(fastq_broker.faults_left() for _ in range(50))

    fastq_broker.fail("Produce", error=6, times=3)
    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{"Produce": [("fail", 3)]}] * 150
