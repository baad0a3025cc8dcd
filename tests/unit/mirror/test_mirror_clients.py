"""The clients of a mirror's two sides: what threads share of them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from waiting import until

from fastq._native.records import build_batch
from fastq.compression import Codec
from fastq.errors import ConnectionRefused, CorruptMessage, FastqError, LeaderNotAvailable
from fastq.metadata import Node, TopicPartition
from fastq.mirror import metrics, source_reader, target_puller, target_writer
from fastq.mirror import mirror as mirror_module
from fastq.mirror.config import MirrorConfig, Side, parse_config
from fastq.mirror.lane import Counts, ending_producer, opened_producer, stopped_error
from fastq.mirror.metrics import MirrorExporter
from fastq.mirror.mirror import Mirror
from fastq.mirror.report import MirrorStatus
from fastq.mirror.source_reader import Fetched, SourceReader, Wanted, leaders_of
from fastq.mirror.state import Stopped
from fastq.mirror.target_puller import Pull
from fastq.mirror.target_writer import Ask, TargetWriter, divided
from fastq.net import batches
from fastq.protocol.messages import FetchResponse, MirrorAppendResponse, MirrorPullResponse

NOBODY = Side("A", {"bootstrap_servers": "127.0.0.1:1"}, {}, {})


def configured(**target: Any) -> MirrorConfig:
    side = {"bootstrap.servers": "127.0.0.1:1"}
    document = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side, **target}}
    return parse_config({**document, "mirror": {"topics": ["t"]}})


@pytest.mark.filterwarnings("ignore::fastq.settings.ConfigWarning")
@pytest.mark.parametrize(
    "producer",
    [
        {"compression.type": "zstd", "compression.level": 19},
        {"compression.type": "lz4", "compression.level": 12, "compressed.topics": ["t"]},
        {"compression.codec": "lz4"},
        {"compression.type": "gzip", "compression.gzip.level": 9},
    ],
)
def test_a_lane_is_ended_however_the_target_compresses(producer: dict[str, Any]) -> None:
    """A level that gzip does not know, or the older name of the codec, kept a mirror from being failed over, for ever."""
    config = configured(producer=producer)
    with ending_producer(config, 0) as ending, opened_producer(config, 0) as copying:
        assert ending.config.codec_of("fastq-mirror.A.internal") == Codec.GZIP
        assert copying.config.compression_type == producer.get("compression.type", "lz4")
        assert ending.config.transactional_id == copying.config.transactional_id == "fastq-mirror.A.B.0"


@pytest.mark.filterwarnings("ignore::fastq.settings.ConfigWarning")
def test_a_lane_takes_what_the_target_says_under_an_older_name() -> None:
    with opened_producer(configured(producer={"queue.buffering.max.ms": 20}), 0) as producer:
        assert producer.config.linger_ms == 20


@pytest.mark.parametrize(("names", "said"), [("identity", "fastq mirror fail-back"), ("prefixed", "no way back to A")])
def test_a_mirror_that_was_failed_over_says_what_can_be_done(names: str, said: str) -> None:
    """Of prefixed names it sent to a command that refuses them."""
    side = {"bootstrap.servers": "127.0.0.1:1"}
    document = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}}
    config = parse_config({**document, "mirror": {"topics": ["t"], "names": names}})
    assert said in str(stopped_error(config, Stopped(0, {})))


@pytest.mark.parametrize("side", ["source", "target"])
def test_leaders_are_asked_for_under_the_drivers_lock(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    """A lane places partitions while another thread fetches with the same client."""
    monkeypatch.setattr(source_reader, "LEADERS_S", 0.0)
    client = SourceReader(NOBODY) if side == "source" else TargetWriter(NOBODY)
    driver, core = client.client.driver, client.client.core
    owned: list[bool] = []
    monkeypatch.setattr(core, "request_metadata_update", lambda reason: owned.append(driver.lock._is_owned()))  # type: ignore[attr-defined]
    tp = TopicPartition("t", 0)
    answer: object
    if isinstance(client, SourceReader):
        answer = client.fetch({tp: Wanted(bytes(16), 0)}, 0)[tp]
    else:
        answer = client.ask({tp: Ask(bytes(16), "A/c/t")})[tp].error
    assert list(core.metadata_updater.topics) == [], "one that is deleted meanwhile is not asked for without an end"
    client.close()
    assert isinstance(answer, LeaderNotAvailable)
    assert owned == [True, True], "once for the leaders that are not known, once for what was refused"


def test_a_source_that_mutes_its_mirror_by_a_quota_is_left_out_of_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It held up what the others had: an answer comes of all that are asked."""
    one, two = TopicPartition("t", 1), TopicPartition("t", 2)
    until, asked = {1: 0.0, 2: 107.0}, []
    reader = SourceReader(NOBODY)
    core = reader.client.core
    monkeypatch.setattr(source_reader, "leaders_of", lambda _client, _wanted: {one: 1, two: 2})
    monkeypatch.setattr(core, "clock", lambda: 100.0)
    monkeypatch.setattr(core, "throttled_until", until.__getitem__)
    monkeypatch.setattr(source_reader, "fetch", lambda routes, wait_ms: (list(routes.values()), wait_ms))
    monkeypatch.setattr(reader.client, "run", lambda made, timeout_s: asked.append((*made, timeout_s)) or {})
    wanted = {tp: Wanted(bytes(16), 5) for tp in (one, two)}
    reader.fetch(wanted, 500)
    until[1] = 103.0
    reader.fetch(wanted, 500)
    until.update({1: 99.0, 2: 100.0})
    reader.fetch(wanted, 500)
    assert asked[0] == ([{one: wanted[one]}], 500, source_reader.CALL_S)
    assert asked[1] == ([{one: wanted[one]}], 500, source_reader.CALL_S + 3.0), "the first that may be asked, then"
    assert asked[2] == ([{one: wanted[one]}, {two: wanted[two]}], 100, source_reader.CALL_S)
    until[2] = 100.25
    reader.fetch(wanted, 500)
    assert asked[3] == ([{one: wanted[one]}], 250, source_reader.CALL_S), "the other is not waited for beyond that"
    reader.close()


