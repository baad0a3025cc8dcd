"""What the log says of what does not get on: after a grace, when the cause changes, now and then, for many at once, and when it is over."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest

from fastq.errors import FastqError, KafkaStorageError, LeaderNotAvailable, NotLeaderOrFollower, UnknownTopicId
from fastq.metadata import TopicPartition
from fastq.net.troubles import CHANGE_S, GRACE_S, NAMED_MAX, REPEAT_S, Troubles

LOG = logging.getLogger("fastq.test")
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
NOBODY = LeaderNotAvailable("t-0 has no leader", hint="Start node 2")
OFFLINE = KafkaStorageError(broker="h:1 (node 1)", topic="t", partition=0)

Said = Callable[[], list[str]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """What was said of this test's subjects since the last call; what is for information begins with its level."""
    caplog.set_level(logging.INFO, LOG.name)

    def take() -> list[str]:
        marks = {logging.WARNING: "", logging.INFO: "INFO "}
        found = [marks[record.levelno] + record.getMessage() for record in caplog.records if record.name == LOG.name]
        caplog.clear()
        return found

    return take


def again_and_again(troubles: Troubles, subject: object, error: FastqError, start: float, end: float) -> None:
    """An attempt every 100 ms."""
    for step in range(round(start * 10), round(end * 10)):
        troubles.failed(subject, "read", error, step / 10)


def test_what_passes_soon_is_not_said(said: Said) -> None:
    troubles = Troubles(LOG)
    again_and_again(troubles, A, NOBODY, 0.0, GRACE_S)
    troubles.over(A, GRACE_S)
    again_and_again(troubles, A, NOBODY, 4.0, 4.0 + GRACE_S)
    troubles.over(A, 9.0)
    assert said() == []
    assert not troubles.open


def test_what_lasts_is_said_once_and_then_now_and_then_and_taken_back(said: Said) -> None:
    troubles = Troubles(LOG)
    again_and_again(troubles, A, NOBODY, 0.0, REPEAT_S + GRACE_S)
    assert said() == ["t-0 cannot be read: t-0 has no leader. Start node 2; trying on"]
    again_and_again(troubles, A, NOBODY, REPEAT_S + GRACE_S, 10 * REPEAT_S + GRACE_S)
    later = said()
    assert len(later) == 3  # REPEAT_S after the first, and then each time twice as long: 1, 3 and 7 of them
    assert later[0].endswith("; trying on (for 33 s now, 331 attempts)")
    troubles.over(A, 400.0)
    assert said() == ["INFO t-0 can be read again, after 400.0 s"]
    troubles.over(A, 401.0)
    assert said() == []


def test_an_error_without_a_hint_says_what_to_do(said: Said) -> None:
    troubles = Troubles(LOG)
    again_and_again(troubles, A, OFFLINE, 0.0, GRACE_S + 0.2)
    (line,) = said()
    assert line.startswith("t-0 cannot be read: KAFKA_STORAGE_ERROR (56)")
    assert "h:1 (node 1)" in line and OFFLINE.cure.rstrip(".") in line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NotLeaderOrFollower(broker="h:1"), r"NOT_LEADER_OR_FOLLOWER \(6\): [^.;]+; trying on"),
        (UnknownTopicId(), r"UNKNOWN_TOPIC_ID \(100\): [^.;]+\. When it stays, the topic was deleted: [^;]+; trying on"),
        (LeaderNotAvailable(), r"LEADER_NOT_AVAILABLE \(5\): [^.]+\. Wait, the client tries again\. When it stays, [^;]+; trying on"),
    ],
)  # fmt: skip
def test_a_line_that_says_trying_on_does_not_say_that_nothing_is_to_be_done(
    said: Said, error: FastqError, line: str
) -> None:
    troubles = Troubles(LOG)
    again_and_again(troubles, A, error, 0.0, GRACE_S + 0.2)
    (told,) = said()
    assert re.fullmatch(rf"t-0 cannot be read: {line}", told), told


def test_another_cause_is_said_but_two_in_turn_do_not_flood(said: Said) -> None:
    troubles = Troubles(LOG)
    again_and_again(troubles, A, NOBODY, 0.0, 5.0)
    again_and_again(troubles, A, OFFLINE, 5.0, 6.0)
    assert ["KAFKA_STORAGE_ERROR" in line for line in said()] == [False, True]
    for step in range(60, 6000):
        troubles.failed(A, "read", NOBODY if step % 2 else OFFLINE, step / 10)
    assert len(said()) <= 2 * 5  # 1, 3, 7, 15 and 31 times REPEAT_S


def test_what_lasts_for_a_day_is_a_line_an_hour(said: Said) -> None:
    troubles = Troubles(LOG)
    for second in range(24 * 3600):
        troubles.failed(A, "read", NOBODY, float(second))
    assert len(said()) <= 8 + 24
    troubles.failed(A, "read", OFFLINE, 24 * 3600.0)
    assert len(said()) == 1, "another cause is said at once"
    troubles.over(A, 24 * 3600.0)
    troubles.failed(A, "read", NOBODY, 24 * 3600.0 + 1)
    troubles.failed(A, "read", NOBODY, 24 * 3600.0 + 1 + GRACE_S)
    assert len(said()) == 2, "it was taken back, and is said anew"


