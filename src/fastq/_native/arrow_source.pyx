"""Records out of Arrow arrays and tables, over the Arrow C data interface and without any Arrow library.

Rules
- What an exporter hands over in a capsule is moved out of it, and released exactly once. Its callbacks run without the GIL: a
  stream may need it in another thread before it can answer.
- Values and keys are read where they lie: one chunk is held at a time, until the next one or the end.
- A type that is not read is refused before the first row; what a chunk's structs say is checked before its first row; what its
  buffers say (offsets, indices) is checked where it is used, as far as the interface tells the bounds.
- Bytes: binary and string, their large, view and fixed-size forms, null. Partition: integers of any size. Timestamp: timestamps of any
  unit, or 64-bit milliseconds. Headers: any list of struct<key, value>, or a map. Each of them dictionary-encoded or run-end encoded too,
  one in the other as well. Of an extension type that which it is stored as.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strcmp

from fastq._native.bits cimport store_varint, size_varint
from fastq._native.producer_core cimport Field
from fastq._native.records cimport record_header_size, write_record_header

cdef enum:
    NESTING_MAX = 8             # of dictionaries and runs in one another
    INLINE_VIEW_BYTES_MAX = 12

cdef dict KINDS = {
    "n": COLUMN_NULL,
    "z": COLUMN_BYTES32,
    "u": COLUMN_BYTES32,
    "Z": COLUMN_BYTES64,
    "U": COLUMN_BYTES64,
    "vz": COLUMN_BYTES_VIEW,
    "vu": COLUMN_BYTES_VIEW,
    "c": COLUMN_INT8,
    "s": COLUMN_INT16,
    "i": COLUMN_INT32,
    "l": COLUMN_INT64,
    "C": COLUMN_UINT8,
    "S": COLUMN_UINT16,
    "I": COLUMN_UINT32,
    "L": COLUMN_UINT64,
    "+l": COLUMN_LIST32,
    "+m": COLUMN_LIST32,
    "+L": COLUMN_LIST64,
    "+vl": COLUMN_LIST_VIEW32,
    "+vL": COLUMN_LIST_VIEW64,
}
cdef dict TIME_UNITS = {"s": COLUMN_TIME_S, "m": COLUMN_TIME_MS, "u": COLUMN_TIME_US, "n": COLUMN_TIME_NS}
cdef set INTEGER_KINDS = set(range(COLUMN_INT8, COLUMN_UINT64 + 1))
cdef set BYTES_KINDS = {COLUMN_BYTES32, COLUMN_BYTES64, COLUMN_BYTES_VIEW, COLUMN_BYTES_FIXED}
# What a column may be, by what is wanted of it. A header's key is there whenever the header is: no null type for it.
cdef dict WANTED = {
    "bytes": BYTES_KINDS | {COLUMN_NULL},
    "text": BYTES_KINDS,
    "integer": INTEGER_KINDS | {COLUMN_NULL},
    "time": {COLUMN_NULL, COLUMN_INT64, COLUMN_TIME_S, COLUMN_TIME_MS, COLUMN_TIME_US, COLUMN_TIME_NS},
    "headers": set(range(COLUMN_LIST32, COLUMN_LIST_FIXED + 1)) | {COLUMN_NULL},
}
cdef dict EXPECTED = {
    "bytes": "bytes or text",
    "text": "text without nulls",
    "integer": "an integer",
    "time": "a timestamp, or 64-bit milliseconds",
    "headers": "list<struct<key: string, value: binary>>, or a map of the two",
}
cdef dict NAMES = {
    "n": "null", "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32", "I": "uint32", "l": "int64",
    "L": "uint64", "e": "half-float", "f": "float", "g": "double", "z": "binary", "Z": "large_binary", "vz": "binary_view", "u": "string",
    "U": "large_string", "vu": "string_view", "tdD": "date32", "tdm": "date64", "+l": "list", "+L": "large_list", "+vl": "list_view",
    "+vL": "large_list_view", "+s": "struct", "+m": "map", "+r": "run-end encoded",
}  # fmt: skip
cdef const uint8_t* NOTHING = <const uint8_t*>b""


def is_arrow(object values):
    """Whether an object exports itself as Arrow data."""
    return hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__")


cdef inline bint bit_is_set(const uint8_t* bits, int64_t i) noexcept nogil:
    return (bits[i >> 3] >> (i & 7)) & 1


cdef inline int32_t load32(const uint8_t* numbers, int64_t i) noexcept nogil:
    """Number `i` of a buffer, which nobody promises to be aligned."""
    cdef int32_t number
    memcpy(&number, numbers + 4 * i, 4)
    return number


cdef inline int64_t load64(const uint8_t* numbers, int64_t i) noexcept nogil:
    cdef int64_t number
    memcpy(&number, numbers + 8 * i, 8)
    return number


@cython.final
cdef class ArrowSource:
    """The rows of one exported array, table or stream of them.

    Invariant: `chunk`, `schema` and `stream` are released exactly when their `release` is NULL. Thread rule: one thread at a time.
    """

    def __cinit__(self, object values):
        self.row = -1
        if hasattr(values, "__arrow_c_stream__"):
            self.take_stream(values.__arrow_c_stream__())
        else:
            schema, array = values.__arrow_c_array__()
            self.take_array(schema, array)
        self.bind_columns()

    def __dealloc__(self):
        self.release_chunk()
        self.release_stream()
        if self.schema.release != NULL:
            with nogil:
                self.schema.release(&self.schema)
        free_inner(&self.value)
        free_inner(&self.key)
        free_inner(&self.headers)
        free_inner(&self.partition)
        free_inner(&self.timestamp)

    cdef int take_stream(self, object capsule) except -1:
        cdef int code
        cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
        if stream.release == NULL:
            raise ValueError("the Arrow stream was taken or released before: export it again")
        self.stream = stream[0]
        stream.release = NULL
        if self.stream.get_schema == NULL or self.stream.get_next == NULL or self.stream.get_last_error == NULL:
            raise ValueError("malformed Arrow stream: it lacks a callback; the library that exported it is at fault")
        with nogil:
            code = self.stream.get_schema(&self.stream, &self.schema)
        if code != 0:
            self.schema.release = NULL
            self.fail("its schema", code)
        if self.schema.release == NULL:
            raise ValueError("the Arrow stream gave a released schema")
        return 0

    cdef int take_array(self, object schema_capsule, object array_capsule) except -1:
        cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(schema_capsule, "arrow_schema")
        cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(array_capsule, "arrow_array")
        if schema.release == NULL or array.release == NULL:
            raise ValueError("the Arrow array was taken or released before: export it again")
        self.schema = schema[0]
        schema.release = NULL
        self.chunk = array[0]
        array.release = NULL
        self.single_pending = True
        return 0

    cdef void release_chunk(self) noexcept:
        if self.chunk.release != NULL:
            with nogil:
                self.chunk.release(&self.chunk)
            self.chunk.release = NULL

    cdef void release_stream(self) noexcept:
        if self.stream.release != NULL:
            with nogil:
                self.stream.release(&self.stream)
            self.stream.release = NULL

    cdef int fail(self, str what, int code) except -1:
        cdef const char* detail
        with nogil:
            detail = self.stream.get_last_error(&self.stream)
        text = (<bytes>detail).decode(errors="replace") if detail != NULL else f"no reason given, code {code}"
        self.release_stream()
        raise ValueError(f"the Arrow stream failed to give {what}: {text}")

    cdef int bind_columns(self) except -1:
        cdef int64_t i
        self.is_table = self.schema.format != NULL and strcmp(self.schema.format, "+s") == 0
        if not self.is_table:
            self.column(&self.value, NULL, "bytes")
            return 0
        names = []
        for i in range(self.schema.n_children):
            if self.schema.children == NULL or is_gone(self.schema.children[i]):
                raise ValueError(f"column {i} of the Arrow table is missing from its schema")
            names.append(name_of(self.schema.children[i]))
        unknown = set(names) - {"key", "value", "headers", "partition", "timestamp"}
        if unknown:
            raise ValueError(
                f"columns {', '.join(sorted(unknown))} of the Arrow table are none of key, value, headers, partition, "
                "timestamp; drop or rename them"
            )
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"columns {', '.join(sorted(twice))} of the Arrow table are there twice; drop one of each")
        if "value" not in names:
            raise ValueError(f"the Arrow table has no column value; it has {', '.join(names) or 'no columns'}")
        self.column(&self.value, "value", "bytes")
        self.column(&self.key, "key", "bytes")
        self.column(&self.headers, "headers", "headers")
        self.column(&self.partition, "partition", "integer")
        self.column(&self.timestamp, "timestamp", "time")
        return 0

    cdef int column(self, Column* found, const char* name, str wanted) except -1:
        """Find a column by name (NULL: the array itself) and check its type against what is wanted of it."""
        cdef ArrowSchema* schema = &self.schema
        cdef int64_t i
        found.child = -1
        if name != NULL:
            for i in range(self.schema.n_children):
                if self.schema.children[i].name != NULL and strcmp(self.schema.children[i].name, name) == 0:
                    found.child = i
            if found.child < 0:
                return 0
            schema = self.schema.children[found.child]
        return describe(found, schema, "value" if name == NULL else name.decode(), wanted, 0)

    cdef int advance(self) except -1:
        """Go to the next row; 0 after the last one."""
        self.row += 1
        while self.chunk.release == NULL or self.single_pending or self.row >= self.chunk.length:
            if not self.load():
                return 0
            self.row = 0
        if self.validity != NULL and not bit_is_set(self.validity, self.row + self.chunk.offset):
            raise ValueError(f"row {self.rows_before + self.row} of the Arrow table is null as a whole, expected a record")
        return 1

    cdef int load(self) except -1:
        """Take the next chunk; 0 when there is none."""
        cdef int code
        if self.single_pending:
            self.single_pending = False
        else:
            if self.chunk.release != NULL:
                self.rows_before += self.chunk.length
                self.release_chunk()
            if self.stream.release == NULL:
                return 0
            with nogil:
                code = self.stream.get_next(&self.stream, &self.chunk)
            if code != 0:
                self.chunk.release = NULL
                self.fail("its next chunk", code)
            if self.chunk.release == NULL:
                self.release_stream()
                return 0
        try:
            self.bind()
        except BaseException:
            self.release_chunk()
            self.release_stream()
            raise
        return 1

    cdef int bind(self) except -1:
        """Point the columns at the chunk and check what its structs say."""
        cdef const ArrowArray* chunk = &self.chunk
        if not self.is_table:
            return bind_column(&self.value, chunk, 0, 0, "value")
        if chunk.length < 0 or chunk.offset < 0 or chunk.n_children != self.schema.n_children or chunk.children == NULL:
            raise malformed("table", f"{chunk.n_children} columns of {chunk.length} rows from {chunk.offset} on")
        self.validity = validity_of(chunk, 1, "table")
        self.bind_child(&self.value, "value")
        self.bind_child(&self.key, "key")
        self.bind_child(&self.headers, "headers")
        self.bind_child(&self.partition, "partition")
        self.bind_child(&self.timestamp, "timestamp")
        return 0

    cdef int bind_child(self, Column* column, str name) except -1:
        if column.kind == COLUMN_ABSENT:
            return 0
        return bind_column(column, self.chunk.children[column.child], self.chunk.offset, self.chunk.length, name)

    cdef int field(self, Column* column, Field* field) except -1:
        """Point `field` at the bytes of the current row."""
        field.held = False
        return bytes_at(column, self.row, field)

    cdef object integer(self, Column* column):
        """The current row's number, times in milliseconds; None for null."""
        return number_at(column, self.row)

    cdef int header_span(self, Column** entries, int64_t* start, int64_t* end) except -1:
        """Which entries are the current row's headers; 0 when it has none."""
        cdef Column* lists = &self.headers
        cdef int64_t i = self.row
        if lists.kind >= COLUMN_DICTIONARY:
            lists = resolve(lists, &i)
        if lists == NULL or lists.kind <= COLUMN_NULL or is_null(lists, i):
            return 0
        i += lists.base
        if lists.kind == COLUMN_LIST32:
            start[0] = load32(lists.offsets, i)
            end[0] = load32(lists.offsets, i + 1)
        elif lists.kind == COLUMN_LIST64:
            start[0] = load64(lists.offsets, i)
            end[0] = load64(lists.offsets, i + 1)
        elif lists.kind == COLUMN_LIST_FIXED:
            start[0] = i * lists.width
            end[0] = start[0] + lists.width
        else:
            if lists.kind == COLUMN_LIST_VIEW32:
                start[0] = load32(lists.offsets, i)
                end[0] = load32(lists.data, i)
            else:
                start[0] = load64(lists.offsets, i)
                end[0] = load64(lists.data, i)
            if end[0] > lists.inner.length - start[0]:
                raise malformed("headers", f"row {self.row} has {end[0]} entries from {start[0]} on of {lists.inner.length}")
            end[0] += start[0]
        if not 0 <= start[0] <= end[0] <= lists.inner.length:
            raise malformed("headers", f"row {self.row} has entries {start[0]} to {end[0]} of {lists.inner.length}")
        entries[0] = lists.inner
        return start[0] < end[0]

    cdef int header_at(self, Column* entries, int64_t i, Field* key, Field* value) except -1:
        if not is_null(entries, i):
            bytes_at(entries.inner, i + entries.base, key)
            if key.length >= 0:
                return bytes_at(entries.second, i + entries.base, value)
        raise ValueError(
            f"a header of row {self.rows_before + self.row} is null or has a null key; only its value may be null"
        )

    cdef object header_list(self):
        """The current row's headers as (str, bytes or None) pairs; None for none."""
        cdef int64_t i
        cdef int64_t start
        cdef int64_t end
        cdef Column* entries
        cdef Field key
        cdef Field value
        if not self.header_span(&entries, &start, &end):
            return None
        pairs = []
        for i in range(start, end):
            self.header_at(entries, i, &key, &value)
            pairs.append(((<const char*>key.data)[:key.length].decode(), bytes_of(&value)))
        return pairs

    cdef bytes header_bytes(self):
        """The current row's headers as a record stores them, count included; None for none."""
        cdef int64_t i
        cdef int64_t start
        cdef int64_t end
        cdef int64_t size
        cdef uint8_t* p
        cdef Column* entries
        cdef Field key
        cdef Field value
        cdef bytes encoded
        if not self.header_span(&entries, &start, &end):
            return None
        if end - start > INT32_MAX:
            raise ValueError(f"row {self.rows_before + self.row} has {end - start} headers")
        size = size_varint(end - start)
        for i in range(start, end):
            self.header_at(entries, i, &key, &value)
            if key.length > INT32_MAX or value.length > INT32_MAX:
                raise ValueError(f"a header of row {self.rows_before + self.row} is above 2 GiB")
            check_utf8(&key)
            size += record_header_size(<int32_t>key.length, <int32_t>value.length)
        encoded = PyBytes_FromStringAndSize(NULL, size)
        p = store_varint(<uint8_t*>PyBytes_AS_STRING(encoded), end - start)
        for i in range(start, end):
            self.header_at(entries, i, &key, &value)
            p = write_record_header(p, key.data, <int32_t>key.length, value.data, <int32_t>value.length)
        return encoded


