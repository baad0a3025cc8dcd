"""Memory to receive into.

Rules of this file: what is handed out is not cleared. Its owner must fill all of it before anybody else may see it.
"""

from cpython.bytearray cimport PyByteArray_FromStringAndSize


def uncleared(Py_ssize_t size):
    """A bytearray of `size` bytes whose content is arbitrary. ValueError for a negative size, MemoryError.

    `bytearray(size)` writes zeros first, which for a large response costs as much as receiving it.
    """
    if size < 0:
        raise ValueError(f"a buffer cannot have {size} bytes")
    return PyByteArray_FromStringAndSize(NULL, size)
