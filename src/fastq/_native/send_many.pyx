"""send_many: a native loop over many records, and one handle for all of them.

Rules
- `SendMany.step` appends until it is through, there is no room, or a batch was begun or closed; the producer then waits or
  drives, and calls it again. It never waits itself.
- The handle keeps segments: runs of records that lie one after the other in one batch. A keyless call needs no more than
  a segment a batch; otherwise each record's segment is kept too (4 bytes), so that a failure can name positions.
"""

cimport cython
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t
from libc.stdlib cimport free, realloc

from fastq._native.accumulator cimport APPENDED, NO_PARTITION, NO_ROOM, Accumulator, Appended
from fastq._native.arrow_source cimport COLUMN_ABSENT, ArrowSource
from fastq._native.producer_batch cimport BATCH_DONE, Batch, PartitionState, TopicState, check_callback
from fastq._native.producer_core cimport Field, ProducerCore, drop_field, encode_headers, take_field, whole_number

from fastq._native.arrow_source import is_arrow

cdef extern from "look_ahead.h":
    void fastq_look_ahead(list items, Py_ssize_t next) noexcept

cdef struct Segment:
    int32_t first           # index in the batch
    int32_t count
    int64_t start           # position of its first record among all


@cython.final
cdef class ManyDelivery:
    """The handle of one send_many. Thread rule: any thread, once send_many has returned."""

    cdef readonly str topic
    cdef readonly int64_t count
    cdef Accumulator accumulator
    cdef list batches               # of each segment
    cdef Segment* segments
    cdef uint32_t* segment_of       # of each record; NULL while positions follow from the segments
    cdef Py_ssize_t segments_max
    cdef int64_t records_max

    def __cinit__(self, Accumulator accumulator, str topic):
        self.accumulator = accumulator
        self.topic = topic
        self.batches = []

    def __dealloc__(self):
        free(self.segments)
        free(self.segment_of)

    def __len__(self):
        return self.count

    def __repr__(self):
        return f"<ManyDelivery {self.topic} records={self.count} {'done' if self.done() else 'pending'}>"

    cdef int add(self, PartitionState partition, Batch batch, int32_t index, bint scattered) except -1:
        """Note where the next record went."""
        cdef Segment* segment = NULL
        cdef int32_t place = partition.many_segment
        if partition.many is self and self.batches[place] is batch:
            segment = &self.segments[place]
            if segment.first + segment.count != index or (not scattered and segment.start + segment.count != self.count):
                segment = NULL
        if segment == NULL:
            place = <int32_t>len(self.batches)
            if place >= self.segments_max:
                self.segments = <Segment*>grown(self.segments, max(16, self.segments_max * 2) * sizeof(Segment))
                self.segments_max = max(16, self.segments_max * 2)
            segment = &self.segments[place]
            segment.first = index
            segment.count = 0
            segment.start = self.count
            self.batches.append(batch)
            partition.many = self
            partition.many_segment = place
        segment.count += 1
        if scattered:
            if self.count >= self.records_max:
                self.segment_of = <uint32_t*>grown(self.segment_of, max(1024, self.records_max * 2) * sizeof(uint32_t))
                self.records_max = max(1024, self.records_max * 2)
            self.segment_of[self.count] = place
        self.count += 1
        return 0

    def done(self):
        """True once every record is delivered or has failed."""
        cdef Batch batch
        for batch in reversed(self.batches):
            if batch.state_ != BATCH_DONE:
                return False
        return True

    def result(self, timeout=None):
        """Wait for all answers, at most `timeout` seconds (None: until delivery_timeout_ms has decided).

        Answers SendManyResult, the offsets by partition; raises SendManyError, which says which records failed and why,
        or WaitTimeout, after which they are still on their way.
        """
        self.wait(timeout)
        return self.outcome()

    def exception(self, timeout=None):
        """Wait as `result` does and answer the SendManyError, or None when all were delivered."""
        from fastq.producer.delivery import SendManyError

        self.wait(timeout)
        failed = None
        try:
            self.outcome()
        except SendManyError as error:
            failed = error
        return failed

    def add_done_callback(self, callback):
        """Call `callback(delivery)` once all records are done, in the thread that drains the last answer."""
        cdef Batch batch
        check_callback(callback)
        for batch in reversed(self.batches):
            if batch.state_ != BATCH_DONE:
                batch.add_callback(0, self._next_callback, callback)
                if batch.state_ == BATCH_DONE:      # since: its thread may have run the callbacks already
                    self.accumulator.wait_done(batch, 0)
                return
        if self.batches:
            batch = self.batches[len(self.batches) - 1]
            batch.add_callback(0, self._run_callback, callback)
            self.accumulator.wait_done(batch, 0)
        else:
            callback(self)

    def _next_callback(self, callback):
        if self.done():
            callback(self)
        else:
            self.add_done_callback(callback)

    def _run_callback(self, callback):
        callback(self)

    def __await__(self):
        return self._wait_async().__await__()

    async def _wait_async(self):
        cdef Batch batch
        for batch in self.batches:
            if batch.state_ != BATCH_DONE:
                await self.accumulator.wait_done(batch, None)
        return self.outcome()

    def wait(self, timeout):
        """Wait as `result` does, at most `timeout` seconds (None: until delivery_timeout_ms has decided); what became of the records
        says `outcome`, and nothing else is made of it. Raises WaitTimeout.
        """
        cdef Batch batch
        from time import monotonic

        from fastq.timeouts import check_timeout

        check_timeout(timeout)
        end = None if timeout is None else monotonic() + timeout
        for batch in self.batches:
            if batch.state_ != BATCH_DONE:
                self.accumulator.wait_done(batch, None if end is None else max(end - monotonic(), 0.0))
                if batch.state_ != BATCH_DONE:  # an asyncio producer waits by await alone
                    import asyncio

                    raise asyncio.InvalidStateError("the broker has not answered yet: await the delivery")

    def outcome(self):
        """SendManyResult of a done call; raises SendManyError when records of it failed."""
        from fastq.producer.delivery import SendManyError, SendManyResult, TopicPartition

        cdef PartitionState partition
        offsets = {}
        elsewhere = {}
        failed = {}
        for place, batch in enumerate(self.batches):
            for error, start, first, count in leaves(batch, self.segments[place].first, self.segments[place].count):
                if error is not None:
                    failed.setdefault(id(error), (error, []))[1].append((place, first, count))
                    continue
                partition = (<Batch>batch).partition
                if partition.topic.name == self.topic:
                    ranges = offsets.setdefault(partition.index, [])
                else:
                    ranges = elsewhere.setdefault(TopicPartition(partition.topic.name, partition.index), [])
                last = ranges[len(ranges) - 1] if ranges else range(-1, -1)
                if last.start >= 0 and last.stop == start:
                    ranges[len(ranges) - 1] = range(last.start, start + count)
                elif start < 0:
                    ranges.append(range(-1, count - 1))
                else:
                    ranges.append(range(start, start + count))
        failures = [(error, self.positions(parts)) for error, parts in failed.values()]
        lost = sum([len(positions) for _, positions in failures])
        delivered = SendManyResult(self.topic, self.count - lost, offsets, elsewhere)
        if not failures:
            return delivered
        causes = "; ".join(f"{len(positions)} from position {positions[0]} on: {error}" for error, positions in failures[:3])
        raise SendManyError(
            f"{lost} of {self.count} records were not delivered ({causes})", failures=failures, delivered=delivered,
            topic=self.topic,
        )

    cdef object positions(self, list parts):
        """Positions of failed records: of (segment, first index in the batch, count) parts."""
        cdef int64_t i
        cdef list found = []
        if self.segment_of == NULL:
            for place, first, count in parts:
                start = self.segments[<Py_ssize_t>place].start + first - self.segments[<Py_ssize_t>place].first
                found.extend(range(start, start + count))
            return found
        wanted = {}
        for place, first, count in parts:
            wanted.setdefault(place, []).append((first, first + count))
        seen = {}
        for i in range(self.count):
            place = self.segment_of[i]
            if place in wanted:
                index = self.segments[<Py_ssize_t>place].first + seen.get(place, 0)
                seen[place] = seen.get(place, 0) + 1
                if any(low <= index < high for low, high in wanted[place]):
                    found.append(i)
        return found


