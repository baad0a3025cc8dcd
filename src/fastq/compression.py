"""Kafka's compression codecs, a whole batch at a time.

Rules
- Functions without shared state, safe from any thread; the libraries release the GIL while they work.
- Decompression is bounded: no codec allocates much beyond `limit_bytes`, whatever its input claims. Bad input raises
  DecodeError, and so does input that unpacks to more.
- A codec's library is imported when the codec is first used: together they take longer than the rest of a client. One that is
  not there, for a platform without its wheels, is a MissingPackage then, and everything else works.
- Concatenated gzip members, LZ4 frames, zstd frames and snappy streams are one stream, as Java's readers see them.

Snappy, as Kafka writes it, has the framing of snappy-java ("xerial"), all integers big-endian:
    magic 82 53 4e 41 50 50 59 00, version 4 (= 1), least compatible version 4 (= 1),
    then blocks: compressed length 4, a raw snappy block, of 32 KiB of input when we write
A raw snappy block without the framing is read too, as some clients send it.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from fastq._native.wire import DecodeError
from fastq.errors import MissingPackage

if TYPE_CHECKING:
    import zstandard
    from typing_extensions import Buffer

__all__ = ["LEVELS", "Codec", "check_codec", "codec_by_name", "compress", "decompress"]


class Codec(IntEnum):
    """The codec bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Lowest and highest level of Kafka's compression.<codec>.level (KIP-390). None and snappy have no levels.
LEVELS: dict[Codec, tuple[int, int]] = {
    Codec.GZIP: (1, 9),
    Codec.LZ4: (1, 17),
    Codec.ZSTD: (-131072, 22),
}

_GZIP_LEVEL = -1  # zlib's own default, as Kafka's
_LZ4_LEVEL = 9  # Kafka's default, at which its clients and brokers take the fast compressor (Lz4BlockOutputStream)
_LZ4_FAST = 0  # what the library calls that one; from 3 on it is the slow, thorough one, as with Kafka's other levels
_LZ4_LEVEL_MAX = 16  # what the library goes up to
_ZSTD_LEVEL = 3

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_PIECE_BYTES = 1024 * 1024  # most that the LZ4 library is asked for at a time: it allocates that much first
_STEP_BYTES_MIN = 512  # input given to a second and later member of a stream, doubled as it goes on,
_STEP_BYTES_MAX = 4 * _PIECE_BYTES  # up to this: what a member has not got to is copied with every piece

_XERIAL_HEADER = b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2
_XERIAL_MAGIC = _XERIAL_HEADER[:8]
_XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_RATIO_MAX = 22  # a three-byte copy yields 64 bytes at most

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK_BYTES_MAX = 128 * 1024
_ZSTD_RAW, _ZSTD_RLE = 0, 1

_local = threading.local()  # zstd contexts: dear to make, not to be shared by threads


