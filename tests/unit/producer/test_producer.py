"""The blocking producer against a broker of ours: delivery, threads, memory, exits, forks, interrupts."""

import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict

import pytest
from stored_log import Log

from fastq.errors import (
    BufferTimeout,
    ClientClosed,
    ConfigError,
    ConnectionFailed,
    ForkedClient,
    MessageTooLarge,
    SerializationError,
    UnknownTopicOrPartition,
    WaitTimeout,
)
from fastq.interceptors import ProducerInterceptor
from fastq.producer import Producer, ProducerConfig, RoundRobinPartitioner


def test_send_and_result(make, topic, shared_broker):
    producer = make()
    delivery = producer.send(
        topic, b"line", key=b"host-1", headers=[("trace", b"1"), ("none", None)], timestamp_ms=1500000
    )
    metadata = delivery.result(10)
    assert (metadata.topic, metadata.partition, metadata.offset, metadata.timestamp_ms) == (topic, 0, 0, 1500000)
    assert (metadata.serialized_key_size, metadata.serialized_value_size) == (6, 4)
    assert delivery.done() and delivery.exception() is None
    (record,) = Log(shared_broker, topic).partitions()[0]
    assert (record.key, record.value, record.timestamp_ms) == (b"host-1", b"line", 1500000)
    assert record.headers == [("trace", b"1"), ("none", None)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_any_buffer_and_codec(make, topic, shared_broker, codec):
    import array

    producer = make(compression_type=codec)
    sent = [b"a", bytearray(b"b" * 300), memoryview(b"xcx")[1:2], array.array("B", [1, 2]), None, b"", b"z" * 100_000]
    for value in sent:
        producer.send(topic, value, key=b"k")
    producer.flush(10)
    assert Log(shared_broker, topic).values() == [None if v is None else bytes(v) for v in sent]


def test_timestamps_are_the_clocks(make, topic):
    before = int(time.time() * 1000)
    metadata = make().send(topic, b"x").result(10)
    assert before - 10 <= metadata.timestamp_ms <= time.time() * 1000 + 10


def test_keys_go_where_every_client_sends_them(make, wide, shared_broker):
    from kafka.partitioner.default import murmur2

    producer = make()
    keys = [b"key-%d" % i for i in range(500)]
    for key in keys:
        producer.send(wide, b"", key=key)
    producer.flush(10)
    for index, records in Log(shared_broker, wide).partitions().items():
        for record in records:
            assert (murmur2(record.key) & 0x7FFFFFFF) % 4 == index


def test_partition_asked_for_and_one_that_is_not_there(make, wide, shared_broker):
    producer = make(request_timeout_ms=300, delivery_timeout_ms=2000)
    assert producer.send(wide, b"x", partition=3).result(10).partition == 3
    with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 3"):
        producer.send(wide, b"x", partition=4)
    for call, value in ((producer.send, b"x"), (producer.send_many, [b"x"])):
        with pytest.raises(ValueError, match=r"a number from 0 to 3 for topic .*, or None to have one chosen, got -1"):
            call(wide, value, partition=-1)


def test_unknown_topic_without_auto_creation(make):
    producer = make(allow_auto_create_topics=False, max_block_ms=400)
    started = time.monotonic()
    with pytest.raises((UnknownTopicOrPartition, BufferTimeout), match="no-such-topic"):
        producer.send("no-such-topic", b"x")
    assert 0.3 < time.monotonic() - started < 50


def test_nobody_listens():
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    producer = Producer(bootstrap_servers=f"127.0.0.1:{port}", max_block_ms=300)
    with pytest.raises((BufferTimeout, ConnectionFailed), match=str(port)):
        producer.send("t", b"x")
    producer.close(1)


def test_bad_arguments(make, topic):
    producer = make()
    producer.send(topic, b"first").result(10)
    with pytest.raises(SerializationError, match="value is str"):
        producer.send(topic, "text")
    with pytest.raises(SerializationError, match="key is int"):
        producer.send(topic, b"x", key=5)
    with pytest.raises(TypeError, match="topic is a str"):
        producer.send(7, b"x")
    with pytest.raises(TypeError, match="pairs"):
        producer.send(topic, b"x", headers=["ab c"])
    with pytest.raises(TypeError, match="header 'a' is a str"):
        producer.send(topic, b"x", headers=[("a", "b")])
    with pytest.raises(ValueError, match="timestamp_ms"):
        producer.send(topic, b"x", timestamp_ms=-5)
    with pytest.raises(ValueError, match=r"0 to 2\*\*63 - 1, got 1000"):
        producer.send(topic, b"x", timestamp_ms=10**20)
    with pytest.raises(ValueError, match=r"0 to 2\*\*63 - 1, got 1000"):
        producer.send_many(topic, [b"x"], timestamps=[10**20])
    for name in ("timestamp_ms", "partition"):
        for bad in (1.5, "1", "now"):
            with pytest.raises(TypeError, match=f"{name} is an int, got {bad!r}"):
                producer.send(topic, b"x", **{name: bad})
    with pytest.raises(TypeError, match=r"a timestamp is an int, got 1\.5"):
        producer.send_many(topic, [b"x"], timestamps=[1.5])
    for argument in ({"keys": b"k"}, {"keys": "k"}, {"headers": 5}, {"timestamps": 5}):
        ((name, value),) = argument.items()
        with pytest.raises(TypeError, match=f"{name} is one {type(value).__name__}, expected a list"):
            producer.send_many(topic, [b"x"], **argument)
    with pytest.raises(TypeError, match="values is one NoneType, expected a list"):
        producer.send_many(topic, None)
    with pytest.raises(MessageTooLarge, match="max_request_size=1048576"):
        producer.send(topic, bytes(1_048_577))
    assert producer.send(topic, b"last").result(10).offset == 1


def test_callbacks_run_one_at_a_time_and_their_errors_stop_nothing(make, topic, caplog):
    producer = make()
    seen, inside = [], []

    def callback(delivery):
        inside.append(1)
        assert len(inside) == 1
        seen.append(delivery.result().offset)
        if seen[-1] == 3:
            inside.pop()
            raise RuntimeError("the callback's own")
        if seen[-1] == 5:
            producer.send(topic, b"from the callback")
        inside.pop()

    for _ in range(100):
        producer.send(topic, b"x").add_done_callback(callback)
    producer.flush(10)
    assert seen[:100] == list(range(100))
    assert "the callback's own" in caplog.text
    late = []
    delivery = producer.send(topic, b"y")
    assert delivery.result(10).offset in (100, 101)
    delivery.add_done_callback(late.append)
    assert late == [delivery]


@pytest.mark.parametrize("how", ["flush", "close", "with"])
def test_flush_and_close_wait_for_callbacks_that_another_thread_runs(make, topic, how):
    """Their holder may be far behind when the last answer is there: 36,000 callbacks had not run after a close."""
    producer = make()
    entered, gate, ran = threading.Event(), threading.Event(), []

    def callback(delivery):
        entered.set()
        gate.wait(30)
        producer.flush()  # its own callbacks it cannot wait for
        ran.append(delivery.result().offset)

    deliveries = [producer.send(topic, b"x") for _ in range(3)]
    for delivery in deliveries:
        delivery.add_done_callback(callback)
    helper = threading.Thread(target=deliveries[0].result, args=(10,))
    helper.start()
    try:
        if not entered.wait(10):
            producer.flush(0)
        with pytest.raises(WaitTimeout):
            producer.flush(0.01)
        opener = threading.Timer(0.05, gate.set)
        opener.start()
        if how == "flush":
            producer.flush(30)
        elif how == "close":
            producer.close(30)
        else:
            with producer:
                pass
        assert ran == [0, 1, 2]
    finally:
        gate.set()
        helper.join(10)


def test_threads_hammer_one_producer(make, wide, shared_broker):
    """Each thread's records are there once, and in the thread's order within each partition."""
    producer = make(batch_size=2000, linger_ms=1, buffer_memory=1 << 20)
    threads, failures = [], []

    def work(number):
        try:
            for i in range(4000):
                producer.send(wide, b"%d:%d" % (number, i), partition=i % 4 if number % 2 else None)
                if i % 1500 == 0:
                    producer.flush(20)
                if i % 701 == 0:
                    producer.send(wide, b"%d:result" % number).result(20)
        except BaseException as error:
            failures.append(error)

    for number in range(6):
        threads.append(threading.Thread(target=work, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join(60)
    producer.flush(20)
    assert not failures
    counts = defaultdict(list)
    for index, records in Log(shared_broker, wide).partitions().items():
        for record in records:
            number, what = record.value.split(b":")
            if what != b"result":
                counts[number, index].append(int(what))
    assert all(numbers == sorted(numbers) for numbers in counts.values())
    for number in range(6):
        mine = sorted(i for (n, _), numbers in counts.items() if n == b"%d" % number for i in numbers)
        assert mine == list(range(4000))
    assert producer.metrics()["buffered_records"] == 0


def test_memory_is_bounded_and_callers_wait(make, topic):
    producer = make(buffer_memory=256 * 1024, batch_size=16384)
    most = 0
    for i in range(30000):
        producer.send(topic, bytes(100))
        if i % 97 == 0:
            most = max(most, producer.accumulator.pool.used_bytes + producer.accumulator.pool.free_bytes)
    producer.flush(20)
    assert most <= 256 * 1024
    assert producer.accumulator.pool.used_bytes == 0


def test_buffer_timeout_names_topic_and_remedy(make, topic, shared_broker):
    producer = make(buffer_memory=65536, max_block_ms=200, batch_size=16384)
    producer.send(topic, b"x").result(10)
    os.kill(shared_broker.pid, signal.SIGSTOP)
    try:
        with pytest.raises(BufferTimeout, match="buffer_memory") as caught:
            for _ in range(10000):
                producer.send(topic, bytes(1000))
        assert caught.value.topic == topic
    finally:
        os.kill(shared_broker.pid, signal.SIGCONT)
    producer.flush(20)


def test_bound_on_buffered_records(make, topic):
    producer = make(buffer_records_max=50)
    for _ in range(500):
        producer.send(topic, b"x")
        assert producer.accumulator.buffered_records <= 50
    producer.flush(10)


def test_names_of_the_past(shared_broker, topic):
    with pytest.warns(UserWarning, match="bootstrap_servers"):
        producer = Producer(
            {
                "metadata.broker.list": shared_broker.bootstrap_servers,
                "producer.type": "sync",
                "request.required.acks": "-1",
                "queue.buffering.max.messages": 100,
                "compression.codec": "gzip",
                "compressed.topics": topic,
                "serializer.class": "kafka.serializer.StringEncoder",
                "linger.ms": 0,
            }
        )
    with producer:
        assert producer.send(topic, "text").done()
        assert producer.config.codec_of(topic) == 1
        assert producer.config.codec_of("another") == 0


def test_configuration_errors():
    with pytest.raises(ConfigError, match="enable_idempotence"):
        Producer(acks=1, enable_idempotence=True)
    with pytest.raises(ConfigError, match="linger_ms"):
        Producer(lingerms=5)
    with pytest.raises(ConfigError, match="delivery_timeout_ms"):
        Producer(delivery_timeout_ms=100)
    with pytest.raises(ConfigError, match="delivery_timeout_ms: 120000; allowed: at least linger_ms"):
        Producer(delivery_timeout_ms=120_000, request_timeout_ms=120_000)
    with pytest.raises(ConfigError, match="compression_level"):
        Producer(compression_type="zstd", compression_level=23)


@pytest.mark.parametrize(
    "given, level",
    [
        ({"compression.type": "zstd", "compression.gzip.level": 9}, None),
        ({"compression.type": "zstd", "compression.gzip.level": 9, "compression.zstd.level": -5}, -5),
        ({"compression.type": "none", "compression.zstd.level": 3, "compression.lz4.level": "17"}, None),
        ({"compression.type": "gzip", "compression.gzip.level": -1, "compression.lz4.level": 9}, None),
        ({"compression.type": "lz4", "compression.gzip.level": -1, "compression.lz4.level": 9}, 9),
        ({"compression.type": "zstd", "compression.zstd.level": -1}, -1),
        ({"compression.type": "gzip", "compression.level": 4, "compression.gzip.level": 4}, 4),
        ({"compression.type": "gzip", "compression.level": 4, "compression.zstd.level": 5}, 4),
    ],
)
def test_a_level_counts_for_its_codec(given, level):
    """A Java client's properties may have all of them (KIP-390)."""
    assert ProducerConfig.from_mapping(given).codec_level == level
    with Producer(given) as producer:
        assert producer._parts.compressor.keywords == {"level": level}


@pytest.mark.parametrize(
    "given, words",
    [
        ({"compression.type": "gzip", "compression.level": 4, "compression.gzip.level": 5}, "disagree: 4 and 5"),
        ({"compression.type": "zstd", "compression.gzip.level": 0}, "compression_gzip_level: 0"),
        ({"compression.lz4.level": 18}, "compression_lz4_level: 18"),
        ({"compression.type": "none", "compression.level": 4}, "compression_level: 4; allowed for none"),
    ],
)
def test_a_level_that_is_none(given, words):
    with pytest.raises(ConfigError, match=words):
        ProducerConfig.from_mapping(given)


@pytest.mark.parametrize(
    ("given", "follows_ms"),
    [
        ({}, 120_000),
        ({"linger_ms": 0.5, "request_timeout_ms": 120_000}, 120_001),
        ({"linger_ms": 2**31 - 1}, 2**31 - 1),
        ({"linger_ms": 2**31 - 1, "request_timeout_ms": 2**31 - 1}, 2**31 - 1),
        ({"delivery_timeout_ms": 2**31 - 1, "request_timeout_ms": 2**31 - 1}, 2**31 - 1),
    ],
)
def test_a_delivery_timeout_is_bounded_as_kafkas_and_may_be_given_again(given, follows_ms):
    config = ProducerConfig(**given)
    assert config.delivery_timeout_ms == follows_ms
    assert ProducerConfig(**config.as_dict()).as_dict() == config.as_dict()
    assert ProducerConfig.from_mapping(config.as_dict()).as_dict() == config.as_dict()


def test_what_nobody_has_given_follows():
    config = ProducerConfig(request_timeout_ms=200_000, linger_ms=0)
    assert config.delivery_timeout_ms == 200_000
    assert config.replace(request_timeout_ms=300_000).delivery_timeout_ms == 300_000
    assert pickle.loads(pickle.dumps(config)).replace(acks=1).enable_idempotence is False


@pytest.mark.parametrize("acks", [0, 1])
def test_other_acks_say_that_idempotence_is_off(make, topic, caplog, acks):
    with caplog.at_level(logging.INFO, "fastq.producer"):
        producer = make(acks=acks)
    assert [r for r in caplog.records if "idempotence is off" in r.message]
    metadata = producer.send(topic, b"x").result(10)
    assert metadata.offset == (-1 if acks == 0 else 0)


def test_a_class_is_no_interceptor(make):
    with pytest.raises(ConfigError, match=r"the class ProducerInterceptor is not: write ProducerInterceptor\(\.\.\.\)"):
        make(interceptors=[ProducerInterceptor])


def test_serializers_partitioner_interceptors(make, wide):
    acknowledged = []

    class Stamp(ProducerInterceptor):
        def on_send(self, record):
            import dataclasses

            return dataclasses.replace(record, value={**record.value, "stamped": True})

        def on_acknowledgement(self, metadata, error):
            acknowledged.append((metadata, error))

    class Broken(ProducerInterceptor):
        def on_send(self, record):
            raise RuntimeError("broken")

    producer = make(
        key_serializer="str",
        value_serializer="json",
        partitioner=RoundRobinPartitioner(),
        interceptors=[Stamp(), Broken()],
        linger_ms=0,
    )
    places = [producer.send(wide, {"n": n}, key="same").result(10) for n in range(8)]
    assert sorted(m.partition for m in places) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert places[0].serialized_value_size == len(b'{"n":0,"stamped":true}')
    with pytest.raises(SerializationError, match="serializer failed"):
        producer.send(wide, {"n": object()})
    producer.flush(5)
    assert [error is None for _, error in acknowledged] == [True] * 8 + [False]


def test_close_is_final_and_idempotent(shared_broker, topic):
    producer = Producer(bootstrap_servers=shared_broker.bootstrap_servers)
    delivery = producer.send(topic, b"x")
    producer.close()
    producer.close()
    assert delivery.result(0).offset == 0
    with pytest.raises(ClientClosed):
        producer.send(topic, b"y")
    with pytest.raises(ClientClosed):
        producer.send_many(topic, [b"y"])


def test_close_with_a_timeout_counts_what_is_lost(shared_broker, topic, capfd):
    producer = Producer(bootstrap_servers=shared_broker.bootstrap_servers)
    producer.send(topic, b"x").result(10)
    os.kill(shared_broker.pid, signal.SIGSTOP)
    try:
        lost = [producer.send(topic, b"y") for _ in range(7)]
        producer.close(0.1)
    finally:
        os.kill(shared_broker.pid, signal.SIGCONT)
    assert "7 records were not delivered" in capfd.readouterr().err
    with pytest.raises(ClientClosed):
        lost[0].result(1)


def test_pickles_as_its_configuration(make):
    producer = make(linger_ms=7)
    with pickle.loads(pickle.dumps(producer)) as copy:
        assert copy.config == producer.config
        assert copy is not producer


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_may_not_use_it(make, topic, shared_broker):
    producer = make()
    producer.send(topic, b"parent").result(10)
    producer.send(topic, b"pending")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            producer.send(topic, b"child")
        except ForkedClient:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    producer.flush(10)
    producer.send(topic, b"after").result(10)
    assert Log(shared_broker, topic).values() == [b"parent", b"pending", b"after"]


ENDINGS = {
    "falls off the end": "",
    "sys.exit": "sys.exit(3)",
    "an exception": "raise RuntimeError('boom')",
    "a thread still runs": "threading.Thread(target=lambda: time.sleep(0.3)).start()",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_everything_is_delivered_at_exit(shared_broker, topic, ending):
    program = f"""
        import sys, threading, time
        from fastq.producer import Producer
        producer = Producer(bootstrap_servers={shared_broker.bootstrap_servers!r}, linger_ms=60000, request_timeout_ms=1000,
                            delivery_timeout_ms=100000)
        for i in range(1000):
            producer.send({topic!r}, b"%d" % i)
        {ENDINGS[ending]}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=30, capture_output=True, text=True)
    assert Log(shared_broker, topic).values() == [b"%d" % i for i in range(1000)], done.stderr
    assert "not delivered" not in done.stderr


@pytest.mark.parametrize("kept", ["", "global producer"])
def test_what_a_hook_at_exit_sends_is_delivered(shared_broker, topic, kept):
    program = f"""
        import atexit
        from fastq.producer import Producer
        def last():
            {kept}
            producer = Producer(bootstrap_servers={shared_broker.bootstrap_servers!r}, linger_ms=60000)
            for i in range(100):
                producer.send({topic!r}, b"%d" % i)
        atexit.register(last)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=30, capture_output=True, text=True)
    assert Log(shared_broker, topic).values() == [b"%d" % i for i in range(100)], done.stderr


@pytest.mark.parametrize("call", ["flush", "result", "send", "metadata", "close"])
def test_interrupt_ends_a_wait_at_once(shared_broker, topic, call):
    """SIGINT raises KeyboardInterrupt within 50 ms (with a margin for a loaded machine) and nothing is torn."""
    program = f"""
        import os, signal, sys, threading, time
        from fastq.producer import Producer
        producer = Producer(bootstrap_servers={shared_broker.bootstrap_servers!r}, buffer_memory=65536, batch_size=16384)
        producer.send({topic!r}, b"first").result(10)
        os.kill({shared_broker.pid}, signal.SIGSTOP)
        calls = dict(
            flush=lambda: (producer.send({topic!r}, b"x"), producer.flush()),
            result=lambda: producer.send({topic!r}, b"x").result(),
            send=lambda: [producer.send({topic!r}, bytes(1000)) for _ in range(1000)],
            metadata=lambda: producer.send("another-topic", b"x"),
            close=lambda: (producer.send({topic!r}, b"x"), producer.close()),
        )
        at = []
        def interrupt():
            time.sleep(0.4)
            at.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            calls[{call!r}]()
        except KeyboardInterrupt:
            print(time.monotonic() - at[0])
        finally:
            os.kill({shared_broker.pid}, signal.SIGCONT)
        if {call!r} != "close":
            producer.flush(10)
            producer.send({topic!r}, b"last").result(10)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=40, capture_output=True, text=True)
    os.kill(shared_broker.pid, signal.SIGCONT)
    assert done.stdout, done.stderr
    assert float(done.stdout) < 0.25
    if call != "close":
        assert done.returncode == 0, done.stderr
        assert Log(shared_broker, topic).values()[-1] == b"last"


def test_broker_restarts_while_records_flow(tmp_path):
    from fastq.testing import Broker

    with Broker(data_dir=tmp_path / "data") as broker:
        with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=1, retry_backoff_ms=20) as producer:
            deliveries = []
            for i in range(6000):
                deliveries.append(producer.send("t", b"%d" % i))
                if i % 50 == 0:
                    time.sleep(0.002)
                if i in (2000, 4000):
                    broker.kill()
                    broker.start()
            producer.flush(30)
            assert [d.result().offset for d in deliveries] == list(range(6000))
        assert Log(broker, "t").values() == [b"%d" % i for i in range(6000)]


def test_slow_records_leave_with_their_linger(make, topic):
    """One record now and then: the background thread sends it when its linger is over, not when somebody calls."""
    producer = make(linger_ms=5)
    producer.send(topic, b"x").result(10)
    delays = []

    def arrived(started):
        return lambda delivery: delays.append(time.perf_counter() - started)

    for _ in range(300):
        producer.send(topic, b"x").add_done_callback(arrived(time.perf_counter()))
        time.sleep(0.001)
    deadline = time.monotonic() + 10
    while len(delays) < 300 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(delays) == 300
    assert sorted(delays)[150] < 0.05