# --- types, once


cdef str name_of(const ArrowSchema* schema):
    return "without a name" if schema.name == NULL else (<bytes>schema.name).decode(errors="replace")


cdef Column* new_inner() except NULL:
    cdef Column* column = <Column*>calloc(1, sizeof(Column))
    if column == NULL:
        raise MemoryError
    column.child = -1
    return column


cdef void free_inner(Column* column) noexcept:
    if column.inner != NULL:
        free_inner(column.inner)
        free(column.inner)
    if column.second != NULL:
        free_inner(column.second)
        free(column.second)
    column.inner = column.second = NULL


cdef inline bint is_gone(const ArrowSchema* schema) noexcept nogil:
    """Whether a child is not there, or was released: then what it points to is freed."""
    return schema == NULL or schema.release == NULL


cdef ArrowSchema* child_schema(const ArrowSchema* schema, int64_t i, int64_t count, str name) except NULL:
    """Child `i` of a type that has `count` of them."""
    if schema.n_children != count or schema.children == NULL or is_gone(schema.children[i]):
        raise malformed(name, f"its type has {schema.n_children} children, not {count}, or lacks child {i}")
    return schema.children[i]


cdef int describe(Column* column, const ArrowSchema* schema, str name, str wanted, int depth) except -1:
    """Read a type into `column`; TypeError when it is not what is wanted."""
    if schema.format == NULL:
        raise malformed(name, "its type has no format")
    text = (<bytes>schema.format).decode(errors="replace")
    if depth > NESTING_MAX:
        raise malformed(name, f"its type is nested {depth} deep")
    if schema.dictionary != NULL:
        index = KINDS.get(text)
        if index not in INTEGER_KINDS:
            raise malformed(name, f"the indices of a dictionary have type {text!r}")
        if is_gone(schema.dictionary):
            raise malformed(name, "the type of its dictionary was released before")
        column.kind = COLUMN_DICTIONARY
        column.index = index
        column.inner = new_inner()
        return describe(column.inner, schema.dictionary, name, wanted, depth + 1)
    if text == "+r":
        ends = child_schema(schema, 0, 2, name)
        index = KINDS.get((<bytes>ends.format).decode(errors="replace")) if ends.format != NULL else None
        if index not in (COLUMN_INT16, COLUMN_INT32, COLUMN_INT64):
            raise malformed(name, "the ends of its runs are not integers of 16, 32 or 64 bits")
        column.kind = COLUMN_RUNS
        column.index = index
        column.inner = new_inner()
        return describe(column.inner, child_schema(schema, 1, 2, name), name, wanted, depth + 1)
    if text.startswith("ts"):
        kind = TIME_UNITS.get(text[2:3])
    elif text.startswith("w:") or text.startswith("+w:"):
        kind = COLUMN_BYTES_FIXED if text[0] == "w" else COLUMN_LIST_FIXED
        width = text.partition(":")[2]
        if not (width.isascii() and width.isdigit()) or int(width) > INT32_MAX:
            raise malformed(name, f"its type is {text!r}")
        column.width = int(width)
    else:
        kind = KINDS.get(text)
    if kind is None or kind not in WANTED[wanted]:
        known = f" ({NAMES[text]})" if text in NAMES else ""
        raise TypeError(f"Arrow column {name} has type {text!r}{known}, expected {EXPECTED[wanted]}; cast it")
    column.kind = kind
    if wanted == "headers" and kind != COLUMN_NULL:
        column.inner = new_inner()
        describe_header(column.inner, child_schema(schema, 0, 1, name), text == "+m")
    return 0


