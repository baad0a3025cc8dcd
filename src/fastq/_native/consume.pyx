"""Records as the consumer hands them out, and the iterators that hand them out: the consumer's hot path.

Rules
- Key and value are copied out, so that a record kept for long does not keep a fetch response alive; headers are
  copied encoded, and decoded when they are touched.
- `position` is the offset after the last record handed out, always, also when the next one cannot be read.
- A record is made, taken and iterated over in this one module, so that every call on its way is a direct one; its batch
  is opened in fetched_batches.
Sources: Kafka's CompletedFetch and ConsumerRecord.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from fastq._native.bits cimport load_varint32
from fastq._native.fetched_batches cimport FetchedBatches, RecordSpan, timestamp_of
from fastq._native.heartbeat cimport Progress, count_one
from fastq._native.records cimport CRecord, CRecordHeader, parse_record, parse_record_header

from types import GenericAlias

cdef enum:
    RECORDS_PER_TURN = 1024          # that `async for` takes before it lets the event loop run

cdef extern from "Python.h":
    void drop_reference "Py_DECREF"(PyObject* value)
    int PyIter_Send(object iterator, object value, PyObject** result) except -1

cdef extern from *:
    """
    /* `async for` asks for one awaitable a record. The iterator is its own awaitable, and answers through am_send
       (tp_iternext from Python 3.12 on, where the interpreter asks there): no awaitable and no exception object is
       made for a record that is at hand. */
    typedef PyObject *(*fastq_send_function)(PyObject *self, PyObject *value, int *done);
    static fastq_send_function fastq_send;

    static PySendResult fastq_am_send(PyObject *self, PyObject *value, PyObject **result) {
        int done = 0;
        *result = fastq_send(self, value, &done);
        if (*result == NULL) return PYGEN_ERROR;
        return done ? PYGEN_RETURN : PYGEN_NEXT;
    }

    static PyObject *fastq_iternext(PyObject *self) {
        int done = 0;
        PyObject *result = fastq_send(self, Py_None, &done);
        if (result != NULL && done) {
            PyErr_SetObject(PyExc_StopIteration, result);
            Py_DECREF(result);
            return NULL;
        }
        return result;
    }

    static void fastq_install_send(PyTypeObject *type, fastq_send_function function) {
        fastq_send = function;
        type->tp_as_async->am_send = fastq_am_send;
        type->tp_iternext = fastq_iternext;
    }
    """
    ctypedef object (*fastq_send_function)(object self, object value, int* done)
    void fastq_install_send(PyTypeObject* type, fastq_send_function function)


cdef object current_task = None


cdef tuple decode_headers(const uint8_t* p, const uint8_t* end, int32_t count):
    """The headers that parse_record found well-formed, as a tuple of (str, bytes or None)."""
    cdef CRecordHeader header
    cdef list headers = []
    while count > 0:
        count -= 1
        p = parse_record_header(p, end, &header)
        if p == NULL:
            raise ValueError("record headers are malformed")
        headers.append((
            PyUnicode_DecodeUTF8(<const char*>header.key, header.key_length, "surrogateescape"),
            None if header.value_length < 0
            else PyBytes_FromStringAndSize(<const char*>header.value, header.value_length),
        ))
    return tuple(headers)


@cython.final
@cython.freelist(1024)
@cython.no_gc
cdef class Record:
    """One record of a topic, immutable. For type checkers it is a Record[K, V], of what the deserializers make.

    topic, partition, offset: where it is. timestamp_ms: milliseconds since 1970, -1 when it has none. timestamp_type: 0
    set by the producer, 1 by the broker at append, -1 none. key, value: bytes (or what a deserializer made of them, which is not
    to hold its record: the garbage collector does not look into records), None when null. headers: a tuple of (str, bytes or
    None), decoded when first touched. leader_epoch: of the leader that appended it, -1 when unknown. Records are equal when all
    of it is but the leader epoch; hashed by their place.
    """

    __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, str topic not None, int32_t partition, int64_t offset, int64_t timestamp_ms=-1,
                 int8_t timestamp_type=0, object key=None, object value=None, object headers=(),
                 int32_t leader_epoch=-1):
        if self.topic is not None:
            raise TypeError("a Record is immutable")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.header_bytes = tuple(headers)
        self.leader_epoch = leader_epoch

    @property
    def headers(self):
        """The headers in their order, a tuple of (str, bytes or None)."""
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef int32_t count = 0
        encoded = self.header_bytes
        if encoded is None:
            return ()
        if type(encoded) is bytes:
            p = <const uint8_t*>PyBytes_AS_STRING(encoded)
            end = p + PyBytes_GET_SIZE(encoded)
            p = load_varint32(p, end, &count)
            encoded = self.header_bytes = decode_headers(p, end, count)
        return encoded

    def replace(self, *, key=..., value=...):
        """This record with another key or value; what is not given stays."""
        cdef Record other = Record.__new__(Record)
        other.topic = self.topic
        other.partition = self.partition
        other.offset = self.offset
        other.timestamp_ms = self.timestamp_ms
        other.timestamp_type = self.timestamp_type
        other.leader_epoch = self.leader_epoch
        other.header_bytes = self.header_bytes
        other.key = self.key if key is ... else key
        other.value = self.value if value is ... else value
        return other

    def __eq__(self, other):
        cdef Record that
        if type(other) is not Record:
            return NotImplemented
        that = other
        return (
            self.offset == that.offset
            and self.partition == that.partition
            and self.topic == that.topic
            and self.timestamp_ms == that.timestamp_ms
            and self.timestamp_type == that.timestamp_type
            and self.key == that.key
            and self.value == that.value
            and self.headers == that.headers
        )

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self):
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, timestamp_type={self.timestamp_type}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r}, leader_epoch={self.leader_epoch})"
        )

    def __reduce__(self):
        return Record, (self.topic, self.partition, self.offset, self.timestamp_ms, self.timestamp_type, self.key,
                        self.value, self.headers, self.leader_epoch)


cdef Record new_record(object topic, int32_t partition, const RecordSpan* span, const CRecord* r):
    """Copy a parsed record out of its batch."""
    cdef Record record = Record.__new__(Record)
    cdef const uint8_t* headers
    record.topic = topic
    record.partition = partition
    record.offset = span.base_offset + r.offset_delta
    record.timestamp_ms = timestamp_of(span, r)
    record.timestamp_type = span.timestamp_type
    record.leader_epoch = span.leader_epoch
    if r.key_length >= 0:
        record.key = PyBytes_FromStringAndSize(<const char*>r.key, r.key_length)
    if r.value_length >= 0:
        record.value = PyBytes_FromStringAndSize(<const char*>r.value, r.value_length)
    if r.header_count > 0:
        headers = r.header_block
        record.header_bytes = PyBytes_FromStringAndSize(<const char*>headers, r.end - headers)
    return record


@cython.final
cdef class FetchedRecords(FetchedBatches):
    """The records of one partition of one fetch response, from `position` on, one by one."""

    @property
    def finished_position(self):
        """The offset after the last record that was followed by another one, or by the end: `position`, or while the record
        handed out last may still be in use, that record's. For records taken one by one."""
        cdef CRecord r
        if self.owner is None or self.last == NULL or parse_record(self.last, self.span.end, &r) == NULL:
            return self.position
        return min(self.position, self.span.base_offset + r.offset_delta)

    @property
    def finished_epoch(self):
        """The leader epoch of the record before `finished_position`, -1 when it is not known."""
        return self.epoch_before(self.finished_position)

    cdef Record next_record(self):
        """The next record, or None at the end or the limit."""
        cdef CRecord r
        cdef const uint8_t* p
        cdef int64_t offset
        cdef Record record
        while True:
            while self.span.count > 0:
                p = parse_record(self.span.p, self.span.end, &r)
                if p == NULL:
                    self.corrupt(f"a record of the batch at offset {self.span.base_offset} is malformed")
                offset = self.span.base_offset + r.offset_delta
                if offset >= self.limit:
                    self.position = max(self.position, self.limit)
                    return None
                if offset >= self.position:
                    record = new_record(self.topic, self.partition, &self.span, &r)
                    self.last = self.span.p
                    self.span.p = p
                    self.span.count -= 1
                    self.position = offset + 1
                    return record
                self.span.p = p
                self.span.count -= 1
            if self.owner is not None:
                self.close_span()
                self.owner = None
            if self.open_batch() == 0:
                return None

    def take(self, Py_ssize_t count_max, transform=None, *, bint quiet=False):
        """Up to `count_max` of the next records, as a list; empty at the end or the limit.

        transform: None, or called with every record; answers the record to hand over, or None to leave it out. What it
        raises, and CorruptRecord, comes out only when there is no record before it to hand over; the call after that one
        raises. The position is then behind a record that `transform` refused, and at a corrupt one, or one for which something
        has to be loaded first (LoadingWouldBlock). `quiet` keeps every error for a later call.
        """
        self.taking = True
        try:  # native, so that no interrupt, and not a second one either, leaves the mark behind
            return self.take_records(count_max, transform, quiet)
        finally:
            self.taking = False

    cdef list take_records(self, Py_ssize_t count_max, object transform, bint quiet):
        """`take`, whose words hold."""
        cdef list records = []
        cdef Record record
        cdef bint over = False
        while count_max > 0:
            try:
                record = self.next_record()
            except Exception:
                if not records and not quiet:
                    raise
                over = True     # no way leads out of an `except`: Cython lets go of a traceback there that may not have been had
            if over or record is None:
                break
            if transform is not None:
                offset = record.offset
                try:
                    record = transform(record)
                except Exception as error:   # after an interrupt the consumer puts back what was taken
                    over = bool(records) or quiet
                    if over or is_missing(error):
                        step_back(self, offset)
                    if not over:
                        raise
                if over:
                    break
                if record is None:
                    continue
            records.append(record)
            count_max -= 1
        return records


