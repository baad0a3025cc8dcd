"""The wire reader and writer against struct, against hand-counted bytes, and against everything a bad peer could send."""

from __future__ import annotations

import array
import ctypes
import pickle
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastq._native.wire import KEPT_BYTES, DecodeError, EncodeError, Reader, Writer

NUMBERS = {
    "int8": (">b", -(2**7), 2**7 - 1),
    "int16": (">h", -(2**15), 2**15 - 1),
    "int32": (">i", -(2**31), 2**31 - 1),
    "int64": (">q", -(2**63), 2**63 - 1),
    "uint16": (">H", 0, 2**16 - 1),
    "uint32": (">I", 0, 2**32 - 1),
}


def written(write: str, *arguments: Any) -> bytes:
    writer = Writer()
    getattr(writer, write)(*arguments)
    return writer.getvalue()


def slow_uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- numbers


@pytest.mark.parametrize("kind", NUMBERS)
@given(data=st.data())
def test_numbers_are_those_of_struct(kind: str, data: st.DataObject) -> None:
    layout, low, high = NUMBERS[kind]
    value = data.draw(st.integers(low, high))
    encoded = struct.pack(layout, value)
    assert written(f"write_{kind}", value) == encoded
    reader = Reader(encoded)
    assert getattr(reader, f"read_{kind}")() == value
    assert reader.remaining == 0


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_out_of_range_are_refused(kind: str) -> None:
    _, low, high = NUMBERS[kind]
    for value in (low - 1, high + 1):
        with pytest.raises(OverflowError):
            written(f"write_{kind}", value)
    with pytest.raises(TypeError):
        written(f"write_{kind}", None)


@given(st.floats(allow_nan=False))
def test_float64(value: float) -> None:
    assert written("write_float64", value) == struct.pack(">d", value)
    assert Reader(struct.pack(">d", value)).read_float64() == value


def test_bool_is_anything_but_zero() -> None:
    assert [Reader(bytes([byte])).read_bool() for byte in (0, 1, 2, 255)] == [False, True, True, True]
    assert written("write_bool", True) + written("write_bool", False) == b"\x01\x00"


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varints(value: int) -> None:
    assert written("write_uvarint", value) == slow_uvarint(value)
    assert Reader(slow_uvarint(value)).read_uvarint() == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_zigzag_varints(value: int) -> None:
    encoded = slow_uvarint(value * 2 if value >= 0 else -value * 2 - 1)
    assert written("write_varlong", value) == encoded
    assert Reader(encoded).read_varlong() == value
    if -(2**31) <= value < 2**31:
        assert written("write_varint", value) == encoded
        assert Reader(encoded).read_varint() == value


@pytest.mark.parametrize(
    ("read", "data"),
    [
        ("read_uvarint", b""),
        ("read_uvarint", b"\x80"),
        ("read_uvarint", b"\x80" * 10),
        ("read_uvarint", b"\xff\xff\xff\xff\x10"),
        ("read_varint", b"\xff\xff\xff\xff\xff"),
        ("read_varlong", b"\xff" * 10),
        ("read_varlong", b"\x80" * 9 + b"\x02"),
    ],
)
def test_varints_that_do_not_end_or_are_too_wide(read: str, data: bytes) -> None:
    with pytest.raises(DecodeError, match="at byte 0"):
        getattr(Reader(data), read)()


# --- strings and bytes


STRINGS = st.text(max_size=300).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))


@given(STRINGS)
def test_strings(text: str) -> None:
    data = text.encode()
    plain, compact = struct.pack(">h", len(data)) + data, slow_uvarint(len(data) + 1) + data
    for nullable in ("", "nullable_"):
        assert written(f"write_{nullable}string", text) == plain
        assert written(f"write_compact_{nullable}string", text) == compact
        assert getattr(Reader(plain), f"read_{nullable}string")() == text
        assert getattr(Reader(compact), f"read_compact_{nullable}string")() == text


@given(st.binary(max_size=300))
def test_bytes(data: bytes) -> None:
    plain, compact = struct.pack(">i", len(data)) + data, slow_uvarint(len(data) + 1) + data
    for value in (data, bytearray(data), memoryview(data)):
        for nullable in ("", "nullable_"):
            assert written(f"write_{nullable}bytes", value) == plain
            assert written(f"write_compact_{nullable}bytes", value) == compact
    for kind in ("bytes", "records"):
        for nullable in ("", "nullable_"):
            assert bytes(getattr(Reader(plain), f"read_{nullable}{kind}")()) == data
            assert bytes(getattr(Reader(compact), f"read_compact_{nullable}{kind}")()) == data