cdef int describe_header(Column* column, const ArrowSchema* schema, bint of_map) except -1:
    """Read the type of a list's entries: struct<key, value>; a map may call the two what it likes."""
    cdef ArrowSchema* key
    cdef ArrowSchema* value
    if schema.format != NULL and strcmp(schema.format, "+s") == 0 and schema.n_children == 2 and schema.dictionary == NULL:
        key = child_schema(schema, 0, 2, "headers")
        value = child_schema(schema, 1, 2, "headers")
        if of_map or (name_of(key), name_of(value)) == ("key", "value"):
            column.kind = COLUMN_STRUCT
            column.inner = new_inner()
            column.second = new_inner()
            describe(column.inner, key, "headers.key", "text", 0)
            return describe(column.second, value, "headers.value", "bytes", 0)
    raise TypeError("Arrow column headers is not list<struct<key: string, value: binary>>; cast it")


# --- chunks


cdef object malformed(str name, str what):
    return ValueError(f"malformed Arrow data, column {name}: {what}; the library that exported it is at fault")


cdef const uint8_t* validity_of(const ArrowArray* array, int64_t buffers_min, str name) except? NULL:
    """The bitmap of what is null; NULL when nothing is. Checks that the buffers are there."""
    if array.n_buffers < buffers_min or array.buffers == NULL:
        raise malformed(name, f"it has {array.n_buffers} buffers, not {buffers_min}")
    if array.null_count == 0:
        return NULL
    if array.null_count > 0 and array.buffers[0] == NULL and array.length > 0:
        raise malformed(name, f"it has {array.null_count} nulls and no bitmap of them")
    return <const uint8_t*>array.buffers[0]


