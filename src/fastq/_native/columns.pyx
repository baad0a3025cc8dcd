"""Columns over fetched batches: what poll_batch hands out.

Rules
- `add` measures and checks every record (large batches without the GIL), so that nothing later can fail on the data; rows and columns
  are made when they are touched, and Arrow buffers by fastq._native.arrow.
- The fetched bytes stay where they are, and alive, as long as the batch does.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.number cimport PyNumber_AsSsize_t
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from fastq._native.batch_codec cimport GIL_RELEASE_BYTES
from fastq._native.consume cimport FetchedRecords, Record, decode_headers, new_record
from fastq._native.fetched_batches cimport timestamp_of
from fastq._native.records cimport CRecord, CRecordHeader, parse_record, parse_record_header

cdef enum:
    # Columns of numbers and of objects.
    OFFSETS = 0
    TIMESTAMPS = 1
    TIMESTAMP_TYPES = 2
    PARTITIONS = 3
    KEYS = 4
    VALUES = 5
    HEADERS = 6

    # Answers of measure.
    WALK_DONE = 0
    WALK_LIMIT = 1                   # a record at or above the limit: left for later
    WALK_MALFORMED = 2
    WALK_BELOW = 3                   # a record below the one before it, which nobody is given: what follows it is another span


cdef int measure(BatchSpan* batch, int64_t rows_max, int64_t limit, int64_t* position) noexcept nogil:
    """Check and count the records of `batch` below `limit`, `rows_max` at most, leaving `span.p` behind them; moves `position` along."""
    cdef Totals* totals = &batch.totals
    cdef const uint8_t* p = batch.span.p
    cdef const uint8_t* next
    cdef const uint8_t* h
    cdef CRecord r
    cdef CRecordHeader header
    cdef int64_t offset
    cdef int32_t i
    cdef int32_t left = batch.span.count
    cdef int32_t stop = <int32_t>max(left - rows_max, 0)
    cdef int status = WALK_DONE
    while left > stop:
        next = parse_record(p, batch.span.end, &r)
        if next == NULL:
            return WALK_MALFORMED
        offset = batch.span.base_offset + r.offset_delta
        if offset < position[0]:
            status = WALK_BELOW
            break
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


@cython.final
cdef class ConsumerBatch:
    """Records of one or more partitions, in fetch order, over the bytes that were fetched.

    A sequence of Record, made when touched: `len`, iteration, indexing, slices. Columns: `topics`, `partitions`,
    `offsets`, `timestamps` (milliseconds), `timestamp_types`, `keys`, `values`, `headers`. Keys and values are bytes:
    deserializers are not applied. `to_arrow` and the Arrow capsule methods export it.

    Invariants: every record was checked when it was added; it holds the fetch responses until it is dropped. Thread
    rule: once filled it does not change, but for columns kept after their first use; any thread may read it.
    """

    def __cinit__(self):
        self.topics_of_parts = []
        self.encoded_topics = []
        self.partitions_of_parts = []
        self.owners = []
        self.ends = []
        self.end_epochs = []
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
        cdef int64_t rows_max = max(self.topic_bytes_max // max(len(<bytes>self.encoded_topics[part]), 1), 1)
        cdef int status
        memset(&batch.totals, 0, sizeof(Totals))
        batch.span = chunk.span
        batch.part = part
        if chunk.span.end - start < GIL_RELEASE_BYTES:
            status = measure(batch, rows_max, chunk.limit, &position)
        else:
            with nogil:
                status = measure(batch, rows_max, chunk.limit, &position)
        if status == WALK_MALFORMED:
            chunk.corrupt(f"a record of the batch at offset {chunk.span.base_offset} is malformed")
        if status == WALK_DONE and batch.totals.rows == batch.span.count and batch.span.p != batch.span.end:
            chunk.corrupt(f"bytes follow the last record of the batch at offset {chunk.span.base_offset}")
        if batch.totals.rows > 0:
            self.owners.append(chunk.owner)     # before anything that would count rows whose bytes nobody keeps
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
            self.span_count += 1
        if status == WALK_LIMIT:
            chunk.position = max(chunk.position, chunk.limit)
            return 0
        return 1

    def add(
        self, FetchedRecords chunk not None, *, int64_t bytes_max=9223372036854775807, int64_t topic_bytes_max=1 << 30
    ):
        """Move what is left of `chunk` (below its limit) to the end of this batch, until `size_bytes` reaches `bytes_max`.
        Answers the count of records.

        Raises CorruptRecord when the next batch of `chunk` cannot be read and none was added from it; when some were,
        the next call raises.
        """
        cdef int32_t part = len(self.topics_of_parts)
        cdef int64_t before = self.rows
        self.topic_bytes_max = topic_bytes_max
        self.columns.clear()
        free(self.places)
        self.places = NULL
        self.topics_of_parts.append(chunk.topic)
        self.encoded_topics.append(chunk.topic.encode())
        self.partitions_of_parts.append(chunk.partition)
        self.ends.append(-1)
        self.end_epochs.append(-1)
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
        if self.rows > before:
            self.ends[part] = chunk.position
            self.end_epochs[part] = chunk.epoch_before(chunk.position)
        return self.rows - before

    @property
    def next_offsets(self):
        """Where to go on after these records: {(topic, partition): offset}, as `Consumer.commit` takes it."""
        return {
            (topic, partition): end
            for topic, partition, end in zip(self.topics_of_parts, self.partitions_of_parts, self.ends)
            if end >= 0
        }

    @property
    def next_positions(self):
        """`next_offsets` with the leader epoch of the record before each: {(topic, partition): (offset, leader epoch or -1)}."""
        return {
            (topic, partition): (end, epoch)
            for topic, partition, end, epoch
            in zip(self.topics_of_parts, self.partitions_of_parts, self.ends, self.end_epochs)
            if end >= 0
        }

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
        if isinstance(index, str):
            raise TypeError(f"a ConsumerBatch is indexed by the number of a record or a slice, not {index!r}: its columns are "
                            "attributes (values, keys, headers, offsets, ...), and to_arrow() is a table of them")
        row = PyNumber_AsSsize_t(index, IndexError)
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

    cdef object numbers(self, str name, bint wide, int which):
        """A column of numbers as a read-only memoryview of int64 (`wide`) or int32."""
        cdef Py_ssize_t i
        cdef int64_t left
        cdef int64_t row = 0
        cdef int32_t partition
        cdef const BatchSpan* batch
        cdef const uint8_t* p
        cdef CRecord r
        cdef char* buffer
        found = self.columns.get(name)
        if found is not None:
            return found
        data = bytearray(max(self.rows, 1) * (8 if wide else 4))
        buffer = PyByteArray_AS_STRING(data)
        for i in range(self.span_count):
            batch = &self.spans[i]
            partition = self.partitions_of_parts[batch.part]
            p = batch.span.p
            left = batch.totals.rows
            while left > 0:
                left -= 1
                p = parse_record(p, batch.span.end, &r)
                if which == OFFSETS:
                    (<int64_t*>buffer)[row] = batch.span.base_offset + r.offset_delta
                elif which == TIMESTAMPS:
                    (<int64_t*>buffer)[row] = timestamp_of(&batch.span, &r)
                elif which == PARTITIONS:
                    (<int32_t*>buffer)[row] = partition
                else:
                    (<int32_t*>buffer)[row] = batch.span.timestamp_type
                row += 1
        view = memoryview(data).cast("q" if wide else "i")[:self.rows].toreadonly()
        self.columns[name] = view
        return view

    cdef list objects(self, str name, int which):
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
                if which == HEADERS:
                    values.append(decode_headers(r.headers, r.end, r.header_count))
                elif which == KEYS:
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
        return self.numbers("partitions", False, PARTITIONS)

    @property
    def offsets(self):
        """The offset of every record, a read-only memoryview of int64 (numpy.asarray takes it without a copy)."""
        return self.numbers("offsets", True, OFFSETS)

    @property
    def timestamps(self):
        """Milliseconds since 1970 of every record, -1 for none, a read-only memoryview of int64."""
        return self.numbers("timestamps", True, TIMESTAMPS)

    @property
    def timestamp_types(self):
        """0 create time, 1 log append time, -1 none, of every record: a read-only memoryview of int32."""
        return self.numbers("timestamp_types", False, TIMESTAMP_TYPES)

    @property
    def keys(self):
        """The key of every record, a list of bytes or None; made when first touched."""
        return self.objects("keys", KEYS)

    @property
    def values(self):
        """The value of every record, a list of bytes or None; made when first touched."""
        return self.objects("values", VALUES)

    @property
    def headers(self):
        """The headers of every record, a list of tuples of (str, bytes or None)."""
        return self.objects("headers", HEADERS)

    def arrow(self, columns=None, *, headers=False):
        """The records for any taker of Arrow capsules (Polars, pandas, DuckDB, pyarrow), which need no pyarrow.

        columns: the names to export, in their order: key, value, topic, partition, offset, timestamp, timestampType,
        headers; None for all but headers, which come with `headers`. Raises ValueError for another name.
        """
        from fastq._native.arrow import COLUMN_NAMES, ArrowExport
        if columns is None:
            columns = [name for name in COLUMN_NAMES if name != "headers"]
        chosen = [*columns, "headers"] if headers and "headers" not in columns else list(columns)
        return ArrowExport(self, chosen)

    def to_arrow(self, columns=None, *, headers=False):
        """The records as a pyarrow.Table; `arrow()` has the parameters, and serves the libraries that need no pyarrow.

        Raises ImportError, with what to install, where pyarrow is not installed.
        """
        try:
            from pyarrow import table
        except ImportError:
            raise ImportError(
                "to_arrow() needs pyarrow: pip install pyarrow; "
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