def test_one_that_cannot_be_reached_beside_one_that_a_quota_mutes_is_not_the_whole_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It alone was asked: that it was gone began the lane anew, with the partitions of the other."""
    one, two = TopicPartition("t", 1), TopicPartition("t", 2)
    reader = SourceReader(NOBODY)
    core, until = reader.client.core, {1: 0.0, 2: 107.0}
    monkeypatch.setattr(source_reader, "leaders_of", lambda _client, _wanted: {one: 1, two: 2})
    monkeypatch.setattr(core, "clock", lambda: 100.0)
    monkeypatch.setattr(core, "throttled_until", until.__getitem__)

    def gone(_operation: object, _timeout_s: float) -> Any:
        raise ConnectionRefused("nobody is there")

    monkeypatch.setattr(reader.client, "run", gone)
    monkeypatch.setattr(core, "request_metadata_update", lambda _: None)
    wanted = {tp: Wanted(bytes(16), 5) for tp in (one, two)}
    (answer,) = reader.fetch(wanted, 500).items()
    assert answer[0] == one and isinstance(answer[1], ConnectionRefused)
    until[2] = 0.0
    with pytest.raises(ConnectionRefused):
        reader.fetch(wanted, 500)
    reader.close()


def answered_with(operation: Any, answer: object) -> Any:
    """What an operation makes of this answer to its one call."""
    next(operation)
    with pytest.raises(StopIteration) as stop:
        operation.send([answer])
    return stop.value.value


@pytest.mark.parametrize(("topic_id", "index"), [(b"x" * 16, 0), (bytes(16), 7)])
def test_an_answer_of_the_target_that_speaks_of_something_else_answers_nothing(topic_id: bytes, index: int) -> None:
    """A topic's id that was not asked for was a KeyError, which ended the lane."""
    tp = TopicPartition("t", 0)
    pulled = MirrorPullResponse(
        topics=[
            MirrorPullResponse.PulledTopicResult(
                topic_id=topic_id, partitions=[MirrorPullResponse.PulledPartitionResult(index=index)]
            )
        ]
    )
    told = MirrorAppendResponse(
        topics=[
            MirrorAppendResponse.MirroredTopicResult(
                topic_id=topic_id, partitions=[MirrorAppendResponse.MirroredPartitionResult(index=index)]
            )
        ]
    )
    outcomes = answered_with(target_puller._pull([{tp: Pull(bytes(16), "A/c/t", "t", 1, 0)}], 1, 1), pulled)
    answers = answered_with(target_writer._ask([{tp: Ask(bytes(16), "A/c/t")}], 1), told)
    assert list(outcomes) == list(answers) == [tp]
    assert str(outcomes[tp]) == str(answers[tp].error) == "the answer leaves t-0 out"


