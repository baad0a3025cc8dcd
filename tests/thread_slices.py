"""What the kernel tells of a thread's slice."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

GETATTR = {"x86_64": 315, "aarch64": 275}
ATTRIBUTES = "=IIQiIQQQ"
KNOWS_SLICES = sys.platform == "linux" and tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 12)


def slice_us() -> int:
    """The slice of this thread, as the kernel tells it: the time of a scheduling policy that is not SCHED_DEADLINE, since Linux 6.12."""
    attributes = ctypes.create_string_buffer(struct.calcsize(ATTRIBUTES))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(GETATTR[platform.machine()], 0, attributes, len(attributes), 0) == 0
    return int(struct.unpack(ATTRIBUTES, attributes.raw)[5]) // 1000