cdef void* grown(void* memory, size_t size) except NULL:
    cdef void* larger = realloc(memory, size)
    if larger == NULL:
        raise MemoryError(f"{size} bytes for the handle of send_many")
    return larger


def leaves(Batch batch, int32_t first, int32_t count):
    """(error, offset, first, count) of what became of a run of records of a DONE batch, split or not."""
    cdef Batch child
    if batch.children is None:
        offset = batch.base_offset + first if batch.base_offset >= 0 else -1
        return [(batch.error, offset, first, count)]
    parts = []
    for child in batch.children:
        low = max(first, child.first_in_parent)
        high = min(first + count, child.first_in_parent + child.count)
        if low < high:
            inner = leaves(child, low - child.first_in_parent, high - low)
            parts.extend([(error, offset, start + child.first_in_parent, n) for error, offset, start, n in inner])
    return parts


@cython.final
cdef class SendMany:
    """One call of send_many on its way.

    `convert` is None, or what stands between a row and its bytes: `convert(value, key, headers, partition, timestamp)` answers
    (TopicState, value, key, headers, partition, timestamp, record), or the name of a topic that has to become known, or
    for which a serializer has to load something, before the row comes again; where `record` is not None,
    `convert.appended(record, delivery)` or `convert.refused(record, error)` says what became of it.
    Invariant: while `has_raw`, the current row is read and not yet converted; while `has_row`, it is not yet appended. Thread
    rule: one thread.
    """

    cdef ProducerCore core
    cdef readonly TopicState topic
    cdef readonly ManyDelivery delivery
    cdef readonly bint needs_room           # step found no room: `wanted_bytes` of the accumulator
    cdef readonly str needs_topic           # step needs this topic to be known
    cdef readonly object needs_partition    # step needs this partition of `row_topic` to be known
    cdef list values                        # a list is read by index
    cdef Py_ssize_t next_value
    cdef object iterator                    # anything else row by row
    cdef ArrowSource arrow
    cdef list listed_keys                   # keys in a list, read by index too
    cdef Py_ssize_t next_key
    cdef object keys
    cdef ArrowSource arrow_keys
    cdef object headers
    cdef object timestamps
    cdef object partition
    cdef object convert
    cdef bint scattered
    cdef bint plain                         # values only: nothing to look up for a row
    cdef bint has_raw
    cdef bint has_row
    cdef readonly TopicState row_topic
    cdef object record                      # of the row, where somebody wants to hear of it
    cdef set strangers                      # other topics that rows went to
    cdef object value_
    cdef object key_
    cdef object headers_
    cdef bytes encoded_                     # the headers as a record stores them, where they come from Arrow
    cdef object partition_
    cdef object timestamp_

    def __cinit__(self, ProducerCore core, TopicState topic, values, keys, headers, partition, timestamps, convert):
        self.core = core
        self.topic = self.row_topic = topic
        self.strangers = set()
        self.delivery = ManyDelivery(core.accumulator, topic.name)
        self.partition = partition
        self.convert = convert
        if is_arrow(values):
            self.arrow = ArrowSource(values)
            if self.arrow.is_table and not (keys is None and headers is None and timestamps is None):
                raise ValueError("an Arrow table brings its own keys, headers and timestamps: give columns, not arguments")
        elif PyList_CheckExact(values):
            self.values = values
        else:
            self.iterator = each_of(values, "values")
        if keys is not None:
            if is_arrow(keys):
                self.arrow_keys = ArrowSource(keys)
                if self.arrow_keys.is_table:
                    raise TypeError("keys is an Arrow table, expected an array")
            elif PyList_CheckExact(keys):
                self.listed_keys = keys
            else:
                self.keys = each_of(keys, "keys")
        self.headers = None if headers is None else each_of(headers, "headers")
        self.timestamps = None if timestamps is None else each_of(as_rows(timestamps), "timestamps")
        self.scattered = keys is not None or convert is not None or (self.arrow is not None and self.arrow.is_table)
        self.plain = keys is None and headers is None and timestamps is None and convert is None and self.arrow is None

    @property
    def accepted(self):
        """How many records were appended so far."""
        return self.delivery.count

    def step(self):
        """Append records; True when all are in, False when the producer has to wait (`needs_...`) or to drive."""
        cdef Accumulator accumulator = self.core.accumulator
        cdef int code
        self.needs_room = False
        self.needs_topic = self.needs_partition = None
        try:
            while True:
                if not self.has_row:
                    if not self.has_raw and not self.advance():
                        self.finish()
                        return True
                    if self.convert is not None and not self.run_convert():
                        return False
                    self.has_row = True
                code = self.append_row()
                if code == NO_ROOM:
                    self.needs_room = True
                    return False
                if code == NO_PARTITION:
                    self.needs_partition = whole_number(self.asked_partition(), "partition")
                    return False
                self.has_row = False
                if accumulator.attention:
                    accumulator.attention = False
                    return False
        except BaseException as error:
            self.give_up(error)
            raise

    def give_up(self, error):
        """The call ends with `error`, which says how many records were accepted before it (`accepted`)."""
        record = self.record
        error.accepted = self.delivery.count
        self.record = None
        self.finish()
        if record is not None:
            self.convert.refused(record, error)

    cdef int run_convert(self) except -1:
        """Make bytes of the row; 0 when something has to be known or loaded for its topic first."""
        self.has_raw = True
        converted = self.convert(self.value_, self.key_, self.headers_, self.partition_, self.timestamp_)
        if isinstance(converted, str):
            self.needs_topic = converted
            return 0
        (
            self.row_topic, self.value_, self.key_, self.headers_, self.partition_, self.timestamp_, self.record
        ) = converted
        self.has_raw = False
        if self.row_topic is not self.topic:
            self.strangers.add(self.row_topic)
        return 1

    cdef int advance(self) except -1:
        """Read the next row; 0 after the last one. Columns of different length are an error."""
        cdef bint over
        if self.values is not None:
            if self.next_value >= PyList_GET_SIZE(self.values):
                return self.check_end()
            fastq_look_ahead(self.values, self.next_value)
            self.value_ = <object>PyList_GET_ITEM(self.values, self.next_value)
            self.next_value += 1
        elif self.arrow is not None:
            if not self.arrow.advance():
                return self.check_end()
        else:
            over = False
            try:
                self.value_ = next(self.iterator)
            except StopIteration:
                over = True
            if over:
                return self.check_end()
        if not self.plain:
            self.read_columns()
        return 1

    cdef int check_end(self) except -1:
        for name, column in (("keys", self.keys), ("headers", self.headers), ("timestamps", self.timestamps)):
            if column is not None:
                for _ in column:
                    raise ValueError(f"{name} is longer than values, which ended after {self.delivery.count}")
        if (self.arrow_keys is not None and self.arrow_keys.advance()) or (
            self.listed_keys is not None and self.next_key < PyList_GET_SIZE(self.listed_keys)
        ):
            raise ValueError(f"keys is longer than values, which ended after {self.delivery.count}")
        return 0

    cdef int read_columns(self) except -1:
        cdef Field field
        self.partition_ = self.partition
        if self.convert is not None:    # what the row before became is not this row's
            self.key_ = self.headers_ = self.timestamp_ = None
        if self.arrow is not None:
            if self.arrow.is_table:
                if self.convert is None:
                    self.encoded_ = self.arrow.header_bytes()
                else:
                    self.headers_ = self.arrow.header_list()
                self.timestamp_ = self.arrow.integer(&self.arrow.timestamp)
                if self.partition is None:
                    self.partition_ = self.arrow.integer(&self.arrow.partition)
            if self.convert is not None:
                self.arrow.field(&self.arrow.value, &field)
                self.value_ = None if field.length < 0 else field.data[:field.length]
                self.arrow.field(&self.arrow.key, &field)
                self.key_ = None if field.length < 0 else field.data[:field.length]
        if self.listed_keys is not None:
            if self.next_key >= PyList_GET_SIZE(self.listed_keys):
                raise ValueError(f"keys is shorter than values: it ended after {self.delivery.count}")
            fastq_look_ahead(self.listed_keys, self.next_key)
            self.key_ = <object>PyList_GET_ITEM(self.listed_keys, self.next_key)
            self.next_key += 1
        elif self.keys is not None:
            self.key_ = self.next_of(self.keys, "keys")
        elif self.arrow_keys is not None:
            if not self.arrow_keys.advance():
                raise ValueError(f"keys is shorter than values: it ended after {self.delivery.count}")
            if self.convert is not None:
                self.arrow_keys.field(&self.arrow_keys.value, &field)
                self.key_ = None if field.length < 0 else field.data[:field.length]
        if self.headers is not None:
            self.headers_ = self.next_of(self.headers, "headers")
        if self.timestamps is not None:
            self.timestamp_ = self.next_of(self.timestamps, "timestamps")
        return 0

    cdef object next_of(self, object column, str name):
        try:
            return next(column)
        except StopIteration:
            raise ValueError(f"{name} is shorter than values: it ended after {self.delivery.count}") from None

    cdef inline object asked_partition(self):
        return self.partition if self.plain else self.partition_

    cdef int append_row(self) except -1:
        cdef Field value
        cdef Field key
        cdef Appended out
        cdef bytes encoded = None
        cdef int64_t timestamp = -1
        cdef int code
        key.held = False
        key.data = NULL
        key.length = -1
        value.held = False
        try:
            if self.arrow is not None and self.convert is None:
                self.arrow.field(&self.arrow.value, &value)
                self.arrow.field(&self.arrow.key, &key)
            else:
                take_field(self.value_, &value, "value")
            if not self.plain:
                if self.arrow_keys is not None and self.convert is None:
                    self.arrow_keys.field(&self.arrow_keys.value, &key)
                elif self.arrow is None or self.convert is not None or self.key_ is not None:
                    take_field(self.key_, &key, "key")
                if self.headers_ is not None:
                    encoded = encode_headers(self.headers_)
                else:
                    encoded = self.encoded_
                if self.timestamp_ is not None:
                    if not PyLong_CheckExact(self.timestamp_):
                        self.timestamp_ = whole_number(self.timestamp_, "a timestamp")
                    try:
                        timestamp = self.timestamp_
                    except OverflowError:
                        timestamp = -1
                    if timestamp < 0:
                        raise ValueError(f"timestamps are milliseconds since 1970, 0 to 2**63 - 1, got {self.timestamp_}")
            code = self.core.store(self.row_topic, &key, &value, encoded, self.asked_partition(), timestamp, &out)
            if code != APPENDED:
                return code
            self.delivery.add((<Batch>out.batch).partition, <Batch>out.batch, out.index, self.scattered)
            if self.record is not None:
                record = self.record
                self.record = None
                self.convert.appended(record, self.core.handle(&out, &key, &value))
            return code
        finally:
            drop_field(&value)
            drop_field(&key)

    cdef int finish(self) except -1:
        """Let go of what is not needed any more: partitions refer to the handle while the call lasts."""
        cdef PartitionState partition
        cdef TopicState topic
        for topic in (self.topic, *self.strangers):
            for partition in topic.partitions + topic.gone:
                if partition.many is self.delivery:
                    partition.many = None
        self.value_ = self.key_ = self.headers_ = self.encoded_ = None
        return 0


cdef object each_of(object column, str name):
    """An iterator over one of the arguments. Bytes and text can be iterated over too, which nobody means."""
    if not isinstance(column, (str, bytes, bytearray, memoryview)):
        try:
            return iter(column)
        except TypeError:
            pass
    raise TypeError(f"{name} is one {type(column).__name__}, expected a list or another iterable of records")


def as_rows(values):
    """A column of numbers as something to iterate over: Arrow arrays give theirs, and so does a buffer of numbers, as
    `ConsumerBatch.timestamps` is; one of bytes is left to be refused."""
    if hasattr(values, "to_pylist"):
        return values.to_pylist()
    if isinstance(values, memoryview) and values.itemsize > 1:
        return values.tolist()
    return values