cdef int bind_column(Column* column, const ArrowArray* array, int64_t offset, int64_t length, str name) except -1:
    """Point `column` at an array, of which the parent's entries are those from `offset` on, at least `length` of them."""
    cdef const ArrowArray* ends
    cdef int64_t buffers = 2
    if array == NULL or array.release == NULL:
        raise malformed(name, "its array is missing" if array == NULL else "its array was released before")
    if array.length < 0 or array.offset < 0 or array.null_count < -1 or array.length - offset < length:
        raise malformed(name, f"it has {array.length} entries from {array.offset} on, {length} from {offset} on are wanted")
    column.array = array
    column.base = array.offset + offset
    column.length = array.length - offset
    column.validity = column.offsets = column.data = NULL
    column.run = 0
    if column.kind == COLUMN_NULL:
        return 0
    if column.kind == COLUMN_RUNS:
        if array.n_children != 2 or array.children == NULL or array.children[0] == NULL or array.children[1] == NULL:
            raise malformed(name, f"run-end encoded data has {array.n_children} children, not 2")
        ends = array.children[0]
        if ends.release == NULL or ends.length < 0 or ends.offset < 0 or ends.n_buffers < 2 or ends.buffers == NULL:
            raise malformed(name, "the ends of its runs are not there")
        column.runs = ends.length
        if ends.length and ends.buffers[1] == NULL:
            raise malformed(name, "the ends of its runs have no buffer")
        column.offsets = <const uint8_t*>ends.buffers[1]
        bind_column(column.inner, array.children[1], 0, ends.length, name)
        return 0
    if column.kind in (COLUMN_STRUCT, COLUMN_LIST_FIXED):
        buffers = 1
    elif column.kind in (COLUMN_BYTES32, COLUMN_BYTES64, COLUMN_LIST_VIEW32, COLUMN_LIST_VIEW64):
        buffers = 3
    column.validity = validity_of(array, buffers, name)
    if buffers >= 2:
        column.offsets = <const uint8_t*>array.buffers[1]
        if column.offsets == NULL and column.length > 0 and (column.kind != COLUMN_BYTES_FIXED or column.width > 0):
            raise malformed(name, f"it has {column.length} entries and no buffer of them")
    if buffers == 3:
        column.data = <const uint8_t*>array.buffers[2]
        if column.data == NULL and column.length > 0 and column.kind in (COLUMN_LIST_VIEW32, COLUMN_LIST_VIEW64):
            raise malformed(name, "its lists have no sizes")
    if column.kind == COLUMN_DICTIONARY:
        bind_column(column.inner, array.dictionary, 0, 0, name)
    elif column.kind == COLUMN_STRUCT:
        if array.n_children != 2 or array.children == NULL:
            raise malformed(name, f"a header has {array.n_children} fields, not 2")
        # Its fields are asked for by their place in the buffers, as their own offsets add to the struct's.
        bind_column(column.inner, array.children[0], 0, array.offset + array.length, name)
        bind_column(column.second, array.children[1], 0, array.offset + array.length, name)
    elif column.inner != NULL:
        if array.n_children != 1 or array.children == NULL:
            raise malformed(name, f"its lists have {array.n_children} children, not 1")
        bind_column(column.inner, array.children[0], 0, 0, name)
    return 0