@pytest.mark.parametrize("kind", ["string", "bytes", "records"])
def test_nulls(kind: str) -> None:
    plain = b"\xff\xff" if kind == "string" else b"\xff\xff\xff\xff"
    for prefix, data in (("", plain), ("compact_", b"\x00")):
        assert getattr(Reader(data), f"read_{prefix}nullable_{kind}")() is None
        with pytest.raises(DecodeError, match="null"):
            getattr(Reader(data), f"read_{prefix}{kind}")()
        if kind != "records":
            assert written(f"write_{prefix}nullable_{kind}", None) == data
            with pytest.raises(TypeError):
                written(f"write_{prefix}{kind}", None)


@pytest.mark.parametrize(
    ("read", "data", "position"),
    [
        ("read_nullable_string", b"\xff\xfeab", 0),
        ("read_string", b"\x80\x00", 0),
        ("read_string", b"\x00\x03ab", 2),
        ("read_compact_string", b"\x04ab", 1),
        ("read_compact_string", slow_uvarint(0x8001) + bytes(0x8000), 0),
        ("read_string", b"\x00\x02\xc3\x28", 0),
        ("read_nullable_bytes", b"\xff\xff\xff\xfe", 0),
        ("read_bytes", b"\x7f\xff\xff\xfeab", 4),
        ("read_compact_bytes", b"\xff\xff\xff\xff\x0fab", 0),
        ("read_compact_nullable_records", b"\x09ab", 1),
        ("read_uuid", bytes(15), 0),
    ],
)
def test_bad_lengths_and_bad_text(read: str, data: bytes, position: int) -> None:
    with pytest.raises(DecodeError) as caught:
        getattr(Reader(data), read)()
    assert caught.value.position == position
    assert f"at byte {position}" in str(caught.value)


def test_what_the_wire_cannot_carry() -> None:
    with pytest.raises(EncodeError, match="32768"):
        written("write_string", "x" * 32768)
    with pytest.raises(EncodeError, match="32768"):
        written("write_compact_string", "é" * 16384)
    with pytest.raises(EncodeError, match="surrogate"):
        written("write_string", "\ud800")
    with pytest.raises(EncodeError, match="16"):
        written("write_uuid", b"short")


def test_records_are_views_of_the_buffer() -> None:
    data = bytearray(b"\x00\x00\x00\x03abc")
    view = Reader(data).read_records()
    data[4:7] = b"xyz"
    assert bytes(view) == b"xyz"
    assert view.readonly is False
    with pytest.raises(BufferError):
        data.append(1)
    assert Reader(bytes(data)).read_records().readonly
    words = array.array("i", [0, 0, 7])
    assert Reader(words, 4).read_view(4).nbytes == 4


# --- ranges, arrays


def test_a_reader_stays_in_its_range() -> None:
    reader = Reader(b"abcdefgh", 2, 6)
    assert (reader.position, reader.end, reader.remaining) == (2, 6, 4)
    with pytest.raises(DecodeError, match="8 bytes needed, 4 left"):
        reader.read_int64()
    assert bytes(reader.read_view(4)) == b"cdef"
    with pytest.raises(DecodeError):
        reader.read_int8()
    reader.position = 3
    assert reader.read_int8() == ord("d")
    for position in (-1, 7):
        with pytest.raises(ValueError, match="outside"):
            reader.position = position
    for start, end in ((-1, 3), (4, 3), (0, 9)):
        with pytest.raises(ValueError, match="outside"):
            Reader(b"abcdefgh", start, end)
    with pytest.raises(ValueError, match="negative"):
        reader.read_view(-1)
    with pytest.raises(ValueError, match="negative"):
        reader.skip(-1)
    with pytest.raises(DecodeError):
        reader.skip(3)
    with pytest.raises(TypeError):
        Reader("text")  # type: ignore[arg-type]


def test_an_empty_buffer() -> None:
    for buffer in (b"", bytearray(), memoryview(b"")):
        assert Reader(buffer).remaining == 0
        with pytest.raises(DecodeError):
            Reader(buffer).read_int8()


