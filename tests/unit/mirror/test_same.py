"""Where a partition with the same offsets goes on, and how it shows that its source has another history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastq.errors import ClientClosed, LeaderNotAvailable, PolicyViolation
from fastq.metadata import TopicPartition
from fastq.mirror import same_failover, same_lane
from fastq.mirror.config import parse_config
from fastq.mirror.lane import Work
from fastq.mirror.progress import MirrorGap, StateError
from fastq.mirror.same import Epochs, Place, begun_back, diverged_at, place_same, source_value
from fastq.mirror.same_lane import SameLane, _At
from fastq.mirror.source_reader import Fetched
from fastq.mirror.state import Offsets, Stopped
from fastq.mirror.target_writer import Ask, Told
from fastq.mirror.topics import Mirrored


def test_epochs_are_kept_with_their_first_offsets() -> None:
    epochs = Epochs("id").added([(3, 10), (5, 20)], 10)
    assert epochs.starts == ((3, 10), (5, 20))
    assert [epochs.at(end) for end in (10, 11, 20, 21, 99)] == [-1, 3, 3, 5, 5]
    assert epochs.added([(5, 30), (7, 35)], 30).starts == ((3, 10), (5, 20), (7, 35))
    # What was written down and never copied gives way to what comes instead.
    assert epochs.added([(4, 18)], 18).starts == ((3, 10), (4, 18))
    many = Epochs("id").added([(n, n) for n in range(1000)], 0)
    assert (len(many.starts), many.starts[-1]) == (64, (999, 999))
    assert Epochs.from_json(many.to_json()) == many
    # Where it was begun is known longer than the epochs are, until the topic is copied anew.
    long = Epochs("id")
    for n in range(1000):
        long = long.added([(n, 100 + n)], 100 + n)
    assert [each.first for each in (many, long, Epochs.from_json(long.to_json()))] == [0, 100, 100]
    assert [long.added([(2000, end)], end).first for end in (500, 101, 100, 0)] == [100, 100, 100, 0]
    kept = Epochs("id", begin=5, keeps=7).added([(3, 10)], 10)
    assert kept == Epochs("id", ((3, 10),), 5, 7) == Epochs.from_json(kept.to_json())
    assert Epochs.from_json(b'{"topic_id": "id", "epochs": [[3, 10]]}') == Epochs("id", ((3, 10),)), (
        "as it was written before"
    )
    with pytest.raises(StateError, match="no epochs"):
        Epochs.from_json(b'{"epochs": [[1]]}')


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((5, 40), None),  # the source's epoch ends at or behind our end
        ((5, 30), None),
        ((5, 25), 25),  # it was cut below our end, and others lead since
        ((3, 20), 20),  # it knows nothing of epoch 5
        ((4, 28), 20),  # it had an epoch in between that we never saw
        ((3, 15), 15),
        ((-1, -1), None),  # it does not say
    ],
)
def test_another_history_begins_where_the_source_says(answer: tuple[int, int], expected: int | None) -> None:
    epochs = Epochs("id", ((3, 10), (5, 20)))
    assert epochs.at(30) == 5
    assert diverged_at(epochs, 30, *answer) == expected


def place(
    begin: int, end: int, target_start: int, target_end: int, diverged: int | None = None, **options: Any
) -> Place:
    return place_same(
        begin, end, target_start, target_end, diverged, **{"start": "earliest", "on_gap": "stop", **options}
    )


def test_a_partition_goes_on_where_the_targets_log_ends() -> None:
    assert place(0, 50, 0, 20) == Place(20)
    assert place(20, 50, 5, 20) == Place(20)
    assert place(10, 50, 0, 0) == Place(10), "it was never mirrored: what is gone by now is no gap"
    assert place(10, 50, 0, 0, start="latest") == Place(50)
    assert place(10, 50, 50, 50, start="latest") == Place(50)
    # Deleted in the target, it is copied again from where it was begun.
    assert [place(10, 50, 0, 0, start="latest", first=first).offset for first in (5, 20, 60)] == [10, 20, 50]
    assert place(10, 50, 0, 0, first=20) == Place(10)
    assert [Epochs("id").first, Epochs("id", ((3, 20), (4, 30))).first] == [-1, 20]


@pytest.mark.parametrize(
    ("ends", "words", "found"),
    [
        ((30, 50, 0, 20, None), "begins at offset 30, and 20", Place(30)),
        ((0, 50, 0, 60, None), "lost what it had from offset 50", Place(50, 50)),
        ((0, 50, 0, 40, 35), "lost what it had from offset 35", Place(35, 35)),
        ((0, 50, 0, 60, 55), "lost what it had from offset 50", Place(50, 50)),
    ],
)
def test_what_is_missing_stops_a_partition_unless_it_is_to_go_on(
    ends: tuple[int, int, int, int, int | None], words: str, found: Place
) -> None:
    with pytest.raises(MirrorGap, match=words):
        place(*ends)
    went_on = place(*ends, on_gap="continue")
    assert went_on._replace(why="") == found
    assert words in went_on.why


def test_what_the_source_has_deleted_behind_latest_is_missing_where_nothing_was_copied_yet() -> None:
    begun = {"start": "latest", "first": 20, "is_copied": False}
    assert [place(begin, 50, 0, 0, **begun) for begin in (0, 20)] == [Place(20)] * 2
    with pytest.raises(MirrorGap, match="begins at offset 30, and 20 was to be copied next"):
        place(30, 50, 0, 0, **begun)
    assert place(30, 50, 0, 0, on_gap="continue", **begun).offset == 30


def test_a_topic_is_named_by_ids() -> None:
    assert source_value("east", "cluster", "00ff") == "east/cluster/00ff"


def new_lane(**options: str) -> SameLane:
    side = {"bootstrap.servers": "127.0.0.1:1"}
    config = parse_config(
        {
            "source": {"alias": "A", **side},
            "target": {"alias": "B", **side},
            "mirror": {"topics": ["t"], "offsets": "same", **options},
        }
    )
    lane = SameLane(0, config, lambda: Work(0, {}), lambda _: True)
    lane._pulled, lane._pulls = {}, cast("Any", SimpleNamespace(held={}))
    return lane


def test_what_was_fetched_of_the_topic_before_is_not_taken_for_the_new_ones() -> None:
    """Both are at the same offset, and a source before Kafka 3.1 does not tell them apart by their ids."""
    tp, lane = TopicPartition("t", 0), new_lane()
    old, new = (Mirrored("A.t", number * 32, "2" * 32, f"A/c/{number}") for number in "13")
    lane._at, lane._epochs, lane._lags = {tp: _At(old, 5, 5, 0)}, {}, {}
    lane._wanted()
    chunk = Fetched(5, memoryview(b""), 7, 2, (), 0, 7)
    assert lane._usable({tp: chunk}) == {tp: chunk}
    lane._at = {tp: _At(new, 5, 5, 0)}
    assert lane._usable({tp: chunk}) == {}
    assert tp in lane._at and lane.failed == {}


def test_whether_the_mirror_was_failed_over_is_read_once_for_all_that_an_answer_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reading for each partition took a lane all its time, where a source's topic with many was made anew."""
    read: list[int] = []

    class Nothing:
        stopped: Mapping[int, Stopped] = {}

    monkeypatch.setattr(same_lane, "read_state", lambda *_: read.append(1) or Nothing())

    class Refusing:
        def ask(self, asks: Mapping[TopicPartition, Ask]) -> dict[TopicPartition, Told]:
            return {tp: Told(-1, -1, -1, PolicyViolation("it is another topic's")) for tp in asks}

    lane, refusing, nobody = new_lane(), cast("Any", Refusing()), cast("Any", None)
    lane._at, lane._epochs, lane._tries = {}, {}, {}
    fresh = {TopicPartition("t", n): Mirrored("A.t", "1" * 32, "2" * 32, "A/c/1") for n in range(20)}
    for readings in (1, 2):
        lane._place(nobody, refusing, nobody, fresh)
        assert len(lane.failed) == 20 and len(read) == readings