# --- entries: `i` counts from the column's first


cdef inline bint is_null(const Column* column, int64_t i) noexcept nogil:
    return column.validity != NULL and not bit_is_set(column.validity, i + column.base)


cdef inline int64_t number(ColumnKind kind, const uint8_t* numbers, int64_t i) noexcept nogil:
    """Number `i` of a buffer; one of 64 bits without a sign comes out as if it had one."""
    cdef int16_t short_number
    if kind == COLUMN_INT32:
        return load32(numbers, i)
    if kind == COLUMN_UINT32:
        return <uint32_t>load32(numbers, i)
    if kind == COLUMN_INT8:
        return <int8_t>numbers[i]
    if kind == COLUMN_UINT8:
        return numbers[i]
    if kind == COLUMN_INT16 or kind == COLUMN_UINT16:
        memcpy(&short_number, numbers + 2 * i, 2)
        return short_number if kind == COLUMN_INT16 else <uint16_t>short_number
    return load64(numbers, i)


cdef Column* resolve(Column* column, int64_t* i) except? NULL:
    """Follow dictionaries and runs to the column that has the entry, and set `i` to its place there; NULL for null."""
    cdef int64_t place
    while column.kind >= COLUMN_DICTIONARY:
        if column.kind == COLUMN_RUNS:
            place = find_run(column, i[0] + column.base)
            if place < 0:
                raise malformed("of runs", f"entry {i[0]} lies behind the last of {column.runs} runs")
        else:
            if is_null(column, i[0]):
                return NULL
            place = number(column.index, column.offsets, i[0] + column.base)
            if not 0 <= place < column.inner.length:
                raise malformed("of a dictionary", f"index {place} into {column.inner.length} entries")
        column = column.inner
        i[0] = place
    return column