def test_leaders_that_were_wrong_are_asked_for_while_the_topic_is_looked_at() -> None:
    """A request that left before named no topic: who had led a partition once was asked for ever."""
    tp, looked_at = TopicPartition("t", 0), list[str]()

    class Updater:
        is_wanted, requests, answered = True, 3, 3

        def look_at(self, topics: set[str]) -> None:
            looked_at.extend(topics)

        def look_away(self, topics: set[str]) -> None:
            looked_at.clear()

    class Stale:
        leaders: ClassVar[list[int]] = [1, 2]

        def leader(self, *_: object) -> Node:
            return Node(self.leaders[0], "h", 9092)

    updater, metadata = Updater(), Stale()

    def wait_until(condition: Callable[[], bool], _timeout_s: float) -> None:
        assert looked_at == ["t"] and not condition()
        updater.answered = 3  # of a request that had left before
        assert not condition()
        updater.answered, updater.is_wanted = 4, False
        del metadata.leaders[0]
        assert condition()

    client: Any = SimpleNamespace(
        core=SimpleNamespace(metadata_updater=updater, metadata=metadata, request_metadata_update=lambda _: None),
        driver=SimpleNamespace(lock=threading.Lock(), wait_until=wait_until),
    )
    for _ in range(2):
        assert leaders_of(client, [tp]) == {tp: 2}, "the second time nothing is asked"


def test_a_batch_of_the_source_that_ends_before_it_begins_is_an_error() -> None:
    batch = build_batch([(1, None, b"v")] * 3, base_offset=10)
    batch[23:27] = (-4).to_bytes(4, "big", signed=True)
    data = FetchResponse.PartitionData(high_watermark=20, records=bytes(batch))
    answer = batches.read(TopicPartition("t", 3), Wanted(bytes(16), 10), data)
    assert isinstance(answer, CorruptMessage)
    assert "topic t, partition 3" in str(answer) and "last offset 6" in str(answer)


def test_batches_of_the_source_that_all_end_before_what_was_asked_for_are_an_error() -> None:
    """They were fetched again at once, for ever."""
    batch = bytes(build_batch([(1, None, b"v")] * 3, base_offset=10))
    data = FetchResponse.PartitionData(high_watermark=20, records=batch)
    answer = batches.read(TopicPartition("t", 3), Wanted(bytes(16), 13), data)
    assert isinstance(answer, CorruptMessage)
    assert "topic t, partition 3" in str(answer) and "at offset 13 is a batch that ends at offset 12" in str(answer)


