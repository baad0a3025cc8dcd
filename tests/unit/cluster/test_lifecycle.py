"""A broker's life, a rule a test."""

from __future__ import annotations

from typing import Any

import pytest
from fastq_broker.cluster.lifecycle import (
    BrokerLifecycle,
    BrokerState,
    Halt,
    LifecycleConfig,
    ListenerAddress,
    OpenPorts,
    Send,
    StateChanged,
)

from fastq.errors import ConnectionClosed, ErrorCode
from fastq.protocol.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

A, B, C = (bytes([number]) * 16 for number in (0xA, 0xB, 0xC))
ME = b"i" * 16


class Broker:
    """A life whose news are kept."""

    def __init__(self, **options: Any) -> None:
        config: dict[str, Any] = {
            "node_id": 4,
            "cluster_id": "c",
            "incarnation_id": ME,
            "listeners": [ListenerAddress("PLAINTEXT", "host", 9092), ListenerAddress("SSL", "host", 9093, 1)],
            "features": {"metadata.version": (7, 30)},
            "log_dirs": [B, A],
            **options,
        }
        self.life = BrokerLifecycle(LifecycleConfig(**config))
        self.news: list[Any] = []

    def poll(self, now: float) -> Any:
        """What is sent; None for nothing."""
        effects = self.life.poll(now)
        self.news += [effect for effect in effects if not isinstance(effect, Send)]
        sent = [effect.request for effect in effects if isinstance(effect, Send)]
        assert len(sent) <= 1
        return sent[0] if sent else None

    def answer(self, request: Any, now: float, **fields: Any) -> None:
        kind = BrokerRegistrationResponse if isinstance(request, BrokerRegistrationRequest) else BrokerHeartbeatResponse
        self.life.answered(request, kind(**fields), None, now)

    def registered(self, epoch: int = 7, now: float = 0.0) -> None:
        self.life.start(now)
        self.answer(self.poll(now), now, broker_epoch=epoch)

    def in_recovery(self, now: float = 0.0) -> None:
        self.registered(now=now)
        self.answer(self.poll(now), now, is_caught_up=True)

    def running(self, now: float = 0.0) -> None:
        """RUNNING, the next heartbeat being due two seconds after `now` + 10 ms."""
        self.in_recovery(now)
        self.life.loaded(now)
        self.answer(self.poll(now + 0.01), now + 0.01, is_caught_up=True, is_fenced=False)
        self.poll(now + 0.01)
        assert self.life.state is BrokerState.RUNNING


def test_a_start_registers_with_all_that_the_controller_must_know() -> None:
    broker = Broker(rack="r", previous_epoch=3)
    assert broker.poll(0.0) is None and broker.life.next_wakeup() == float("inf")
    broker.life.start(1.0)
    request = broker.poll(1.0)
    assert request == BrokerRegistrationRequest(
        broker_id=4,
        cluster_id="c",
        incarnation_id=ME,
        listeners=[
            BrokerRegistrationRequest.Listener(name="PLAINTEXT", host="host", port=9092, security_protocol=0),
            BrokerRegistrationRequest.Listener(name="SSL", host="host", port=9093, security_protocol=1),
        ],
        features=[
            BrokerRegistrationRequest.Feature(
                name="metadata.version", min_supported_version=7, max_supported_version=30
            )
        ],
        rack="r",
        log_dirs=[A, B],
        previous_broker_epoch=3,
    )
    assert broker.news == [StateChanged(BrokerState.STARTING)]
    assert broker.life.poll(1.0) == []  # one question at a time


def test_questions_are_tried_for_half_a_session() -> None:
    broker = Broker(session_timeout_s=9.0)
    broker.life.start(0.0)
    (sent,) = [effect for effect in broker.life.poll(0.0) if isinstance(effect, Send)]
    assert sent.timeout_s == 4.5


