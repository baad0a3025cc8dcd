"""The native heartbeat thread against a coordinator in another process, which forgets a member that stays silent."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from waiting import until

from fastq._native.heartbeat import HeartbeatThread, Progress
from fastq._native.wire import Writer
from fastq.protocol.frames import decode_response, encode_request
from fastq.protocol.message import Message
from fastq.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
)

# A coordinator that says on stdout what comes in. argv: the session time-out; the answers' bodies in hex, the last one repeats;
# 'close' closes the connection in place of an answer, 'wait' waits for a line before a rebalance is told. A member that was silent for
# the session time-out gets UNKNOWN_MEMBER_ID.
COORDINATOR = r"""
import socket, struct, sys, time
session_s, answers = float(sys.argv[1]), sys.argv[2:]
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
last = None
def exactly(peer, n):
    data = b""
    while len(data) < n:
        more = peer.recv(n - len(data))
        if not more:
            return None
        data += more
    return data
while True:
    peer, _ = server.accept()
    print("connected", flush=True)
    while True:
        head = exactly(peer, 4)
        if head is None:
            break
        frame = exactly(peer, struct.unpack(">i", head)[0])
        now = time.monotonic()
        late, last = last is not None and now - last > session_s, now
        answer = answers[0] if len(answers) == 1 else answers.pop(0)
        print("late" if late else "in time", frame.hex(), flush=True)
        if answer == "close":
            peer.close()
            break
        if answer == "wait":
            sys.stdin.readline()
            answer = "00000000001b"
        body = bytes.fromhex("000000000019" if late else answer)
        peer.sendall(struct.pack(">i", 4 + len(body)) + frame[4:8] + body)
"""


class Coordinator:
    """The other process. `requests` are (in time, frame) as they came."""

    def __init__(self, *answers: str, session_s: float = 60.0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", COORDINATOR, str(session_s), *answers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.requests: list[tuple[bool, bytes]] = []
        self.connections = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("connected"):
                self.connections += 1
            else:
                self.requests.append((line.startswith("in time"), bytes.fromhex(line.rpartition(" ")[2])))

    def go_on(self) -> None:
        """Give the answer that was to wait."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


@pytest.fixture
def start() -> Iterator[Callable[..., Coordinator]]:
    """Starts coordinators that end with the test."""
    running: list[Coordinator] = []

    def begin(*answers: str, session_s: float = 60.0) -> Coordinator:
        running.append(Coordinator(*answers, session_s=session_s))
        return running[-1]

    yield begin
    for coordinator in running:
        coordinator.close()


@pytest.fixture
def thread() -> Iterator[HeartbeatThread]:
    """A thread that is closed at the end."""
    made = HeartbeatThread(Progress())
    yield made
    made.close()


def frame_of(request: Message, version: int) -> bytes:
    """The whole request."""
    return bytes(encode_request(0, "client", request, version))


def body_of(response: Message, version: int, flexible: bool) -> str:
    """A response after its correlation id, in hex."""
    writer = Writer()
    response.encode(writer, version)
    return (b"\0" * flexible + writer.getvalue()).hex()


BEAT = HeartbeatRequest(group_id="g", generation_id=3, member_id="m-1")
BEAT_3 = frame_of(BEAT, 3)
QUIET: dict[str, Any] = {"error_at": 8, "interval_ms": 20, "timeout_ms": 2000}


def ok(code: int = 0) -> str:
    return body_of(HeartbeatResponse(error_code=code), 3, False)


