"""Cutting a stream into responses: every way of cutting gives the same frames, in memory of their own."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random

import pytest
from failing_allocations import AllocationsFail

from fastq._native.framing import CHUNK_BYTES, FrameReceiver, FrameSizeError


def feed(receiver: FrameReceiver, data: bytes, random: Random) -> list[memoryview]:
    frames = []
    while data:
        buffer = receiver.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(data), random.choice((1, 3, 100, 5000, CHUNK_BYTES)))
        buffer[:count] = data[:count]
        data = data[count:]
        frames += receiver.buffer_updated(count)
    return frames


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_gives_the_same_frames(seed: int) -> None:
    random = Random(seed)
    sizes = [random.choice((4, 5, 60, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 200_000)) for _ in range(25)]
    bodies = [random.randbytes(size) for size in sizes]
    receiver = FrameReceiver(1_000_000)
    frames = feed(receiver, b"".join(len(body).to_bytes(4, "big") + body for body in bodies), random)
    assert [bytes(frame) for frame in frames] == bodies
    assert not receiver.is_mid_frame


def test_frames_stay_valid_while_more_is_received() -> None:
    receiver, random = FrameReceiver(1_000_000), Random(1)
    first = feed(receiver, (8).to_bytes(4, "big") + b"abcdefgh", random)[0]
    large = feed(receiver, (100_000).to_bytes(4, "big") + b"x" * 100_000, random)[0]
    feed(receiver, (8).to_bytes(4, "big") + b"12345678", random)
    assert bytes(first) == b"abcdefgh" and bytes(large) == b"x" * 100_000


def test_a_large_frame_is_received_straight_into_its_own_buffer() -> None:
    receiver = FrameReceiver(10_000_000)
    head = (5_000_000).to_bytes(4, "big") + b"head"
    receiver.get_buffer()[: len(head)] = head
    assert receiver.buffer_updated(len(head)) == []
    assert len(receiver.get_buffer()) == 5_000_000 - 4 and receiver.is_mid_frame


def test_more_than_the_buffer_holds_is_not_taken() -> None:
    receiver = FrameReceiver(10_000_000)
    for count in (-1, len(receiver.get_buffer()) + 1):
        with pytest.raises(ValueError, match=f"{count} bytes"):
            receiver.buffer_updated(count)
    head = (5_000_000).to_bytes(4, "big")
    receiver.get_buffer()[:4] = head
    receiver.buffer_updated(4)
    with pytest.raises(ValueError, match="5000001 bytes"):
        receiver.buffer_updated(5_000_001)


def test_the_beginning_of_a_frame_is_kept_for_a_diagnosis() -> None:
    receiver = FrameReceiver(1000)
    assert receiver.head == b""
    receiver.get_buffer()[:100] = (200).to_bytes(4, "big") + b"x" * 96
    assert receiver.buffer_updated(100) == []
    assert receiver.head == (200).to_bytes(4, "big") + b"x" * 60


@pytest.mark.parametrize("size", [-1, 0, 3, 1001, 2**31 - 1, -(2**31)])
def test_a_size_out_of_bounds_takes_no_memory(size: int) -> None:
    receiver = FrameReceiver(1000)
    data = size.to_bytes(4, "big", signed=True) + b"rest"
    receiver.get_buffer()[: len(data)] = data
    with pytest.raises(FrameSizeError) as caught:
        receiver.buffer_updated(len(data))
    assert caught.value.size == size and caught.value.head == data


def test_frames_before_one_that_is_none_are_answered_first() -> None:
    receiver = FrameReceiver(1000)
    data = (
        b"".join(len(body).to_bytes(4, "big") + body for body in (b"first", b"second"))
        + (1001).to_bytes(4, "big")
        + b"more"
    )
    receiver.get_buffer()[: len(data)] = data
    assert [bytes(frame) for frame in receiver.buffer_updated(len(data))] == [b"first", b"second"]
    assert receiver.is_broken
    with pytest.raises(FrameSizeError, match="1001 bytes") as raised:
        receiver.buffer_updated(0)
    assert raised.value.head == data[-8:]


def test_frames_before_one_for_which_there_is_no_memory_are_answered_first() -> None:
    bodies = [b"first", b"second", b"third", b"x" * (CHUNK_BYTES + 1)]
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    failures = []
    for at in range(1, 30):
        receiver, frames, left = FrameReceiver(1_000_000), [], data
        first = True
        while left or receiver.is_broken:
            buffer = receiver.get_buffer()
            count = min(len(buffer), len(left), CHUNK_BYTES)
            buffer[:count] = left[:count]
            left = left[count:]
            try:
                with AllocationsFail(at) if first else nullcontext():
                    found = receiver.buffer_updated(count)
            except MemoryError:
                assert not frames
                found = receiver.buffer_updated(0)
                failures.append("nothing came before")
            if first and found and receiver.is_broken:
                failures.append("it waits")
            frames += found
            first = False
        assert [bytes(frame) for frame in frames] == bodies
    assert set(failures) == {"nothing came before", "it waits"} and len(failures) < 29
