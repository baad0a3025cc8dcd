"""Many records in one call of the producer: sequences, Arrow arrays and tables, headers, and how far an error let it come."""

import random
import time

import pyarrow as pa
import pytest
from stored_log import Log

from fastq.errors import SerializationError
from fastq.producer import SendManyError


def test_send_many_of_every_kind(make, wide, shared_broker):
    producer = make()
    values = [b"%d" % i for i in range(5000)]
    keys = [b"k%d" % (i % 7) for i in range(5000)]
    result = producer.send_many(wide, values).result(20)
    assert result.count == sum(len(r) for ranges in result.offsets.values() for r in ranges) == 5000
    producer.send_many(wide, iter(values), keys=iter(keys), timestamps=range(5000)).result(20)
    producer.send_many(wide, (v for v in values), partition=2, headers=([("h", v)] for v in values)).result(20)
    producer.send_many(wide, [None, bytearray(b"x")]).result(20)
    assert producer.send_many(wide, []).result(1).count == 0
    stored = Log(shared_broker, wide).partitions()
    assert sorted(v.value for records in stored.values() for v in records if v.value and v.value != b"x") == sorted(
        values * 3
    )
    keyed = {r.key: i for i, records in stored.items() for r in records if r.key}
    assert len(keyed) == 7
    assert [r.headers[0][1] for r in stored[2] if r.headers] == values


def test_send_many_arrow(make, wide, shared_broker):
    producer = make()
    values = [b"v%d" % i if i % 5 else None for i in range(1000)]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        producer.send_many(wide, pa.array(values, kind), partition=0).result(20)
    producer.send_many(wide, pa.array(["a" * 20, None, "b"]).slice(1), partition=1).result(20)
    producer.send_many(
        wide, pa.chunked_array([[b"1", b"2"], [b"3"]]), keys=pa.array([b"a", b"b", b"c"]), partition=1
    ).result(20)
    headers = pa.array(
        [[("h", b"1"), ("i", None)], None, []], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    table = pa.table(
        {
            "key": pa.array([b"k", None, b"l"]),
            "value": pa.array([b"x", b"y", None]),
            "partition": pa.array([2, 3, 2], pa.int32()),
            "timestamp": pa.array([1_000_000, 2_000_000, 3_000_000], pa.timestamp("us")),
            "headers": headers,
        }
    )
    result = producer.send_many(wide, table.slice(0, 3)).result(20)
    assert {p: [list(r) for r in ranges] for p, ranges in result.offsets.items()} == {2: [[0, 1]], 3: [[0]]}
    stored = Log(shared_broker, wide).partitions()
    assert [r.value for r in stored[0]] == values * 3
    assert [(r.key, r.value) for r in stored[1]] == [
        (None, None),
        (None, b"b"),
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
    ]
    assert [(r.key, r.value, r.timestamp_ms, r.headers) for r in stored[2]] == [
        (b"k", b"x", 1000, [("h", b"1"), ("i", None)]),
        (b"l", None, 3000, []),
    ]
    with pytest.raises(ValueError, match="columns other"):
        producer.send_many(wide, pa.table({"value": [b"x"], "other": [1]}))
    with pytest.raises(TypeError, match="expected bytes"):
        producer.send_many(wide, pa.array([1, 2]))


HEADER_TYPES = [
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.binary_view())])),
]


@pytest.mark.parametrize("kind", HEADER_TYPES, ids=["list", "large-list"])
def test_send_many_arrow_headers(make, wide, shared_broker, kind):
    """Headers out of Arrow, from the middle of an array too, are those that Python's are."""
    generator = random.Random(7)
    rows = []
    for number in range(500):
        names = ["h", "schlüssel", "", "x" * 200][: generator.randrange(5)]
        pairs = [(name, generator.choice([None, b"", b"v%d" % number, b"long" * 100])) for name in names]
        rows.append(generator.choice([None, pairs, pairs]))
    table = pa.table({"value": [b"%d" % number for number in range(500)], "headers": pa.array(rows, kind)})
    producer = make()
    producer.send_many(wide, table.slice(100, 300), partition=0).result(20)
    producer.send_many(wide, [b"%d" % n for n in range(100, 400)], headers=rows[100:400], partition=1).result(20)
    stored = Log(shared_broker, wide).partitions()
    assert [r.headers for r in stored[0]] == [row or [] for row in rows[100:400]]
    assert [(r.value, r.headers) for r in stored[0]] == [(r.value, r.headers) for r in stored[1]]