def test_sends_the_request_at_the_interval_on_one_connection(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start(ok())
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(7, BEAT_3, **QUIET)
    until(lambda: len(coordinator.requests) >= 5)
    assert coordinator.connections == 1
    ids = [struct.unpack(">i", frame[4:8])[0] for _, frame in coordinator.requests]
    assert ids == list(range(1, len(ids) + 1))
    assert all(frame[:4] + frame[8:] == BEAT_3[4:8] + BEAT_3[12:] for _, frame in coordinator.requests)
    # The answers are alike, and kept once.
    assert [(token, leave) for token, leave, _ in thread.take()] == [(7, False)]
    assert thread.take() == []


def test_lives_while_native_code_holds_the_gil(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start(ok(), session_s=1.5)
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, error_at=8, interval_ms=50, timeout_ms=1000)
    until(lambda: coordinator.requests)
    before = thread.sent
    ctypes.PyDLL(None).usleep(900_000)
    ctypes.PyDLL(None).usleep(900_000)
    ctypes.PyDLL(None).usleep(900_000)
    during = thread.sent - before
    assert during >= 3
    until(lambda: len(coordinator.requests) >= before + during)
    assert all(in_time for in_time, _ in coordinator.requests)
    assert thread.armed
    assert [decode_heartbeat(answer) for _, _, answer in thread.take()] == [0]


def decode_heartbeat(answer: bytes) -> int:
    response = decode_response(memoryview(answer), HeartbeatRequest.API_KEY, 3)[1]
    assert isinstance(response, HeartbeatResponse)
    return response.error_code


def test_goes_on_through_a_rebalance_and_ends_at_an_error(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start(ok(), ok(), ok(27), ok(27), ok(25))
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, **QUIET)
    until(lambda: not thread.armed)
    assert [decode_heartbeat(answer) for _, _, answer in thread.take()] == [0, 27, 25]
    assert (thread.sent, thread.unheard) == (5, 0)


def test_connects_again_when_the_broker_hangs_up(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start(ok(), "close", ok())
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, **QUIET)
    until(lambda: len(coordinator.requests) >= 4)
    assert coordinator.connections == 2
    assert thread.armed
    assert thread.unheard == 1  # who hung up may have served it before


def test_counts_what_is_not_answered(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start("close", "close", ok())
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, **QUIET)
    until(lambda: len(coordinator.requests) >= 4)
    until(thread.take)
    assert thread.unheard == 2


def test_an_answer_is_news_to_who_has_taken_the_one_before(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start(ok())
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, **QUIET)
    for _ in range(3):
        assert [decode_heartbeat(answer) for _, _, answer in until(thread.take)] == [0]


def test_waits_for_a_broker_that_is_not_there(start: Any, thread: HeartbeatThread) -> None:
    first = start(ok())
    first.close()
    thread.connect_to("127.0.0.1", first.port)
    thread.arm(1, BEAT_3, **QUIET)
    until(lambda: thread.sent >= 2)
    second = start(ok())
    thread.connect_to("127.0.0.1", second.port)
    until(lambda: second.requests)
    assert thread.armed


@pytest.mark.parametrize("message", [None, "a message"])
def test_follows_the_member_epoch_of_the_answers(start: Any, thread: HeartbeatThread, message: str | None) -> None:
    def answer(epoch: int) -> str:
        response = ConsumerGroupHeartbeatResponse(
            member_id="me", member_epoch=epoch, error_message=message, heartbeat_interval_ms=5000
        )
        return body_of(response, 1, True)

    coordinator = start(answer(4), answer(5), answer(5))
    request = ConsumerGroupHeartbeatRequest(group_id="group", member_id="me", member_epoch=4)
    frame = frame_of(request, 1)
    epoch_at = frame.index(b"\0\0\0\4", 20)
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, frame, error_at=9, epoch_at=epoch_at, interval_ms=20, timeout_ms=2000)
    until(lambda: len(coordinator.requests) >= 4)
    at = epoch_at - 4
    assert [seen[at : at + 4][-1] for _, seen in coordinator.requests[:4]] == [4, 4, 5, 5]
    answers = [decode_response(memoryview(raw), 68, 1)[1] for _, _, raw in thread.take()]
    assert [found.member_epoch for found in answers] == [4, 5]


def test_how_long_the_application_was_away_is_counted_on_under_other_settings(start: Any) -> None:
    """A member has others with each epoch: one in a group that rebalances was never overdue."""
    coordinator = start(ok())
    thread = HeartbeatThread(Progress())
    try:
        thread.connect_to("127.0.0.1", coordinator.port)
        tokens = itertools.count(1)

        def is_overdue() -> bool:
            thread.disarm()
            if thread.overdue_s == 0:
                thread.arm(next(tokens), BEAT_3, **QUIET, poll_limit_ms=400)
            return bool(thread.overdue_s >= 0.4)

        until(is_overdue)
    finally:
        thread.close()


