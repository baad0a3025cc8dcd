"""Settings that change on a live log: who waits, what is visible, what is begun, at once and not at the next append."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, PartitionLog
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, TOPIC_ID, one_batch, open_manager, reconfigure

from fastq.errors import KafkaError, MessageTooLarge

PAGE_CACHE = LogConfig()
FSYNC = LogConfig(durability="fsync")
EACH = LogConfig(flush_messages=1)


def append(log: PartitionLog, told: list[KafkaError | None] | None = None) -> int:
    result = log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    if told is not None:
        log.wait_durable(result.last_offset + 1, told.append)
    return result.last_offset + 1


@pytest.mark.parametrize("synchronous", [FSYNC, EACH])
def test_who_waits_for_the_disk_goes_on_when_it_need_not_any_more(tmp_path: Path, synchronous: LogConfig) -> None:
    manager = open_manager(tmp_path, synchronous)
    log = manager.create("t", 0, TOPIC_ID)
    told: list[KafkaError | None] = []
    seen: list[tuple[int, int]] = []
    for _ in range(3):
        append(log, told)
    log.on_advance(lambda moved: seen.append((moved.high_watermark, moved.last_stable_offset)))
    reconfigure(manager, "t", PAGE_CACHE)  # a sync of the first record is in flight
    assert (log.high_watermark, log.last_stable_offset) == (3, 3)
    assert told == [None] * 3
    assert seen == [(3, 3)], "readers that wait are told"
    manager.flusher.wait()
    assert (told, log.high_watermark, log.on_disk_offset) == ([None] * 3, 3, 1)


def test_what_was_acknowledged_from_the_page_cache_is_synced_at_once(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, PAGE_CACHE)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(3):
        append(log)
    reconfigure(manager, "t", FSYNC)
    assert log.high_watermark == 3, "what was visible stays so"
    manager.flusher.drain()
    assert log.on_disk_offset == 3
    told: list[KafkaError | None] = []
    append(log, told)
    assert (log.high_watermark, told) == (3, [])
    manager.flusher.drain()
    assert (log.high_watermark, told) == (4, [None])


def test_a_sync_in_flight_is_followed_by_one_for_the_rest(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, PAGE_CACHE)
    log = manager.create("t", 0, TOPIC_ID)
    append(log)
    log.flush()
    append(log)
    reconfigure(manager, "t", FSYNC)
    told: list[KafkaError | None] = []
    append(log, told)
    manager.flusher.wait()
    assert (log.high_watermark, log.on_disk_offset, told) == (3, 3, [None])


def test_there_and_back_again_with_one_sync_in_flight(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, FSYNC)
    log = manager.create("t", 0, TOPIC_ID)
    told: list[KafkaError | None] = []
    append(log, told)
    reconfigure(manager, "t", PAGE_CACHE)
    append(log, told)
    reconfigure(manager, "t", FSYNC)
    append(log, told)
    assert (told, log.high_watermark) == ([None, None], 2)
    manager.flusher.wait()
    assert (told, log.high_watermark, log.on_disk_offset) == ([None] * 3, 3, 3)


def test_a_failed_sync_is_not_made_good_by_a_change_of_settings(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, FSYNC, files=files)
    log = manager.create("t", 0, TOPIC_ID)
    append(log)
    manager.flusher.wait()
    files.plan(Fault("sync", errno.EIO, repeat=False))
    told: list[KafkaError | None] = []
    append(log, told)
    manager.flusher.wait()
    assert len(told) == 1 and told[0] is not None
    for config in (PAGE_CACHE, FSYNC, PAGE_CACHE):
        reconfigure(manager, "t", config)
        assert (log.high_watermark, len(told)) == (1, 1), "what was refused does not become visible"


def test_a_smaller_flush_messages_flushes_what_is_due_by_it(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, PAGE_CACHE)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(3):
        append(log)
    reconfigure(manager, "t", LogConfig(flush_messages=4))
    assert manager.flusher.drain() == 0
    reconfigure(manager, "t", LogConfig(flush_messages=3))
    manager.flusher.drain()
    assert log.recovery_point == 3


def test_one_waiter_that_raises_does_not_hold_up_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[KafkaError | None] = []

    def broken(_: KafkaError | None) -> None:
        raise ValueError("broken waiter")

    for config in (FSYNC, PAGE_CACHE):
        manager = open_manager(tmp_path / config.durability, FSYNC)
        log = manager.create("waits", 3, TOPIC_ID)
        told.clear()
        end = append(log)
        for waiter in (told.append, broken, told.append):
            log.wait_durable(end, waiter)
        reconfigure(manager, "waits", config)
        manager.flusher.wait()
        assert told == [None, None]
        append(log, told)
        manager.flusher.wait()
        assert told == [None] * 3
    assert "broken waiter" in caplog.text and "waits-3" in caplog.text


def test_a_listener_that_raises_harms_neither_the_append_nor_other_listeners(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_manager(tmp_path, PAGE_CACHE).create("t", 7, TOPIC_ID)
    heard: list[int] = []

    def broken(_: PartitionLog) -> None:
        raise ValueError("broken listener")

    for listener in (broken, lambda moved: heard.append(moved.log_end_offset)):
        log.on_advance(listener)
    assert (append(log), append(log)) == (1, 2)
    assert heard == [1, 2]
    assert caplog.text.count("telling the readers of") == 1, "said once, then at a bounded rate"
    assert "t-7" in caplog.text


def test_a_sync_that_began_before_a_truncation_says_nothing_of_what_came_after(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, FSYNC)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(2):
        append(log)
    manager.flusher.wait()
    told: list[KafkaError | None] = []
    for _ in range(3):
        append(log, told)
    log.flush()  # after the job for offset 2
    manager.flusher.drain()
    assert log.durability.flushing, "one for 5 offsets is in flight"
    log.truncate_to(1)
    assert len([error for error in told if error is not None and "cut off" in str(error)]) == 2
    told.clear()
    for _ in range(3):
        append(log, told)
    assert log.log_end_offset == 4
    manager.flusher.drain()  # the job from before the truncation
    assert (log.on_disk_offset, log.recovery_point, log.high_watermark, told) == (1, 1, 1, [])
    manager.flusher.wait()
    assert (log.on_disk_offset, log.high_watermark, told) == (4, 4, [None] * 3)


@pytest.mark.parametrize("start", [0, 3, 500])
def test_a_log_that_begins_anew_has_its_high_watermark_there(tmp_path: Path, start: int) -> None:
    manager = open_manager(tmp_path, FSYNC)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(5):
        append(log)
    log.truncate_fully_and_start_at(start)
    offsets = (log.log_start_offset, log.last_stable_offset, log.high_watermark, log.on_disk_offset, log.log_end_offset)
    assert offsets == (start,) * 5
    told: list[KafkaError | None] = []
    append(log, told)
    assert log.high_watermark == start
    manager.flusher.drain()
    assert (log.high_watermark, told) == (start, []), "that job began before"
    manager.flusher.wait()
    assert (log.high_watermark, told) == (start + 1, [None])


def test_admission_and_rolls_follow_the_settings_at_the_next_append(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, PAGE_CACHE)
    log = manager.create("t", 0, TOPIC_ID)
    append(log)
    reconfigure(manager, "t", replace(PAGE_CACHE, max_message_bytes=50))
    with pytest.raises(MessageTooLarge):
        append(log)
    reconfigure(manager, "t", replace(PAGE_CACHE, compression_type="gzip"))
    append(log)
    raw = log.read(1, 1 << 20).read()
    assert raw[22] & 7 == 1
    reconfigure(manager, "t", replace(PAGE_CACHE, segment_ms=1, message_timestamp_after_max_ms=10**15))
    log.append(one_batch([b"v"], timestamp_ms=START_MS + 3), leader_epoch=0, now_ms=START_MS)
    assert len(log.segments) == 2