def test_with_start_latest_a_topic_that_is_made_anew_is_copied_from_its_beginning() -> None:
    """What it got until its mirror saw it was passed over in silence."""

    class Empty:
        def ask(self, asks: Mapping[TopicPartition, Ask]) -> dict[TopicPartition, Told]:
            return dict.fromkeys(asks, Told(0, 0, 0, None))

        def beginning_offsets(self, partitions: Sequence[TopicPartition], _: float) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 3)

        def end_offsets(self, partitions: Sequence[TopicPartition], _: float) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 50)

    lane, empty = new_lane(start="latest"), cast("Any", Empty())
    before, never = TopicPartition("t", 0), TopicPartition("t", 1)
    lane._at, lane._tries, lane._epochs = {}, {}, {before: Epochs("0" * 32, ((2, 7),))}
    begun = lane._place(empty, empty, empty, dict.fromkeys((before, never), Mirrored("t", "1" * 32, "2" * 32, "A/c/1")))
    assert {tp: at.offset for tp, at in lane._at.items()} == {before: 3, never: 50}
    assert begun == lane._epochs == {before: Epochs("1" * 32, begin=3), never: Epochs("1" * 32, begin=50)}


@pytest.mark.parametrize(
    ("first", "source_id", "begin", "log", "expected"),
    [
        (50, "1", 50, (0, 60), (50, 50)),  # it began in the middle: 0 to 49 are there alone
        (50, "1", 55, (0, 60), (55, 55)),  # and what was deleted since in the other is not told from it
        (50, "1", 0, (0, 60), (0, 50)),  # a broker that was killed has forgotten where its log begins
        (50, "1", 55, (50, 60), (55, -1)),  # what was copied goes with what it is a copy of
        (0, "1", 55, (0, 60), (55, -1)),
        (50, "1", 40, (50, 60), (50, -1)),  # the way back's way back: the former source has less
        (-1, "1", 50, (0, 60), (50, 50)),  # nobody knows what it had of it
        (0, "2", 50, (0, 60), (50, 50)),  # it had none of this topic
        (50, "1", 50, (0, 0), (50, -1)),  # it has nothing
        (50, "1", 50, (60, 60), (50, -1)),
    ],
)
def test_what_a_former_source_alone_has_below_where_its_mirror_began_is_kept(
    first: int, source_id: str, begin: int, log: tuple[int, int], expected: tuple[int, int]
) -> None:
    found = begun_back(Epochs("1", begin=first), source_id, "2", begin, *log)
    assert (found.topic_id, found.starts, (found.begin, found.keeps)) == ("2", (), expected)
    if first < 0:
        assert begun_back(None, source_id, "2", begin, *log) == found


