"""Being woken less often while a large answer is on its way: SO_RCVLOWAT.

A reader that is faster than the writer is woken for every few kilobytes; each time it takes them, tells the peer of the room, and sleeps
again, and both sides pay for it. While much of an answer is missing the system is asked to wait until LOW_WATER_BYTES of it are there. The
end of the stream, an error, and a full window wake it all the same.

Rules of this file:
- The mark is above one byte only while at least as many bytes of the answer are missing: nobody waits for what will not come.
- Only where the kernel wakes a reader whose window or memory is used up below the mark, which Linux does since 5.12 (see tcp(7); before, it
  could wait for ever), and only without TLS, whose records say nothing of what is missing.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastq.net.connection import Connection

LOW_WATER_BYTES = 128 * 1024
READ_BYTES_MIN = 16 * 1024
"""A driver that received fewer at once, and has set no mark, need not ask whether it should: small answers pay nothing."""
KERNEL_MIN = (5, 12)


def kept_by(system: str, release: str) -> bool:
    """Whether this kernel keeps a mark without harm; a release that cannot be read is none."""
    numbers = release.split(".")
    try:
        return system == "linux" and (int(numbers[0]), int(numbers[1])) >= KERNEL_MIN
    except (ValueError, IndexError):
        return False


IS_KEPT = hasattr(socket, "SO_RCVLOWAT") and kept_by(sys.platform, os.uname().release if hasattr(os, "uname") else "")


def change(connection: Connection) -> int:
    """After bytes were received: the mark that the driver is to give to the socket now, in bytes; 0 where it stays what it is."""
    awaits_much = connection.awaited_bytes >= LOW_WATER_BYTES
    if awaits_much is connection.awaits_much or not IS_KEPT:
        return 0
    connection.awaits_much = awaits_much
    return LOW_WATER_BYTES if awaits_much else 1