@pytest.mark.parametrize("damage", ["offsets", "magic"])
def test_what_is_whole_is_copied_before_a_damaged_batch_is_told(damage: str) -> None:
    whole = bytes(build_batch([(1, None, b"v")] * 3, base_offset=10, leader_epoch=4))
    bad = build_batch([(1, None, b"v")] * 3, base_offset=13)
    if damage == "offsets":
        bad[23:27] = (-4).to_bytes(4, "big", signed=True)
    else:
        bad[16] = 7
    tp, before = TopicPartition("t", 3), bytes(build_batch([(1, None, b"v")], base_offset=9))
    data = FetchResponse.PartitionData(high_watermark=20, records=before + whole + bytes(bad))
    answer = batches.read(tp, Wanted(bytes(16), 10), data)
    assert isinstance(answer, Fetched)
    assert (bytes(answer.records), answer.next_offset, answer.amount, answer.epochs) == (whole, 13, 3, ((4, 10),))
    data = FetchResponse.PartitionData(high_watermark=20, records=bytes(bad))
    assert isinstance(batches.read(tp, Wanted(bytes(16), 13), data), FastqError)


def test_what_is_asked_of_a_node_goes_in_requests_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_writer, "REQUEST_BYTES_MAX", 100)
    monkeypatch.setattr(target_writer, "PARTITIONS_MAX", 3)

    def sizes(*of: int) -> list[list[int]]:
        asks = {
            TopicPartition("t", n): Ask(bytes(16), "A/c/t", records=memoryview(bytes(size)) if size else None)
            for n, size in enumerate(of)
        }
        requests = list(divided(asks))
        assert [tp for request in requests for tp in request] == list(asks), "all of them, in order"
        return [[0 if a.records is None else a.records.nbytes for a in request.values()] for request in requests]

    assert sizes(50, 50, 1) == [[50, 50], [1]]
    assert sizes(99, 2, 200, 0, 1) == [[99], [2], [200], [0, 1]]
    assert sizes(0, 0, 0, 0) == [[0, 0, 0], [0]]
    assert sizes(200) == [[200]]


def test_what_a_process_has_done_does_not_become_less_while_a_lane_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, ending = threading.Event(), threading.Event()

    class Ending:
        def __init__(self, number: int, *_: object, **__: object) -> None:
            self.number, self.counts = number, Counts()

        def run(self) -> None:
            self.counts.records = 5
            may_end.wait(10)
            self.counts.records = 7

        def stop(self) -> None:
            ending.set()

    monkeypatch.setattr(mirror_module, "Lane", Ending)
    side = {"bootstrap.servers": "127.0.0.1:1"}
    document = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}, "mirror": {"topics": ["t"]}}
    mirror = Mirror(parse_config(document))
    mirror._start_lanes([1])
    stopping = threading.Thread(target=mirror._stop_lanes, args=([1],))
    stopping.start()
    assert ending.wait(10) and mirror.lanes == {}
    assert mirror.records == 5
    may_end.set()
    stopping.join(10)
    assert mirror.records == 7


def test_metrics_are_looked_for_again_after_whatever_kept_them_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last numbers stood for ever, with look_ok 1, once a process had no descriptor left for a moment."""

    def no_age(_: object) -> float:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(metrics, "heartbeat_age_s", no_age)
    looks: list[int] = []
    fails = [False]

    class Watching:
        def __init__(self, _: object) -> None: ...

        def look(self) -> Any:
            looks.append(1)
            if fails[0]:
                raise OSError(errno.EMFILE, "too many open files")
            return MirrorStatus([], {}, None, None)

        def close(self) -> None:
            if fails[0]:
                raise OSError("it does not close either")

    side = {"bootstrap.servers": "127.0.0.1:1"}
    document = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}, "mirror": {"topics": ["t"]}}
    watching: Any = Watching
    with MirrorExporter(Mirror(parse_config(document)), interval_s=0.01, watch=watching) as exporter:

        def look_ok() -> float:
            (found,) = (family for family in exporter.families() if family.name == "fastq_mirror_look_ok")
            return next(iter(found.samples))[1]

        exporter.serve()
        until(lambda: look_ok() == 1, 10)
        fails[0] = True
        until(lambda: look_ok() == 0, 10)
        fails[0] = False
        until(lambda: look_ok() == 1, 10)
