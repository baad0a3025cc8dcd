"""send(): from Python arguments to bytes in the open batch, and the light handles that it answers.

Rules
- The short way of a send touches no Python object but its arguments and the handle. One test of `Accumulator.slow`
  leads to the long way (`_send_slow` of the Python class): serializers, interceptors, partitioners, closed, forked.
- A hook is a Python method of the subclass, and is called only per batch or when there is no room:
  `_attend()` after a batch was begun or closed; where a call may block `_wait_for_topic(name)`, `_wait_for_partition(topic, index)`,
  `_wait_for_room(topic, bytes, deadline)`, which answers the deadline: one for all the waiting of a send.
- A handle is made before its record is appended: nothing after the append may fail.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact
from cpython.list cimport PyList_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from fastq._native.accumulator cimport APPENDED, NO_PARTITION, Accumulator, Appended
from fastq._native.bits cimport MAX_VARINT32, store_varint
from fastq._native.producer_batch cimport BATCH_DONE, RECORD_OVERHEAD_MAX, Batch, PartitionState, TopicState, check_callback
from fastq._native.records cimport record_header_size, write_record_header

from sys import get_asyncgen_hooks

cdef object record_metadata = None      # fastq.producer.delivery.RecordMetadata, when first needed


cdef int take_field(object value, Field* field, str name) except -1:
    """Point `field` at the bytes of a key or value: None, or anything with a contiguous buffer."""
    field.held = False
    if PyBytes_CheckExact(value):
        field.data = <const uint8_t*>PyBytes_AS_STRING(value)
        field.length = PyBytes_GET_SIZE(value)
    elif value is None:
        field.data = NULL
        field.length = -1
    else:
        try:
            PyObject_GetBuffer(value, &field.buffer, PyBUF_SIMPLE)
        except (TypeError, BufferError, ValueError) as error:  # ValueError: of numpy, and of a memoryview that was released
            raise_not_bytes(name, value, error)
        field.held = True
        field.data = <const uint8_t*>field.buffer.buf
        field.length = field.buffer.len
    return 0


cdef void drop_field(Field* field) noexcept:
    if field.held:
        PyBuffer_Release(&field.buffer)
        field.held = False


cdef int raise_not_bytes(str name, object value, object cause) except -1:
    from fastq.errors import SerializationError

    cure = f"encode it, or give the producer a {name}_serializer" if name in ("key", "value") else "encode it"
    raise SerializationError(
        f"the {name} is {type(value).__name__}, expected bytes or another contiguous buffer ({cause}); {cure}"
    ) from None


cdef int raise_too_large(Accumulator accumulator, TopicState topic, Py_ssize_t size) except -1:
    from fastq.errors import MessageTooLarge

    if accumulator.pool.limit_bytes < accumulator.max_request_size:
        limit = f"buffer_memory={accumulator.pool.limit_bytes}"
    else:
        limit = f"max_request_size={accumulator.max_request_size}"
    raise MessageTooLarge(
        f"a record for topic {topic.name} takes {size} bytes with its overhead, more than {limit}; "
        "send less in one record or raise the limit (and max.message.bytes of the topic)"
    )


cpdef object pairs_of(object headers):
    """An iterator over the headers of a record. Raises TypeError for what has none."""
    try:
        return iter(headers.items() if hasattr(headers, "items") else headers)
    except TypeError:
        raise TypeError(f"headers are (str, bytes or None) pairs, or a mapping of such, got {headers!r}") from None


cpdef bytes encode_headers(object headers):
    """The headers of a record as they are stored: varint count, then key and value of each.

    `headers` are (str, bytes-like or None) pairs, or a mapping of such; None and none at all are the same.
    """
    cdef list encoded = []
    cdef Py_ssize_t size = MAX_VARINT32
    cdef Field value
    cdef bytes key
    cdef bytearray result
    cdef uint8_t* p
    if headers is None:
        return b"\x00"
    for item in pairs_of(headers):
        try:
            name, content = item
        except (TypeError, ValueError):
            raise TypeError(f"headers are (str, bytes or None) pairs, got {item!r}") from None
        if not isinstance(name, str):
            raise TypeError(f"the key of a header is a str, got {name!r}")
        try:
            key = (<str>name).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the key of a header is Unicode text, got {name!r}: {error.reason}") from None
        if isinstance(content, str):
            raise TypeError(f"the value of header {name!r} is a str, expected bytes or None; encode it")
        take_field(content, &value, f"value of header {name!r}")
        try:
            if len(key) > INT32_MAX or value.length > INT32_MAX:
                raise ValueError(f"header {name!r} is above 2 GiB")
            part = bytearray(record_header_size(<int32_t>len(key), <int32_t>value.length))
            p = <uint8_t*>(<char*>part)
            write_record_header(p, <const uint8_t*>PyBytes_AS_STRING(key), <int32_t>len(key), value.data,
                                <int32_t>value.length)
        finally:
            drop_field(&value)
        encoded.append(part)
    result = bytearray(MAX_VARINT32)
    p = <uint8_t*>(<char*>result)
    size = store_varint(p, len(encoded)) - p
    return bytes(result[:size]) + b"".join(encoded)


cdef extern from "look_ahead.h":
    void fastq_look_at(object value) noexcept


@cython.freelist(1024)
@cython.no_gc
@cython.nonecheck(True)
cdef class DeliveryBase:
    """Where a record went: its batch and its index there. Nothing is done for it until somebody asks.

    Thread rule: any thread.
    """

    def __init__(self):
        raise TypeError(f"{type(self).__name__} objects are what a producer answers: nobody else makes one")

    @property
    def topic(self):
        return self.batch.partition.topic.name

    @property
    def partition(self):
        return self.batch.partition.index

    def __repr__(self):
        state = "pending"
        if self.batch.state_ == BATCH_DONE:
            error, offset = self.batch.outcome(self.index)
            state = f"offset {offset}" if error is None else f"failed: {error}"
        return f"<{type(self).__name__} {self.topic}-{self.partition} {state}>"

    def done(self):
        """True once the broker has answered, or the record has failed."""
        return self.batch.state_ == BATCH_DONE

    def add_done_callback(self, callback):
        """Call `callback(delivery)` once the record is done; soon after now when it is already.

        Callbacks run one at a time, in the thread that drains the response; an exception in one is logged.
        """
        check_callback(callback)
        self.batch.add_callback(self.index, callback, self)
        if self.batch.state_ == BATCH_DONE:
            self.batch.accumulator.wait_done(self.batch, 0)

    cdef object metadata(self):
        """RecordMetadata of a done record; raises what it failed with."""
        global record_metadata
        cdef int32_t index = self.index
        cdef Batch leaf = self.batch.leaf(&index)
        cdef int64_t timestamp = self.timestamp_ms
        if leaf.error is not None:
            raise leaf.error.with_traceback(None)
        if record_metadata is None:
            from fastq.producer.delivery import RecordMetadata as record_metadata
        if leaf.log_append_time_ms >= 0:
            timestamp = leaf.log_append_time_ms
        return record_metadata(
            self.batch.partition.topic.name,
            self.batch.partition.index,
            leaf.base_offset + index if leaf.base_offset >= 0 else -1,
            timestamp,
            self.key_size,
            self.value_size,
        )


@cython.final
@cython.no_gc
@cython.nonecheck(True)
cdef class Delivery(DeliveryBase):
    """The handle of one sent record, as the blocking Producer answers it."""

    def result(self, timeout=None):
        """Wait for the broker's answer, at most `timeout` seconds (None: until delivery_timeout_ms has decided).

        Answers RecordMetadata; raises what the record failed with, or WaitTimeout, after which the record is still
        on its way.
        """
        if self.batch.state_ != BATCH_DONE:
            self.batch.accumulator.wait_done(self.batch, timeout)
        return self.metadata()

    def exception(self, timeout=None):
        """Wait as `result` does and answer the error, or None when the record was delivered."""
        if self.batch.state_ != BATCH_DONE:
            self.batch.accumulator.wait_done(self.batch, timeout)
        return self.batch.outcome(self.index)[0]


@cython.final
@cython.no_gc
@cython.nonecheck(True)
cdef class AsyncDelivery(DeliveryBase):
    """The handle of one sent record, as AsyncProducer answers it: `await` it for the RecordMetadata."""

    def result(self):
        """RecordMetadata of a done record; raises what it failed with, or InvalidStateError while it is pending."""
        self.check_done()
        return self.metadata()

    def exception(self):
        """The error of a done record or None; InvalidStateError while it is pending."""
        self.check_done()
        return self.batch.outcome(self.index)[0]

    def __await__(self):
        return self._wait().__await__()

    async def _wait(self):
        if self.batch.state_ != BATCH_DONE:
            await self.batch.accumulator.wait_done(self.batch, None)
        return self.metadata()

    cdef int check_done(self) except -1:
        if self.batch.state_ != BATCH_DONE:
            import asyncio

            raise asyncio.InvalidStateError("the broker has not answered yet: await the delivery")
        return 0


cdef inline void point_at(DeliveryBase delivery, Appended* out, Field* key, Field* value):
    """Make it the handle of what has just been appended."""
    delivery.batch = <Batch>out.batch
    delivery.index = out.index
    delivery.timestamp_ms = out.timestamp
    delivery.key_size = <int32_t>key.length
    delivery.value_size = <int32_t>value.length


@cython.auto_pickle(False)
cdef class ProducerCore:
    """What both producers share: arguments in, bytes in the open batch. See the hooks in this file's rules."""

    def __init__(self, Accumulator accumulator not None):
        self.accumulator = accumulator

    cdef TopicState topic_state(self, object topic):
        """The state of a topic whose metadata is known; None otherwise."""
        if topic is self.accumulator.last_name:
            return self.accumulator.last_topic
        return self.accumulator.find_topic(topic)

    cdef DeliveryBase handle(self, Appended* out, Field* key, Field* value):
        """The handle of one record of a send_many, for those who have to hear of each."""
        raise NotImplementedError

    cdef PartitionState choose(self, TopicState topic, Field* key, object partition, Py_ssize_t need):
        """The partition of a record: asked for (None where it is not known), hashed from the key, or the sticky one (a new one when that is
        full)."""
        cdef PartitionState chosen
        cdef Accumulator accumulator = self.accumulator
        if partition is not None:
            index = whole_number(partition, "partition")
            return topic.partitions[index] if 0 <= index < topic.partition_count else None
        if key.length > INT32_MAX:
            raise_too_large(accumulator, topic, key.length)
        chosen = accumulator.pick(topic, key.data, <int32_t>key.length)
        if accumulator.is_keyless(key.length) and not accumulator.fits(chosen, need):
            if chosen.open_ is not None and accumulator.buffered_records < accumulator.records_max:
                accumulator.close_batch(chosen, True)
                chosen = accumulator.pick(topic, key.data, <int32_t>key.length)
        return chosen

    cdef Py_ssize_t bytes_needed(self, Field* key, Field* value, Py_ssize_t headers_size) noexcept:
        return max(key.length, 0) + max(value.length, 0) + headers_size + RECORD_OVERHEAD_MAX

    cdef int store(
        self, TopicState topic, Field* key, Field* value, bytes headers, object partition, int64_t timestamp,
        Appended* out,
    ) except -1:
        """Append one record; APPENDED, NO_ROOM or NO_PARTITION. Raises when it can never fit."""
        cdef Py_ssize_t headers_size = 1 if headers is None else PyBytes_GET_SIZE(headers)
        cdef const uint8_t* encoded = NULL
        cdef Py_ssize_t need = self.bytes_needed(key, value, headers_size)
        cdef PartitionState chosen
        if headers is not None:
            encoded = <const uint8_t*>PyBytes_AS_STRING(headers)
        if need > self.accumulator.record_bytes_max() + RECORD_OVERHEAD_MAX:
            raise_too_large(self.accumulator, topic, need + 61)
        chosen = self.choose(topic, key, partition, need)
        if chosen is None:
            return NO_PARTITION
        return self.accumulator.append(
            chosen, key.data, <int32_t>key.length, value.data, <int32_t>value.length, encoded, headers_size,
            timestamp, out,
        )


