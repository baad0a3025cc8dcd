"""What a controller holds and does at sizes that no machine here can run: brokers and partitions that exist in its metadata alone.

python benchmarks/compare/scaling.py [--sizes 100:100000,1000:1000000]

The controller's own code works on metadata of that size, in a process for each size: its snapshot is written and read, a change is
applied, a broker is fenced, heartbeats are answered. docs/scaling.md says what follows from the figures.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastq_broker.__main__ import GC_THRESHOLD
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import features
from fastq_broker.controller.brokers import Sessions, plan_fence, plan_heartbeat
from fastq_broker.controller.image import BrokerImage, Endpoint, MetadataDelta, MetadataImage, Record
from fastq_broker.controller.records import encode_record
from fastq_broker.controller.snapshot import image_records, read_snapshot, replay_batches, write_snapshot
from fastq_broker.controller.view import ControlView
from fastq_broker.topic_config import BrokerLayers, TopicDefaults
from support import rss_bytes, save

from fastq.protocol.messages import BrokerHeartbeatRequest, PartitionChangeRecord, PartitionRecord, TopicRecord

REPLICAS, PARTITIONS_A_TOPIC = 3, 10
HEARTBEATS = 20_000
HEARTBEAT_INTERVAL_S = 2.0  # Kafka's default
SHARE_OF_CORE = 0.5  # of the active controller's, for heartbeats alone


def brokers(count: int) -> dict[int, BrokerImage]:
    return {
        number: BrokerImage(
            number,
            1000 + number,
            os.urandom(16),
            (Endpoint("PLAINTEXT", f"broker-{number}.example.org", 9092, 0),),
            (("metadata.version", 1, features.BOOTSTRAP[features.METADATA_VERSION]),),
            f"rack-{number % 3}",
            False,
            False,
            (os.urandom(16),),
        )
        for number in range(count)
    }


def topics(registered: dict[int, BrokerImage], partitions: int) -> Iterator[Record]:
    """Records of topics whose replicas are spread evenly."""
    seeded = random.Random(1)
    count = len(registered)
    for topic in range(partitions // PARTITIONS_A_TOPIC):
        topic_id = seeded.randbytes(16)
        yield TopicRecord(name=f"team-{topic % 97}.stream-{topic}", topic_id=topic_id)
        for number in range(PARTITIONS_A_TOPIC):
            first = seeded.randrange(count)
            replicas = [(first + step * 7) % count for step in range(REPLICAS)]
            yield PartitionRecord(
                partition_id=number,
                topic_id=topic_id,
                replicas=replicas,
                isr=replicas,
                leader=first,
                directories=[registered[replica].directories[0] for replica in replicas],
            )


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def measure(size: tuple[int, int]) -> dict[str, float]:
    """One size: so many brokers, so many partitions."""
    broker_count, partition_count = size
    found: dict[str, float] = {"brokers": broker_count, "partitions": partition_count}
    registered = brokers(broker_count)
    gc.disable()  # as the broker's process does until it is ready
    empty = rss_bytes(os.getpid())
    delta = MetadataDelta(MetadataImage(features=dict(features.BOOTSTRAP), brokers=registered))
    for record in topics(registered, partition_count):
        delta.replay(record)
    image = delta.apply(partition_count, 1, 0)
    del delta
    found["image_MiB"] = (rss_bytes(os.getpid()) - empty) / 2**20

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot")
        found["snapshot_encode_s"], values = timed(lambda: list(image_records(image)))
        found["snapshot_write_s"], size_bytes = timed(
            lambda: write_snapshot(
                path, values, epoch=1, timestamp_ms=0, last_timestamp_ms=0, kraft_version=None, voters=None
            )
        )
        found["snapshot_MiB"] = size_bytes / 2**20
        values = []

        def load() -> MetadataImage:
            fresh = MetadataDelta(MetadataImage())
            replay_batches(read_snapshot(path), fresh)
            return fresh.apply(partition_count, 1, 0)

        found["snapshot_load_s"], loaded = timed(load)
        assert loaded.partition_count == partition_count
        del loaded

    gc.freeze()  # and from then on
    gc.enable()
    gc.set_threshold(GC_THRESHOLD, 20, 50)

    # One partition changes its in-sync replicas.
    topic = next(iter(image.topics_by_id.values()))
    change = PartitionChangeRecord(partition_id=0, topic_id=topic.topic_id, isr=list(topic.partitions[0].isr[:2]))

    def apply(records: list[Record]) -> MetadataImage:
        step = MetadataDelta(image)
        for each in records:
            step.replay(each)
        return step.apply(image.offset + len(records), 1, 0)

    found["change_ms"] = min(timed(lambda: apply([change]))[0] for _ in range(5)) * 1000

    # A broker is fenced: whatever it led has another leader.
    config = BrokerConfig.from_mapping({})
    view = ControlView(image, TopicDefaults(BrokerLayers(config)))
    found["fence_plan_s"], records = timed(lambda: plan_fence(view, 7))
    found["fence_records"] = len(records)
    version = image.features[features.METADATA_VERSION]
    found["fence_encode_s"], encoded = timed(lambda: [encode_record(each, version) for each in records])
    found["fence_KiB"] = sum(map(len, encoded)) / 2**10
    found["fence_apply_s"], _ = timed(lambda: apply(records))
    found["fence_s"] = found["fence_plan_s"] + found["fence_encode_s"] + found["fence_apply_s"]
    found["fence_sent_MiB"] = found["fence_KiB"] * broker_count / 2**10  # the log goes to every broker

    # Heartbeats of brokers that have nothing new to say.
    sessions = Sessions(9000)
    sessions.follow(image, 0)
    requests = [
        BrokerHeartbeatRequest(broker_id=each.broker_id, broker_epoch=each.epoch, current_metadata_offset=image.offset)
        for each in registered.values()
    ]

    def heartbeats() -> None:
        for number in range(HEARTBEATS):
            request = requests[number % broker_count]
            result, _ = plan_heartbeat(view, request, sessions.state(request.broker_id))
            sessions.heard(request.broker_id, request.broker_epoch, number)
            sessions.heartbeat(request, result, image.offset)

    found["heartbeat_us"] = timed(heartbeats)[0] / HEARTBEATS * 1e6
    found["heartbeats_share_of_core"] = found["heartbeat_us"] * broker_count / HEARTBEAT_INTERVAL_S / 1e6
    found["tick_ms"] = min(timed(lambda: sessions.expired(HEARTBEATS))[0] for _ in range(5)) * 1000
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10:10000,100:100000,1000:1000000", help="BROKERS:PARTITIONS, ...")
    parsed = parser.parse_args()
    sizes = [tuple(map(int, text.split(":"))) for text in parsed.sizes.split(",")]
    found = []
    for size in sizes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append(pool.map(measure, [size])[0])
        print(json.dumps({name: round(value, 4) for name, value in found[-1].items()}), flush=True)
    print(save("scaling", {"sizes": found}))


if __name__ == "__main__":
    main()
