"""The Arrow C Data Interface over fetched batches.

Rules
- One pass over the fetched bytes fills buffers of kept memory without the GIL, sized by what ConsumerBatch measured. No Python
  object is made for a record.
- Every exported ArrowArray owns its buffers alone: one release function serves them all, from any thread.
- An Arrow binary column has 32-bit offsets: what would pass 2 GiB comes as several arrays of one stream.
- The schema is that of Spark's Kafka source: key, value, topic, partition, offset, timestamp, timestampType, headers.
Source: the Arrow C Data, C Stream and PyCapsule interfaces.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from fastq._native.arrow_abi cimport ArrowArray, ArrowArrayStream, ArrowSchema
from fastq._native.columns cimport BatchSpan, ConsumerBatch, Totals
from fastq._native.fetched_batches cimport timestamp_of
from fastq._native.kept_memory cimport give_memory, take_memory
from fastq._native.records cimport CRecord, CRecordHeader, parse_record, parse_record_header

cdef enum:
    COLUMN_KEY = 0
    COLUMN_VALUE = 1
    COLUMN_TOPIC = 2
    COLUMN_PARTITION = 3
    COLUMN_OFFSET = 4
    COLUMN_TIMESTAMP = 5
    COLUMN_TIMESTAMP_TYPE = 6
    COLUMN_HEADERS = 7
    COLUMNS = 8

    NULLABLE = 2                     # ARROW_FLAG_NULLABLE

ctypedef const char* Text

# In the order of the schema: name and Arrow format of every column.
cdef Text[COLUMNS] NAMES = [
    b"key", b"value", b"topic", b"partition", b"offset", b"timestamp", b"timestampType", b"headers",
]
cdef Text[COLUMNS] FORMATS = [b"z", b"z", b"u", b"i", b"l", b"tsu:UTC", b"i", b"+l"]

COLUMN_NAMES = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
BINARY_BYTES_MAX = 0x7FFFFFFF

cdef struct PartName:
    const uint8_t* topic             # UTF-8
    int32_t topic_bytes
    int32_t partition

cdef struct Sink:
    # Where a fill writes next; NULL where a column was not asked for.
    int64_t row
    int32_t* key_offsets
    uint8_t* key_data
    uint8_t* key_valid
    int32_t key_end
    int32_t* value_offsets
    uint8_t* value_data
    uint8_t* value_valid
    int32_t value_end
    int32_t* topic_offsets
    uint8_t* topic_data
    int32_t topic_end
    int32_t* partitions
    int64_t* offsets
    int64_t* timestamps
    uint8_t* timestamp_valid
    int32_t* timestamp_types
    int32_t* header_offsets
    int32_t header_row
    int32_t* header_key_offsets
    uint8_t* header_key_data
    int32_t header_key_end
    int32_t* header_value_offsets
    uint8_t* header_value_data
    uint8_t* header_value_valid
    int32_t header_value_end


cdef inline void set_bit(uint8_t* bits, int64_t i) noexcept nogil:
    bits[i >> 3] |= <uint8_t>(1 << (i & 7))


cdef void put_binary(int32_t* offsets, uint8_t* data, uint8_t* valid, int32_t* end, int64_t row, const uint8_t* p,
                     int32_t length) noexcept nogil:
    """Append one nullable value to a binary column whose bytes so far end at `end`."""
    if length >= 0:
        memcpy(data + end[0], p, length)
        end[0] += length
        if valid != NULL:
            set_bit(valid, row)
    offsets[row + 1] = end[0]


cdef bint is_utf8(const uint8_t* p, int32_t length) noexcept nogil:
    cdef int32_t i = 0
    cdef int32_t more
    cdef uint8_t lead
    while i < length:
        lead = p[i]
        i += 1
        if lead < 0x80:
            continue
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
        elif 0xF0 <= lead <= 0xF4:
            more = 3
        else:
            return False
        if i + more > length:
            return False
        # The first byte that follows some leads has a narrower range: no overlong forms, surrogates or planes past 16.
        if (
            (lead == 0xE0 and p[i] < 0xA0) or (lead == 0xED and p[i] > 0x9F)
            or (lead == 0xF0 and p[i] < 0x90) or (lead == 0xF4 and p[i] > 0x8F)
        ):
            return False
        while more > 0:
            if p[i] & 0xC0 != 0x80:
                return False
            i += 1
            more -= 1
    return True


cdef void put_headers(Sink* s, const CRecord* r) noexcept nogil:
    """Append the headers of one record. A key that is not UTF-8 has its bytes above 0x7F replaced by question marks."""
    cdef CRecordHeader header
    cdef const uint8_t* p = r.headers
    cdef uint8_t* key
    cdef int32_t i
    cdef int32_t k
    for i in range(r.header_count):
        p = parse_record_header(p, r.end, &header)
        if p == NULL:
            break                    # cannot be: `measure` has walked them
        key = s.header_key_data + s.header_key_end
        put_binary(s.header_key_offsets, s.header_key_data, NULL, &s.header_key_end, s.header_row, header.key,
                   header.key_length)
        if not is_utf8(key, header.key_length):
            for k in range(header.key_length):
                if key[k] >= 0x80:
                    key[k] = 0x3F
        put_binary(s.header_value_offsets, s.header_value_data, s.header_value_valid, &s.header_value_end,
                   s.header_row, header.value, header.value_length)
        s.header_row += 1
    s.header_offsets[s.row + 1] = s.header_row


cdef void fill(Sink* s, const BatchSpan* batch, const PartName* part) noexcept nogil:
    """Append the records of one batch to every column of `s`."""
    cdef const uint8_t* p = batch.span.p
    cdef CRecord r
    cdef int64_t left = batch.totals.rows
    cdef int64_t timestamp
    while left > 0:
        left -= 1
        p = parse_record(p, batch.span.end, &r)
        if s.key_offsets != NULL:
            put_binary(s.key_offsets, s.key_data, s.key_valid, &s.key_end, s.row, r.key, r.key_length)
        if s.value_offsets != NULL:
            put_binary(s.value_offsets, s.value_data, s.value_valid, &s.value_end, s.row, r.value, r.value_length)
        if s.topic_offsets != NULL:
            put_binary(s.topic_offsets, s.topic_data, NULL, &s.topic_end, s.row, part.topic, part.topic_bytes)
        if s.partitions != NULL:
            s.partitions[s.row] = part.partition
        if s.offsets != NULL:
            s.offsets[s.row] = batch.span.base_offset + r.offset_delta
        if s.timestamps != NULL:
            timestamp = timestamp_of(&batch.span, &r)
            # Milliseconds to microseconds, held at the ends of the range.
            timestamp = min(max(timestamp, -(INT64_MAX // 1000)), INT64_MAX // 1000)
            s.timestamps[s.row] = timestamp * 1000
            if s.timestamp_valid != NULL and batch.span.timestamp_type >= 0:
                set_bit(s.timestamp_valid, s.row)
        if s.timestamp_types != NULL:
            s.timestamp_types[s.row] = batch.span.timestamp_type
        if s.header_offsets != NULL:
            put_headers(s, &r)
        s.row += 1


cdef void add_totals(Totals* sum, const Totals* more) noexcept nogil:
    sum.rows += more.rows
    sum.key_bytes += more.key_bytes
    sum.key_nulls += more.key_nulls
    sum.value_bytes += more.value_bytes
    sum.value_nulls += more.value_nulls
    sum.topic_bytes += more.topic_bytes
    sum.timestamp_nulls += more.timestamp_nulls
    sum.headers += more.headers
    sum.header_key_bytes += more.header_key_bytes
    sum.header_value_bytes += more.header_value_bytes
    sum.header_value_nulls += more.header_value_nulls


cdef int64_t largest(const Totals* t) noexcept nogil:
    """Of what the columns count in 32 bits, the most."""
    return max(max(max(t.key_bytes, t.value_bytes), max(t.topic_bytes, t.headers)),
               max(t.header_key_bytes, t.header_value_bytes))


cdef void release_schema(ArrowSchema* schema) noexcept nogil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i] != NULL:
            if schema.children[i].release != NULL:
                schema.children[i].release(schema.children[i])
            free(schema.children[i])
    free(schema.children)
    schema.children = NULL
    schema.n_children = 0
    schema.release = NULL


cdef void release_array(ArrowArray* array) noexcept nogil:
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i] != NULL:
            if array.children[i].release != NULL:
                array.children[i].release(array.children[i])
            free(array.children[i])
    free(array.children)
    for i in range(array.n_buffers):
        give_memory(<void*>array.buffers[i])
    free(array.buffers)
    array.children = NULL
    array.buffers = NULL
    array.n_children = array.n_buffers = 0
    array.release = NULL


cdef int start_schema(ArrowSchema* schema, const char* format, const char* name, int64_t flags,
                      int64_t children) except -1:
    """Begin a schema whose children (zeroed) are to be started in turn; releasing it half-made is fine."""
    cdef int64_t i
    memset(schema, 0, sizeof(ArrowSchema))
    schema.format = format
    schema.name = name
    schema.flags = flags
    schema.release = release_schema
    if children > 0:
        schema.children = <ArrowSchema**>calloc(children, sizeof(void*))
        if schema.children == NULL:
            raise MemoryError
        schema.n_children = children
        for i in range(children):
            schema.children[i] = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
            if schema.children[i] == NULL:
                raise MemoryError
    return 0


cdef int start_array(ArrowArray* array, int64_t length, int64_t nulls, int64_t buffers, int64_t children) except -1:
    """Begin an array, its buffers NULL and its children zeroed; releasing it half-made is fine."""
    cdef int64_t i
    memset(array, 0, sizeof(ArrowArray))
    array.length = length
    array.null_count = nulls
    array.release = release_array
    array.buffers = <const void**>calloc(buffers, sizeof(void*))
    if array.buffers == NULL:
        raise MemoryError
    array.n_buffers = buffers
    if children > 0:
        array.children = <ArrowArray**>calloc(children, sizeof(void*))
        if array.children == NULL:
            raise MemoryError
        array.n_children = children
        for i in range(children):
            array.children[i] = <ArrowArray*>calloc(1, sizeof(ArrowArray))
            if array.children[i] == NULL:
                raise MemoryError
    return 0


cdef void* new_buffer(ArrowArray* array, int index, int64_t size) except NULL:
    """A buffer of `array`, which owns it."""
    cdef void* data = take_memory(size if size > 0 else 1)
    if data == NULL:
        raise MemoryError
    array.buffers[index] = data
    return data


cdef uint8_t* new_bitmap(ArrowArray* array, int64_t rows, int64_t nulls) except? NULL:
    """The validity bitmap of `array`, all null; NULL when nothing is null."""
    if nulls == 0:
        return NULL
    data = new_buffer(array, 0, (rows + 7) // 8)
    memset(data, 0, (rows + 7) // 8)
    return <uint8_t*>data


cdef int32_t* new_offsets(ArrowArray* array, int index, int64_t rows) except NULL:
    cdef int32_t* offsets = <int32_t*>new_buffer(array, index, (rows + 1) * 4)
    offsets[0] = 0
    return offsets


cdef int column_schema(ArrowSchema* schema, int column) except -1:
    cdef ArrowSchema* element
    start_schema(schema, FORMATS[column], NAMES[column], NULLABLE, 1 if column == COLUMN_HEADERS else 0)
    if column == COLUMN_HEADERS:
        element = schema.children[0]
        start_schema(element, b"+s", b"element", NULLABLE, 2)
        start_schema(element.children[0], b"u", b"key", NULLABLE, 0)
        start_schema(element.children[1], b"z", b"value", NULLABLE, 0)
    return 0


cdef int header_column(ArrowArray* array, const Totals* t, Sink* s) except -1:
    cdef ArrowArray* element
    start_array(array, t.rows, 0, 2, 1)
    s.header_offsets = new_offsets(array, 1, t.rows)
    element = array.children[0]
    start_array(element, t.headers, 0, 1, 2)
    start_array(element.children[0], t.headers, 0, 3, 0)
    s.header_key_offsets = new_offsets(element.children[0], 1, t.headers)
    s.header_key_data = <uint8_t*>new_buffer(element.children[0], 2, t.header_key_bytes)
    start_array(element.children[1], t.headers, t.header_value_nulls, 3, 0)
    s.header_value_valid = new_bitmap(element.children[1], t.headers, t.header_value_nulls)
    s.header_value_offsets = new_offsets(element.children[1], 1, t.headers)
    s.header_value_data = <uint8_t*>new_buffer(element.children[1], 2, t.header_value_bytes)
    return 0


cdef int column_array(ArrowArray* array, int column, const Totals* t, Sink* s) except -1:
    """Allocate one column and point `s` at its buffers."""
    if column == COLUMN_KEY:
        start_array(array, t.rows, t.key_nulls, 3, 0)
        s.key_valid = new_bitmap(array, t.rows, t.key_nulls)
        s.key_offsets = new_offsets(array, 1, t.rows)
        s.key_data = <uint8_t*>new_buffer(array, 2, t.key_bytes)
    elif column == COLUMN_VALUE:
        start_array(array, t.rows, t.value_nulls, 3, 0)
        s.value_valid = new_bitmap(array, t.rows, t.value_nulls)
        s.value_offsets = new_offsets(array, 1, t.rows)
        s.value_data = <uint8_t*>new_buffer(array, 2, t.value_bytes)
    elif column == COLUMN_TOPIC:
        start_array(array, t.rows, 0, 3, 0)
        s.topic_offsets = new_offsets(array, 1, t.rows)
        s.topic_data = <uint8_t*>new_buffer(array, 2, t.topic_bytes)
    elif column == COLUMN_HEADERS:
        header_column(array, t, s)
    elif column == COLUMN_TIMESTAMP:
        start_array(array, t.rows, t.timestamp_nulls, 2, 0)
        s.timestamp_valid = new_bitmap(array, t.rows, t.timestamp_nulls)
        s.timestamps = <int64_t*>new_buffer(array, 1, t.rows * 8)
    else:
        start_array(array, t.rows, 0, 2, 0)
        if column == COLUMN_OFFSET:
            s.offsets = <int64_t*>new_buffer(array, 1, t.rows * 8)
        elif column == COLUMN_PARTITION:
            s.partitions = <int32_t*>new_buffer(array, 1, t.rows * 4)
        else:
            s.timestamp_types = <int32_t*>new_buffer(array, 1, t.rows * 4)
    return 0


@cython.final
cdef class ArrowExport:
    """Chosen columns of a batch, for takers of Arrow capsules. Immutable; any thread may export, as often as it likes."""

    cdef ConsumerBatch batch
    cdef list chosen                 # column numbers
    cdef int64_t bytes_max           # of one binary column of one array

    def __init__(self, ConsumerBatch batch not None, columns, *, int64_t binary_bytes_max=BINARY_BYTES_MAX):
        self.batch = batch
        self.bytes_max = binary_bytes_max
        self.chosen = []
        for name in columns:
            if name not in COLUMN_NAMES:
                raise ValueError(f"no column {name!r}; there are {', '.join(COLUMN_NAMES)}")
            if COLUMN_NAMES.index(name) in self.chosen:
                raise ValueError(f"column {name!r} is named twice")
            self.chosen.append(COLUMN_NAMES.index(name))

    cdef int export_schema(self, ArrowSchema* schema) except -1:
        cdef Py_ssize_t i
        try:
            start_schema(schema, b"+s", b"", 0, len(self.chosen))
            for i in range(len(self.chosen)):
                column_schema(schema.children[i], self.chosen[i])
        except MemoryError:
            release_schema(schema)
            raise
        return 0

    cdef Py_ssize_t segment_end(self, Py_ssize_t start, Totals* totals) noexcept:
        """The span after those from `start` on that fit one array (one always does); `totals` becomes their sum."""
        cdef Py_ssize_t i = start
        cdef Totals sum
        memset(totals, 0, sizeof(Totals))
        while i < self.batch.span_count:
            sum = totals[0]
            add_totals(&sum, &self.batch.spans[i].totals)
            if i > start and largest(&sum) > self.bytes_max:
                break
            totals[0] = sum
            i += 1
        return i

    cdef int fill_spans(self, Sink* sink, Py_ssize_t start, Py_ssize_t end) except -1:
        """Fill the columns in one go without the GIL; the names of the parts are gathered before."""
        cdef Py_ssize_t i
        cdef const BatchSpan* spans = self.batch.spans
        cdef PartName* names = <PartName*>malloc((len(self.batch.encoded_topics) + 1) * sizeof(PartName))
        if names == NULL:
            raise MemoryError
        for i in range(len(self.batch.encoded_topics)):
            encoded = <bytes>self.batch.encoded_topics[i]
            names[i].topic = encoded
            names[i].topic_bytes = <int32_t>len(encoded)
            names[i].partition = self.batch.partitions_of_parts[i]
        with nogil:
            for i in range(start, end):
                fill(sink, &spans[i], &names[spans[i].part])
        free(names)
        return 0

    cdef Py_ssize_t export_segment(self, Py_ssize_t start, ArrowArray* array) except -1:
        """Fill `array` with the spans from `start` on that fit; answers the span after them."""
        cdef Totals totals
        cdef Sink sink
        cdef Py_ssize_t i
        cdef Py_ssize_t end = self.segment_end(start, &totals)
        memset(&sink, 0, sizeof(Sink))
        try:
            start_array(array, totals.rows, 0, 1, len(self.chosen))
            for i in range(len(self.chosen)):
                column_array(array.children[i], self.chosen[i], &totals, &sink)
            self.fill_spans(&sink, start, end)
        except MemoryError:
            release_array(array)
            raise
        return end

    def __arrow_c_schema__(self):
        """The schema as an Arrow capsule."""
        cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
        if schema == NULL:
            raise MemoryError
        capsule = PyCapsule_New(schema, "arrow_schema", drop_schema_capsule)
        self.export_schema(schema)
        return capsule

    def __arrow_c_array__(self, requested_schema=None):
        """Schema and data as Arrow capsules. The schema asked for is not looked at: the taker casts.

        Raises OverflowError for more than 2 GiB of keys or values: `__arrow_c_stream__` splits them.
        """
        cdef ArrowArray* array
        cdef Totals totals
        if self.segment_end(0, &totals) < self.batch.span_count:
            raise OverflowError("more than 2 GiB in one column: take it as a stream of arrays (__arrow_c_stream__)")
        schema = self.__arrow_c_schema__()
        array = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if array == NULL:
            raise MemoryError
        capsule = PyCapsule_New(array, "arrow_array", drop_array_capsule)
        self.export_segment(0, array)
        return schema, capsule

    def __arrow_c_stream__(self, requested_schema=None):
        """The data as an Arrow stream capsule of one array, or of several when a column passes 2 GiB."""
        cdef ArrowArrayStream* stream = <ArrowArrayStream*>calloc(1, sizeof(ArrowArrayStream))
        if stream == NULL:
            raise MemoryError
        capsule = PyCapsule_New(stream, "arrow_array_stream", drop_stream_capsule)
        state = _StreamState(self)
        Py_INCREF(state)
        stream.private_data = <void*>state
        stream.get_schema = stream_schema
        stream.get_next = stream_next
        stream.get_last_error = stream_error
        stream.release = stream_release
        return capsule


@cython.final
cdef class _StreamState:
    """How far one stream has come; it keeps its batch alive."""

    cdef ArrowExport export
    cdef Py_ssize_t span
    cdef bytes error

    def __init__(self, export):
        self.export = export

    cdef int failed(self, object error) noexcept:
        """The errno for the taker; it is never the 0 of an end, whatever becomes of the words."""
        try:
            self.error = repr(error).encode("utf-8", "backslashreplace")
        except BaseException:
            self.error = b"there is no memory, or the error cannot be told"
        return ENOMEM if isinstance(error, MemoryError) else EIO


cdef void drop_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void drop_array_capsule(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef void drop_stream_capsule(object capsule) noexcept:
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


cdef int stream_schema(ArrowArrayStream* stream, ArrowSchema* schema) noexcept with gil:
    cdef int code = 0   # no way leads out of an `except`: Cython lets go of a traceback there that may not have been had
    state = <_StreamState>stream.private_data
    try:
        state.export.export_schema(schema)
    except BaseException as error:
        code = state.failed(error)
    return code


cdef int stream_next(ArrowArrayStream* stream, ArrowArray* array) noexcept with gil:
    cdef int code = 0
    state = <_StreamState>stream.private_data
    memset(array, 0, sizeof(ArrowArray))
    if state.span >= state.export.batch.span_count:
        return 0                     # a released array: the end
    try:
        state.span = state.export.export_segment(state.span, array)
    except BaseException as error:
        code = state.failed(error)
    return code


cdef const char* stream_error(ArrowArrayStream* stream) noexcept with gil:
    state = <_StreamState>stream.private_data
    if state.error is None:
        return NULL
    return <const char*>state.error


cdef void stream_release(ArrowArrayStream* stream) noexcept with gil:
    state = <_StreamState>stream.private_data
    stream.private_data = NULL
    stream.release = NULL
    Py_DECREF(state)