def test_heartbeats_follow_the_registration_ten_ms_apart_until_the_metadata_is_caught_up() -> None:
    broker = Broker()
    broker.life.metadata_at(11)
    broker.registered(epoch=7)
    assert broker.life.epoch == 7
    first = broker.poll(0.0)
    assert first == BrokerHeartbeatRequest(
        broker_id=4, broker_epoch=7, current_metadata_offset=11, want_fence=True, offline_log_dirs=[]
    )
    broker.answer(first, 0.5)
    assert broker.poll(0.509) is None and broker.life.next_wakeup() == pytest.approx(0.51)
    broker.life.metadata_at(12)
    broker.life.metadata_at(5)  # an older one changes nothing
    second = broker.poll(0.511)
    assert second.current_metadata_offset == 12
    broker.answer(second, 0.6, is_caught_up=True)
    third = broker.poll(0.611)
    assert broker.news[-1] == StateChanged(BrokerState.RECOVERY) and third.want_fence
    broker.answer(third, 0.7, is_caught_up=True)
    assert broker.life.next_wakeup() == pytest.approx(2.7)


def test_the_fence_is_wanted_until_logs_are_loaded_and_ports_open_once_it_is_gone() -> None:
    broker = Broker()
    broker.in_recovery()
    broker.answer(broker.poll(0.01), 0.01, is_caught_up=True)
    assert broker.poll(1.0) is None
    broker.life.loaded(1.0)
    request = broker.poll(1.0)  # at once
    assert not request.want_fence
    broker.answer(request, 1.1, is_caught_up=True, is_fenced=True)
    assert broker.life.state is BrokerState.RECOVERY
    assert broker.poll(3.0) is None
    request = broker.poll(3.1)
    broker.answer(request, 3.2, is_caught_up=True, is_fenced=False)
    broker.poll(3.2)
    assert broker.news[-2:] == [StateChanged(BrokerState.RUNNING), OpenPorts()]


def test_a_broker_that_is_fenced_again_goes_on_and_opens_its_ports_only_once() -> None:
    broker = Broker()
    broker.running()
    for now, fenced in ((3.0, True), (6.0, False)):
        broker.answer(broker.poll(now), now, is_caught_up=True, is_fenced=fenced)
    broker.poll(6.0)
    assert broker.life.state is BrokerState.RUNNING and broker.news.count(OpenPorts()) == 1


def test_logs_that_are_loaded_first_do_not_open_ports_before_the_metadata_is_caught_up() -> None:
    broker = Broker()
    broker.life.loaded(0.0)
    broker.registered()
    request = broker.poll(0.0)
    assert not request.want_fence
    broker.answer(request, 0.0, is_caught_up=True, is_fenced=False)
    assert broker.life.state is BrokerState.RECOVERY
    broker.answer(broker.poll(0.01), 0.01, is_caught_up=True, is_fenced=False)
    assert broker.life.state is BrokerState.RUNNING


def test_what_happens_during_a_question_has_the_next_one_follow_at_once() -> None:
    broker = Broker()
    broker.in_recovery()
    request = broker.poll(0.01)
    broker.life.loaded(0.02)
    assert broker.poll(0.02) is None
    broker.answer(request, 0.03, is_caught_up=True)
    assert not broker.poll(0.03).want_fence


@pytest.mark.parametrize("fails", ["registration", "heartbeat", "error", "disconnect"])
def test_what_fails_is_asked_again_two_seconds_later_whatever_else_happens(fails: str) -> None:
    broker = Broker()
    broker.life.start(0.0)
    request = broker.poll(0.0)
    if fails != "registration":
        broker.answer(request, 0.0, broker_epoch=7)
        request = broker.poll(0.0)
    broker.life.loaded(0.0)
    if fails == "disconnect":
        broker.life.answered(request, None, ConnectionClosed(), 1.0)
    else:
        code = 199 if fails == "error" else ErrorCode.DUPLICATE_BROKER_REGISTRATION
        broker.answer(request, 1.0, error_code=code)
    assert broker.poll(2.9) is None and broker.life.next_wakeup() == pytest.approx(3.0)
    assert type(broker.poll(3.0)) is type(request)


def test_the_interval_is_the_configured_one() -> None:
    broker = Broker(heartbeat_interval_s=0.5)
    broker.in_recovery()
    broker.answer(broker.poll(0.01), 1.0)
    assert broker.life.next_wakeup() == pytest.approx(1.5)