def test_many_share_a_line(said: Said) -> None:
    troubles = Troubles(LOG)
    partitions = [TopicPartition("t", index) for index in range(1000)]
    for step in range(400):
        for tp in partitions:
            troubles.failed(tp, "read", lambda: NOBODY, step / 10, cause=LeaderNotAvailable)
    first, repeated = said()
    assert first.startswith(f"t-0, t-1, t-2, t-3, t-4 and {1000 - NAMED_MAX} more cannot be read: ")
    assert repeated.startswith("t-0, t-1") and "(for 33 s now" in repeated
    for tp in partitions[1:]:
        troubles.over(tp, 50.0)
    assert said() == []
    troubles.over(A, 60.0)
    assert said() == [f"INFO t-0, t-1, t-2, t-3, t-4 and {1000 - NAMED_MAX} more can be read again, after 60.0 s"]


def test_partitions_that_get_into_the_same_trouble_one_by_one_do_not_flood(said: Said) -> None:
    troubles = Troubles(LOG)
    for step in range(200):
        for index in range(5 * step):
            troubles.failed(TopicPartition("t", index), "read", NOBODY, step / 10)
    assert 2 <= len(said()) <= 20 / CHANGE_S


def test_who_is_given_up_is_not_taken_back(said: Said) -> None:
    troubles = Troubles(LOG)
    for step in range(50):
        troubles.failed(A, "read", NOBODY, step / 10)
        troubles.failed(B, "read", NOBODY, step / 10)
    said()
    troubles.forget(B)
    troubles.over(B, 5.0)
    assert said() == []
    troubles.over(A, 6.0)
    assert said() == ["INFO t-0 can be read again, after 6.0 s"]


@pytest.mark.parametrize("how", ["another cause", "said again", "given up"])
def test_who_came_out_of_it_is_taken_back_also_when_the_others_of_its_line_are_in_another_or_given_up(
    said: Said, how: str
) -> None:
    troubles = Troubles(LOG)
    for step in range(50):
        troubles.failed(A, "read", NOBODY, step / 10)
        troubles.failed(B, "read", NOBODY, step / 10)
    assert len(said()) == 1
    troubles.over(A, 5.0)
    assert said() == []
    if how == "given up":
        troubles.forget(B)
    else:
        again_and_again(troubles, B, OFFLINE if how == "another cause" else NOBODY, 5.0, 34.0)
    lines = said()
    assert lines[0] == "INFO t-0 can be read again, after 5.0 s"
    assert len(lines) == 1 if how == "given up" else lines[1].startswith("t-1 cannot be read")
    troubles.over(B, 40.0)
    assert said() == ([] if how == "given up" else ["INFO t-1 can be read again, after 40.0 s"])


def test_what_nobody_tries_for_now_is_no_trouble_and_taken_back_when_it_comes_through(said: Said) -> None:
    troubles = Troubles(LOG)
    for step in range(50):
        troubles.failed(A, "read", NOBODY, step / 10)
        troubles.failed(B, "read", NOBODY, step / 10)
    said()
    troubles.over(A, 5.0)
    troubles.rest(B)
    assert said() == ["INFO t-0 can be read again, after 5.0 s"], "who rests keeps nobody waiting"
    assert not list(troubles) and troubles
    again_and_again(troubles, B, NOBODY, 3600.0, 3600.0 + GRACE_S)
    assert said() == [], "it has not lasted"
    troubles.over(B, 3605.0)
    assert said() == ["INFO t-1 can be read again, after 3605.0 s"]
    assert not troubles


def test_what_rests_and_is_said_anew_is_taken_back_once(said: Said) -> None:
    troubles = Troubles(LOG)
    again_and_again(troubles, A, NOBODY, 0.0, 5.0)
    troubles.rest(A)
    again_and_again(troubles, A, NOBODY, 3600.0, 3605.0)
    assert [line.endswith("; trying on") for line in said()] == [True, True]
    troubles.over(A, 3610.0)
    assert said() == ["INFO t-0 can be read again, after 10.0 s"]
    again_and_again(troubles, A, NOBODY, 7200.0, 7202.0)
    troubles.rest(A)
    assert not troubles, "there is nothing to take back"


def test_the_message_is_made_when_it_is_said(said: Said) -> None:
    made: list[None] = []

    def make() -> FastqError:
        made.append(None)
        return NotLeaderOrFollower()

    troubles = Troubles(LOG)
    for step in range(100):
        troubles.failed(A, "read", make, step / 10, cause=6)
    assert len(said()) == len(made) == 1
    assert [str(trouble.why()).startswith("NOT_LEADER_OR_FOLLOWER (6)") for trouble in troubles] == [True]