@pytest.mark.parametrize(("prefix", "null"), [("", b"\xff\xff\xff\xff"), ("compact_", b"\x00")])
def test_array_lengths(prefix: str, null: bytes) -> None:
    assert written(f"write_{prefix}array_length", -1) == null
    assert getattr(Reader(null), f"read_{prefix}nullable_array_length")(4) == -1
    with pytest.raises(DecodeError, match="null"):
        getattr(Reader(null), f"read_{prefix}array_length")(4)
    three = written(f"write_{prefix}array_length", 3)
    for read in (f"read_{prefix}array_length", f"read_{prefix}nullable_array_length"):
        assert getattr(Reader(three + bytes(12)), read)(4) == 3
        with pytest.raises(DecodeError, match="3 elements"):
            getattr(Reader(three + bytes(11)), read)(4)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64"])
@given(data=st.data())
def test_arrays_of_numbers(kind: str, data: st.DataObject) -> None:
    layout, low, high = NUMBERS[kind]
    values = data.draw(st.lists(st.integers(low, high), max_size=20))
    encoded = b"".join(struct.pack(layout, value) for value in values)
    assert written(f"write_{kind}s", values) == encoded
    assert getattr(Reader(encoded), f"read_{kind}s")(len(values)) == values
    with pytest.raises(DecodeError):
        getattr(Reader(encoded), f"read_{kind}s")(len(values) + 1)
    with pytest.raises(OverflowError):
        written(f"write_{kind}s", [*values, high + 1])


@given(st.lists(STRINGS, max_size=5), st.lists(st.binary(min_size=16, max_size=16), max_size=5))
def test_arrays_of_strings_and_ids(texts: list[str], ids: list[bytes]) -> None:
    for prefix in ("", "compact_"):
        encoded = b"".join(written(f"write_{prefix}string", text) for text in texts)
        assert written(f"write_{prefix}strings", texts) == encoded
        assert getattr(Reader(encoded), f"read_{prefix}strings")(len(texts)) == texts
        with pytest.raises(TypeError):
            written(f"write_{prefix}strings", [*texts, None])
    assert written("write_uuids", ids) == b"".join(ids)
    assert Reader(b"".join(ids)).read_uuids(len(ids)) == ids


@pytest.mark.parametrize("kind", ["int8s", "int32s", "strings", "compact_strings", "uuids"])
def test_counts_that_the_bytes_cannot_hold_allocate_nothing(kind: str) -> None:
    read = getattr(Reader(bytes(100)), f"read_{kind}")
    with pytest.raises(DecodeError, match="do not fit"):
        read(2**62)
    with pytest.raises(ValueError, match="negative"):
        read(-1)


# --- tagged fields


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16383, 16384, 3_000_000])
def test_tagged_fields_of_any_size(size: int) -> None:
    payload = bytes(index % 251 for index in range(size))
    writer = Writer(16)
    writer.write_uvarint(1)
    start = writer.begin_tag(300)
    writer.write_raw(payload)
    writer.end_tag(start)
    writer.write_int8(42)
    assert writer.getvalue() == b"\x01" + slow_uvarint(300) + slow_uvarint(size) + payload + b"\x2a"
    reader = Reader(writer.view())
    assert reader.read_tag_count() == 1
    assert reader.read_uvarint() == 300
    end = reader.enter_tag()
    assert reader.read_view(size) == payload
    reader.leave_tag(end)
    assert reader.read_int8() == 42
    reader.position = 0
    reader.skip_tagged_fields()
    assert reader.read_int8() == 42


def test_nested_tagged_fields() -> None:
    writer = Writer()
    outer = writer.begin_tag(0)
    inner = writer.begin_tag(1)
    writer.write_raw(bytes(200))
    writer.end_tag(inner)
    writer.end_tag(outer)
    inner_bytes = b"\x01" + slow_uvarint(200) + bytes(200)
    assert writer.getvalue() == b"\x00" + slow_uvarint(len(inner_bytes)) + inner_bytes


def test_bad_tag_sections() -> None:
    with pytest.raises(DecodeError, match="do not fit"):
        Reader(b"\x03" + bytes(5)).read_tag_count()
    with pytest.raises(DecodeError, match="5 bytes needed, 1 left"):
        Reader(b"\x01\x00\x05a").skip_tagged_fields()
    reader = Reader(b"\x02ab")
    end = reader.enter_tag()
    reader.skip(1)
    with pytest.raises(DecodeError, match="should end at byte 3"):
        reader.leave_tag(end)
    with pytest.raises(ValueError, match="outside"):
        Writer().end_tag(0)


# --- the writer's buffer


