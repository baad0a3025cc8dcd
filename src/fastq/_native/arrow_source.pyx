"""Records out of Arrow arrays and tables, over the Arrow C data interface and without any Arrow library.

Rules
- What an exporter hands over in a capsule is moved out of it, and released exactly once.
- Values and keys are read where they lie: one chunk is held at a time, until the next one or the end.
- Types: binary and string, their large and view forms, null; integers of 16, 32 and 64 bits for the partition;
  timestamps of any unit, or 64-bit milliseconds; list<struct<key: string, value: binary>> for headers.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memset, strcmp

from fastq._native.bits cimport store_varint, size_varint
from fastq._native.producer_core cimport Field
from fastq._native.records cimport record_header_size, write_record_header

cdef dict KINDS = {
    "n": COLUMN_NULL,
    "z": COLUMN_BINARY32,
    "u": COLUMN_BINARY32,
    "Z": COLUMN_BINARY64,
    "U": COLUMN_BINARY64,
    "vz": COLUMN_VIEW,
    "vu": COLUMN_VIEW,
    "s": COLUMN_INT16,
    "i": COLUMN_INT32,
    "l": COLUMN_INT64,
    "+l": COLUMN_HEADERS32,
    "+L": COLUMN_HEADERS64,
}
cdef dict TIME_UNITS = {"s": COLUMN_TIME_S, "m": COLUMN_TIME_MS, "u": COLUMN_TIME_US, "n": COLUMN_TIME_NS}
cdef tuple BYTES_KINDS = (COLUMN_NULL, COLUMN_BINARY32, COLUMN_BINARY64, COLUMN_VIEW)
cdef tuple INTEGER_KINDS = (COLUMN_NULL, COLUMN_INT16, COLUMN_INT32, COLUMN_INT64)
cdef tuple TIME_KINDS = (COLUMN_NULL, COLUMN_INT64, COLUMN_TIME_S, COLUMN_TIME_MS, COLUMN_TIME_US, COLUMN_TIME_NS)
cdef tuple HEADERS_KINDS = (COLUMN_NULL, COLUMN_HEADERS32, COLUMN_HEADERS64)


def is_arrow(object values):
    """Whether an object exports itself as Arrow data."""
    return hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__")


cdef inline bint is_null(const ArrowArray* array, int64_t i) noexcept:
    cdef const uint8_t* validity = <const uint8_t*>array.buffers[0]
    return array.null_count != 0 and validity != NULL and not (validity[i >> 3] >> (i & 7)) & 1


@cython.final
cdef class ArrowSource:
    """The rows of one exported array, table or stream of them.

    Invariant: `chunk` and `schema` are released exactly when their `release` is NULL. Thread rule: one thread at a time.
    """

    def __cinit__(self, object values):
        cdef ArrowSchema* schema
        cdef ArrowArray* array
        memset(&self.schema, 0, sizeof(ArrowSchema))
        memset(&self.chunk, 0, sizeof(ArrowArray))
        self.row = -1
        if hasattr(values, "__arrow_c_stream__"):
            self.owner = values.__arrow_c_stream__()
            self.stream = <ArrowArrayStream*>PyCapsule_GetPointer(self.owner, "arrow_array_stream")
            if self.stream.get_schema(self.stream, &self.schema) != 0:
                self.fail("its schema")
        else:
            self.owner = values.__arrow_c_array__()
            schema = <ArrowSchema*>PyCapsule_GetPointer(self.owner[0], "arrow_schema")
            array = <ArrowArray*>PyCapsule_GetPointer(self.owner[1], "arrow_array")
            self.schema = schema[0]
            schema.release = NULL
            self.chunk = array[0]
            array.release = NULL
            self.single_pending = True
        self.bind_columns()

    def __dealloc__(self):
        if self.chunk.release != NULL:
            self.chunk.release(&self.chunk)
        if self.schema.release != NULL:
            self.schema.release(&self.schema)

    def fail(self, str what):
        detail = self.stream.get_last_error(self.stream) if self.stream != NULL else NULL
        text = (<bytes>detail).decode(errors="replace") if detail != NULL else "no reason given"
        raise ValueError(f"the Arrow stream failed to give {what}: {text}")

    def bind_columns(self):
        self.is_table = strcmp(self.schema.format, "+s") == 0
        if self.is_table:
            self.value = self.column("value", "bytes")
            self.key = self.column("key", "bytes")
            self.headers = self.column("headers", "headers")
            self.partition = self.column("partition", "integer")
            self.timestamp = self.column("timestamp", "time")
            names = [self.schema.children[i].name.decode() for i in range(self.schema.n_children)]
            unknown = set(names) - {"key", "value", "headers", "partition", "timestamp"}
            if unknown:
                raise ValueError(
                    f"columns {', '.join(sorted(unknown))} of the Arrow table are none of key, value, headers, partition, "
                    "timestamp; drop or rename them"
                )
            if self.value.kind == COLUMN_ABSENT:
                raise ValueError(f"the Arrow table has no column value; it has {', '.join(names)}")
        else:
            self.value = self.column(NULL, "bytes")

    cdef Column column(self, const char* name, str kinds):
        """Find a column by name (NULL: the array itself) and check its type against what the kind of column takes."""
        cdef Column found
        cdef ArrowSchema* schema = &self.schema
        cdef int64_t i
        found.kind = COLUMN_ABSENT
        found.child = -1
        found.array = NULL
        if name != NULL:
            for i in range(self.schema.n_children):
                if strcmp(self.schema.children[i].name, name) == 0:
                    found.child = i
            if found.child < 0:
                return found
            schema = self.schema.children[found.child]
        text = schema.format.decode()
        if text.startswith("ts"):
            kind = TIME_UNITS.get(text[2:3])
        else:
            kind = KINDS.get(text)
        allowed = {"bytes": BYTES_KINDS, "integer": INTEGER_KINDS, "time": TIME_KINDS, "headers": HEADERS_KINDS}[kinds]
        if kind is None or kind not in allowed or schema.dictionary != NULL:
            raise TypeError(
                f"Arrow column {name.decode() if name != NULL else 'value'} has type {text!r}, expected {kinds}; cast it"
            )
        if kinds == "headers" and kind != COLUMN_NULL:
            check_headers_type(schema)
            self.header_key, self.header_value = header_kinds(schema)
        found.kind = kind
        return found

    cdef int advance(self) except -1:
        """Go to the next row; 0 after the last one."""
        self.row += 1
        while self.chunk.release == NULL or self.single_pending or self.row >= self.chunk.length:
            if not self.load():
                return 0
            self.row = 0
        return 1

    cdef int load(self) except -1:
        """Take the next chunk; 0 when there is none."""
        if self.single_pending:
            self.single_pending = False
        else:
            if self.chunk.release != NULL:
                self.chunk.release(&self.chunk)
                self.chunk.release = NULL
            if self.stream == NULL or self.stream.release == NULL:
                return 0
            if self.stream.get_next(self.stream, &self.chunk) != 0:
                self.fail("its next chunk")
            if self.chunk.release == NULL:
                return 0
        self.bind()
        return 1

    cdef int bind(self) except -1:
        bind_column(&self.value, &self.chunk)
        bind_column(&self.key, &self.chunk)
        bind_column(&self.headers, &self.chunk)
        bind_column(&self.partition, &self.chunk)
        bind_column(&self.timestamp, &self.chunk)
        return 0

    cdef int64_t place(self, Column* column) noexcept:
        """Where the current row lies in the buffers of a column."""
        return self.row + column.array.offset + (self.chunk.offset if column.child >= 0 else 0)

    cdef int field(self, Column* column, Field* field) except -1:
        """Point `field` at the bytes of the current row."""
        field.held = False
        bytes_at(column.kind, column.array, 0 if column.kind <= COLUMN_NULL else self.place(column), field)
        return 0

    cdef object integer(self, Column* column):
        """The current row's number, times in milliseconds; None for null."""
        cdef int64_t i
        cdef const void* data
        if column.kind <= COLUMN_NULL:
            return None
        i = self.place(column)
        if is_null(column.array, i):
            return None
        data = column.array.buffers[1]
        if column.kind == COLUMN_INT16:
            return (<const int16_t*>data)[i]
        if column.kind == COLUMN_INT32:
            return (<const int32_t*>data)[i]
        number = (<const int64_t*>data)[i]
        if column.kind == COLUMN_TIME_S:
            return number * 1000
        if column.kind == COLUMN_TIME_US:
            return number // 1000
        if column.kind == COLUMN_TIME_NS:
            return number // 1000000
        return number

    cdef const ArrowArray* header_entries(self, int64_t* start, int64_t* end) except? NULL:
        """The structs of all headers, of which the current row has those from `start` to `end`; NULL when it has none."""
        cdef int64_t i
        cdef const ArrowArray* entries
        if self.headers.kind <= COLUMN_NULL:
            return NULL
        i = self.place(&self.headers)
        if is_null(self.headers.array, i):
            return NULL
        if self.headers.kind == COLUMN_HEADERS32:
            start[0] = (<const int32_t*>self.headers.array.buffers[1])[i]
            end[0] = (<const int32_t*>self.headers.array.buffers[1])[i + 1]
        else:
            start[0] = (<const int64_t*>self.headers.array.buffers[1])[i]
            end[0] = (<const int64_t*>self.headers.array.buffers[1])[i + 1]
        entries = self.headers.array.children[0]
        start[0] += entries.offset
        end[0] += entries.offset
        for i in range(start[0], end[0]):
            if is_null(entries, i) or is_null(entries.children[0], i + entries.children[0].offset):
                raise ValueError(f"a header of row {self.row} is null or has a null key; only its value may be null")
        return entries

    cdef object header_list(self):
        """The current row's headers as (str, bytes or None) pairs; None for none."""
        cdef int64_t i
        cdef int64_t start
        cdef int64_t end
        cdef const ArrowArray* entries = self.header_entries(&start, &end)
        if entries == NULL:
            return None
        pairs = []
        for i in range(start, end):
            key = bytes_object(self.header_key, entries.children[0], i + entries.children[0].offset)
            value = bytes_object(self.header_value, entries.children[1], i + entries.children[1].offset)
            pairs.append(((key or b"").decode(), value))
        return pairs

    cdef bytes header_bytes(self):
        """The current row's headers as a record stores them, count included; None for none."""
        cdef int64_t i
        cdef int64_t start
        cdef int64_t end
        cdef int64_t size
        cdef uint8_t* p
        cdef Field key
        cdef Field value
        cdef bytes encoded
        cdef const ArrowArray* entries = self.header_entries(&start, &end)
        if entries == NULL or start == end:
            return None
        if end - start > INT32_MAX:
            raise ValueError(f"row {self.row} has {end - start} headers")
        size = size_varint(end - start)
        for i in range(start, end):
            bytes_at(self.header_key, entries.children[0], i + entries.children[0].offset, &key)
            bytes_at(self.header_value, entries.children[1], i + entries.children[1].offset, &value)
            if key.length > INT32_MAX or value.length > INT32_MAX:
                raise ValueError(f"a header of row {self.row} is above 2 GiB")
            check_utf8(&key)
            size += record_header_size(<int32_t>key.length, <int32_t>value.length)
        encoded = PyBytes_FromStringAndSize(NULL, size)
        p = store_varint(<uint8_t*>PyBytes_AS_STRING(encoded), end - start)
        for i in range(start, end):
            bytes_at(self.header_key, entries.children[0], i + entries.children[0].offset, &key)
            bytes_at(self.header_value, entries.children[1], i + entries.children[1].offset, &value)
            p = write_record_header(p, key.data, <int32_t>key.length, value.data, <int32_t>value.length)
        return encoded


