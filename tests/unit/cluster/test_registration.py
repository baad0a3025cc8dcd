"""A controller's registration, a rule a test."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fastq_broker.cluster.lifecycle import ListenerAddress
from fastq_broker.cluster.registration import ControllerRegistration, RegistrationConfig

from fastq.errors import ConnectionClosed, ErrorCode
from fastq.protocol.messages import ControllerRegistrationRequest, ControllerRegistrationResponse

ME, OTHER = b"m" * 16, b"o" * 16
NEVER = float("inf")


def registration() -> ControllerRegistration:
    return ControllerRegistration(
        RegistrationConfig(
            node_id=3,
            incarnation_id=ME,
            listeners=[ListenerAddress("CONTROLLER", "host", 9093)],
            features={"kraft.version": (0, 1)},
        ),
        Random(1),
    )


def sent(machine: ControllerRegistration, now: float) -> Any:
    effects = machine.poll(now)
    return effects[0].request if effects else None


def answer(machine: ControllerRegistration, request: Any, now: float, code: int = 0) -> None:
    machine.answered(request, ControllerRegistrationResponse(error_code=code), None, now)


def test_it_is_asked_for_once_the_metadata_knows_of_such_records() -> None:
    machine = registration()
    machine.metadata(30, None, 0.0)
    assert sent(machine, 0.0) is None  # nobody knows where it listens yet
    machine.start(1.0)
    (effect,) = machine.poll(1.0)
    assert effect.timeout_s == 5.0
    assert effect.request == ControllerRegistrationRequest(
        controller_id=3,
        incarnation_id=ME,
        listeners=[ControllerRegistrationRequest.Listener(name="CONTROLLER", host="host", port=9093)],
        features=[
            ControllerRegistrationRequest.Feature(
                name="kraft.version", min_supported_version=0, max_supported_version=1
            )
        ],
    )
    assert machine.next_wakeup() == NEVER


def test_older_metadata_has_no_place_for_it() -> None:
    machine = registration()
    machine.start(0.0)
    machine.metadata(14, None, 0.0)
    assert sent(machine, 0.0) is None and machine.next_wakeup() == NEVER
    machine.metadata(15, None, 1.0)
    assert sent(machine, 1.0) is not None


def test_one_question_is_on_its_way() -> None:
    machine = registration()
    machine.start(0.0)
    machine.metadata(30, None, 0.0)
    request = sent(machine, 0.0)
    machine.metadata(30, OTHER, 0.1)
    assert sent(machine, 0.1) is None
    answer(machine, ControllerRegistrationRequest(), 0.1, ErrorCode.NOT_CONTROLLER)  # of another question
    assert machine.next_wakeup() == NEVER
    answer(machine, request, 0.2)
    assert machine.next_wakeup() == NEVER and not machine.registered


def test_it_ends_when_the_metadata_has_this_incarnation() -> None:
    machine = registration()
    machine.start(0.0)
    machine.metadata(30, ME, 0.0)
    assert machine.registered and sent(machine, 0.0) is None


@pytest.mark.parametrize("now_there", [None, OTHER])
def test_it_begins_again_when_the_metadata_has_another_or_none(now_there: bytes | None) -> None:
    machine = registration()
    machine.start(0.0)
    machine.metadata(30, ME, 0.0)
    sent(machine, 0.0)
    machine.metadata(30, now_there, 5.0)
    assert sent(machine, 5.0) is not None and not machine.registered


def test_what_fails_is_asked_again_with_pauses_that_double_up_to_two_minutes() -> None:
    machine = registration()
    machine.start(0.0)
    machine.metadata(30, None, 0.0)
    now, pauses = 0.0, []
    for number in range(16):
        request = sent(machine, now)
        if number % 2:
            answer(machine, request, now, ErrorCode.BROKER_ID_NOT_REGISTERED)
        else:
            machine.answered(request, None, ConnectionClosed(), now)
        pauses.append(machine.next_wakeup() - now)
        assert sent(machine, now + pauses[-1] * 0.99) is None
        now = machine.next_wakeup()
    assert all(
        0.8 * nominal <= pause <= 1.2 * nominal for nominal, pause in zip((0.1, 0.2, 0.4, 0.8), pauses, strict=False)
    )
    assert 0.8 * 120 <= pauses[-1] <= 1.2 * 120
    answer(machine, sent(machine, now), now)
    machine.metadata(30, None, now)
    machine.answered(sent(machine, now), None, ConnectionClosed(), now)
    assert machine.next_wakeup() - now <= 0.12  # a success begins anew


def test_a_controller_that_stops_asks_no_more() -> None:
    machine = registration()
    machine.start(0.0)
    machine.metadata(30, None, 0.0)
    request = sent(machine, 0.0)
    machine.stop()
    answer(machine, request, 0.0, ErrorCode.NOT_CONTROLLER)
    machine.metadata(30, None, 1.0)
    assert machine.next_wakeup() == NEVER and sent(machine, 1.0) is None
