"""Arrow data that is no records: refused by name, before anything is sent where its type says so, and released in any case."""

import gc
import struct

import arro3.core
import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset
import pyarrow.fs
import pytest
from arrow_rows import records
from arrow_structs import Hand
from test_accumulator import Core

from fastq._native.send_many import SendMany

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
NULL_KEYS = pa.struct([("key", pa.null()), ("value", pa.binary())])
VALUE = pa.array([b"a", b"b"])


def table_of(**columns):
    return pa.table({"value": VALUE, **columns})


REFUSED = {
    "bool": (pa.array([True, False]), r"column value has type 'b' \(bool\), expected bytes or text"),
    "numbers": (pa.array([1, 2]), r"column value has type 'l' \(int64\), expected bytes or text"),
    "dictionary of numbers": (pa.array([1, 2]).dictionary_encode(), r"column value has type 'l' \(int64\), expected bytes or text"),
    "runs of numbers": (pa.compute.run_end_encode(pa.array([1, 1])), r"column value has type 'l'"),
    "lists": (pa.array([[b"a"], [b"b"]]), r"column value has type '\+l' \(list\)"),
    "decimals": (pa.array([1, 2]).cast(pa.decimal128(20)), "column value has type 'd:20,0'"),
    "union": (pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [VALUE]), "column value has type .*expected bytes"),
    "key of floats": (table_of(key=[1.0, 2.0]), r"column key has type 'g' \(double\), expected bytes or text"),
    "partition of text": (table_of(partition=["0", "1"]), "column partition has type 'u'.*expected an integer"),
    "partition of times": (table_of(partition=pa.array([0, 1], pa.timestamp("ms"))), "column partition has type 'tsm:'"),
    "timestamp of dates": (table_of(timestamp=pa.array([0, 1], pa.date64())), r"column timestamp .*date64.*expected a timestamp"),
    "timestamp of small numbers": (table_of(timestamp=pa.array([0, 1], pa.int32())), "column timestamp has type 'i'"),
    "headers of text": (table_of(headers=["a", "b"]), "column headers has type 'u'"),
    "headers of nothing": (table_of(headers=[[], []]), "column headers is not list<struct<key"),
    "headers by other names": (
        table_of(headers=pa.array([None, None], pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])))),
        "column headers is not list<struct<key",
    ),
    "headers of three": (
        table_of(headers=pa.array([None, None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary()), ("x", pa.int8())])))),
        "column headers is not list<struct<key",
    ),
    "headers with null keys": (
        table_of(headers=pa.array([[], [{"key": None, "value": b"v"}]], pa.list_(NULL_KEYS))),
        r"column headers.key has type 'n' \(null\), expected text without nulls",
    ),
    "header values of numbers": (
        table_of(headers=pa.array([[], []], pa.list_(pa.struct([("key", pa.string()), ("value", pa.int8())])))),
        "column headers.value has type 'c'",
    ),
    "columns of other names": (pa.table({"value": VALUE, "other": [1, 2]}), "columns other of the Arrow table are none of"),
    "no value": (pa.table({"key": VALUE}), "no column value; it has key"),
    "no columns": (pa.table({}), "no column value; it has no columns"),
    "twice": (pa.table([VALUE, VALUE], names=["value", "value"]), "columns value of the Arrow table are there twice"),
}  # fmt: skip


@pytest.mark.parametrize("which", REFUSED)
@pytest.mark.parametrize("library", ["pyarrow", "arro3"])
def test_types_that_are_no_records_are_refused_before_the_first_row(which, library):
    table, message = REFUSED[which]
    if library == "arro3":
        table = (
            arro3.core.Table.from_arrow(table) if isinstance(table, pa.Table) else arro3.core.Array.from_arrow(table)
        )
    core = Core()
    with pytest.raises((TypeError, ValueError), match=message):
        SendMany(core, core.topic, table, None, None, None, None, None)


def refused(source, message, accepted=0, error=ValueError):
    """`source` fails with that message once `accepted` records are in."""
    with pytest.raises(error, match=message) as caught:
        records(source)
    assert getattr(caught.value, "accepted", 0) == accepted