cdef int check_utf8(Field* text) except -1:
    """Raise UnicodeDecodeError for the key of a header that no consumer could read."""
    cdef Py_ssize_t i
    cdef uint8_t seen = 0
    for i in range(text.length):
        seen |= text.data[i]
    if seen & 0x80:
        (<const char*>text.data)[:text.length].decode()
    return 0


cdef void bind_column(Column* column, ArrowArray* chunk) noexcept:
    if column.kind != COLUMN_ABSENT:
        column.array = chunk if column.child < 0 else chunk.children[column.child]


cdef int bytes_at(ColumnKind kind, const ArrowArray* array, int64_t i, Field* field) except -1:
    cdef const int32_t* view
    cdef int64_t start
    cdef int64_t end
    field.data = NULL
    field.length = -1
    if kind <= COLUMN_NULL or is_null(array, i):
        return 0
    if kind == COLUMN_VIEW:
        view = <const int32_t*>array.buffers[1] + 4 * i
        field.length = view[0]
        if view[0] <= 12:
            field.data = <const uint8_t*>(view + 1)
        else:
            field.data = <const uint8_t*>array.buffers[2 + view[2]] + view[3]
        return 0
    if kind == COLUMN_BINARY32:
        start = (<const int32_t*>array.buffers[1])[i]
        end = (<const int32_t*>array.buffers[1])[i + 1]
    else:
        start = (<const int64_t*>array.buffers[1])[i]
        end = (<const int64_t*>array.buffers[1])[i + 1]
    field.data = <const uint8_t*>array.buffers[2] + start
    field.length = end - start
    return 0


cdef object bytes_object(int kind, const ArrowArray* array, int64_t i):
    cdef Field field
    bytes_at(<ColumnKind>kind, array, i, &field)
    return None if field.length < 0 else PyBytes_FromStringAndSize(<const char*>field.data, field.length)


cdef tuple header_kinds(ArrowSchema* schema):
    cdef ArrowSchema* entry = schema.children[0]
    return KINDS.get(entry.children[0].format.decode()), KINDS.get(entry.children[1].format.decode())


cdef int check_headers_type(ArrowSchema* schema) except -1:
    cdef ArrowSchema* entry = schema.children[0]
    if strcmp(entry.format, "+s") == 0 and entry.n_children == 2:
        if strcmp(entry.children[0].name, "key") == 0 and strcmp(entry.children[1].name, "value") == 0:
            if all(kind in BYTES_KINDS for kind in header_kinds(schema)):
                return 0
    raise TypeError("Arrow column headers is not list<struct<key: string, value: binary>>; cast it")
