"""The fetcher where there is no memory for what came: it is fetched again, once, and no partition is left out."""

from failing_allocations import AllocationsFail
from virtual_time import A, B, VirtualTime

from fastq.consumer.fetcher import FETCH_API
from fastq.errors import ProtocolError

RECORDS = 20


def test_what_there_is_no_memory_for_is_fetched_again() -> None:
    """Whichever of the allocations it is that fails, as the second answer with records is taken in."""
    for first in range(60):
        time = VirtualTime()
        fetcher = time.fetcher
        time.fill(A, RECORDS)
        time.fill(B, RECORDS)
        states, fetches, seen = list(fetcher.partitions.values()), 0, []
        while len(seen) < 2 * RECORDS:
            for out in fetcher.requests(time.now, lambda node: True):
                time._send(out)
            if not time.flying:
                time.now += 0.1
                assert time.now < 10, f"a partition is left out when allocation {first} fails"
                continue
            time.now, out, response = time.flying.pop(0)
            fetches += out.api_key == FETCH_API
            before = [(len(state.chunks), state.fetch_offset) for state in states]
            if fetches == 2 and out.api_key == FETCH_API:
                try:
                    with AllocationsFail(first):
                        out.done(response, None, time.now)
                except MemoryError:
                    out.done(None, ProtocolError("no memory"), time.now)  # as the core does
            else:
                out.done(response, None, time.now)
            for state, (chunks, offset) in zip(states, before, strict=True):
                assert (len(state.chunks) > chunks) == (state.fetch_offset > max(0, offset))
                assert state.buffered_bytes == sum(chunk.size_bytes for chunk in state.chunks)
            assert time.flying or fetcher.reserved_bytes == 0
            assert fetcher.buffered_bytes == sum(state.buffered_bytes for state in states)
            assert set(fetcher._fetch_order) == set(states)
            while chunk := fetcher.next_chunk():
                seen += [(chunk.partition, record.offset) for record in chunk.take(1000)]
                fetcher.release(chunk)
        assert sorted(seen) == [(tp.partition, offset) for tp in (A, B) for offset in range(RECORDS)]