def test_leaves_when_the_application_is_overdue(start: Any) -> None:
    coordinator = start(ok())
    progress = Progress()
    leave = frame_of(LeaveGroupRequest(group_id="g", members=[]), 3)
    thread = HeartbeatThread(progress)
    try:
        thread.connect_to("127.0.0.1", coordinator.port)
        thread.arm(1, BEAT_3, **QUIET, poll_limit_ms=400, leave=leave)
        # Progress of iterators, and polls, are signs of life.
        for _ in range(30):
            progress.add()
            time.sleep(0.02)
        assert progress.count == 30
        for _ in range(30):
            thread.alive()
            time.sleep(0.02)
        assert thread.armed
        assert thread.overdue_s == 0
        until(lambda: not thread.armed)
        until(lambda: coordinator.requests[-1][1][4:] and coordinator.requests[-1][1][:2] == leave[4:6])
        assert thread.overdue_s >= 0.4
        until(lambda: any(is_leave for _, is_leave, _ in thread.take()))
        count = thread.sent
        thread.alive()
        assert thread.overdue_s >= 0.4
        thread.arm(2, BEAT_3, **QUIET)
        assert thread.overdue_s == 0
        until(lambda: thread.sent > count)
    finally:
        thread.close()


def test_python_may_send_instead(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start(ok())
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, error_at=8, interval_ms=1000, timeout_ms=1000)
    for _ in range(20):
        thread.postpone()
        time.sleep(0.005)
    assert thread.sent == 0
    thread.disarm()
    assert not thread.armed


def test_answers_of_older_settings_are_dropped(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start(ok(27), ok(0))
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, **QUIET)
    until(lambda: len(coordinator.requests) >= 2)
    thread.take()
    thread.disarm()
    thread.arm(2, BEAT_3, **QUIET)
    assert until(thread.take)[0][0] == 2


def test_an_answer_that_comes_too_late_for_its_settings_is_counted(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start("wait", ok())
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, **QUIET)
    until(lambda: coordinator.requests)
    thread.arm(2, BEAT_3, **QUIET)
    coordinator.go_on()
    assert until(thread.take)[0][0] == 2
    assert thread.unheard == 1


def test_answers_that_nobody_took_for_long_are_counted(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start(*[ok(code) for code in (27, 0) * 40], ok(25))
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, **{**QUIET, "interval_ms": 1})
    until(lambda: not thread.armed)
    assert len(thread.take()) == 64
    assert thread.unheard == 17


def test_answers_that_there_was_no_memory_to_take_are_taken_later(start: Any, thread: HeartbeatThread) -> None:
    failed = []
    for first in range(8):
        coordinator = start(*[ok(code) for code in (27, 0) * 3], ok(25))
        thread.connect_to("127.0.0.1", coordinator.port)
        thread.arm(first, BEAT_3, **{**QUIET, "interval_ms": 1})
        until(lambda: not thread.armed)
        taken: list[Any] = []
        try:
            with AllocationsFail(first):
                taken = thread.take()
        except MemoryError:
            failed.append(first)
        codes = [int.from_bytes(answer[8:10], "big") for _, _, answer in taken + thread.take()]
        assert codes == [27, 0] * 3 + [25]
    assert failed


def test_refuses_what_is_no_request(thread: HeartbeatThread) -> None:
    with pytest.raises(ValueError, match="IP address"):
        thread.connect_to("localhost", 9092)
    with pytest.raises(ValueError, match="IP address"):
        thread.connect_to("127.0.0.1", 0)
    with pytest.raises(ValueError, match="no request"):
        thread.arm(1, b"short", **QUIET)
    with pytest.raises(ValueError, match="no request"):
        thread.arm(1, BEAT_3, **QUIET, leave=b"short")
    with pytest.raises(ValueError, match="above 0"):
        thread.arm(1, BEAT_3, error_at=8, interval_ms=0, timeout_ms=1)


def test_close_is_at_once_and_final(start: Any) -> None:
    # Nobody answers on this port: the thread waits for an answer when it is closed.
    coordinator = start(ok())
    os.kill(coordinator._process.pid, signal.SIGSTOP)
    thread = HeartbeatThread(Progress())
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, error_at=8, interval_ms=1, timeout_ms=3_600_000)
    until(lambda: thread.sent == 1)
    thread.close()
    thread.close()
    for use in (thread.take, thread.disarm, thread.postpone, thread.alive):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_child_of_a_fork_leaves_it_alone(start: Any, thread: HeartbeatThread) -> None:
    coordinator = start(ok())
    thread.connect_to("127.0.0.1", coordinator.port)
    thread.arm(1, BEAT_3, **QUIET)
    until(lambda: coordinator.requests)
    pid = os.fork()
    if pid == 0:
        thread.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    count = len(coordinator.requests)
    until(lambda: len(coordinator.requests) > count + 2)
    assert coordinator.connections == 1
