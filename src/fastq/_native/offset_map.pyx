"""Which offset of each key is the latest: a hash table in bounded memory, for one round of compaction.

Rules
- Keys are known by 128 bits of SipHash-2-4 under a key drawn for each map. 64 bits would not do: among 10^8 keys two would agree with
  odds of one to 3,700, and the older one's live value would go. A keyed function gives 2^-128 a pair whatever keys clients choose; it is
  native because a call into a hash library's Python interface takes as long as all the rest of a record.
- One thread.
Source: Kafka's SkimpyOffsetMap.
"""

import os

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    SLOT_BYTES = 24
    SLOTS_MIN = 4096                 # where a map begins to grow from

# For keys of nothing: so that no pointer is NULL.
cdef const uint8_t* EMPTY = <const uint8_t*>b""


def siphash128(bytes hash_key, data):
    """SipHash-2-4 of any contiguous bytes-like object as 16 bytes; `hash_key` has 16. ValueError when it has not."""
    cdef Py_buffer view
    cdef uint64_t words[2]
    if len(hash_key) != 16:
        raise ValueError(f"a hash key has 16 bytes, got {len(hash_key)}")
    k0 = int.from_bytes(hash_key[:8], "little")
    k1 = int.from_bytes(hash_key[8:], "little")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        fastq_siphash128(k0, k1, <const uint8_t*>view.buf if view.len else EMPTY, view.len, &words[0], &words[1])
    finally:
        PyBuffer_Release(&view)
    return (<object>words[0]).to_bytes(8, "little") + (<object>words[1]).to_bytes(8, "little")


@cython.final
cdef class OffsetMap:
    """The latest offset of each key, by 128-bit hashes of the keys, in at most `memory_bytes` (half as much again while it grows).

    Open addressing with linear probing; 24 bytes a slot, `load_factor` of them used at most. `latest_offset` is the highest offset that
    the map speaks for, -1 when there is none: of what lies above it, it knows nothing. `hash_key` is for tests.
    Raises ValueError for memory of less than a slot or a load factor outside 0 to 1, MemoryError.
    """

    def __init__(self, Py_ssize_t memory_bytes, double load_factor=0.9, bytes hash_key=None):
        if not 0 < load_factor <= 1:
            raise ValueError(f"load_factor must be above 0 and at most 1, got {load_factor}")
        if memory_bytes < 2 * SLOT_BYTES:
            raise ValueError(f"memory_bytes must be {2 * SLOT_BYTES} or more, got {memory_bytes}")
        hash_key = os.urandom(16) if hash_key is None else hash_key
        self.k0 = int.from_bytes(hash_key[:8], "little")
        self.k1 = int.from_bytes(hash_key[8:], "little")
        self.slots_max = memory_bytes // SLOT_BYTES
        self.load_factor = load_factor
        self.latest_offset = -1
        while self.slots_max >> (self.growths + 1) >= SLOTS_MIN:
            self.growths += 1
        self.allocate(self.slots_max >> self.growths)

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return self.used

    def put(self, key, int64_t offset):
        """Remember `offset` for a key; False when it is a new one and there is no room for it."""
        cdef uint64_t first, second
        self.hash_of(key, &first, &second)
        if not self.store(first, second, offset):
            return False
        if offset > self.latest_offset:
            self.latest_offset = offset
        return True

    def get(self, key):
        """The latest offset of a key, -1 when it is not known."""
        cdef uint64_t first, second
        self.hash_of(key, &first, &second)
        return self.find(first, second)

    def advance(self, int64_t offset):
        """Let the map speak for what lies up to `offset`: a gap in the log, where there are no records."""
        if offset > self.latest_offset:
            self.latest_offset = offset

    cdef int hash_of(self, key, uint64_t* first, uint64_t* second) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        self.hash_bytes(<const uint8_t*>view.buf if view.len else EMPTY, view.len, first, second)
        PyBuffer_Release(&view)
        return 0

    cdef int allocate(self, Py_ssize_t capacity) except -1:
        cdef double load
        self.slots = <Slot*>calloc(capacity, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError(f"no memory for an offset map of {capacity * SLOT_BYTES} bytes")
        self.capacity = capacity
        # Probes end at a free slot, so one always stays; a map that will grow does so before they become long.
        load = min(0.7, self.load_factor) if self.growths else self.load_factor
        self.used_max = min(capacity - 1, max(1, <Py_ssize_t>(capacity * load)))
        return 0

    cdef int grow(self) except -1:
        """Double the capacity; 0 when it is as large as it may be."""
        cdef Slot* old = self.slots
        cdef Py_ssize_t count = self.capacity
        cdef Py_ssize_t i
        if not self.growths:
            return 0
        self.growths -= 1
        try:
            self.allocate(self.slots_max >> self.growths)
        except MemoryError:
            self.slots = old
            raise
        for i in range(count):
            if old[i].offset:
                self.slot(old[i].first, old[i].second)[0] = old[i]
        free(old)
        return 1