cdef int64_t find_run(Column* column, int64_t place) noexcept:
    """The run that has a place, the one of the last search or the next as a rule; -1 when the last one ends before it."""
    cdef const ArrowArray* ends = column.array.children[0]
    cdef int64_t low = 0
    cdef int64_t high = column.runs
    cdef int64_t middle = column.run
    while low < high:
        if number(column.index, column.offsets, ends.offset + middle) > place:
            high = middle
            if middle == 0 or number(column.index, column.offsets, ends.offset + middle - 1) <= place:
                low = middle
        else:
            low = middle + 1
            if low < high and number(column.index, column.offsets, ends.offset + low) > place:
                high = low
        middle = (low + high) // 2
    if low == column.runs:
        return -1
    column.run = low
    return low


cdef int bytes_at(Column* column, int64_t i, Field* field) except -1:
    cdef const uint8_t* view
    cdef const uint8_t* data
    cdef int64_t start
    cdef int64_t length
    field.data = NULL
    field.length = -1
    if column.kind >= COLUMN_DICTIONARY:
        column = resolve(column, &i)
        if column == NULL:
            return 0
    if column.kind <= COLUMN_NULL or is_null(column, i):
        return 0
    i += column.base
    if column.kind == COLUMN_BYTES32:
        start = load32(column.offsets, i)
        length = load32(column.offsets, i + 1) - start
        data = column.data
    elif column.kind == COLUMN_BYTES64:
        start = load64(column.offsets, i)
        length = load64(column.offsets, i + 1) - start
        data = column.data
    elif column.kind == COLUMN_BYTES_FIXED:
        start = i * column.width
        length = column.width
        data = column.offsets
    else:
        view = column.offsets + 16 * i
        length = load32(view, 0)
        if length <= INLINE_VIEW_BYTES_MAX:
            data = view
            start = 4
        else:
            data = view_data(column.array, load32(view, 2), load32(view, 3), length)
            start = load32(view, 3)
    if length < 0 or start < 0 or (data == NULL and length > 0):
        raise malformed("of bytes", f"entry {i} has {length} bytes from {start} on")
    field.data = NOTHING if length == 0 else data + start
    field.length = length
    return 0


