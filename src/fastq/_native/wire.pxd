"""Declarations of the wire reader and writer, for the native decoders and encoders that share them."""

from cpython.buffer cimport Py_buffer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef class Reader:
    cdef Py_buffer _buffer          # holds the export of the caller's object for the life of the reader
    cdef object _owner              # that object; slices are made of it
    cdef const uint8_t* _data       # first byte of the whole buffer
    cdef Py_ssize_t _position       # next byte to read, from the start of the buffer
    cdef Py_ssize_t _end            # one past the last byte this reader may touch

    cdef const uint8_t* take(self, Py_ssize_t count, str expected) except NULL
    cdef object slice(self, Py_ssize_t count, str expected)
    cdef Py_ssize_t length(self, bint compact, bint nullable, str expected) except -2
    cdef object text(self, bint compact, bint nullable)
    cdef object blob(self, bint compact, bint nullable)
    cdef object view_of(self, bint compact, bint nullable)
    cdef Py_ssize_t count(self, bint compact, bint nullable, Py_ssize_t element_bytes) except -2
    cdef list texts(self, Py_ssize_t count, bint compact)
    cdef Py_ssize_t checked(self, Py_ssize_t count, Py_ssize_t element_bytes) except -1

    cpdef bint read_bool(self) except? True
    cpdef int8_t read_int8(self) except? -1
    cpdef int16_t read_int16(self) except? -1
    cpdef int32_t read_int32(self) except? -1
    cpdef int64_t read_int64(self) except? -1
    cpdef uint16_t read_uint16(self) except? 0
    cpdef uint32_t read_uint32(self) except? 0
    cpdef double read_float64(self) except? -1
    cpdef uint32_t read_uvarint(self) except? 0
    cpdef int32_t read_varint(self) except? -1
    cpdef int64_t read_varlong(self) except? -1
    cpdef Py_ssize_t read_tag_count(self) except -1
    cpdef Py_ssize_t enter_tag(self) except -1


cdef class Writer:
    cdef uint8_t* _data
    cdef Py_ssize_t _size           # bytes written
    cdef Py_ssize_t _capacity       # bytes allocated
    cdef Py_ssize_t _exports        # live views; the memory must not move while there are any
    cdef list _kept                 # (position, bytes) of what is not copied, in order; None: everything is
    cdef Py_ssize_t _kept_bytes
    cdef int _tags                  # tagged fields that are open

    cdef uint8_t* reserve(self, Py_ssize_t count) except NULL
    cdef int grow(self, Py_ssize_t count) except -1
    cdef int check_room(self, Py_ssize_t count) except -1
    cdef int put_length(self, Py_ssize_t length, bint compact, Py_ssize_t limit, str what) except -1
    cdef int put_text(self, str value, bint compact) except -1
    cdef int put_blob(self, object value, bint compact) except -1