@pytest.mark.parametrize(
    ("kind", "headers", "error"),
    [
        (HEADER_TYPES[0], [[("h", b"1")], [(None, b"2")]], "header of row 1 is null or has a null key"),
        (HEADER_TYPES[0], [[("h", b"1")], [None]], "header of row 1 is null"),
        (
            pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])),
            [[("h", b"")], [(b"\xff", b"")]],
            "utf-8",
        ),
    ],
)
def test_send_many_arrow_headers_that_no_consumer_could_read(make, topic, kind, headers, error):
    with pytest.raises(ValueError, match=error) as caught:
        make().send_many(topic, pa.table({"value": [b"a", b"b"], "headers": pa.array(headers, kind)}))
    assert caught.value.accepted == 1


def test_send_many_takes_the_columns_of_a_consumer_s_batch(make, topic, new_topic_name):
    """A copier: every column as `ConsumerBatch` has it, its times among them, which are a memoryview."""
    from fastq import Consumer

    producer, copies = make(), new_topic_name()
    headers = [[("h", b"1")], []]
    producer.send_many(topic, [b"a", None], keys=[b"k", None], headers=headers, timestamps=[5, 6]).result(20)
    settings = {"bootstrap_servers": producer.config.bootstrap_servers, "auto_offset_reset": "earliest"}
    with Consumer(topic, **settings) as consumer:
        batch = consumer.poll_batch(timeout=20)
    columns = {"keys": batch.keys, "headers": batch.headers, "timestamps": batch.timestamps}
    producer.send_many(copies, batch.values, **columns).result(20)
    with Consumer(copies, **settings) as consumer:
        copied = [(r.key, r.value, r.headers, r.timestamp_ms) for r in consumer.read_to_end()]
    assert copied == [(b"k", b"a", (("h", b"1"),), 5), (None, None, (), 6)]
    with pytest.raises(TypeError, match="timestamps is one memoryview"):
        producer.send_many(copies, [b"a"], timestamps=memoryview(b"1"))


def test_send_many_errors_say_how_far_it_came(make, topic):
    producer = make()
    with pytest.raises(TypeError, match="values is one bytes"):
        producer.send_many(topic, b"abc")
    with pytest.raises(SerializationError) as caught:
        producer.send_many(topic, [b"a", b"b", "c", b"d"])
    assert caught.value.accepted == 2
    with pytest.raises(ValueError, match=r"keys is shorter than values: it ended after 1$"):
        producer.send_many(topic, [b"a", b"b"], keys=[b"k"])
    with pytest.raises(ValueError, match=r"keys is longer than values, which ended after 1$"):
        producer.send_many(topic, [b"a"], keys=[b"k", b"l"])


def test_send_many_names_the_records_that_failed(make, wide):
    """A refused timestamp fails one partition's batch; the handle names its positions and delivers the rest."""
    from fastq.admin import Admin

    producer = make(linger_ms=50)
    with Admin(bootstrap_servers=producer.config.bootstrap_servers) as admin:
        from fastq.admin import ConfigResource

        admin.set_config(ConfigResource.topic(wide), "message.timestamp.before.max.ms", "1000")
    now = int(time.time() * 1000)
    keys = [b"a%d" % (i % 3) for i in range(30)]
    spots = {producer.send(wide, b"", key=key).result(10).partition for key in set(keys)}
    bad = 7
    delivery = producer.send_many(wide, [b"x"] * 30, keys=keys, timestamps=[1 if i == bad else now for i in range(30)])
    with pytest.raises(SendManyError, match="not delivered") as caught:
        delivery.result(10)
    ((error, positions),) = caught.value.failures
    assert bad in positions
    assert error.name == "INVALID_TIMESTAMP"
    assert caught.value.delivered.count == 30 - len(positions)
    assert len(spots) == 1 or len(positions) < 30