cdef const uint8_t* view_data(const ArrowArray* array, int64_t which, int64_t start, int64_t length) except NULL:
    """The buffer that a view is in. The buffers of an array of views: bitmap, views, data ..., the sizes of data."""
    cdef int64_t count = array.n_buffers - 3
    if 0 <= which < count and array.buffers[2 + which] != NULL and array.buffers[2 + count] != NULL:
        if 0 <= start <= load64(<const uint8_t*>array.buffers[2 + count], which) - length:
            return <const uint8_t*>array.buffers[2 + which]
    raise malformed("of views", f"a view of {length} bytes from {start} on in buffer {which} of {count}")


cdef object number_at(Column* column, int64_t i):
    """A number, times in milliseconds; None for null."""
    cdef int64_t value
    if column.kind >= COLUMN_DICTIONARY:
        column = resolve(column, &i)
        if column == NULL:
            return None
    if column.kind <= COLUMN_NULL or is_null(column, i):
        return None
    value = number(column.kind, column.offsets, i + column.base)
    if column.kind == COLUMN_UINT64:
        return <uint64_t>value
    # Python's arithmetic: it rounds down below 1970 too, and seconds may pass 64 bits.
    if column.kind == COLUMN_TIME_S:
        return <object>value * 1000
    if column.kind == COLUMN_TIME_US:
        return <object>value // 1000
    if column.kind == COLUMN_TIME_NS:
        return <object>value // 1000000
    return value


cdef object bytes_of(const Field* field):
    return None if field.length < 0 else PyBytes_FromStringAndSize(<const char*>field.data, field.length)


cdef int check_utf8(Field* text) except -1:
    """Raise UnicodeDecodeError for the key of a header that no consumer could read."""
    cdef Py_ssize_t i
    cdef uint8_t seen = 0
    for i in range(text.length):
        seen |= text.data[i]
    if seen & 0x80:
        (<const char*>text.data)[:text.length].decode()
    return 0
