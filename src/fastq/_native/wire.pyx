"""Reader and writer of Kafka's wire primitives: big-endian integers, varints, strings, bytes, arrays, tagged fields.

Rules: the reader checks every length against the bytes at hand before it touches or allocates anything, and raises
DecodeError, which knows the position; nothing else comes out of bad bytes. The writer trusts its caller's types and
checks their ranges. Encodings: "Protocol Primitive Types" of Kafka's protocol guide and KIP-482 (compact and tagged).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memcpy, memmove

from fastq._native.wire_errors import DecodeError, EncodeError

from fastq._native.bits cimport (
    MAX_VARINT32,
    MAX_VARINT64,
    load_i16,
    load_i32,
    load_i64,
    load_u32,
    load_uvarint32,
    load_varint32,
    load_varint64,
    store_i16,
    store_i32,
    store_i64,
    store_u32,
    store_uvarint,
    store_varint,
)

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef enum:
    MAX_STRING = 0x7FFF             # a string's length is an int16, compact or not
    MAX_LENGTH = 0x7FFFFFFE         # of bytes and arrays: one less than an int32, since the compact form adds one
    KEPT = 32 * 1024                # a copy of fewer bytes costs less than a buffer more

KEPT_BYTES = KEPT

cdef const uint8_t* EMPTY = b"\0"     # what an empty buffer points to, so that no pointer is NULL


cdef int fail(Reader reader, str expected, str detail) except -1:
    """The cold end of every check."""
    raise DecodeError(expected, reader._position, detail)


@cython.final
cdef class Reader:
    """Reads primitives from `buffer[start:end]`, front to back.

    Invariant: start <= position <= end; a failed read leaves the position where the failed value began or inside it.
    Slices (`read_records`, `read_view`) share the buffer's memory and keep it alive. Not for use by two threads at once.
    """

    def __cinit__(self, buffer, Py_ssize_t start=0, end=None):
        cdef Py_ssize_t stop
        PyObject_GetBuffer(buffer, &self._buffer, PyBUF_SIMPLE)
        self._owner = buffer
        self._data = <const uint8_t*>self._buffer.buf if self._buffer.buf != NULL else EMPTY
        stop = self._buffer.len if end is None else end
        if not 0 <= start <= stop <= self._buffer.len:
            raise ValueError(f"range {start}:{stop} is outside of a buffer of {self._buffer.len} bytes")
        self._position = start
        self._end = stop

    def __dealloc__(self):
        PyBuffer_Release(&self._buffer)

    @property
    def position(self):
        """Offset in the buffer of the next byte to read."""
        return self._position

    @position.setter
    def position(self, Py_ssize_t value):
        if not 0 <= value <= self._end:
            raise ValueError(f"position {value} is outside of 0:{self._end}")
        self._position = value

    @property
    def end(self):
        """Offset in the buffer at which this reader stops."""
        return self._end

    @property
    def remaining(self):
        """Bytes not read yet."""
        return self._end - self._position

    # --- what the rest is made of

    cdef inline const uint8_t* take(self, Py_ssize_t count, str expected) except NULL:
        """Step over `count` bytes and return where they begin."""
        cdef const uint8_t* p = self._data + self._position
        if count > self._end - self._position:
            fail(self, expected, f"{count} bytes needed, {self._end - self._position} left")
        self._position += count
        return p

    cdef object slice(self, Py_ssize_t count, str expected):
        cdef Py_ssize_t start = self._position
        self.take(count, expected)
        view = memoryview(self._owner)
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        return view[start:start + count]

    cdef Py_ssize_t length(self, bint compact, bint nullable, str expected) except -2:
        """The length in front of bytes or an array; -1 is null."""
        cdef Py_ssize_t start = self._position
        cdef int64_t value
        if compact:
            value = <int64_t>self.read_uvarint() - 1
        else:
            value = load_i32(self.take(4, expected))
        if value < (-1 if nullable else 0) or value > MAX_LENGTH:
            self._position = start
            fail(self, expected, "null" if value == -1 else f"length {value}")
        return <Py_ssize_t>value

    cdef object text(self, bint compact, bint nullable):
        cdef Py_ssize_t start = self._position
        cdef int64_t size
        cdef const uint8_t* p
        if compact:
            size = <int64_t>self.read_uvarint() - 1
        else:
            size = load_i16(self.take(2, "string"))
        if size < 0 or size > MAX_STRING:
            if size == -1 and nullable:
                return None
            self._position = start
            fail(self, "string", "null" if size == -1 else f"length {size}")
        p = self.take(<Py_ssize_t>size, "string")
        try:
            return PyUnicode_DecodeUTF8(<const char*>p, <Py_ssize_t>size, NULL)
        except UnicodeDecodeError as error:
            self._position = start
            raise DecodeError("string", start, f"not UTF-8: {error.reason} at byte {error.start} of it") from None

    cdef object blob(self, bint compact, bint nullable):
        cdef Py_ssize_t size = self.length(compact, nullable, "bytes")
        if size < 0:
            return None
        return PyBytes_FromStringAndSize(<const char*>self.take(size, "bytes"), size)

    cdef object view_of(self, bint compact, bint nullable):
        cdef Py_ssize_t size = self.length(compact, nullable, "records")
        if size < 0:
            return None
        return self.slice(size, "records")

    cdef Py_ssize_t count(self, bint compact, bint nullable, Py_ssize_t element_bytes) except -2:
        """Elements of an array, refused when the bytes left cannot hold them at `element_bytes` each."""
        cdef Py_ssize_t start = self._position
        cdef Py_ssize_t elements = self.length(compact, nullable, "array")
        if elements > 0 and elements > (self._end - self._position) // (element_bytes if element_bytes > 0 else 1):
            self._position = start
            fail(self, "array", f"{elements} elements of at least {element_bytes} bytes do not fit into the bytes left")
        return elements

    # --- numbers

    cpdef bint read_bool(self) except? True:
        """One byte; anything but zero is true."""
        return self.take(1, "bool")[0] != 0

    cpdef int8_t read_int8(self) except? -1:
        return <int8_t>self.take(1, "int8")[0]

    cpdef int16_t read_int16(self) except? -1:
        return load_i16(self.take(2, "int16"))

    cpdef int32_t read_int32(self) except? -1:
        return load_i32(self.take(4, "int32"))

    cpdef int64_t read_int64(self) except? -1:
        return load_i64(self.take(8, "int64"))

    cpdef uint16_t read_uint16(self) except? 0:
        return <uint16_t>load_i16(self.take(2, "uint16"))

    cpdef uint32_t read_uint32(self) except? 0:
        return load_u32(self.take(4, "uint32"))

    cpdef double read_float64(self) except? -1:
        cdef int64_t bits = load_i64(self.take(8, "float64"))
        cdef double value
        memcpy(&value, &bits, 8)
        return value

    cpdef uint32_t read_uvarint(self) except? 0:
        """Unsigned varint of at most five bytes."""
        cdef uint32_t value = 0
        cdef const uint8_t* p = load_uvarint32(self._data + self._position, self._data + self._end, &value)
        if p == NULL:
            fail(self, "unsigned varint", "it does not end, or is wider than 32 bits")
        self._position = p - self._data
        return value

    cpdef int32_t read_varint(self) except? -1:
        """Zigzag varint of 32 bits."""
        cdef int32_t value = 0
        cdef const uint8_t* p = load_varint32(self._data + self._position, self._data + self._end, &value)
        if p == NULL:
            fail(self, "varint", "it does not end, or is wider than 32 bits")
        self._position = p - self._data
        return value

    cpdef int64_t read_varlong(self) except? -1:
        """Zigzag varint of 64 bits."""
        cdef int64_t value = 0
        cdef const uint8_t* p = load_varint64(self._data + self._position, self._data + self._end, &value)
        if p == NULL:
            fail(self, "varlong", "it does not end, or is wider than 64 bits")
        self._position = p - self._data
        return value

    # --- strings and bytes

    def read_uuid(self):
        """Sixteen raw bytes."""
        return PyBytes_FromStringAndSize(<const char*>self.take(16, "uuid"), 16)

    def read_string(self):
        return self.text(False, False)

    def read_nullable_string(self):
        return self.text(False, True)

    def read_compact_string(self):
        return self.text(True, False)

    def read_compact_nullable_string(self):
        return self.text(True, True)

    def read_bytes(self):
        return self.blob(False, False)

    def read_nullable_bytes(self):
        return self.blob(False, True)

    def read_compact_bytes(self):
        return self.blob(True, False)

    def read_compact_nullable_bytes(self):
        return self.blob(True, True)

    def read_records(self):
        """Like `read_bytes`, as a view of the buffer: nothing is copied."""
        return self.view_of(False, False)

    def read_nullable_records(self):
        return self.view_of(False, True)

    def read_compact_records(self):
        return self.view_of(True, False)

    def read_compact_nullable_records(self):
        return self.view_of(True, True)

    def read_view(self, Py_ssize_t count):
        """The next `count` bytes, without a length in front, as a view of the buffer."""
        if count < 0:
            raise ValueError(f"count {count} is negative")
        return self.slice(count, "bytes")

    def skip(self, Py_ssize_t count):
        """Step over `count` bytes."""
        if count < 0:
            raise ValueError(f"count {count} is negative")
        self.take(count, "bytes")

    # --- arrays: the count first, then the elements, one by one or all at once

    def read_array_length(self, Py_ssize_t element_bytes):
        """Count of an array whose elements take at least `element_bytes` each."""
        return self.count(False, False, element_bytes)

    def read_nullable_array_length(self, Py_ssize_t element_bytes):
        """Count of an array, -1 for null."""
        return self.count(False, True, element_bytes)

    def read_compact_array_length(self, Py_ssize_t element_bytes):
        return self.count(True, False, element_bytes)

    def read_compact_nullable_array_length(self, Py_ssize_t element_bytes):
        return self.count(True, True, element_bytes)

    def read_int8s(self, Py_ssize_t count):
        cdef Py_ssize_t i
        cdef const uint8_t* p = self.take(self.checked(count, 1), "array of int8")
        return [<int8_t>p[i] for i in range(count)]

    def read_int16s(self, Py_ssize_t count):
        cdef Py_ssize_t i
        cdef const uint8_t* p = self.take(self.checked(count, 2), "array of int16")
        return [load_i16(p + 2 * i) for i in range(count)]

    def read_int32s(self, Py_ssize_t count):
        cdef Py_ssize_t i
        cdef const uint8_t* p = self.take(self.checked(count, 4), "array of int32")
        return [load_i32(p + 4 * i) for i in range(count)]

    def read_int64s(self, Py_ssize_t count):
        cdef Py_ssize_t i
        cdef const uint8_t* p = self.take(self.checked(count, 8), "array of int64")
        return [load_i64(p + 8 * i) for i in range(count)]

    def read_uuids(self, Py_ssize_t count):
        cdef Py_ssize_t i
        cdef const uint8_t* p = self.take(self.checked(count, 16), "array of uuid")
        return [PyBytes_FromStringAndSize(<const char*>p + 16 * i, 16) for i in range(count)]

    def read_strings(self, Py_ssize_t count):
        return self.texts(count, False)

    def read_compact_strings(self, Py_ssize_t count):
        return self.texts(count, True)

    cdef list texts(self, Py_ssize_t count, bint compact):
        self.checked(count, 1)
        return [self.text(compact, False) for _ in range(count)]

    cdef Py_ssize_t checked(self, Py_ssize_t count, Py_ssize_t element_bytes) except -1:
        """Bytes of `count` elements, refused when they are not there."""
        if count < 0:
            raise ValueError(f"count {count} is negative")
        if count > (self._end - self._position) // element_bytes:
            fail(self, "array", f"{count} elements of {element_bytes} bytes do not fit into the bytes left")
        return count * element_bytes

    # --- tagged fields (KIP-482)

    cpdef Py_ssize_t read_tag_count(self) except -1:
        """Number of tagged fields that follow; each takes two bytes or more."""
        cdef Py_ssize_t start = self._position
        cdef Py_ssize_t fields = self.read_uvarint()
        if fields > (self._end - self._position) // 2:
            self._position = start
            fail(self, "tagged fields", f"{fields} of them do not fit into the bytes left")
        return fields

    cpdef Py_ssize_t enter_tag(self) except -1:
        """Read the size of a tagged field and return the position at which it ends."""
        cdef Py_ssize_t start = self._position
        cdef Py_ssize_t size = self.read_uvarint()
        cdef Py_ssize_t left = self._end - self._position
        if size > left:
            self._position = start
            fail(self, "tagged field", f"{size} bytes needed, {left} left")
        return self._position + size

    def leave_tag(self, Py_ssize_t end):
        """Check that the field that `enter_tag` opened took exactly its size."""
        if self._position != end:
            fail(self, "tagged field", f"it should end at byte {end}")

    def skip_tag(self):
        """Step over the size and the bytes of a tagged field that is not known."""
        self._position = self.enter_tag()

    def skip_tagged_fields(self):
        """Step over a whole tag section."""
        cdef Py_ssize_t fields = self.read_tag_count()
        while fields > 0:
            self.read_uvarint()
            self._position = self.enter_tag()
            fields -= 1


@cython.final
cdef class Writer:
    """Appends primitives to a buffer of its own that doubles as it fills.

    Invariant: size <= capacity; while a view is alive the memory does not move, so writing raises BufferError.
    With `keep_large`, bytes of KEPT_BYTES or more stay where they are, outside of tagged fields, and `buffers` has them between what was
    written: they must not change until these are sent. `position` and `len` leave them out then, and there is no view.
    Not for use by two threads at once.
    """

    def __cinit__(self, Py_ssize_t capacity=256, bint keep_large=False):
        if capacity < 0:
            raise ValueError(f"capacity {capacity} is negative")
        capacity = max(capacity, 16)
        self._data = <uint8_t*>PyMem_Malloc(capacity)
        if self._data == NULL:
            raise MemoryError()
        self._capacity = capacity
        self._kept = [] if keep_large else None

    def __dealloc__(self):
        PyMem_Free(self._data)

    def __len__(self):
        return self._size

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if self._kept is not None:
            raise BufferError("what a writer has is in several pieces where it keeps large bytes")
        PyBuffer_FillInfo(buffer, self, self._data, self._size, 1, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self._exports -= 1

    @property
    def position(self):
        """Bytes written so far, which is where the next one goes."""
        return self._size

    def getvalue(self):
        """A copy of what was written."""
        return b"".join(self.buffers()) if self._kept else PyBytes_FromStringAndSize(<const char*>self._data, self._size)

    def buffers(self):
        """What was written, as buffers in their order: a copy, but for large bytes that were kept."""
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t end
        cdef list found = []
        for end, value in self._kept or ():
            found.append(PyBytes_FromStringAndSize(<const char*>self._data + begin, end - begin))
            found.append(value)
            begin = end
        if begin < self._size or not found:
            found.append(PyBytes_FromStringAndSize(<const char*>self._data + begin, self._size - begin))
        return found

    def view(self):
        """What was written, without a copy and read-only; nothing can be written while the view is alive."""
        return memoryview(self)

    def clear(self):
        """Forget what was written, keep the memory."""
        if self._exports:
            raise BufferError("a view of the writer is alive")
        self._size = 0
        self._kept_bytes = 0
        self._tags = 0
        if self._kept is not None:
            self._kept.clear()

    # --- what the rest is made of

    cdef inline uint8_t* reserve(self, Py_ssize_t count) except NULL:
        """Make `count` bytes part of the output and return where they begin."""
        cdef uint8_t* p
        if count > self._capacity - self._size or self._exports:
            self.grow(count)
        p = self._data + self._size
        self._size += count
        return p

    cdef int grow(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t capacity = self._capacity
        cdef uint8_t* data
        if self._exports:
            raise BufferError("a view of the writer is alive")
        self.check_room(count)
        while capacity - self._size < count:
            capacity *= 2
        data = <uint8_t*>PyMem_Realloc(self._data, capacity)
        if data == NULL:
            raise MemoryError()
        self._data = data
        self._capacity = capacity
        return 0

    cdef int check_room(self, Py_ssize_t count) except -1:
        if count > MAX_LENGTH - self._size - self._kept_bytes:
            raise EncodeError(f"a message of {self._size + self._kept_bytes + count} bytes is more than the wire's 2 GiB")
        return 0

    cdef int put_length(self, Py_ssize_t length, bint compact, Py_ssize_t limit, str what) except -1:
        """The length in front of a string, of bytes or of an array; -1 is null."""
        cdef uint8_t* p
        if length > limit:
            raise EncodeError(f"{what} of length {length} is longer than the wire's {limit}")
        if compact:
            p = self.reserve(MAX_VARINT32)
            self._size = store_uvarint(p, <uint64_t>(length + 1)) - self._data
        elif limit == MAX_STRING:
            store_i16(self.reserve(2), <int16_t>length)
        else:
            store_i32(self.reserve(4), <int32_t>length)
        return 0

    cdef int put_text(self, str value, bint compact) except -1:
        cdef Py_ssize_t size = -1
        cdef const char* data
        if value is None:
            return self.put_length(-1, compact, MAX_STRING, "string")
        try:
            data = PyUnicode_AsUTF8AndSize(value, &size)
        except UnicodeEncodeError as error:
            raise EncodeError(f"string {value!r} is not Unicode text: {error.reason}") from None
        self.put_length(size, compact, MAX_STRING, "string")
        memcpy(self.reserve(size), data, size)
        return 0

    cdef int put_blob(self, object value, bint compact) except -1:
        cdef Py_buffer buffer
        cdef Py_ssize_t start = self._size
        if value is None:
            return self.put_length(-1, compact, MAX_LENGTH, "bytes")
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
        try:
            self.put_length(buffer.len, compact, MAX_LENGTH, "bytes")
            view = memoryview(value) if buffer.len >= KEPT and self._kept is not None and self._tags == 0 else None
            if view is not None and view.format == "B" and view.ndim == 1:  # what connections send
                self.check_room(buffer.len)
                self._kept.append((self._size, value if type(value) is bytes else view))
                self._kept_bytes += buffer.len
            else:
                memcpy(self.reserve(buffer.len), buffer.buf, buffer.len)
        except BaseException:
            self._size = start
            raise
        finally:
            PyBuffer_Release(&buffer)
        return 0

    # --- numbers

    def write_bool(self, bint value):
        self.reserve(1)[0] = value

    def write_int8(self, int8_t value):
        self.reserve(1)[0] = <uint8_t>value

    def write_int16(self, int16_t value):
        store_i16(self.reserve(2), value)

    def write_int32(self, int32_t value):
        store_i32(self.reserve(4), value)

    def write_int64(self, int64_t value):
        store_i64(self.reserve(8), value)

    def write_uint16(self, uint16_t value):
        store_i16(self.reserve(2), <int16_t>value)

    def write_uint32(self, uint32_t value):
        store_u32(self.reserve(4), value)

    def write_float64(self, double value):
        cdef int64_t bits
        memcpy(&bits, &value, 8)
        store_i64(self.reserve(8), bits)

    def write_uvarint(self, uint32_t value):
        self._size = store_uvarint(self.reserve(MAX_VARINT32), value) - self._data

    def write_varint(self, int32_t value):
        self._size = store_varint(self.reserve(MAX_VARINT32), value) - self._data

    def write_varlong(self, int64_t value):
        self._size = store_varint(self.reserve(MAX_VARINT64), value) - self._data

    def patch_int32(self, Py_ssize_t position, int32_t value):
        """Overwrite four bytes that were written before: a size that is known only afterwards."""
        if not 0 <= position <= self._size - 4:
            raise ValueError(f"position {position} is outside of 0:{self._size - 4}")
        store_i32(self._data + position, value)

    # --- strings and bytes

    def write_uuid(self, value):
        cdef Py_buffer buffer
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
        try:
            if buffer.len != 16:
                raise EncodeError(f"a uuid of {buffer.len} bytes; it takes 16")
            memcpy(self.reserve(16), buffer.buf, 16)
        finally:
            PyBuffer_Release(&buffer)

    def write_string(self, str value not None):
        self.put_text(value, False)

    def write_nullable_string(self, str value):
        self.put_text(value, False)

    def write_compact_string(self, str value not None):
        self.put_text(value, True)

    def write_compact_nullable_string(self, str value):
        self.put_text(value, True)

    def write_bytes(self, value not None):
        self.put_blob(value, False)

    def write_nullable_bytes(self, value):
        self.put_blob(value, False)

    def write_compact_bytes(self, value not None):
        self.put_blob(value, True)

    def write_compact_nullable_bytes(self, value):
        self.put_blob(value, True)

    def write_raw(self, value not None):
        """Append bytes as they are, without a length."""
        cdef Py_buffer buffer
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
        try:
            memcpy(self.reserve(buffer.len), buffer.buf, buffer.len)
        finally:
            PyBuffer_Release(&buffer)

    # --- arrays

    def write_array_length(self, Py_ssize_t count):
        """Count of the elements that follow; -1 is a null array."""
        self.put_length(-1 if count < 0 else count, False, MAX_LENGTH, "array")

    def write_compact_array_length(self, Py_ssize_t count):
        self.put_length(-1 if count < 0 else count, True, MAX_LENGTH, "array")

    def write_int8s(self, list values not None):
        for value in values:
            self.reserve(1)[0] = <uint8_t>(<int8_t>value)

    def write_int16s(self, list values not None):
        for value in values:
            store_i16(self.reserve(2), value)

    def write_int32s(self, list values not None):
        for value in values:
            store_i32(self.reserve(4), value)

    def write_int64s(self, list values not None):
        for value in values:
            store_i64(self.reserve(8), value)

    def write_uuids(self, list values not None):
        for value in values:
            self.write_uuid(value)

    def write_strings(self, list values not None):
        for value in values:
            if value is None:
                raise TypeError("a string of the array is None")
            self.put_text(value, False)

    def write_compact_strings(self, list values not None):
        for value in values:
            if value is None:
                raise TypeError("a string of the array is None")
            self.put_text(value, True)

    # --- tagged fields (KIP-482)

    def begin_tag(self, uint32_t tag):
        """Write a tag, leave a byte for the size, and return the position at which the field's bytes begin."""
        self._size = store_uvarint(self.reserve(MAX_VARINT32), tag) - self._data
        self.reserve(1)[0] = 0
        self._tags += 1
        return self._size

    def end_tag(self, Py_ssize_t start):
        """Write the size of the field that began at `start`, making room when it takes more than a byte."""
        cdef Py_ssize_t size = self._size - start
        cdef uint8_t[MAX_VARINT32] length
        cdef Py_ssize_t width
        if not 0 < start <= self._size:
            raise ValueError(f"position {start} is outside of 1:{self._size}")
        width = store_uvarint(length, <uint64_t>size) - length
        if width > 1:
            self.reserve(width - 1)
            memmove(self._data + start + width - 1, self._data + start, size)
        memcpy(self._data + start - 1, length, width)
        self._tags -= 1