def test_rows_that_are_no_records_are_named_with_their_place_in_the_whole():
    structs = pa.array([{"value": b"a"}, None, {"value": b"c"}])
    refused(structs, "row 1 of the Arrow table is null as a whole", 1)
    kind = pa.list_(HEADER)
    good, bad = [{"key": "h", "value": None}], [{"key": None, "value": b""}]
    first, second = table_of(headers=pa.array([good, good], kind)), table_of(headers=pa.array([good, bad], kind))
    refused(pa.concat_tables([first, second]), "header of row 3 is null or has a null key", 3)
    refused(table_of(headers=pa.array([good, [None]], kind)), "header of row 1 is null", 1)
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["k", None]))
    entries = pa.StructArray.from_arrays([encoded, VALUE], names=["key", "value"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), entries)
    refused(table_of(headers=lists), "header of row 1 is null or has a null key", 1)
    # What an exporter keeps of a row that is null is not looked at.
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), entries, mask=pa.array([False, True]))
    assert [row[2] for row in records(table_of(headers=hidden), partition=0)[0]] == [[("k", b"a")], []]


def test_times_of_every_unit_rounded_down():
    for unit, factor in [("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)]:
        column = pa.array([2 * factor, 3 * factor + factor // 2, None], pa.timestamp(unit))
        found = [row[3] for row in records(table_of(value=pa.array([b"", b"", b""]), timestamp=column), partition=0)[0]]
        assert found[:2] == [2000, 3000 if unit == "s" else 3500] and found[2] != 3500
    for unit in ("s", "ms", "us", "ns"):
        refused(table_of(timestamp=pa.array([0, -1], pa.timestamp(unit))), "0 to 2.*63 - 1, got -1", 1)
    refused(table_of(timestamp=pa.array([0, 2**62], pa.timestamp("s"))), "0 to 2.*63 - 1, got 46116", 1)


def test_extension_types_are_read_as_what_they_are_stored_as():
    assert [row[0] for row in records(pa.array([b"0123456789abcdef"], pa.uuid()), partition=0)[0]] == [
        b"0123456789abcdef"
    ]
    assert [row[0] for row in records(pa.array(["[1]"], pa.json_()), partition=0)[0]] == [b"[1]"]


# --- structs that no library would export


def offsets32(*numbers):
    return struct.pack(f"<{len(numbers)}i", *numbers)


def values_of(found):
    return [row[0] for row in found.get(0, [])]


def test_what_may_be_missing_is():
    """Buffers of nothing may be NULL, counts of nulls unknown, names not given."""
    hand = Hand()
    table = hand.schema(b"+s", None, [hand.schema(b"z", b"value")])
    rows = hand.array(2, [None], -1, children=[hand.array(2, [None, offsets32(0, 0, 0), None], -1)])
    assert values_of(records(hand.exported(table, rows), partition=0)) == [b"", b""]
    assert (hand.schemas, hand.arrays) == (1, 1)
    for text, buffers in [
        (b"z", [None] * 3),
        (b"Z", [None] * 3),
        (b"vz", [None] * 3),
        (b"w:4", [None] * 2),
        (b"n", []),
        (b"n", None),
    ]:
        assert records(hand.exported(hand.schema(text, None), hand.array(0, buffers))) == {}
    assert values_of(records(hand.exported(hand.schema(b"n"), hand.array(2, None, 2)), partition=0)) == [None, None]
    assert values_of(records(hand.exported(hand.schema(b"w:0"), hand.array(1, [None, None])), partition=0)) == [b""]
    bitmap = hand.array(3, [b"\x05", offsets32(0, 1, 1, 2), b"ab"], -1)
    assert values_of(records(hand.exported(hand.schema(b"z"), bitmap), partition=0)) == [b"a", None, b"b"]
    counted = hand.array(2, [b"\x00", offsets32(0, 1, 2), b"ab"], 0)
    assert values_of(records(hand.exported(hand.schema(b"z"), counted), partition=0)) == [b"a", b"b"]
    # Nothing is aligned.
    torn = hand.array(1, [None, (b"\x00" + offsets32(0, 2))[1:], b"ab"])
    assert values_of(records(hand.exported(hand.schema(b"z"), torn), partition=0)) == [b"ab"]


def malformed_cases(hand):
    z, u8 = hand.schema(b"z"), b"abcdefgh"
    ok = hand.array(1, [None, offsets32(0, 1), u8])
    table = hand.schema(b"+s", b"", [hand.schema(b"z", b"value")])
    view = struct.Struct("<i4sii").pack
    yield "no format", hand.schema(None), ok, "type has no format"
    yield "fixed size of nonsense", hand.schema(b"w:x"), ok, "type is 'w:x'"
    yield "nested for ever", nested(hand, 40), ok, "nested 9 deep"
    yield "length below 0", z, hand.array(-1, [None, offsets32(0, 1), u8]), "-1 entries"
    yield "offset below 0", z, hand.array(1, [None, offsets32(0, 1), u8], offset=-1), "from -1 on"
    yield "null count", z, hand.array(1, [None, offsets32(0, 1), u8], -2), "1 entries from 0 on"
    yield "nulls without a bitmap", z, hand.array(1, [None, offsets32(0, 1), u8], 1), "1 nulls and no bitmap"
    yield "too few buffers", z, hand.array(1, [None, offsets32(0, 1)]), "2 buffers, not 3"
    yield "no buffers", z, hand.array(1, None, n_buffers=3), "3 buffers, not 3"
    yield "no offsets", z, hand.array(1, [None, None, u8]), "1 entries and no buffer"
    yield "no bytes", z, hand.array(1, [None, offsets32(0, 1), None]), "1 bytes from 0 on"
    yield "offsets that go down", z, hand.array(1, [None, offsets32(4, 1), u8]), "-3 bytes from 4 on"
    yield "offsets below 0", z, hand.array(1, [None, offsets32(-4, 1), u8]), "5 bytes from -4 on"
    yield "large offsets", hand.schema(b"Z"), hand.array(1, [None, struct.pack("<2q", 5, 2), u8]), "-3 bytes from 5"
    yield "no children", table, hand.array(1, [None]), "0 columns of 1 rows"
    yield "no list of children", table, hand.array(1, [None], children=None, n_children=1), "1 columns of 1 rows"
    yield "child is NULL", table, hand.array(1, [None], children=[None]), "its array is missing"
    yield "child too short", table, hand.array(2, [None], children=[ok]), "1 entries from 0 on, 2 from 0 on"
    yield "child too short by offset", table, hand.array(1, [None], offset=1, children=[ok]), "1 from 1 on"
    yield "schema child NULL", hand.schema(b"+s", b"", [None]), ok, "column 0 of the Arrow table is missing"
    no_list = hand.schema(b"+s", b"", None, count=1)
    yield "schema without a list of children", no_list, ok, "column 0 of the Arrow table is missing"
    gone = hand.schema(b"z", b"value", released=True)
    yield "schema child released", hand.schema(b"+s", b"", [gone]), ok, "column 0 of the Arrow table is missing"
    yield "dictionary type released", hand.schema(b"c", dictionary=gone), ok, "type of its dictionary was released"
    freed = hand.array(1, [None, offsets32(0, 1), u8], released=True)
    yield "child released", table, hand.array(1, [None], children=[freed]), "its array was released before"
    yield (
        "dictionary released",
        hand.schema(b"c", dictionary=z),
        hand.array(1, [None, b"\0"], dictionary=freed),
        "its array was released before",
    )
    yield "dictionary missing", hand.schema(b"c", dictionary=z), hand.array(1, [None, b"\0"]), "its array is missing"
    yield "index of floats", hand.schema(b"f", dictionary=z), ok, "indices of a dictionary have type 'f'"
    for number in (b"\x01", b"\xff"):
        index = int.from_bytes(number, "little", signed=True)
        yield (
            f"index {index}",
            hand.schema(b"c", dictionary=z),
            hand.array(1, [None, number], dictionary=ok),
            f"index {index} into 1",
        )
    huge = hand.array(1, [None, b"\xff" * 8], dictionary=ok)
    yield "huge index", hand.schema(b"L", dictionary=z), huge, "into 1 entries"
    ends = hand.schema(b"s")
    runs = hand.schema(b"+r", b"", [ends, z])
    yield "runs without children", hand.schema(b"+r"), ok, "0 children, not 2"
    yield "runs of bytes", hand.schema(b"+r", b"", [hand.schema(b"C"), z]), ok, "not integers of 16, 32"
    yield "runs without a list of types", hand.schema(b"+r", b"", None, count=2), ok, "2 children, not 2, or lacks"
    yield "runs of a released type", hand.schema(b"+r", b"", [ends, gone]), ok, "or lacks child 1"
    no_list = hand.array(1, [], children=None, n_children=2)
    yield "runs without a list of children", runs, no_list, "2 children, not 2"
    gone_ends = hand.array(1, [None, b"\1\0"], released=True)
    yield (
        "ends of runs released",
        runs,
        hand.array(1, [], children=[gone_ends, ok]),
        "the ends of its runs are not there",
    )
    yield "runs missing", runs, hand.array(1, [], children=[]), "0 children, not 2"
    yield "runs without ends", runs, hand.array(1, [], children=[hand.array(1, [None, None]), ok]), "have no buffer"
    yield (
        "runs too short",
        runs,
        hand.array(2, [], children=[hand.array(1, [None, b"\1\0"]), ok]),
        "behind the last of 1 runs",
    )
    yield (
        "runs of none",
        runs,
        hand.array(1, [], children=[hand.array(0, [None, None]), ok]),
        "behind the last of 0 runs",
    )
    yield (
        "fewer values than runs",
        runs,
        hand.array(1, [], children=[hand.array(2, [None, b"\1\0\2\0"]), ok]),
        "2 from 0 on",
    )
    sizes = struct.pack("<q", 20)
    data = b"x" * 20
    for name, where in [("buffer", (1, 0)), ("buffer below 0", (-1, 0)), ("start", (0, 1)), ("start below 0", (0, -1))]:
        torn = hand.array(1, [None, view(20, b"xxxx", *where), data, sizes])
        yield f"view of a wrong {name}", hand.schema(b"vz"), torn, "a view of 20 bytes from"
    yield (
        "view of a NULL buffer",
        hand.schema(b"vz"),
        hand.array(1, [None, view(20, b"", 0, 0), None, sizes]),
        "a view of 20",
    )
    yield "view without buffers", hand.schema(b"vz"), hand.array(1, [None, view(20, b"", 0, 0)]), "a view of 20"
    yield "view below 0", hand.schema(b"vz"), hand.array(1, [None, view(-1, b"", 0, 0)]), "has -1 bytes"
    header = hand.schema(b"+s", b"", [hand.schema(b"u", b"key"), hand.schema(b"z", b"value")])
    entry = hand.array(1, [None], children=[ok, ok])
    for text, buffers, message in [
        (b"+l", [None, offsets32(0, 2)], "entries 0 to 2 of 1"),
        (b"+l", [None, offsets32(-1, 1)], "entries -1 to 1 of 1"),
        (b"+l", [None, offsets32(1, 0)], "entries 1 to 0 of 1"),
        (b"+L", [None, struct.pack("<2q", 0, 2**62)], f"entries 0 to {2**62} of 1"),
        (b"+vl", [None, offsets32(1), offsets32(1)], "1 entries from 1 on of 1"),
        (b"+vl", [None, offsets32(0), offsets32(-1)], "entries 0 to -1 of 1"),
        (b"+vL", [None, struct.pack("<q", 2**62), struct.pack("<q", 2**63 - 1)], f"entries from {2**62} on of 1"),
        (b"+vl", [None, offsets32(0), None], "its lists have no sizes"),
        (b"+w:2", [None], "entries 0 to 2 of 1"),
    ]:
        lists = hand.schema(b"+s", b"", [hand.schema(b"z", b"value"), hand.schema(text, b"headers", [header])])
        rows = hand.array(1, [None], children=[ok, hand.array(1, buffers, children=[entry])])
        yield f"headers {text.decode()} {message}", lists, rows, message
    lists = hand.schema(b"+s", b"", [hand.schema(b"z", b"value"), hand.schema(b"+l", b"headers", [header])])
    for what, entries, message in [
        ("one field", hand.array(1, [None], children=[ok]), "1 fields, not 2"),
        ("short fields", hand.array(2, [None], children=[ok, ok]), "1 entries from 0 on, 2 from 0 on"),
        ("missing", None, "its array is missing"),
    ]:
        rows = hand.array(1, [None], children=[ok, hand.array(1, [None, offsets32(0, 1)], children=[entries])])
        yield f"headers with {what}", lists, rows, message
    childless = hand.array(1, [None], children=[ok, hand.array(1, [None, offsets32(0, 1)])])
    yield "headers without entries", lists, childless, "its lists have 0 children"
    empty = hand.schema(b"+s", b"", [hand.schema(b"z", b"value"), hand.schema(b"+l", b"headers", [])])
    yield "headers of no type", empty, childless, "its type has 0 children"
    no_list = hand.array(1, [None, offsets32(0, 1)], children=None, n_children=1)
    rows = hand.array(1, [None], children=[ok, no_list])
    yield "headers without a list of entries", lists, rows, "its lists have 1 children"
    bare = hand.array(1, [None], children=None, n_children=2)
    rows = hand.array(1, [None], children=[ok, hand.array(1, [None, offsets32(0, 1)], children=[bare])])
    yield "headers without a list of fields", lists, rows, "a header has 2 fields"
    typeless = hand.schema(b"+s", b"", None, count=2)
    columns = [hand.schema(b"z", b"value"), hand.schema(b"+l", b"headers", [typeless])]
    yield "headers without a list of types", hand.schema(b"+s", b"", columns), childless, "2 children, not 2, or lacks"


def nested(hand, depth):
    schema = hand.schema(b"z")
    for _ in range(depth):
        schema = hand.schema(b"c", dictionary=schema)
    return schema


HAND = Hand()
CASES = list(malformed_cases(HAND))


@pytest.mark.parametrize(("schema", "array", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_malformed_structs_are_refused(schema, array, message):
    HAND.rearm()  # some serve several cases
    before = HAND.schemas, HAND.arrays
    with pytest.raises(ValueError, match=message):
        records(HAND.exported(schema, array))
    gc.collect()
    assert (HAND.schemas, HAND.arrays) == (before[0] + 1, before[1] + 1)


def test_what_was_taken_before_is_refused():
    hand = Hand()
    source = hand.exported(hand.schema(b"n"), hand.array(1, []))
    assert len(records(source, partition=0)[0]) == 1
    with pytest.raises(ValueError, match="taken or released before"):
        records(source)
    stream = hand.stream(hand.schema(b"n"), [hand.array(1, [])])
    assert len(records(stream, partition=0)[0]) == 1
    with pytest.raises(ValueError, match="taken or released before"):
        records(stream)
    assert (hand.schemas, hand.arrays, stream.released) == (2, 2, 1)


@pytest.mark.parametrize("callback", ["get_schema", "get_next", "get_last_error"])
def test_a_stream_without_a_callback_is_refused_and_released(callback):
    hand = Hand()
    stream = hand.stream(hand.schema(b"n"), [hand.array(1, [])])
    setattr(stream.struct, callback, None)
    refused(stream, "malformed Arrow stream: it lacks a callback")
    gc.collect()
    assert stream.released == 1


@pytest.mark.parametrize("text", [b"the disk is gone", None])
def test_a_stream_that_fails_says_why_and_is_released(text):
    hand = Hand()
    stream = hand.stream(hand.schema(b"n"), [hand.array(2, []), hand.array(0, [])], error=(5, text))
    refused(stream, f"failed to give its next chunk: {text.decode() if text else 'no reason given, code 5'}", 2)
    gc.collect()
    assert (hand.schemas, hand.arrays, stream.released) == (1, 2, 1)
    stream = hand.stream(None, [], error=(5, text))
    refused(stream, "failed to give its schema")
    assert stream.released == 1


def test_a_call_that_is_left_releases_what_it_holds():
    hand = Hand()
    stream = hand.stream(hand.schema(b"n"), [hand.array(20000, [])] * 2)
    core = Core()
    call = SendMany(core, core.topic, stream, None, None, None, None, None)
    assert not call.step()
    del call
    gc.collect()
    assert (hand.schemas, hand.arrays, stream.released) == (1, 1, 1)


def test_a_raising_python_stream_is_told():
    def batches():
        yield pa.record_batch({"value": [b"a"]})
        raise RuntimeError("the source broke")

    refused(pa.RecordBatchReader.from_batches(pa.schema([("value", pa.binary())]), batches()), "the source broke", 1)


@pytest.mark.timeout(60)
def test_a_stream_may_need_the_gil_in_another_thread(tmp_path):
    """A dataset on a Python file system reads in threads of its own, which run Python, while the taker waits for them."""

    class Files(pyarrow.fs.FileSystemHandler):
        def __init__(self):
            self.local = pyarrow.fs.LocalFileSystem()

        def open_input_file(self, path):
            return pa.PythonFile(open(path, "rb"), mode="r")

        def get_file_info(self, paths):
            return self.local.get_file_info(paths)

        def get_type_name(self):
            return "python"

        def normalize_path(self, path):
            return path

        def __getattr__(self, name):
            raise NotImplementedError(name)

    for name in ("get_file_info_selector", "create_dir", "delete_dir", "delete_dir_contents", "delete_root_dir_contents",
                 "delete_file", "move", "copy_file", "open_input_stream", "open_output_stream", "open_append_stream"):  # fmt: skip
        setattr(Files, name, lambda self, *arguments: (_ for _ in ()).throw(NotImplementedError))
    Files.__abstractmethods__ = frozenset()
    values = [b"%d" % number for number in range(5000)]
    path = str(tmp_path / "part.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, pa.schema([("value", pa.binary())])) as writer:
        writer.write_table(pa.table({"value": values}), max_chunksize=500)
    files = pyarrow.fs.PyFileSystem(Files())
    dataset = pyarrow.dataset.dataset(path, format="ipc", filesystem=files)
    assert values_of(records(dataset.scanner().to_reader(), partition=0)) == values