def test_the_writer_grows_and_patches() -> None:
    writer = Writer(0)
    assert len(writer) == 0
    writer.write_int32(0)
    for _ in range(1000):
        writer.write_int64(-1)
    writer.patch_int32(0, writer.position - 4)
    assert writer.getvalue() == struct.pack(">i", 8000) + b"\xff" * 8000
    for position in (-1, len(writer) - 3):
        with pytest.raises(ValueError, match="outside"):
            writer.patch_int32(position, 1)
    writer.clear()
    assert writer.getvalue() == b""
    with pytest.raises(ValueError, match="negative"):
        Writer(-1)


def test_a_view_pins_the_writer() -> None:
    writer = Writer()
    writer.write_int8(1)
    with writer.view() as view:
        assert bytes(view) == b"\x01"
        assert view.readonly
        with pytest.raises(BufferError):
            writer.write_int8(2)
        with pytest.raises(BufferError):
            writer.clear()
    writer.write_int8(2)
    assert writer.getvalue() == b"\x01\x02"


@given(st.lists(st.tuples(st.integers(0, 9) | st.integers(-2, 2).map(KEPT_BYTES.__add__), st.booleans()), max_size=6))
def test_large_bytes_stay_where_they_are(parts: list[tuple[int, bool]]) -> None:
    plain, keeping = Writer(), Writer(keep_large=True)
    values = [bytearray(size) for size, _ in parts]
    for number, (value, (_, in_tag)) in enumerate(zip(values, parts, strict=True)):
        value[:1] = bytes([number])[: len(value)]
        for writer in (plain, keeping):
            writer.write_int16(number)
            start = writer.begin_tag(7) if in_tag else 0
            writer.write_bytes(value)
            if in_tag:
                writer.end_tag(start)
    buffers = keeping.buffers()
    assert b"".join(buffers) == keeping.getvalue() == plain.getvalue()
    kept = [buffer.obj for buffer in buffers if isinstance(buffer, memoryview)]
    assert [id(value) for value in kept] == [
        id(value) for value, (size, in_tag) in zip(values, parts, strict=True) if size >= KEPT_BYTES and not in_tag
    ]
    with pytest.raises(BufferError):
        keeping.view()
    keeping.clear()
    assert keeping.getvalue() == b"".join(keeping.buffers()) == b""


def test_what_is_no_row_of_bytes_is_copied() -> None:
    numbers = array.array("H", range(KEPT_BYTES))
    big_endian = memoryview((ctypes.c_uint16.__ctype_be__ * KEPT_BYTES)(*range(KEPT_BYTES)))
    for value in (numbers, big_endian, memoryview(bytes(KEPT_BYTES)).cast("B", (2, KEPT_BYTES // 2))):
        writer = Writer(keep_large=True)
        writer.write_bytes(value)
        assert len(writer.buffers()) == 1
        assert writer.getvalue()[4:] == memoryview(value).tobytes()


def test_what_is_kept_counts_for_the_wire_s_bound() -> None:
    writer, mebibyte = Writer(keep_large=True), bytes(1 << 20)
    for _ in range(2047):
        writer.write_bytes(mebibyte)
    with pytest.raises(EncodeError, match="2 GiB"):
        writer.write_bytes(mebibyte)
    assert len(writer.buffers()) == 2 * 2047


def test_decode_errors_say_where_and_survive_pickling() -> None:
    error = DecodeError("int32", 7, "2 bytes left", "MetadataResponse v12")
    assert str(error) == "expected int32 at byte 7 in MetadataResponse v12: 2 bytes left"
    again = pickle.loads(pickle.dumps(error))
    assert (again.expected, again.position, again.detail, again.within, str(again)) == (
        error.expected,
        error.position,
        error.detail,
        error.within,
        str(error),
    )


@given(st.binary(max_size=40), st.lists(st.sampled_from([name for name in dir(Reader) if name.startswith("read_")])))
def test_random_bytes_raise_nothing_but_decode_errors(data: bytes, calls: list[str]) -> None:
    reader = Reader(data)
    for name in calls:
        method = getattr(reader, name)
        takes_count = name in ("read_view",) or (
            name.endswith("s")
            and name[5:]
            not in (
                "bytes",
                "nullable_bytes",
                "compact_bytes",
                "compact_nullable_bytes",
                "records",
                "nullable_records",
                "compact_records",
                "compact_nullable_records",
            )
        )
        try:
            method(3) if takes_count or name.endswith("length") else method()
        except DecodeError as error:
            assert 0 <= error.position <= len(data)