@pytest.mark.parametrize(
    ("start", "source_start", "end", "keeps", "told"),
    [
        ("latest", 0, 60, -1, [50]),
        ("latest", 55, 60, -1, [55]),
        ("latest", 0, 40, -1, []),  # it was cut off below that
        ("earliest", 0, 60, -1, []),  # what lies below was never there in the source
        *((start, 50, 60, 50, []) for start in ("latest", "earliest")),  # it alone has what lies below
        *((start, 51, 60, 50, [51]) for start in ("latest", "earliest")),
    ],
)
def test_a_target_that_has_forgotten_where_its_mirror_began_is_told_again(
    start: str, source_start: int, end: int, keeps: int, told: list[int]
) -> None:
    """A broker that is killed has the start of its log from before; what lies below was then missing for who compares both sides."""
    asked: list[int] = []

    class Forgetful:
        def ask(self, asks: Mapping[TopicPartition, Ask]) -> dict[TopicPartition, Told]:
            asked.extend(ask.log_start for ask in asks.values())
            return {tp: Told(ask.log_start, end, end, None) for tp, ask in asks.items()}

    tp, lane, target = TopicPartition("t", 0), new_lane(start=start), cast("Any", Forgetful())
    lane._tries, lane._lags, lane._epochs = {}, {}, {tp: Epochs("1" * 32, ((2, 50),), keeps=keeps)}
    lane._at = {tp: _At(Mirrored("t", "1" * 32, "2" * 32, "A/c/1"), end, end, 0)}
    nothing = Fetched(end, memoryview(b""), end, 0, (), source_start, end)
    for _ in range(2):
        lane._append(cast("Any", None), target, dict(lane._at), {tp: nothing}, {})
    assert asked == told


def test_a_lane_that_ends_while_it_compares_batches_complains_of_no_partition(caplog: pytest.LogCaptureFixture) -> None:
    """That it ends, ends what it asks the source: each partition was said not to be mirrored, for a closed client."""

    class Ending:
        def ask(self, asks: Mapping[TopicPartition, Ask]) -> dict[TopicPartition, Told]:
            return dict.fromkeys(asks, Told(0, 9, 9, None))

        def beginning_offsets(self, partitions: Sequence[TopicPartition], _: float) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 0)

        def end_offsets(self, partitions: Sequence[TopicPartition], _: float) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 50)

        def batch_at(self, *_: object) -> None:
            lane.stop()
            raise ClientClosed()

    lane, ending = new_lane(), cast("Any", Ending())
    lane._at, lane._tries, lane._epochs = {}, {}, {}
    with pytest.raises(ClientClosed):
        lane._place(ending, ending, ending, {TopicPartition("t", 0): Mirrored("t", "1" * 32, "2" * 32, "A/c/1")})
    assert lane.failed == {} and caplog.messages == []


def test_a_fail_back_begins_nowhere_where_a_partition_does_not_tell_its_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was begun at 0, which is a gap to a mirror that begins at "latest" once the target has deleted that."""
    tps = [TopicPartition("t", number) for number in range(2)]
    told = Offsets({tps[0]: 5}, {tps[0]: 9}, {tps[1]: LeaderNotAvailable("t-1 has no leader")})
    monkeypatch.setattr(same_failover, "_described", lambda *_: {"t": same_failover.Topic(b"i", 2, "")})
    monkeypatch.setattr(same_failover, "consumer_at", lambda *_: nullcontext())
    monkeypatch.setattr(same_failover, "offsets_of", lambda *_: told)
    side = {"bootstrap.servers": "127.0.0.1:1"}
    document = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}, "mirror": {"topics": ["t"]}}
    config, admin = parse_config(document), cast("Any", None)
    with pytest.raises(LeaderNotAvailable, match="no leader"):
        same_failover.where_begun(config, dict.fromkeys(tps, 9), admin)
    told = Offsets(dict.fromkeys(tps, 5), dict.fromkeys(tps, 9), {})
    assert {of.begin for of in same_failover.where_begun(config, dict.fromkeys(tps, 9), admin).values()} == {5}
