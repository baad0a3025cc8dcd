"""An Arrow stream over batches that are still to be read: each is asked for when the taker wants the next array.

Rules
- Memory is bounded by one batch and what the taker keeps: nothing is read ahead in here.
- It stands on the Arrow interface of a batch alone. Any thread may take; whoever takes waits with the GIL released, where `advance` does.
- An exception ends the stream with its text; an interrupt stays one, too.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EIO
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from fastq._native.arrow_abi cimport ArrowArray, ArrowArrayStream, ArrowSchema
from fastq._native.columns cimport ConsumerBatch

from fastq._native.arrow import ArrowExport

cdef extern from "Python.h":
    void PyErr_SetInterrupt() noexcept
    void PyErr_Fetch(PyObject** kind, PyObject** value, PyObject** traceback) noexcept
    void PyErr_Restore(PyObject* kind, PyObject* value, PyObject* traceback) noexcept


@cython.final
@cython.auto_pickle(False)
cdef class _State:
    """How far one stream has come. Invariant: `inner` points into `capsule`, the stream of the batch being handed out, or is NULL."""

    cdef object advance
    cdef object done
    cdef list columns
    cdef object capsule
    cdef ArrowArrayStream* inner
    cdef bytes error

    cdef int open(self, ConsumerBatch batch) except -1:
        self.capsule = ArrowExport(batch, self.columns).__arrow_c_stream__()
        self.inner = <ArrowArrayStream*>PyCapsule_GetPointer(self.capsule, "arrow_array_stream")
        return 0

    cdef int check(self, int status) except -1:
        cdef const char* text
        if status != 0:
            text = self.inner.get_last_error(self.inner)
            raise OSError(status, text.decode("utf-8", "replace") if text != NULL else "the batch could not be exported")
        return 0

    cdef int following(self, ArrowArray* array) except -1:
        """The next array; a released one at the end."""
        while True:
            if self.inner != NULL:
                self.check(self.inner.get_next(self.inner, array))
                if array.release != NULL:
                    return 0
                self.inner = NULL
                self.capsule = None
            batch = self.advance()
            if batch is None:
                self.finish()
                memset(array, 0, sizeof(ArrowArray))
                return 0
            if len(batch):
                self.open(batch)

    cdef int schema(self, ArrowSchema* schema) except -1:
        capsule = ArrowExport(ConsumerBatch(), self.columns).__arrow_c_stream__()
        cdef ArrowArrayStream* empty = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
        if empty.get_schema(empty, schema) != 0:
            raise MemoryError
        return 0

    cdef int finish(self) except -1:
        done, self.done = self.done, None
        if done is not None:
            done()
        return 0

    cdef int failed(self, object error) noexcept:
        if isinstance(error, KeyboardInterrupt):
            PyErr_SetInterrupt()
        try:
            self.error = (str(error) or repr(error)).encode("utf-8", "replace")
        except BaseException:   # never the 0 of an end, whatever becomes of the words
            self.error = b"there is no memory, or the error cannot be told"
        return EIO


def make_stream(advance, columns, done=None):
    """A capsule with an Arrow stream of the columns of the batches that `advance()` answers, until it answers None.

    done: called once, when the stream has ended or is let go. Raises ValueError for a column that there is not.
    """
    cdef ArrowArrayStream* stream
    cdef _State state = _State.__new__(_State)
    ArrowExport(ConsumerBatch(), columns)
    state.advance = advance
    state.columns = list(columns)
    state.done = done
    stream = <ArrowArrayStream*>calloc(1, sizeof(ArrowArrayStream))
    if stream == NULL:
        raise MemoryError
    capsule = PyCapsule_New(stream, "arrow_array_stream", drop_stream)
    Py_INCREF(state)
    stream.private_data = <void*>state
    stream.get_schema = stream_schema
    stream.get_next = stream_next
    stream.get_last_error = stream_error
    stream.release = stream_release
    return capsule


cdef void drop_stream(object capsule) noexcept:
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


cdef int stream_schema(ArrowArrayStream* stream, ArrowSchema* schema) noexcept with gil:
    cdef int code = 0   # no way leads out of an `except`: Cython lets go of a traceback there that may not have been had
    state = <_State>stream.private_data
    try:
        state.schema(schema)
    except BaseException as error:
        code = state.failed(error)
    return code


cdef int stream_next(ArrowArrayStream* stream, ArrowArray* array) noexcept with gil:
    cdef int code = 0
    state = <_State>stream.private_data
    memset(array, 0, sizeof(ArrowArray))
    try:
        state.following(array)
    except BaseException as error:
        code = state.failed(error)
    return code


cdef const char* stream_error(ArrowArrayStream* stream) noexcept with gil:
    state = <_State>stream.private_data
    if state.error is None:
        return NULL
    return <const char*>state.error


cdef void stream_release(ArrowArrayStream* stream) noexcept with gil:
    cdef PyObject* kind
    cdef PyObject* value
    cdef PyObject* traceback
    # A taker lets go while the exception that it is about to raise is set already: that one is to stay.
    PyErr_Fetch(&kind, &value, &traceback)
    state = <_State>stream.private_data
    stream.private_data = NULL
    stream.release = NULL
    try:
        state.finish()
    except BaseException as error:
        state.failed(error)
    Py_DECREF(state)
    PyErr_Restore(kind, value, traceback)
