"""Record batch v2 for Python: read headers, stamp; rows in and out are batch_codec's, offered here too.

Rules
- Input is any contiguous bytes-like object; nothing is read past its end and no allocation exceeds what its bytes
  justify. Bad bytes raise DecodeError.
- Stamping works in place: base offset and leader epoch lie outside the CRC, the maximum timestamp does not.
- Checksums of large batches run without the GIL; the caller must not resize or change the buffer then.
The byte layout is in records.pxd.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX
from libc.string cimport memset

from fastq._native.batch_codec cimport GIL_RELEASE_BYTES, decode_error, header_error, locate, verify

from fastq._native.batch_codec import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_KRAFT_VERSION,
    CONTROL_KRAFT_VOTERS,
    CONTROL_LEADER_CHANGE,
    CONTROL_SNAPSHOT_FOOTER,
    CONTROL_SNAPSHOT_HEADER,
    DECOMPRESSED_BYTES_MAX,
    ControlRecord,
    DecodedRecord,
    build_batch,
    build_transaction_marker,
    decode_control_record,
    decode_records,
    encode_control_key,
    recompress,
)

BATCH_OVERHEAD = BATCH_OVERHEAD_BYTES

cdef enum:
    SEQUENCE_NONE = -1


# --- headers


@cython.final
cdef class BatchHeader:
    """The 61 bytes before the records of a batch, as they were when read: no reference to the buffer stays.

    `records_max_timestamp` is the largest timestamp that validate_batch saw in the records, -1 when it walked none.
    """

    def __cinit__(self):
        memset(&self.fields, 0, sizeof(CBatchHeader))
        self.records_max_timestamp = -1

    def __init__(self):
        raise TypeError("batch headers come from read_header, iter_headers and validate_batch")

    @property
    def base_offset(self):
        return self.fields.base_offset

    @property
    def batch_length(self):
        """Bytes after the length field."""
        return self.fields.batch_length

    @property
    def partition_leader_epoch(self):
        return self.fields.partition_leader_epoch

    @property
    def magic(self):
        return self.fields.magic

    @property
    def crc(self):
        return self.fields.crc

    @property
    def attributes(self):
        return self.fields.attributes

    @property
    def last_offset_delta(self):
        return self.fields.last_offset_delta

    @property
    def base_timestamp(self):
        """Milliseconds since 1970 that timestamp deltas count from; the delete horizon where there is one."""
        return self.fields.base_timestamp

    @property
    def max_timestamp(self):
        """Milliseconds since 1970; -1 for none. With log-append time, the time of every record."""
        return self.fields.max_timestamp

    @property
    def producer_id(self):
        """-1 for a producer that is not idempotent."""
        return self.fields.producer_id

    @property
    def producer_epoch(self):
        return self.fields.producer_epoch

    @property
    def base_sequence(self):
        return self.fields.base_sequence

    @property
    def record_count(self):
        return self.fields.record_count

    @property
    def size_bytes(self):
        """Bytes of the whole batch, header included."""
        return LOG_OVERHEAD_BYTES + <int64_t>self.fields.batch_length

    @property
    def last_offset(self):
        return <object>self.fields.base_offset + self.fields.last_offset_delta

    @property
    def next_offset(self):
        """The offset after the batch's last."""
        return <object>self.fields.base_offset + self.fields.last_offset_delta + 1

    @property
    def codec(self):
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.fields.attributes & ATTRIBUTE_CODEC

    @property
    def timestamp_type(self):
        """0 create time, 1 log-append time."""
        return 1 if self.fields.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0

    @property
    def is_transactional(self):
        return bool(self.fields.attributes & ATTRIBUTE_TRANSACTIONAL)

    @property
    def is_control(self):
        return bool(self.fields.attributes & ATTRIBUTE_CONTROL)

    @property
    def has_delete_horizon(self):
        return bool(self.fields.attributes & ATTRIBUTE_DELETE_HORIZON)

    @property
    def last_sequence(self):
        """The sequence number of the last record, wrapping from 2^31 - 1 to 0; -1 when the batch has none."""
        if self.fields.base_sequence == SEQUENCE_NONE:
            return -1
        return (<int64_t>self.fields.base_sequence + self.fields.last_offset_delta) & INT32_MAX

    def __repr__(self):
        return (
            f"BatchHeader(base_offset={self.base_offset}, last_offset={self.last_offset}, "
            f"record_count={self.record_count}, size_bytes={self.size_bytes}, codec={self.codec}, "
            f"leader_epoch={self.partition_leader_epoch}, producer_id={self.producer_id}, "
            f"producer_epoch={self.producer_epoch}, base_sequence={self.base_sequence}, "
            f"max_timestamp={self.max_timestamp}, attributes={self.attributes:#x})"
        )


