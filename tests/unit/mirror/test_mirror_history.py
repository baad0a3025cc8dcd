"""How seldom those who look again and again compare the times of what was copied with the source's."""

from __future__ import annotations

from fastq.metadata import TopicPartition
from fastq.mirror.history import SoundMarks
from fastq.mirror.progress import Mark

TP = TopicPartition("t", 0)


def test_times_are_compared_where_the_mirror_stands_and_once_for_each_end_of_the_source() -> None:
    sound = SoundMarks()
    compared = []
    for mark, end, lost in (
        (Mark(5), 5, False),  # the first look
        (Mark(5), 5, False),
        (Mark(5), 7, False),  # it lags
        (Mark(5), 7, False),
        (Mark(7), 7, False),  # it has gone on
        (Mark(7), 7, False),  # and stands there
        (Mark(7), 7, False),
        (Mark(7), 6, True),  # the source is another: it is, and stays, what it has lost
        (Mark(7), 6, True),
    ):
        marks, ends = {TP: mark}, {TP: end}
        compared.append(TP not in sound.of(marks, ends))
        sound.compared(marks, ends, {TP} if lost else ())
    assert compared == [True, False, True, False, False, True, False, True, True]
