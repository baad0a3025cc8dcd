"""Fetch sessions against KIP-227: epochs, news only, fairness, and the bound of the cache."""

from __future__ import annotations

import itertools
from typing import Any

from fastq_broker.fetch_session import EVICTION_MS, INT32_MAX, FetchSessionCache

from fastq._native.fetch_path import FetchPartition, PartitionData


def cache(slots: int = 10) -> FetchSessionCache:
    numbers = itertools.count(100)
    return FetchSessionCache(slots, lambda: next(numbers))


def asked(partition: int, offset: int = 0, topic: bytes = b"t") -> Any:
    return FetchPartition(topic, partition, offset, 1000)


def result(partition: int, hw: int = 5, records: object = None, error: int = 0, topic: bytes = b"t") -> Any:
    return PartitionData(topic, partition, error, hw, hw, 0, records)


def begin(
    sessions: FetchSessionCache, session_id: int, epoch: int, partitions: list[Any], forgotten: Any = (), now: int = 0
) -> Any:
    return sessions.begin(session_id, epoch, partitions, list(forgotten), False, now)


def opened(sessions: FetchSessionCache, *partitions: int, now: int = 0) -> int:
    context = begin(sessions, 0, 0, [asked(p) for p in partitions], now=now)
    session_id, sent = context.answer([result(p) for p in partitions])
    assert len(sent) == len(partitions)
    return int(session_id)


def test_no_session_is_made_unless_asked_for() -> None:
    sessions = cache()
    context = begin(sessions, 0, -1, [asked(0)])
    answer = result(0)
    assert context.answer([answer]) == (0, [answer])
    assert begin(sessions, 0, 0, []).answer([]) == (0, [])
    assert sessions.sessions == {}


def test_an_incremental_answer_holds_news_only() -> None:
    sessions = cache()
    session_id = opened(sessions, 0, 1, 2)
    for epoch, results, news in [
        (1, [result(0), result(1), result(2)], []),
        (2, [result(0), result(1, hw=6), result(2)], [1]),
        (3, [result(0), result(1, hw=6), result(2, records="r")], [2]),
        (4, [result(0, error=3, hw=-1), result(1, hw=6), result(2)], [0]),
        (5, [result(0, error=3, hw=-1), result(1, hw=6), result(2)], [0]),  # errors are always resent
        (6, [result(0), result(1, hw=6), result(2)], [0]),
        (7, [result(0), result(1, hw=6), result(2)], []),
    ]:
        context = begin(sessions, session_id, epoch, [])
        assert context.error_code == 0
        answered_id, sent = context.answer(results)
        assert answered_id == session_id
        assert [item.partition for item in sent] == news, epoch


def test_changes_and_forgotten_partitions() -> None:
    sessions = cache()
    session_id = opened(sessions, 0, 1)
    context = begin(sessions, session_id, 1, [asked(1, offset=9), asked(2)], [(b"t", 0), (b"t", 77)])
    assert [(item.partition, item.fetch_offset) for item in context.partitions] == [(1, 9), (2, 0)]
    assert begin(sessions, session_id, 2, [], [(b"t", 1), (b"t", 2)]).partitions == []
    assert begin(sessions, session_id, 3, []).error_code == 70, "nothing was left of it"


def test_partitions_with_records_go_to_the_end() -> None:
    sessions = cache()
    session_id = opened(sessions, 0, 1, 2)
    order = [0, 1, 2]
    for epoch in range(1, 4):
        context = begin(sessions, session_id, epoch, [])
        assert [item.partition for item in context.partitions] == order
        first = order[0]
        context.answer([result(p, hw=epoch, records="r" if p == first else None) for p in order])
        order = [*order[1:], first]


def test_answers_keep_topics_together() -> None:
    sessions = cache()
    keys = [(b"a", 0), (b"b", 0), (b"a", 1)]
    context = begin(sessions, 0, 0, [asked(p, topic=t) for t, p in keys])
    session_id, _ = context.answer([result(p, topic=t) for t, p in keys])
    _, sent = begin(sessions, session_id, 1, []).answer([result(p, topic=t, hw=9) for t, p in keys])
    assert [(item.topic, item.partition) for item in sent] == [(b"a", 0), (b"a", 1), (b"b", 0)]


def test_epochs_must_follow_each_other_and_wrap_to_1() -> None:
    sessions = cache()
    session_id = opened(sessions, 0)
    assert begin(sessions, session_id, 2, []).error_code == 71
    assert begin(sessions, session_id, 1, []).error_code == 0
    sessions.sessions[session_id].epoch = INT32_MAX
    assert begin(sessions, session_id, INT32_MAX, []).error_code == 0
    assert begin(sessions, session_id, 1, []).error_code == 0
    assert begin(sessions, 55, 1, []).error_code == 70


def test_names_and_ids_do_not_mix() -> None:
    sessions = cache()
    session_id = opened(sessions, 0)
    assert sessions.begin(session_id, 1, [], [], True, 0).error_code == 106


def test_closing_and_starting_anew() -> None:
    sessions = cache()
    first = opened(sessions, 0)
    assert begin(sessions, first, -1, [asked(0)]).error_code == 0
    assert begin(sessions, first, 1, []).error_code == 70
    second = opened(sessions, 0)
    begin(sessions, second, 0, [asked(1)]).answer([result(1)])
    assert second not in sessions.sessions
    assert len(sessions.sessions) == 1


def test_the_cache_is_bounded_and_gives_way_to_new_sessions_late() -> None:
    sessions = cache(slots=2)
    first, second = opened(sessions, 0, now=0), opened(sessions, 0, now=1)
    assert opened(sessions, 0, now=EVICTION_MS - 1) == 0, "all are in use: no session"
    assert begin(sessions, first, 1, [], now=EVICTION_MS).error_code == 0  # used again: the second is the oldest now
    third = opened(sessions, 0, now=EVICTION_MS + 1)
    assert third > 0
    assert set(sessions.sessions) == {first, third}
    assert second not in sessions.sessions
    assert FetchSessionCache(0).create(False, [asked(0)], 0) is None
