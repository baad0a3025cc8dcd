"""The structs of the Arrow C data interface by hand, to export what no library would: what is missing, too short or torn."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p

release_type = CFUNCTYPE(None, c_void_p)


class Schema(ctypes.Structure):
    pass


Schema._fields_ = [
    ("format", c_char_p),
    ("name", c_char_p),
    ("metadata", c_char_p),
    ("flags", c_int64),
    ("n_children", c_int64),
    ("children", POINTER(POINTER(Schema))),
    ("dictionary", POINTER(Schema)),
    ("release", c_void_p),
    ("private_data", c_void_p),
]


class Array(ctypes.Structure):
    pass


Array._fields_ = [
    ("length", c_int64),
    ("null_count", c_int64),
    ("offset", c_int64),
    ("n_buffers", c_int64),
    ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(Array))),
    ("dictionary", POINTER(Array)),
    ("release", c_void_p),
    ("private_data", c_void_p),
]


class Stream(ctypes.Structure):
    _fields_ = [
        ("get_schema", c_void_p),
        ("get_next", c_void_p),
        ("get_last_error", c_void_p),
        ("release", c_void_p),
        ("private_data", c_void_p),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [c_void_p, c_char_p, c_void_p]


class Hand:
    """Structs that live as long as this object does; `schemas` and `arrays` count the releases of the outermost ones."""

    def __init__(self):
        self.kept = []
        self.gone = []
        self.schemas = 0
        self.arrays = 0

        @release_type
        def release_schema(pointer):
            self.schemas += 1
            Schema.from_address(pointer).release = None

        @release_type
        def release_array(pointer):
            self.arrays += 1
            Array.from_address(pointer).release = None

        self.release_schema = ctypes.cast(self.keep(release_schema), c_void_p).value
        self.release_array = ctypes.cast(self.keep(release_array), c_void_p).value

    def keep(self, item):
        self.kept.append(item)
        return item

    def rearm(self):
        """Every struct can be exported once more, but for those that were made as released ones."""
        for made in self.kept:
            if isinstance(made, Schema | Array) and not any(made is gone for gone in self.gone):
                made.release = self.release_schema if isinstance(made, Schema) else self.release_array

    def pointers(self, kind, items):
        if items is None:
            return None
        made = (POINTER(kind) * max(len(items), 1))()
        for at, item in enumerate(items):
            if item is not None:
                made[at] = ctypes.pointer(item)
        return ctypes.cast(self.keep(made), POINTER(POINTER(kind)))

    def schema(self, text, name=b"", children=(), dictionary=None, count=None, metadata=None, released=False):
        made = self.keep(Schema(text, name, metadata, 2, len(children or ()) if count is None else count))
        made.children = self.pointers(Schema, children)
        if dictionary is not None:
            made.dictionary = ctypes.pointer(dictionary)
        made.release = None if released else self.release_schema
        if released:
            self.gone.append(made)
        return made

    def array(
        self,
        length,
        buffers,
        nulls=0,
        offset=0,
        children=(),
        dictionary=None,
        n_buffers=None,
        n_children=None,
        released=False,
    ):
        """buffers: bytes each, None for NULL; the whole None for no list of them."""
        made = self.keep(Array(length, nulls, offset, len(buffers or ()) if n_buffers is None else n_buffers))
        made.n_children = len(children or ()) if n_children is None else n_children
        if buffers is not None:
            slots = self.keep((c_void_p * max(len(buffers), 1))())
            for at, data in enumerate(buffers):
                if data is not None:
                    # Of exactly its size, so that the address sanitizer sees what is read beyond it.
                    slots[at] = ctypes.addressof(self.keep((ctypes.c_char * len(data)).from_buffer_copy(data)))
            made.buffers = ctypes.cast(slots, POINTER(c_void_p))
        made.children = self.pointers(Array, children)
        if dictionary is not None:
            made.dictionary = ctypes.pointer(dictionary)
        made.release = None if released else self.release_array
        if released:
            self.gone.append(made)
        return made

    def exported(self, schema, array):
        return Exported(self, schema, array)

    def stream(self, schema, arrays, error=None):
        """A stream of `arrays`, which fails after them when there is an error: (code, text or None)."""
        return ExportedStream(self, schema, arrays, error)


class Exported:
    """One array with its schema, for one taker."""

    def __init__(self, hand, schema, array):
        self.hand, self.schema, self.array = hand, schema, array

    def __arrow_c_array__(self, requested_schema=None):
        return (
            new_capsule(ctypes.addressof(self.schema), b"arrow_schema", None),
            new_capsule(ctypes.addressof(self.array), b"arrow_array", None),
        )


class ExportedStream:
    def __init__(self, hand, schema, arrays, error):
        self.hand = hand
        left = list(arrays)
        self.released = 0

        @CFUNCTYPE(c_int, c_void_p, c_void_p)
        def get_schema(stream, out):
            if schema is None:
                return 5
            ctypes.memmove(out, ctypes.addressof(schema), ctypes.sizeof(Schema))
            return 0

        @CFUNCTYPE(c_int, c_void_p, c_void_p)
        def get_next(stream, out):
            if not left:
                if error is not None:
                    return error[0]
                Array.from_address(out).release = None
                return 0
            array = left.pop(0)
            ctypes.memmove(out, ctypes.addressof(array), ctypes.sizeof(Array))
            return 0

        said = hand.keep(c_char_p(error[1])) if error is not None else c_char_p()

        @CFUNCTYPE(c_void_p, c_void_p)
        def get_last_error(stream):
            return ctypes.cast(said, c_void_p).value

        @CFUNCTYPE(None, c_void_p)
        def release(stream):
            self.released += 1
            Stream.from_address(stream).release = None

        hand.keep((get_schema, get_next, get_last_error, release))
        self.struct = Stream(
            *(ctypes.cast(call, c_void_p).value for call in (get_schema, get_next, get_last_error, release))
        )

    def __arrow_c_stream__(self, requested_schema=None):
        return new_capsule(ctypes.addressof(self.struct), b"arrow_array_stream", None)