cdef int step_back(FetchedRecords chunk, int64_t offset) except -1:
    """The record handed out last, of `offset`, is to be handed out again; not where more was taken of the chunk since."""
    if chunk.position != offset + 1 or chunk.owner is None or chunk.last == NULL:
        return 0
    chunk.span.p = chunk.last
    chunk.span.count += 1
    chunk.position = offset
    return 0


cdef bint comes_again(object error) except -1:
    """Whether the record that a transform raised for was not looked at: something has to be loaded, or an interrupt came."""
    return not isinstance(error, Exception) or is_missing(error)


cdef bint is_missing(object error) except -1:
    """Whether a transform raised for want of something that can be loaded."""
    from fastq.errors import LoadingWouldBlock
    return isinstance(error, LoadingWouldBlock)


@cython.final
cdef class RecordIterator:
    """The iterator of a blocking consumer: records of the current chunk, then whatever `advance(chunk)` answers next.

    advance: called with the chunk that has ended (or None), answers the next FetchedRecords, or None to end.
    transform: None, or called with every record; answers the record to hand over, or None to go on.
    progress: counts the records that are handed out, and may say that `advance` is to be asked before the next. Thread rule: that of the
    consumer, one thread at a time.
    """

    def __init__(self, advance, transform=None, Progress progress=None):
        self.advance = advance
        self.transform = transform
        self.progress = Progress() if progress is None else progress

    def detach(self):
        """Let go of the current chunk, which keeps its place: the next record is asked from `advance`."""
        self.chunk = None

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record
        cdef FetchedRecords chunk
        while True:
            chunk = self.chunk
            if chunk is not None and self.progress.cell[1] == 0:
                record = chunk.next_record()
                if record is not None:
                    count_one(self.progress.cell)
                    if self.transform is None:
                        return record
                    offset = record.offset
                    try:
                        record = self.transform(record)
                    except BaseException as error:
                        if comes_again(error):
                            step_back(chunk, offset)
                        raise
                    if record is not None:
                        return record
                    continue
            self.chunk = None
            self.chunk = self.advance(chunk)
            if self.chunk is None:
                raise StopIteration


