"""`kill -9` of the broker while a producer runs at full speed: what was acknowledged is there, once, in order.

Rules: the moments of the kills come from a seed that the test prints by its parameter; a record's value is its number, so that
loss, doubles and reordering show by themselves. Three kills in an ordinary run, twenty under `make soak`.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from fastq import Admin, Consumer, Producer
from fastq.testing import Broker

PARTITIONS = 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20_261])
@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_every_acknowledged_record_is_there_once_and_in_order(
    tmp_path: Path, soak: bool, seed: int, durability: str
) -> None:
    rng = random.Random(seed)
    kills = 20 if soak else 3
    stop = threading.Event()
    acknowledged: list[tuple[int, int, int]] = []  # number, partition, offset
    refused: list[BaseException] = []

    def on_done(number: int, delivery: object) -> None:
        error = delivery.exception()  # type: ignore[attr-defined]
        if error is not None:
            refused.append(error)
            return
        place = delivery.result(0)  # type: ignore[attr-defined]
        acknowledged.append((number, place.partition, place.offset))

    sent = 0

    def produce(servers: str) -> None:
        nonlocal sent
        with Producer(bootstrap_servers=servers, delivery_timeout_ms=300_000, batch_size=16_384) as producer:
            while not stop.is_set():
                number = sent
                value = b"%d" % number
                producer.send("numbers", value).add_done_callback(lambda done, number=number: on_done(number, done))
                sent += 1
                if sent % 1000 == 0:
                    time.sleep(0.001)  # leaves the broker some of the two cores; the log stays readable in size
            producer.flush(timeout=120)

    with Broker(data_dir=tmp_path / "data", config={"log.segment.bytes": 4 << 20, "durability": durability}) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topic("numbers", partitions=PARTITIONS, replication_factor=1)
        worker = threading.Thread(target=produce, args=(broker.bootstrap_servers,))
        worker.start()
        try:
            for _ in range(kills):
                time.sleep(rng.uniform(0.2, 0.8))
                broker.kill()
                broker.restart()
            time.sleep(0.3)
        finally:
            stop.set()
            worker.join(150)
        assert not worker.is_alive()
        assert refused == []
        assert len(acknowledged) == sent
        with Consumer("numbers", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            found = [(int(record.value), record.partition, record.offset) for record in consumer.read_to_end()]

    assert sorted(number for number, _, _ in found) == list(range(sent)), "lost or doubled"
    assert set(found) == set(acknowledged), "a record lies elsewhere than was acknowledged"
    for partition in range(PARTITIONS):
        here = [(offset, number) for number, at, offset in found if at == partition]
        assert [offset for offset, _ in here] == list(range(len(here))), "offsets are not dense"
        numbers = [number for _, number in here]
        assert numbers == sorted(numbers), "order was not kept"
