"""Columns over fetched batches: what poll_batch hands out, and its export over the Arrow C Data Interface.

Rules
- Two passes over the fetched bytes: `add` measures and checks (so that nothing later can fail on the data), an export
  fills malloc'ed buffers; both without the GIL. No Python object is made for a record until a row is touched.
- Every exported ArrowArray owns its buffers alone: one release function serves them all, from any thread.
- An Arrow binary column has 32-bit offsets: what would pass 2 GiB comes as several arrays of one stream.
- The schema is that of Spark's Kafka source: key, value, topic, partition, offset, timestamp, timestampType, headers.
Source: the Arrow C Data, C Stream and PyCapsule interfaces.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport INT64_MAX, int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from fastq._native.consume cimport FetchedRecords, Record, RecordSpan, decode_headers, new_record, timestamp_of
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

    WALK_DONE = 0
    WALK_LIMIT = 1                   # a record at or above the limit: left for later
    WALK_MALFORMED = 2

cdef extern from *:
    """
    #include <stdint.h>
    #ifndef ARROW_C_DATA_INTERFACE
    #define ARROW_C_DATA_INTERFACE
    struct ArrowSchema {
      const char *format, *name, *metadata; int64_t flags, n_children;
      struct ArrowSchema **children, *dictionary; void (*release)(struct ArrowSchema *); void *private_data;
    };
    struct ArrowArray {
      int64_t length, null_count, offset, n_buffers, n_children; const void **buffers;
      struct ArrowArray **children, *dictionary; void (*release)(struct ArrowArray *); void *private_data;
    };
    #endif
    #ifndef ARROW_C_STREAM_INTERFACE
    #define ARROW_C_STREAM_INTERFACE
    struct ArrowArrayStream {
      int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
      int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
      const char *(*get_last_error)(struct ArrowArrayStream *);
      void (*release)(struct ArrowArrayStream *); void *private_data;
    };
    #endif
    """
    struct ArrowSchema:
        const char* format
        const char* name
        int64_t flags
        int64_t n_children
        ArrowSchema** children
        void (*release)(ArrowSchema*) noexcept nogil

    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        void (*release)(ArrowArray*) noexcept nogil

    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept
        int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept
        const char* (*get_last_error)(ArrowArrayStream*) noexcept
        void (*release)(ArrowArrayStream*) noexcept
        void* private_data

ctypedef const char* Text

# In the order of the schema: name and Arrow format of every column.
cdef Text[COLUMNS] NAMES = [
    b"key", b"value", b"topic", b"partition", b"offset", b"timestamp", b"timestampType", b"headers",
]
cdef Text[COLUMNS] FORMATS = [b"z", b"z", b"u", b"i", b"l", b"tsu:UTC", b"i", b"+l"]

COLUMN_NAMES = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
BINARY_BYTES_MAX = 0x7FFFFFFF

cdef struct Totals:
    # What a column of some rows needs.
    int64_t rows
    int64_t key_bytes
    int64_t key_nulls
    int64_t value_bytes
    int64_t value_nulls
    int64_t topic_bytes
    int64_t timestamp_nulls
    int64_t headers
    int64_t header_key_bytes
    int64_t header_value_bytes
    int64_t header_value_nulls

cdef struct BatchSpan:
    RecordSpan span                  # exactly the records of this batch
    int32_t part                     # index of its topic and partition
    int64_t first_row
    int64_t next_row
    Totals totals

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


cdef int measure(BatchSpan* batch, int64_t limit, int64_t* position) noexcept nogil:
    """Check and count the records of `batch` below `limit`, leaving `span.p` behind them; moves `position` along."""
    cdef Totals* totals = &batch.totals
    cdef const uint8_t* p = batch.span.p
    cdef const uint8_t* next
    cdef const uint8_t* h
    cdef CRecord r
    cdef CRecordHeader header
    cdef int64_t offset
    cdef int32_t i
    cdef int32_t left = batch.span.count
    cdef int status = WALK_DONE
    while left > 0:
        next = parse_record(p, batch.span.end, &r)
        if next == NULL:
            return WALK_MALFORMED
        offset = batch.span.base_offset + r.offset_delta
        if offset < position[0]:
            return WALK_MALFORMED
        if offset >= limit:
            status = WALK_LIMIT
            break
        left -= 1
        p = next
        position[0] = offset + 1
        if r.key_length >= 0:
            totals.key_bytes += r.key_length
        else:
            totals.key_nulls += 1
        if r.value_length >= 0:
            totals.value_bytes += r.value_length
        else:
            totals.value_nulls += 1
        if r.header_count > 0:
            totals.headers += r.header_count
            h = r.headers
            for i in range(r.header_count):
                h = parse_record_header(h, r.end, &header)
                if h == NULL:
                    return WALK_MALFORMED
                totals.header_key_bytes += header.key_length
                if header.value_length >= 0:
                    totals.header_value_bytes += header.value_length
                else:
                    totals.header_value_nulls += 1
    totals.rows = batch.span.count - left
    if batch.span.timestamp_type < 0:
        totals.timestamp_nulls = totals.rows
    batch.span.p = p
    return status


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


cdef void fill(Sink* s, const BatchSpan* batch, const uint8_t* topic, int32_t topic_bytes,
               int32_t partition) noexcept nogil:
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
            put_binary(s.topic_offsets, s.topic_data, NULL, &s.topic_end, s.row, topic, topic_bytes)
        if s.partitions != NULL:
            s.partitions[s.row] = partition
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


@cython.final
cdef class ConsumerBatch:
    """Records of one or more partitions, in fetch order, over the bytes that were fetched.

    A sequence of Record, made when touched: `len`, iteration, indexing, slices. Columns: `topics`, `partitions`,
    `offsets`, `timestamps` (milliseconds), `timestamp_types`, `keys`, `values`, `headers`. Keys and values are bytes:
    deserializers are not applied. `to_arrow` and the Arrow capsule methods export it.

    Invariants: every record was checked when it was added; it holds the fetch responses until it is dropped. Thread
    rule: once filled it does not change, but for columns kept after their first use; any thread may read it.
    """

    cdef list topics_of_parts        # str
    cdef list encoded_topics         # bytes
    cdef list partitions_of_parts    # int
    cdef list owners
    cdef BatchSpan* spans
    cdef Py_ssize_t span_count
    cdef Py_ssize_t span_capacity
    cdef int64_t rows
    cdef readonly int64_t size_bytes  # of keys, values and headers
    cdef const uint8_t** places      # of every row, made for the first index
    cdef dict columns

    def __cinit__(self):
        self.topics_of_parts = []
        self.encoded_topics = []
        self.partitions_of_parts = []
        self.owners = []
        self.columns = {}

    def __dealloc__(self):
        free(self.spans)
        free(self.places)

    cdef BatchSpan* reserve(self) except NULL:
        """Room for one more span."""
        cdef BatchSpan* grown
        cdef Py_ssize_t capacity
        if self.span_count == self.span_capacity:
            capacity = self.span_capacity * 2 + 16
            grown = <BatchSpan*>realloc(self.spans, capacity * sizeof(BatchSpan))
            if grown == NULL:
                raise MemoryError
            self.spans = grown
            self.span_capacity = capacity
        return &self.spans[self.span_count]

    cdef int add_span(self, FetchedRecords chunk, int32_t part) except -1:
        """Take over the open span of `chunk`; 0 when its limit was met."""
        cdef BatchSpan* batch = self.reserve()
        cdef const uint8_t* start = chunk.span.p
        cdef int64_t position = chunk.position
        cdef int status
        memset(&batch.totals, 0, sizeof(Totals))
        batch.span = chunk.span
        batch.part = part
        with nogil:
            status = measure(batch, chunk.limit, &position)
        if status == WALK_MALFORMED:
            chunk.corrupt(f"a record of the batch at offset {chunk.span.base_offset} is malformed or out of order")
        if status == WALK_DONE and batch.span.p != batch.span.end:
            chunk.corrupt(f"bytes follow the last record of the batch at offset {chunk.span.base_offset}")
        if batch.totals.rows > 0:
            batch.totals.topic_bytes = batch.totals.rows * len(self.encoded_topics[part])
            chunk.position = position
            chunk.span.p = batch.span.p
            chunk.span.count -= batch.totals.rows
            batch.span.p = start
            batch.first_row = self.rows
            self.rows += batch.totals.rows
            self.size_bytes += (
                batch.totals.key_bytes + batch.totals.value_bytes
                + batch.totals.header_key_bytes + batch.totals.header_value_bytes
            )
            batch.next_row = self.rows
            self.owners.append(chunk.owner)
            self.span_count += 1
        if status == WALK_LIMIT:
            chunk.position = max(chunk.position, chunk.limit)
            return 0
        return 1

    def add(self, FetchedRecords chunk not None, *, int64_t bytes_max=INT64_MAX):
        """Move what is left of `chunk` (below its limit) to the end of this batch, until `size_bytes` reaches `bytes_max`.
        Answers the count of records.

        Raises CorruptRecord when the next batch of `chunk` cannot be read and none was added from it; when some were,
        the next call raises.
        """
        cdef int32_t part = len(self.topics_of_parts)
        cdef int64_t before = self.rows
        self.columns.clear()
        free(self.places)
        self.places = NULL
        self.topics_of_parts.append(chunk.topic)
        self.encoded_topics.append(chunk.topic.encode())
        self.partitions_of_parts.append(chunk.partition)
        try:
            while self.size_bytes < bytes_max:
                if chunk.span.count == 0:
                    if chunk.owner is not None:
                        chunk.close_span()
                        chunk.owner = None
                    if chunk.open_batch() == 0:
                        break
                if chunk.drop_below_position() and self.add_span(chunk, part) == 0:
                    break
        except Exception:
            if self.rows == before:
                raise
        return self.rows - before

    cdef Record row_at(self, int64_t row):
        """The record of a row, 0 to rows - 1."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.span_count - 1
        cdef Py_ssize_t middle
        cdef BatchSpan* batch
        cdef CRecord r
        if self.places == NULL:
            self.find_places()
        while low < high:
            middle = (low + high) // 2
            if row < self.spans[middle].next_row:
                high = middle
            else:
                low = middle + 1
        batch = &self.spans[low]
        parse_record(self.places[row], batch.span.end, &r)
        return new_record(self.topics_of_parts[batch.part], self.partitions_of_parts[batch.part], &batch.span, &r)

    cdef int find_places(self) except -1:
        """Note where every row begins."""
        cdef Py_ssize_t i
        cdef int64_t row
        cdef const uint8_t* p
        cdef CRecord r
        self.places = <const uint8_t**>malloc(max(self.rows, 1) * sizeof(uint8_t*))
        if self.places == NULL:
            raise MemoryError
        for i in range(self.span_count):
            p = self.spans[i].span.p
            for row in range(self.spans[i].first_row, self.spans[i].next_row):
                self.places[row] = p
                p = parse_record(p, self.spans[i].span.end, &r)
        return 0

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        cdef int64_t row
        if isinstance(index, slice):
            return [self.row_at(row) for row in range(*index.indices(self.rows))]
        row = index.__index__()
        if row < 0:
            row += self.rows
        if row < 0 or row >= self.rows:
            raise IndexError(f"record {index} of {self.rows}")
        return self.row_at(row)

    def __iter__(self):
        cdef Py_ssize_t i
        cdef int64_t left
        cdef const uint8_t* p
        cdef CRecord r
        for i in range(self.span_count):
            topic = self.topics_of_parts[self.spans[i].part]
            partition = self.partitions_of_parts[self.spans[i].part]
            p = self.spans[i].span.p
            left = self.spans[i].totals.rows
            while left > 0:
                left -= 1
                p = parse_record(p, self.spans[i].span.end, &r)
                yield new_record(topic, partition, &self.spans[i].span, &r)

    def __repr__(self):
        parts = sorted({f"{topic}-{partition}" for topic, partition
                        in zip(self.topics_of_parts, self.partitions_of_parts)})
        return f"ConsumerBatch({self.rows} records of {', '.join(parts) or 'no partition'})"

    cdef list per_part(self, list values):
        """A list with the value of its part for every row."""
        cdef list column = []
        cdef Py_ssize_t i
        for i in range(self.span_count):
            column.extend([values[self.spans[i].part]] * self.spans[i].totals.rows)
        return column

    cdef object numbers(self, str name, int column):
        """A column of numbers as a read-only memoryview of int64 or int32."""
        cdef Sink sink
        cdef Py_ssize_t i
        cdef uint8_t[::1] buffer
        found = self.columns.get(name)
        if found is not None:
            return found
        wide = column == COLUMN_OFFSET or column == COLUMN_TIMESTAMP
        data = bytearray(max(self.rows, 1) * (8 if wide else 4))
        buffer = data
        memset(&sink, 0, sizeof(Sink))
        if column == COLUMN_OFFSET:
            sink.offsets = <int64_t*>&buffer[0]
        elif column == COLUMN_PARTITION:
            sink.partitions = <int32_t*>&buffer[0]
        elif column == COLUMN_TIMESTAMP_TYPE:
            sink.timestamp_types = <int32_t*>&buffer[0]
        if column == COLUMN_TIMESTAMP:
            self.fill_milliseconds(<int64_t*>&buffer[0])
        else:
            for i in range(self.span_count):
                fill(&sink, &self.spans[i], NULL, 0, self.partitions_of_parts[self.spans[i].part])
        view = memoryview(data).cast("q" if wide else "i")[:self.rows].toreadonly()
        self.columns[name] = view
        return view

    cdef int fill_milliseconds(self, int64_t* timestamps) except -1:
        cdef Py_ssize_t i
        cdef int64_t left
        cdef const uint8_t* p
        cdef CRecord r
        for i in range(self.span_count):
            p = self.spans[i].span.p
            left = self.spans[i].totals.rows
            while left > 0:
                left -= 1
                p = parse_record(p, self.spans[i].span.end, &r)
                timestamps[0] = timestamp_of(&self.spans[i].span, &r)
                timestamps += 1
        return 0

    cdef list objects(self, str name, int column):
        """A column of bytes (or header tuples) as a list."""
        cdef Py_ssize_t i
        cdef int64_t left
        cdef const uint8_t* p
        cdef CRecord r
        cdef list values
        found = self.columns.get(name)
        if found is not None:
            return found
        values = []
        for i in range(self.span_count):
            p = self.spans[i].span.p
            left = self.spans[i].totals.rows
            while left > 0:
                left -= 1
                p = parse_record(p, self.spans[i].span.end, &r)
                if column == COLUMN_HEADERS:
                    values.append(decode_headers(r.headers, r.end, r.header_count))
                elif column == COLUMN_KEY:
                    values.append(None if r.key_length < 0
                                  else PyBytes_FromStringAndSize(<const char*>r.key, r.key_length))
                else:
                    values.append(None if r.value_length < 0
                                  else PyBytes_FromStringAndSize(<const char*>r.value, r.value_length))
        self.columns[name] = values
        return values

    @property
    def topics(self):
        """The topic of every record, a list of str."""
        if "topics" not in self.columns:
            self.columns["topics"] = self.per_part(self.topics_of_parts)
        return self.columns["topics"]

    @property
    def partitions(self):
        """The partition of every record, a read-only memoryview of int32."""
        return self.numbers("partitions", COLUMN_PARTITION)

    @property
    def offsets(self):
        """The offset of every record, a read-only memoryview of int64 (numpy.asarray takes it without a copy)."""
        return self.numbers("offsets", COLUMN_OFFSET)

    @property
    def timestamps(self):
        """Milliseconds since 1970 of every record, -1 for none, a read-only memoryview of int64."""
        return self.numbers("timestamps", COLUMN_TIMESTAMP)

    @property
    def timestamp_types(self):
        """0 create time, 1 log append time, -1 none, of every record: a read-only memoryview of int32."""
        return self.numbers("timestamp_types", COLUMN_TIMESTAMP_TYPE)

    @property
    def keys(self):
        """The key of every record, a list of bytes or None; made when first touched."""
        return self.objects("keys", COLUMN_KEY)

    @property
    def values(self):
        """The value of every record, a list of bytes or None; made when first touched."""
        return self.objects("values", COLUMN_VALUE)

    @property
    def headers(self):
        """The headers of every record, a list of tuples of (str, bytes or None)."""
        return self.objects("headers", COLUMN_HEADERS)

    def arrow(self, columns=None, *, headers=False):
        """The records for any taker of Arrow capsules (Polars, pandas, DuckDB, pyarrow), which need no pyarrow.

        columns: the names to export, in their order: key, value, topic, partition, offset, timestamp, timestampType,
        headers; None for all but headers, which come with `headers`. Raises ValueError for another name.
        """
        if columns is None:
            columns = COLUMN_NAMES[:COLUMN_HEADERS]
        chosen = [*columns, "headers"] if headers and "headers" not in columns else list(columns)
        return ArrowExport(self, chosen)

    def to_arrow(self, columns=None, *, headers=False):
        """The records as a pyarrow.Table; `arrow()` has the parameters, and serves the libraries that need no pyarrow.

        Raises ImportError, naming the extra, where pyarrow is not installed.
        """
        try:
            from pyarrow import table
        except ImportError:
            raise ImportError(
                "to_arrow() needs pyarrow: pip install 'fastq-sdk[arrow]'; "
                "Polars, pandas and DuckDB take the batch itself, or batch.arrow(), without it"
            ) from None
        return table(self.arrow(columns, headers=headers))

    def __arrow_c_schema__(self):
        """The schema as an Arrow capsule."""
        return self.arrow().__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema=None):
        """Schema and data as Arrow capsules, all columns but headers."""
        return self.arrow().__arrow_c_array__(requested_schema)

    def __arrow_c_stream__(self, requested_schema=None):
        """The data as an Arrow stream capsule, all columns but headers."""
        return self.arrow().__arrow_c_stream__(requested_schema)


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
        free(<void*>array.buffers[i])
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
    cdef void* data = malloc(size if size > 0 else 1)
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

    cdef Py_ssize_t export_segment(self, Py_ssize_t start, ArrowArray* array) except -1:
        """Fill `array` with the spans from `start` on that fit; answers the span after them."""
        cdef Totals totals
        cdef Sink sink
        cdef BatchSpan* span
        cdef const uint8_t* topic
        cdef int32_t topic_bytes
        cdef int32_t partition
        cdef Py_ssize_t i
        cdef Py_ssize_t end = self.segment_end(start, &totals)
        memset(&sink, 0, sizeof(Sink))
        try:
            start_array(array, totals.rows, 0, 1, len(self.chosen))
            for i in range(len(self.chosen)):
                column_array(array.children[i], self.chosen[i], &totals, &sink)
        except MemoryError:
            release_array(array)
            raise
        for i in range(start, end):
            span = &self.batch.spans[i]
            encoded = <bytes>self.batch.encoded_topics[span.part]
            topic = encoded
            topic_bytes = len(encoded)
            partition = self.batch.partitions_of_parts[span.part]
            with nogil:
                fill(&sink, span, topic, topic_bytes, partition)
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
    state = <_StreamState>stream.private_data
    try:
        state.export.export_schema(schema)
    except BaseException as error:
        state.error = repr(error).encode()
        return ENOMEM if isinstance(error, MemoryError) else EIO
    return 0


cdef int stream_next(ArrowArrayStream* stream, ArrowArray* array) noexcept with gil:
    state = <_StreamState>stream.private_data
    memset(array, 0, sizeof(ArrowArray))
    if state.span >= state.export.batch.span_count:
        return 0                     # a released array: the end
    try:
        state.span = state.export.export_segment(state.span, array)
    except BaseException as error:
        state.error = repr(error).encode()
        return ENOMEM if isinstance(error, MemoryError) else EIO
    return 0


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