def test_a_broker_that_cannot_register_in_time_halts() -> None:
    broker = Broker()
    broker.life.start(0.0)
    for number in range(30):
        broker.answer(broker.poll(2.0 * number), 2.0 * number, error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    assert broker.poll(59.9) is None
    assert broker.poll(60.0) is None
    stopped, halt = broker.news[-2:]
    assert stopped == StateChanged(BrokerState.SHUTTING_DOWN)
    assert isinstance(halt, Halt) and "broker 4 was not registered within 60 s" in halt.reason
    assert broker.life.next_wakeup() == float("inf") and broker.poll(100.0) is None


@pytest.mark.parametrize(
    ("code", "hint"),
    [(101, "same node.id is alive"), (35, "finalized a feature"), (119, "meta.properties"), (104, "another cluster's")],
)
def test_a_refused_registration_says_what_to_do(code: int, hint: str, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    broker.life.start(0.0)
    broker.answer(broker.poll(0.0), 0.0, error_code=code)
    assert hint in caplog.text and "broker 4, STARTING" in caplog.text


def test_a_registered_broker_outlives_its_controllers() -> None:
    broker = Broker()
    broker.registered()
    for number in range(100):
        request = broker.poll(2.0 * number)
        assert isinstance(request, BrokerHeartbeatRequest)
        broker.life.answered(request, None, ConnectionClosed(), 2.0 * number)
    assert broker.life.state is BrokerState.STARTING


@pytest.mark.parametrize("holder", [None, ME])
def test_a_broker_that_was_unregistered_stays_out(holder: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    """As Kafka has it: UnregisterBroker of a living broker keeps it out until it is started again."""
    broker = Broker()
    broker.running()
    broker.life.registration_in_metadata(holder, True, 1.0)
    broker.answer(broker.poll(2.02), 2.02, error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert isinstance(broker.poll(4.03), BrokerHeartbeatRequest) and broker.life.state is BrokerState.RUNNING
    assert "was broker 4 unregistered?" in caplog.text and "start it again to have it register anew" in caplog.text


def test_what_fails_again_and_again_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    broker.running()
    now = 2.02

    def fail(times: int, code: ErrorCode) -> None:
        nonlocal now
        for _ in range(times):
            broker.answer(broker.poll(now), now, error_code=code)
            now += 2.01

    fail(25, ErrorCode.STALE_BROKER_EPOCH)
    assert caplog.text.count("is not heard by the controller") == 1
    fail(25, ErrorCode.STALE_BROKER_EPOCH)
    assert caplog.text.count("is not heard by the controller") == 2
    fail(3, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert caplog.text.count("is not heard by the controller") == 3
    broker.answer(broker.poll(now), now)
    now += 2.01
    fail(3, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert caplog.text.count("is not heard by the controller") == 4


def test_a_broker_whose_place_was_taken_registers_again_and_opens_no_ports_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker()
    broker.running()
    broker.life.registration_in_metadata(b"other" * 3 + b"!", True, 1.0)
    broker.answer(broker.poll(2.02), 2.02, error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert "Another process with node.id 4 has registered" in caplog.text
    assert broker.poll(4.0) is None
    request = broker.poll(4.03)
    assert isinstance(request, BrokerRegistrationRequest) and request.incarnation_id == ME
    broker.answer(request, 4.1, error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    request = broker.poll(100.0)  # no time-out: it was registered before
    broker.life.answered(request, None, ConnectionClosed(), 100.1)
    broker.answer(broker.poll(102.2), 102.2, broker_epoch=20)
    heartbeat = broker.poll(102.2)
    assert heartbeat.broker_epoch == 20 and not heartbeat.want_fence
    broker.answer(heartbeat, 102.3, is_caught_up=True, is_fenced=False)
    broker.poll(102.3)
    assert broker.life.state is BrokerState.RUNNING and broker.news.count(OpenPorts()) == 1


def test_a_registration_without_directories_is_made_again_with_the_same_incarnation() -> None:
    broker = Broker()
    broker.running()
    broker.life.registration_in_metadata(b"o" * 16, False, 1.0)  # another's is not ours to mend
    broker.life.registration_in_metadata(ME, True, 1.0)
    assert broker.poll(1.0) is None
    broker.life.registration_in_metadata(ME, False, 1.0)
    request = broker.poll(1.0)
    assert isinstance(request, BrokerRegistrationRequest) and request.incarnation_id == ME
    broker.answer(request, 1.1, broker_epoch=7)
    assert isinstance(broker.poll(1.1), BrokerHeartbeatRequest)
    assert broker.life.state is BrokerState.RUNNING


# -- directories


def test_a_failed_directory_is_told_at_once_and_in_each_heartbeat_from_then_on() -> None:
    broker = Broker()
    broker.running()
    broker.life.directory_failed(A, 1.0)
    request = broker.poll(1.5)
    assert request.offline_log_dirs == [A]
    broker.answer(request, 1.6, is_fenced=False)
    broker.life.directory_failed(A, 1.7)  # that is known
    again = broker.poll(3.6)
    assert again.offline_log_dirs == [A]
    broker.answer(again, 3.6, error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert broker.poll(1000.0) is not None and not any(isinstance(news, Halt) for news in broker.news)


def test_a_directory_that_fails_while_a_heartbeat_is_on_its_way_is_not_told_by_it() -> None:
    broker = Broker(log_dirs=[A, B, C])
    broker.running()
    broker.life.directory_failed(A, 1.0)
    request = broker.poll(1.0)
    broker.life.directory_failed(B, 1.1)
    broker.answer(request, 1.2, is_fenced=False)
    assert broker.poll(1.2).offline_log_dirs == [A, B]
    broker.poll(31.05)
    assert not any(isinstance(news, Halt) for news in broker.news)
    broker.poll(31.2)
    assert isinstance(broker.news[-1], Halt) and "no controller has heard of it for 30 s" in broker.news[-1].reason


def test_a_directory_that_fails_before_the_registration_is_told_by_the_first_heartbeat() -> None:
    broker = Broker()
    broker.life.start(0.0)
    request = broker.poll(0.0)
    broker.life.directory_failed(A, 0.0)
    assert request.log_dirs == [A, B]
    broker.answer(request, 0.0, broker_epoch=1)
    assert broker.poll(0.0).offline_log_dirs == [A]


def test_a_heartbeat_that_failed_has_told_nothing() -> None:
    broker = Broker()
    broker.running()
    broker.life.directory_failed(A, 1.0)
    broker.answer(broker.poll(1.0), 1.0, error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert broker.life.next_wakeup() == pytest.approx(3.0)
    broker.poll(3.0)
    assert broker.life.next_wakeup() == pytest.approx(31.0)
    broker.poll(31.0)
    assert isinstance(broker.news[-1], Halt)


@pytest.mark.parametrize(
    ("options", "failed", "why"),
    [({"metadata_dir": A}, [A], "which holds the metadata log"), ({}, [A, B], "it was the last one")],
)
def test_without_its_metadata_or_any_directory_the_process_ends(options: Any, failed: list[bytes], why: str) -> None:
    broker = Broker(**options)
    broker.running()
    for directory in failed:
        assert not any(isinstance(news, Halt) for news in broker.news)
        broker.life.directory_failed(directory, 1.0)
        broker.poll(1.0)
    assert isinstance(broker.news[-1], Halt) and why in broker.news[-1].reason
    assert broker.life.state is BrokerState.SHUTTING_DOWN


def test_cordoned_directories_are_told_once_the_metadata_is_caught_up() -> None:
    broker = Broker()
    broker.life.directories_cordoned(frozenset([B, A]), 0.0)
    broker.registered()
    request = broker.poll(0.0)
    assert request.cordoned_log_dirs is None
    broker.answer(request, 0.0, is_caught_up=True)
    request = broker.poll(0.01)
    assert request.cordoned_log_dirs == [A, B]
    broker.life.directories_cordoned(frozenset(), 0.02)
    broker.answer(request, 0.03)
    assert broker.poll(0.03).cordoned_log_dirs == []


def test_nothing_is_said_of_cordoned_directories_that_the_metadata_has_no_word_for() -> None:
    broker = Broker()
    broker.in_recovery()
    assert broker.poll(0.01).cordoned_log_dirs is None


# -- the end


def test_a_running_broker_hands_over_before_it_goes() -> None:
    broker = Broker()
    broker.running()
    broker.life.shut_down(1.0)
    request = broker.poll(1.0)
    assert request.want_shut_down and not request.want_fence
    broker.life.shut_down(1.0)
    broker.answer(request, 1.1)
    assert broker.life.next_wakeup() == pytest.approx(1.15)
    request = broker.poll(1.151)
    assert request.want_shut_down
    broker.answer(request, 1.2)
    assert broker.life.next_wakeup() == pytest.approx(3.2)  # only the first answer has another soon
    broker.answer(broker.poll(3.201), 3.3, should_shut_down=True)
    assert broker.poll(3.3) is None
    assert broker.news[-2:] == [
        StateChanged(BrokerState.PENDING_CONTROLLED_SHUTDOWN),
        StateChanged(BrokerState.SHUTTING_DOWN),
    ]
    assert broker.life.next_wakeup() == float("inf")


def test_a_broker_that_does_not_run_goes_at_once() -> None:
    broker = Broker()
    broker.in_recovery()
    request = broker.poll(0.01)
    broker.life.shut_down(0.02)
    assert broker.life.state is BrokerState.SHUTTING_DOWN
    broker.answer(request, 0.03, is_fenced=False)  # too late to count
    broker.life.loaded(0.04)
    broker.life.directory_failed(A, 0.05)
    broker.life.stop()
    assert broker.life.next_wakeup() == float("inf")
    assert broker.poll(10.0) is None and broker.life.state is BrokerState.SHUTTING_DOWN
    assert broker.news.count(StateChanged(BrokerState.SHUTTING_DOWN)) == 1


def test_a_broker_that_no_controller_lets_go_goes_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    broker.running()
    broker.life.shut_down(1.0)
    broker.life.answered(broker.poll(1.0), None, ConnectionClosed(), 1.0)
    assert broker.poll(300.9) is not None and broker.life.next_wakeup() == pytest.approx(301.0)
    assert broker.poll(301.0) is None
    assert broker.life.state is BrokerState.SHUTTING_DOWN and "without having handed everything over" in caplog.text


def test_a_broker_whose_epoch_is_stale_has_nothing_to_hand_over() -> None:
    broker = Broker()
    broker.running()
    broker.life.shut_down(1.0)
    broker.answer(broker.poll(1.0), 1.0, error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert broker.life.state is BrokerState.SHUTTING_DOWN


def test_who_has_not_been_answered_lately_is_not_heard() -> None:
    broker = Broker()
    assert not broker.life.is_heard(0.0)
    broker.running()
    last = 0.01
    assert broker.life.is_heard(last + 2.9) and not broker.life.is_heard(last + 3.1)
    request = broker.poll(last + 2.0)
    broker.life.answered(request, None, ConnectionClosed(), last + 2.5)
    assert not broker.life.is_heard(last + 3.1), "a question that failed was heard by nobody"
    request = broker.poll(last + 4.5)
    broker.answer(request, last + 4.6)
    assert broker.life.is_heard(last + 7.0)


def test_an_answer_is_as_old_as_its_question() -> None:
    """A process that stood still reads what came long ago, before it hears that it was fenced meanwhile."""
    broker = Broker()
    broker.running()
    request = broker.poll(2.01)
    broker.answer(request, 60.0)
    assert not broker.life.is_heard(60.0)
    request = broker.poll(62.0)
    broker.answer(request, 62.1)
    assert broker.life.is_heard(62.1)


def test_an_answer_to_an_older_question_is_dropped() -> None:
    broker = Broker()
    broker.registered()
    request = broker.poll(0.0)
    broker.answer(BrokerHeartbeatRequest(), 0.0, is_caught_up=True)
    assert broker.life.state is BrokerState.STARTING
    broker.answer(request, 0.0, is_caught_up=True)
    assert broker.life.state is BrokerState.RECOVERY