cdef object whole_number(object value, str name):
    """An int, or what stands for one as numpy's do. Cython's own conversion cuts floats, and int() reads text; a bool is no number."""
    if PyLong_CheckExact(value):
        return value
    try:
        return PyNumber_Index(None if isinstance(value, bool) else value)
    except TypeError:
        raise TypeError(f"{name} is an int, got {value!r}") from None


cdef int64_t checked_timestamp(object timestamp_ms) except -2:
    cdef int64_t timestamp
    if timestamp_ms is None:
        return -1
    number = whole_number(timestamp_ms, "timestamp_ms")
    try:
        timestamp = number
    except OverflowError:
        timestamp = -1
    if timestamp < 0:
        raise ValueError(f"timestamp_ms is milliseconds since 1970, 0 to 2**63 - 1, got {number}")
    return timestamp


@cython.auto_pickle(False)
cdef class SyncProducerCore(ProducerCore):
    """The blocking send."""

    cdef DeliveryBase handle(self, Appended* out, Field* key, Field* value):
        cdef Delivery delivery = Delivery.__new__(Delivery)
        point_at(delivery, out, key, value)
        return delivery

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None):
        """Queue one record and answer its handle; waits only for room (max_block_ms) or for a topic's metadata.

        topic: its name. value, key: bytes, bytearray, memoryview, any contiguous buffer, or None (what a serializer
        takes, when the producer has one). headers: (str, bytes or None) pairs, or a mapping. partition: None
        lets the key decide, or the sticky partition when there is none. timestamp_ms: milliseconds since 1970; None is now.
        Raises MessageTooLarge, BufferTimeout, SerializationError, ClientClosed, ForkedClient, and the error of a
        topic that cannot be had.
        """
        fastq_look_at(value)
        if self.accumulator.slow:
            return self._send_slow(topic, value, key, headers, partition, timestamp_ms)
        return self.enqueue(topic, value, key, headers, partition, timestamp_ms)

    def _enqueue(self, topic, value, key, headers, partition, timestamp_ms):
        """`send` without the look at the flags: key and value are bytes-like by now."""
        return self.enqueue(topic, value, key, headers, partition, timestamp_ms)

    cdef Delivery enqueue(self, topic, value, key, headers, partition, timestamp_ms):
        cdef Accumulator accumulator = self.accumulator
        cdef TopicState state = self.topic_state(topic)
        cdef Delivery delivery
        cdef Appended out
        cdef Field key_field
        cdef Field value_field
        cdef bytes encoded = None
        cdef int64_t timestamp = -1
        cdef int code
        cdef object deadline = None
        if state is None:
            state = self._wait_for_topic(topic)
        if headers is not None:
            encoded = encode_headers(headers)
        if timestamp_ms is not None:
            timestamp = checked_timestamp(timestamp_ms)
        key_field.held = False
        take_field(value, &value_field, "value")
        try:
            take_field(key, &key_field, "key")
            delivery = Delivery.__new__(Delivery)   # before the append, after which nothing may fail
            code = self.store(state, &key_field, &value_field, encoded, partition, timestamp, &out)
            while code != APPENDED:
                if code == NO_PARTITION:
                    self._wait_for_partition(state, whole_number(partition, "partition"))
                else:
                    deadline = self._wait_for_room(state, accumulator.wanted_bytes, deadline)
                code = self.store(state, &key_field, &value_field, encoded, partition, timestamp, &out)
            point_at(delivery, &out, &key_field, &value_field)
        finally:
            drop_field(&value_field)
            drop_field(&key_field)
        if accumulator.attention and (accumulator.look_at_s == 0.0 or <double>accumulator.clock() >= accumulator.look_at_s):
            accumulator.attention = False
            self._attend()
        return delivery


