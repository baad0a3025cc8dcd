"""Kafka's murmur2 and the partition that its default partitioner gives a key.

Rules: bit for bit what Java's Utils.murmur2 computes, so that a key lands where any other Kafka client puts it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, uint8_t, uint32_t


def murmur2(data):
    """Murmur2 of `data`, any contiguous bytes-like object, as an unsigned 32-bit number."""
    cdef Py_buffer view
    cdef uint32_t value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        value = kafka_murmur2(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return value


def partition_for_key(key, int32_t partition_count):
    """The partition, 0 to `partition_count` - 1, that Kafka's default partitioner gives `key`.

    Raises ValueError when `partition_count` is not above zero.
    """
    cdef Py_buffer view
    cdef int32_t partition
    if partition_count <= 0:
        raise ValueError(f"partition_count must be above zero, got {partition_count}")
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    try:
        partition = kafka_partition(<const uint8_t*>view.buf, view.len, partition_count)
    finally:
        PyBuffer_Release(&view)
    return partition
