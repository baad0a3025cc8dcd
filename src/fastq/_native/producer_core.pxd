"""The send path as C types, for send_many."""

from libc.stdint cimport int32_t, int64_t, uint8_t
cimport cython
from cpython.buffer cimport Py_buffer

from fastq._native.accumulator cimport Accumulator, Appended
from fastq._native.producer_batch cimport Batch, PartitionState, TopicState


cdef struct Field:
    const uint8_t* data         # NULL when null
    Py_ssize_t length           # -1 when null
    bint held                   # `buffer` must be released
    Py_buffer buffer

cdef int take_field(object value, Field* field, str name) except -1
cdef void drop_field(Field* field) noexcept
cdef object whole_number(object value, str name)
cpdef bytes encode_headers(object headers)


@cython.freelist(1024)
@cython.no_gc
cdef class DeliveryBase:
    cdef Batch batch
    cdef int32_t index
    cdef int32_t key_size
    cdef int32_t value_size
    cdef int64_t timestamp_ms
    cdef object metadata(self)


@cython.final
cdef class Delivery(DeliveryBase):
    pass


@cython.final
cdef class AsyncDelivery(DeliveryBase):
    cdef int check_done(self) except -1


cdef class ProducerCore:
    cdef readonly Accumulator accumulator

    cdef DeliveryBase handle(self, Appended* out, Field* key, Field* value)
    cdef PartitionState choose(self, TopicState topic, Field* key, object partition, Py_ssize_t need)
    cdef Py_ssize_t bytes_needed(self, Field* key, Field* value, Py_ssize_t headers_size) noexcept
    cdef int store(
        self, TopicState topic, Field* key, Field* value, bytes headers, object partition, int64_t timestamp,
        Appended* out,
    ) except -1
    cdef TopicState topic_state(self, object topic)