@cython.final
@cython.freelist(64)
@cython.no_gc
cdef class Sent:
    """What `await producer.send(...)` awaits when the record is in already: it ends at once with the handle."""

    cdef AsyncDelivery delivery

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        # Replaced in the type's slot by fastq_sent_next below, which does the same without a traceback.
        raise StopIteration(self.delivery)

    def send(self, value):
        raise StopIteration(self.delivery)

    def throw(self, kind, value=None, traceback=None):
        raise StopIteration(self.delivery)  # a task cancelled before its first step has sent all the same, and tells so

    def close(self):
        pass


cdef PyObject* sent_next(PyObject* sent) noexcept:
    PyErr_SetObject(<PyObject*>StopIteration, <PyObject*>(<Sent>sent).delivery)
    return NULL


cdef extern from *:
    """
    #include <Python.h>
    typedef PyObject* (*fastq_next)(PyObject*);
    static fastq_next fastq_sent_next;
    static PyObject* fastq_sent_iternext(PyObject* sent) { return fastq_sent_next(sent); }
    static void fastq_install_next(PyTypeObject* type, fastq_next next) {
        fastq_sent_next = next;
        type->tp_iternext = fastq_sent_iternext;
    }
    """
    ctypedef struct PyTypeObject:
        pass
    void fastq_install_next(PyTypeObject* type, PyObject* (*next)(PyObject*) noexcept) noexcept
    void PyErr_SetObject(PyObject* kind, PyObject* value) noexcept