def codec_by_name(name: str) -> Codec:
    """The codec that Kafka's `compression.type` calls `name`: none, gzip, snappy, lz4 or zstd; else ValueError."""
    for codec in Codec:
        if codec.name.lower() == name:
            return codec
    raise ValueError(f"compression codec {name!r} is unknown: none, gzip, snappy, lz4 and zstd are")


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` compressed by `codec`, in the form that Kafka's own clients read.

    `level` is one of LEVELS, or None for Kafka's default; snappy and none have no levels and take no notice of it. As in Kafka,
    lz4's 9 is the default and means the fast compressor, so that 8 and 10 take longer and pack tighter than it does.
    Raises ValueError for an unknown codec or a level out of range, MissingPackage where the codec's library is not installed.
    """
    try:
        which = Codec(codec)
    except ValueError:
        raise ValueError(f"compression codec {codec} is unknown: 0 to 4 are") from None
    lowest, highest = LEVELS.get(which, (None, None))
    if level is not None and lowest is not None and highest is not None and not lowest <= level <= highest:
        raise ValueError(f"{which.name.lower()} level {level} is out of range: {lowest} to {highest} are allowed")
    return _COMPRESSORS[which](data, level)


def decompress(codec: int, data: Buffer, limit_bytes: int) -> bytes:
    """What `data` was before `codec` compressed it, at most `limit_bytes` of it.

    Raises DecodeError when the codec is unknown, when `data` is malformed, cut off or followed by other bytes, and as
    soon as it is clear that it unpacks to more than `limit_bytes`. Raises MissingPackage where the codec's library is not installed.
    """
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise DecodeError("a compression codec of 0 to 4", 0, f"got {codec}")
    return decompressor(memoryview(data).cast("B"), limit_bytes)


def check_codec(codec: int) -> None:
    """Import the library of a codec. Raises MissingPackage where that fails; none and gzip need nothing beside Python itself."""
    library = _LIBRARIES.get(codec)
    if library is not None:
        library()


@cache
def _lz4_frame() -> Any:
    try:
        import lz4.frame  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingPackage.needed("the codec lz4", "lz4", error) from error
    return lz4.frame


@cache
def _snappy_library() -> Any:
    try:
        import snappy  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingPackage.needed("the codec snappy", "python-snappy", error) from error
    return snappy


@cache
def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingPackage.needed("the codec zstd", "zstandard", error) from error
    return zstandard


_LIBRARIES: dict[int, Callable[[], Any]] = {
    Codec.SNAPPY: _snappy_library,
    Codec.LZ4: _lz4_frame,
    Codec.ZSTD: _zstandard,
}


def _malformed(codec: Codec, error: Exception) -> DecodeError:
    return DecodeError(f"{codec.name.lower()} data", 0, str(error) or str(error.__cause__))


def _too_large(limit_bytes: int) -> DecodeError:
    return DecodeError(f"data that unpacks to at most {limit_bytes} bytes", 0, "it unpacks to more")


def _cut_off(what: str, position: int) -> DecodeError:
    return DecodeError(what, position, "the data ends too early")


# --- none


def _store(data: Buffer, level: int | None) -> bytes:
    return bytes(data)


def _unstore(data: memoryview, limit_bytes: int) -> bytes:
    if data.nbytes > limit_bytes:
        raise _too_large(limit_bytes)
    return bytes(data)


# --- gzip and lz4: streams of members, read by objects of nearly the same form


class _Member(Protocol):
    """Reads one gzip member or LZ4 frame; `decompress` answers at most `max_length` bytes."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: Buffer, max_length: int = ...) -> bytes: ...


def _gzip(data: Buffer, level: int | None) -> bytes:
    packer = zlib.compressobj(_GZIP_LEVEL if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
    return packer.compress(data) + packer.flush()


def _gunzip(data: memoryview, limit_bytes: int) -> bytes:
    try:
        return _read_members(lambda: zlib.decompressobj(_GZIP_WINDOW), data, limit_bytes)
    except zlib.error as error:
        raise _malformed(Codec.GZIP, error) from error


def _lz4(data: Buffer, level: int | None) -> bytes:
    frame = _lz4_frame()
    # Kafka's reader refuses linked blocks; its writer uses blocks of 64 KiB and leaves the content size out.
    packed: bytes = frame.compress(
        data,
        compression_level=_LZ4_FAST if level is None or level == _LZ4_LEVEL else min(level, _LZ4_LEVEL_MAX),
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return packed


def _unlz4(data: memoryview, limit_bytes: int) -> bytes:
    frame = _lz4_frame()
    try:
        return _read_members(frame.LZ4FrameDecompressor, data, limit_bytes)
    except RuntimeError as error:
        raise _malformed(Codec.LZ4, error) from error


def _read_members(new_member: Callable[[], Any], data: memoryview, limit_bytes: int) -> bytes:
    """Read members until the data ends. Later members get their input in steps that grow, because what a member leaves
    over is copied: so a thousand tiny members do not cost a thousand copies of the rest."""
    pieces: list[bytes] = []
    room = limit_bytes
    position = 0
    step = _STEP_BYTES_MAX
    while True:
        member: _Member = new_member()
        while not member.eof:
            if position == data.nbytes:
                raise _cut_off("the end of a gzip member or LZ4 frame", position)
            chunk: Buffer = data[position : position + step]
            position = min(position + step, data.nbytes)
            step = min(2 * step, _STEP_BYTES_MAX)
            room = _drain(member, chunk, pieces, room, limit_bytes)
        position -= len(member.unused_data or b"")
        if position == data.nbytes:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        step = _STEP_BYTES_MIN


def _drain(member: _Member, chunk: Buffer, pieces: list[bytes], room: int, limit_bytes: int) -> int:
    """Feed `chunk` and collect all that comes of it; answers the room that is left."""
    while True:
        piece = member.decompress(chunk, min(room + 1, _PIECE_BYTES))
        if len(piece) > room:
            raise _too_large(limit_bytes)
        room -= len(piece)
        pieces.append(piece)
        chunk = getattr(member, "unconsumed_tail", b"")  # zlib hands back what it did not get to; LZ4 keeps it
        if member.eof or (not chunk and getattr(member, "needs_input", len(piece) < _PIECE_BYTES)):
            return room


# --- snappy


def _snappy(data: Buffer, level: int | None) -> bytes:
    snappy = _snappy_library()
    view = memoryview(data).cast("B")
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, view.nbytes, _XERIAL_BLOCK_BYTES):
        block = snappy.compress(view[start : start + _XERIAL_BLOCK_BYTES])
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _unsnappy(data: memoryview, limit_bytes: int) -> bytes:
    if data[:8] != _XERIAL_MAGIC:
        return _unsnappy_block(data, 0, limit_bytes, limit_bytes)
    parts: list[Buffer] = []
    room = limit_bytes
    position = 0
    while position < data.nbytes:
        if data[position : position + 8] == _XERIAL_MAGIC:  # at the start, and where streams were concatenated
            position += len(_XERIAL_HEADER)
            if position > data.nbytes:
                raise _cut_off("the header of a snappy stream", data.nbytes)
            continue
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size > data.nbytes - position:
            raise _cut_off(f"a snappy block of {size} bytes", position)
        block = _unsnappy_block(data[position : position + size], position, room, limit_bytes)
        room -= len(block)
        parts.append(block)
        position += size
    return b"".join(parts)


def _unsnappy_block(block: memoryview, position: int, room: int, limit_bytes: int) -> bytes:
    """Unpack a raw block, once the size that it claims is known to be possible and allowed."""
    snappy = _snappy_library()
    claimed = _snappy_claim(block, position)
    if claimed > room:
        raise _too_large(limit_bytes)
    if claimed > _SNAPPY_RATIO_MAX * block.nbytes:
        raise DecodeError("a snappy block", position, f"{block.nbytes} bytes cannot unpack to {claimed}")
    try:
        unpacked: bytes = snappy.uncompress(block)
    except snappy.UncompressError as error:
        raise _malformed(Codec.SNAPPY, error) from error
    return unpacked


def _snappy_claim(block: memoryview, position: int) -> int:
    """The size that a raw block says it unpacks to: its preamble, a varint of at most 32 bits with its lowest bits first."""
    claimed = 0
    for at, byte in enumerate(block[:5]):
        claimed |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            if claimed >> 32:
                break
            return claimed
    raise DecodeError(
        "the size at the start of a snappy block", position, f"got {bytes(block[:5]).hex(' ') or 'nothing'}"
    )


# --- zstd


def _zstd(data: Buffer, level: int | None) -> bytes:
    library = _zstandard()
    level = _ZSTD_LEVEL if level is None else level
    packers: dict[int, zstandard.ZstdCompressor] = _local.__dict__.setdefault("packers", {})
    packer = packers.get(level)
    if packer is None:
        packers.clear()  # one level at a time is the rule; contexts of high levels are large
        packer = packers[level] = library.ZstdCompressor(level=level)
    return packer.compress(memoryview(data))


def _unzstd(data: memoryview, limit_bytes: int) -> bytes:
    library = _zstandard()
    unpacker: zstandard.ZstdDecompressor | None = getattr(_local, "unpacker", None)
    if unpacker is None:
        unpacker = _local.unpacker = library.ZstdDecompressor()
    pieces: list[bytes] = []
    room = limit_bytes
    position = 0
    while position < data.nbytes or position == 0:
        try:
            end, size_max, claimed = _zstd_frame(data, position)
        except library.ZstdError as error:
            raise _malformed(Codec.ZSTD, error) from error
        if claimed > room:
            raise _too_large(limit_bytes)
        if claimed > size_max:
            raise DecodeError("a zstd frame", position, f"its blocks cannot unpack to {claimed} bytes")
        if size_max:
            try:
                piece = unpacker.decompress(data[position:end], max_output_size=min(size_max, room) or 1)
            except library.ZstdError as error:
                too_large = size_max > room and claimed < 0
                raise (_too_large(limit_bytes) if too_large else _malformed(Codec.ZSTD, error)) from error
            room -= len(piece)
            if room < 0:
                raise _too_large(limit_bytes)
            pieces.append(piece)
        position = end
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _zstd_frame(data: memoryview, position: int) -> tuple[int, int, int]:
    """Where the frame at `position` ends, the most that its blocks can unpack to, and the size it claims (-1: none).

    Walks the block headers (RFC 8878, 3.1.1.2): 3 bytes little-endian, bit 0 last block, bits 1-2 type (raw, RLE,
    compressed), then the size, which for RLE is that of the output. The library alone would trust the claimed size,
    and ask for a size where none is claimed, as Java's writer leaves it out.
    """
    library = _zstandard()
    magic = int.from_bytes(data[position : position + 4], "little")
    if magic & 0xFFFFFFF0 == 0x184D2A50:  # a skippable frame: length 4, little-endian, then that many bytes
        end = position + 8 + int.from_bytes(data[position + 4 : position + 8], "little")
        if end > data.nbytes:
            raise _cut_off("a skippable zstd frame", position)
        return end, 0, -1
    if data[position : position + 4] != _ZSTD_MAGIC:
        raise DecodeError("a zstd frame", position, f"got {bytes(data[position : position + 4]).hex(' ') or 'nothing'}")
    parameters = library.get_frame_parameters(data[position : position + 18])
    claimed = parameters.content_size if parameters.content_size != library.CONTENTSIZE_UNKNOWN else -1
    end = position + library.frame_header_size(data[position : position + 18])
    size_max = 0
    last = False
    while not last:
        header = int.from_bytes(data[end : end + 3], "little")
        last = bool(header & 1)
        kind, size = header >> 1 & 3, header >> 3
        size_max += size if kind in (_ZSTD_RAW, _ZSTD_RLE) else _ZSTD_BLOCK_BYTES_MAX
        end += 3 + (1 if kind == _ZSTD_RLE else size)
        if end > data.nbytes:
            raise _cut_off("a zstd block", data.nbytes)
    end += 4 if parameters.has_checksum else 0
    if end > data.nbytes:
        raise _cut_off("the checksum of a zstd frame", data.nbytes)
    return end, size_max, claimed


_COMPRESSORS: dict[Codec, Callable[[Buffer, int | None], bytes]] = {
    Codec.NONE: _store,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESSORS: dict[int, Callable[[memoryview, int], bytes]] = {
    Codec.NONE: _unstore,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