@cython.final
cdef class AsyncRecordIterator:
    """The iterator of an asyncio consumer, and its own awaitable: a record at hand is answered at once.

    advance: an async function, called with the chunk that has ended, or with the one in use after RECORDS_PER_TURN records (it
    lets the event loop run then); answers as RecordIterator's. Cancelling an `await` of it takes no record. It is called too
    when `transform` raised LoadingWouldBlock, and has to load what that names; the record comes again.
    Invariants: `pending` is the running `advance` coroutine, or None, and `waiting` the task that began it; `given`: the iterator was handed out
    as an awaitable that nobody has awaited, so that the next one is another object. Thread rule: the event loop's; one task awaits at a time.
    """

    cdef object __weakref__
    cdef FetchedRecords chunk
    cdef object advance
    cdef object transform
    cdef object pending
    cdef object waiting
    cdef bint given
    cdef int budget
    cdef Progress progress

    def __init__(self, advance, transform=None, Progress progress=None):
        self.advance = advance
        self.transform = transform
        self.progress = Progress() if progress is None else progress
        self.budget = RECORDS_PER_TURN

    def detach(self):
        """Let go of the current chunk, which keeps its place."""
        self.chunk = None

    def __aiter__(self):
        return self

    def __anext__(self):
        # Nothing is raised here: the interpreter's `anext` with a default does not look for it, and crashes.
        if self.given or self.pending is not None:
            return self.another()
        self.given = True
        return self

    def __await__(self):
        # The task that waits comes again at each of its turns, where `anext` was given a default; a collection closes without any.
        self.check_task()
        return self

    def __iter__(self):
        return self

    def __next__(self):
        # Replaced by fastq_iternext below; this one gives the type its slot.
        raise StopIteration

    cdef object another(self):
        """What is awaited where the iterator itself cannot be: who gathers two is to have two records, and one object is awaited once."""
        return _refused() if self.pending is not None else _once_more(self)

    cdef int check_task(self) except -1:
        cdef object task
        if self.pending is not None:
            task = task_of_now()
            if task is not None and task is not self.waiting:
                refuse_another()
        return 0

    cdef Record at_hand(self):
        """The next record of the current chunk, or None when `advance` must be asked."""
        cdef Record record
        cdef FetchedRecords chunk
        cdef bint missing = False
        while self.budget > 0 and self.progress.cell[1] == 0:
            chunk = self.chunk  # held: while the record is made or read, `detach` may come from another thread or a signal handler
            if chunk is None:
                break
            self.budget -= 1
            count_one(self.progress.cell)
            record = chunk.next_record()
            if record is None or self.transform is None:
                return record
            offset = record.offset
            try:
                record = self.transform(record)
            except BaseException as error:
                if comes_again(error):
                    step_back(chunk, offset)
                if not is_missing(error):
                    raise
                missing = True
            if missing:
                return None
            if record is not None:
                return record
        return None

    cdef object finish(self, object chunk, int* done):
        """`advance` has answered: go on with its chunk, or end."""
        self.pending = self.waiting = None
        self.budget = RECORDS_PER_TURN
        self.chunk = chunk
        if chunk is None:
            raise StopAsyncIteration
        return self.step(None, done)

    cdef object step(self, object value, int* done):
        cdef PyObject* result = NULL
        cdef object answer
        cdef Record record
        cdef int status
        self.given = False
        if self.pending is None:
            record = self.at_hand()
            if record is not None:
                done[0] = 1
                return record
            self.waiting = task_of_now()    # first: a `pending` of nobody would have every task refused
            self.pending = self.advance(self.chunk)
            value = None
        try:
            status = PyIter_Send(self.pending, value, &result)
        except BaseException:
            self.pending = self.waiting = self.chunk = None
            raise
        answer = <object>result
        drop_reference(result)       # PyIter_Send gave a reference of its own; `answer` holds another
        if status == 0:
            return self.finish(answer, done)
        return answer

    def send(self, value):
        """Part of the awaitable protocol."""
        cdef int done = 0
        answer = self.step(value, &done)
        if done:
            raise StopIteration(answer)
        return answer

    def throw(self, *error):
        """Part of the awaitable protocol: cancellation comes in here."""
        pending = self.pending
        self.given = False
        if pending is None:
            if isinstance(error[0], BaseException):
                raise error[0]
            raise error[0](*error[1:2])
        cdef int done = 0
        try:
            return pending.throw(*error)
        except StopIteration as stop:
            answer = self.finish(stop.value, &done)
        except BaseException:
            self.pending = self.waiting = self.chunk = None
            raise
        if done:
            raise StopIteration(answer)
        return answer

    def close(self):
        """Part of the awaitable protocol."""
        pending = self.pending
        self.given = False
        self.pending = self.waiting = self.chunk = None
        if pending is not None:
            pending.close()


cdef object task_of_now():
    """The task that runs; None where none does."""
    global current_task
    if current_task is None:
        from asyncio import current_task
    task = None
    try:
        task = current_task()
    except RuntimeError:
        pass
    return task


cdef int refuse_another() except -1:
    """Two tasks would wait for one `advance`: whoever is cancelled takes the other along, and a record would come to either."""
    from fastq.errors import ConcurrentModification
    raise ConcurrentModification(
        "another task waits for the next record of this AsyncConsumer",
        hint="Give each task a consumer of its own, or have one task read and hand over",
    )


cdef object send_step(object self, object value, int* done):
    return (<AsyncRecordIterator>self).step(value, done)


async def _once_more(AsyncRecordIterator iterator):
    """The next record of an iterator whose own await is given away."""
    iterator.check_task()  # here, as what an `await` raises before it begins is lost in native code
    return await iterator


async def _refused():
    """`refuse_another` to whoever awaits this."""
    refuse_another()


fastq_install_send(<PyTypeObject*>AsyncRecordIterator, send_step)