fastq_install_next(<PyTypeObject*>Sent, sent_next)


cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        PyObject* async_gen_firstiter
    PyThreadState* PyThreadState_Get() noexcept nogil


@cython.auto_pickle(False)
cdef class AsyncProducerCore(ProducerCore):
    """The asyncio send. `home` is what the producer's loop has set to hear of asynchronous generators, which each loop sets anew when it
    begins to run: where this thread has anything else, the loop is looked at again, which a look at every send would make slower."""

    cdef object home

    def _at_home(self):
        """The loop that runs in this thread is the producer's."""
        self.home = get_asyncgen_hooks().firstiter

    cdef DeliveryBase handle(self, Appended* out, Field* key, Field* value):
        cdef AsyncDelivery delivery = AsyncDelivery.__new__(AsyncDelivery)
        point_at(delivery, out, key, value)
        return delivery

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None):
        """Queue one record: `delivery = await producer.send(...)` waits only for room or for a topic's metadata.

        A record's place is taken by the call, in the order of the calls, and it is sent whether or not what the call answers is
        awaited; a record that is refused then is told in the log. Cancelling the await takes the record back, unless it is in: then
        the await ends with the delivery. Awaiting the delivery waits for the broker. Arguments and errors are those of Producer.send.
        """
        cdef TopicState state
        cdef AsyncDelivery delivery
        cdef Sent sent
        fastq_look_at(value)
        if self.accumulator.slow == 0 and <PyObject*>self.home == PyThreadState_Get().async_gen_firstiter:
            state = self.topic_state(topic)
            if state is not None:
                sent = Sent.__new__(Sent)   # before the append, after which nothing may fail
                delivery = self.try_enqueue(state, value, key, headers, partition, timestamp_ms, True)
                if delivery is not None:
                    sent.delivery = delivery
                    return sent
        return self._send_slow(topic, value, key, headers, partition, timestamp_ms)

    def _sent(self, AsyncDelivery delivery not None):
        """What `send` answers for a record that is in."""
        cdef Sent sent = Sent.__new__(Sent)
        sent.delivery = delivery
        return sent

    def _try_enqueue(self, topic, value, key, headers, partition, timestamp_ms):
        """Append a record to a known topic, beginning a batch if need be; None when there is no room."""
        cdef TopicState state = self.topic_state(topic)
        if state is None:
            return None
        return self.try_enqueue(state, value, key, headers, partition, timestamp_ms, False)

    cdef PartitionState pick_known(self, TopicState state, Field* key, object partition):
        """Where a record goes; None where that is not known without waiting."""
        if partition is not None:
            index = whole_number(partition, "partition")
            return state.partitions[index] if 0 <= index < state.partition_count else None
        if key.length > INT32_MAX:
            return None
        return self.accumulator.pick(state, key.data, <int32_t>key.length)

    def _close_full(self, topic, value, key, headers, partition):
        """Close the batch that such a record would go to and does not fit into; True when one was closed."""
        cdef TopicState state = self.topic_state(topic)
        cdef PartitionState chosen
        cdef Field key_field
        cdef Field value_field
        cdef Py_ssize_t headers_size
        if state is None:
            return False
        headers_size = len(encode_headers(headers))
        key_field.held = False
        take_field(value, &value_field, "value")
        try:
            take_field(key, &key_field, "key")
            chosen = self.pick_known(state, &key_field, partition)
            if (
                chosen is None
                or chosen.open_ is None
                or self.accumulator.fits(chosen, self.bytes_needed(&key_field, &value_field, headers_size))
            ):
                return False
            self.accumulator.close_batch(chosen, True)
            return True
        finally:
            drop_field(&value_field)
            drop_field(&key_field)

    cdef AsyncDelivery try_enqueue(
        self, TopicState state, value, key, headers, partition, timestamp_ms, bint only_if_fits
    ):
        cdef AsyncDelivery delivery
        cdef PartitionState chosen
        cdef Appended out
        cdef Field key_field
        cdef Field value_field
        cdef bytes encoded = None
        cdef int64_t timestamp = -1
        if headers is not None:
            if only_if_fits and not (PyList_CheckExact(headers) or PyTuple_CheckExact(headers) or PyDict_CheckExact(headers)):
                return None     # what can be read only once is for the one who will surely use it
            encoded = encode_headers(headers)
        if timestamp_ms is not None:
            timestamp = checked_timestamp(timestamp_ms)
        key_field.held = False
        take_field(value, &value_field, "value")
        try:
            take_field(key, &key_field, "key")
            if only_if_fits:
                # The task must give way to the loop once per batch, and before its record is in.
                chosen = self.pick_known(state, &key_field, partition)
                if chosen is None or not self.accumulator.fits(
                    chosen, self.bytes_needed(&key_field, &value_field, 1 if encoded is None else PyBytes_GET_SIZE(encoded))
                ):
                    return None
            delivery = AsyncDelivery.__new__(AsyncDelivery)
            if self.store(state, &key_field, &value_field, encoded, partition, timestamp, &out) != APPENDED:
                return None
            point_at(delivery, &out, &key_field, &value_field)
        finally:
            drop_field(&value_field)
            drop_field(&key_field)
        if self.accumulator.attention:
            self.accumulator.attention = False
            self._attend()
        return delivery