cdef BatchHeader wrap_header(const CBatchHeader* h):
    cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
    header.fields = h[0]
    return header


def read_header(data, Py_ssize_t position=0):
    """The header of the whole batch at `position`; DecodeError when it is truncated or not of magic 2. No CRC check."""
    cdef Py_buffer view
    cdef CBatchHeader h
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        locate(&view, position, &h)
    finally:
        PyBuffer_Release(&view)
    return wrap_header(&h)


@cython.final
cdef class HeaderIterator:
    """Steps from batch to batch. The buffer is held only during a step, so it may be resized in between."""

    cdef object data
    cdef Py_ssize_t position
    cdef bint strict

    def __cinit__(self, data, Py_ssize_t start, bint strict):
        self.data = data
        self.position = start
        self.strict = strict

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_buffer view
        cdef CBatchHeader h
        cdef const uint8_t* p
        cdef Py_ssize_t position = self.position
        cdef int answer
        PyObject_GetBuffer(self.data, &view, PyBUF_SIMPLE)
        try:
            if position < 0 or position > view.len:
                decode_error("a position inside of the buffer", position, f"it has {view.len} bytes")
            p = <const uint8_t*>view.buf
            answer = HEADER_TRUNCATED if position == view.len else parse_header(p + position, p + view.len, &h)
            if answer == HEADER_TRUNCATED and (position == view.len or not self.strict):
                raise StopIteration
            if answer != HEADER_OK:
                header_error(answer, &h, position, view.len - position)
        finally:
            PyBuffer_Release(&view)
        self.position += LOG_OVERHEAD_BYTES + <Py_ssize_t>h.batch_length
        return position, wrap_header(&h)


def iter_headers(data, Py_ssize_t start=0, bint strict=False):
    """Yield (position, BatchHeader) of each batch from `start` on.

    Ends before a truncated batch, as a fetch response may have at its tail; with `strict` that is a DecodeError, as
    bytes that are no batch of magic 2 always are.
    """
    return HeaderIterator(data, start, strict)


# --- checksums and stamps


def verify_crc(data, Py_ssize_t position=0):
    """Whether the checksum of the whole batch at `position` is right; DecodeError when there is no whole batch."""
    cdef Py_buffer view
    cdef CBatchHeader h
    cdef const uint8_t* p
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = locate(&view, position, &h)
        return bool(verify(p, batch_size(&h)))
    finally:
        PyBuffer_Release(&view)


def stamp(data, Py_ssize_t position, int64_t base_offset, int32_t leader_epoch):
    """Set base offset and leader epoch of the batch at `position`, in place; the CRC does not cover them.

    `data` must be writable. Raises DecodeError when there is no whole batch.
    """
    cdef Py_buffer view
    cdef CBatchHeader h
    cdef uint8_t* p
    PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
    try:
        p = <uint8_t*>locate(&view, position, &h)
        store_i64(p, base_offset)
        store_i32(p + 12, leader_epoch)
    finally:
        PyBuffer_Release(&view)


cdef int stamp_timestamp(data, Py_ssize_t position, bint log_append, int64_t timestamp) except -1:
    """Set timestamp type and maximum timestamp, and the CRC when that changed something."""
    cdef Py_buffer view
    cdef CBatchHeader h
    cdef uint8_t* p
    cdef int16_t attributes
    PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
    try:
        p = <uint8_t*>locate(&view, position, &h)
        attributes = h.attributes & ~ATTRIBUTE_LOG_APPEND_TIME
        if log_append:
            attributes |= ATTRIBUTE_LOG_APPEND_TIME
        if attributes == h.attributes and timestamp == h.max_timestamp:
            return 0
        store_i16(p + ATTRIBUTES_POSITION, attributes)
        store_i64(p + MAX_TIMESTAMP_POSITION, timestamp)
        with nogil:
            seal_batch(p, batch_size(&h))
    finally:
        PyBuffer_Release(&view)
    return 0


def stamp_log_append_time(data, Py_ssize_t position, int64_t now_ms):
    """Give every record of the batch at `position` the time `now_ms`: attribute bit 3, maximum timestamp, new CRC."""
    stamp_timestamp(data, position, True, now_ms)


def stamp_max_timestamp(data, Py_ssize_t position, int64_t max_timestamp):
    """Correct the maximum timestamp of a batch with create time, and its CRC; nothing is written when it is right.

    Kafka's broker does this with `records_max_timestamp` instead of refusing a batch whose header is wrong.
    """
    stamp_timestamp(data, position, False, max_timestamp)
