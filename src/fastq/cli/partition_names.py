"""How commands name partitions: a topic, or some of its partitions, as Kafka's tools do.

Rules: numbers are given to the broker, which says whether they are there; a range means those of its partitions that are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import described
from fastq.cli.output import UsageError, is_whole, nonempty

if TYPE_CHECKING:
    from fastq import Admin, TopicPartition

PLACE = "TOPIC[:P,P-P...]"
HELP = "this topic, or some of its partitions: 0,2 or, as kafka-get-offsets.sh has it, 0-3 (3 not among them), 5-, -3"


def add_topic_option(parser: Any, *, required: bool = False) -> None:
    parser.add_argument(
        "--topic",
        type=nonempty,
        action="append",
        default=[],
        required=required,
        metavar=PLACE,
        help=f"{HELP}; may be repeated",
    )


def partitions_of(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    """The partitions that such names mean, each once."""
    from fastq import TopicPartition

    found: list[TopicPartition] = []
    wide: list[tuple[str, int, int | None]] = []
    for text in topics:
        name, colon, numbers = text.partition(":")
        if not colon:
            wide.append((name, 0, None))
            continue
        for number in numbers.split(","):
            low, dash, high = number.partition("-")
            bounded = all(is_whole(bound) for bound in (low, high) if bound) and bool(low or high)
            if not name or not bounded:
                raise UsageError(
                    f"TOPIC, or TOPIC:0,2 or TOPIC:0-3 with some of its partitions, is expected, not {text!r}"
                )
            if not dash:
                found.append(TopicPartition(name, int(low)))
            else:
                wide.append((name, int(low or 0), int(high) if high else None))
    names = list(dict.fromkeys(name for name, _, _ in wide))
    topic_of = described(admin, names) if names else {}
    for name, first, end in wide:
        there = [part.index for part in topic_of[name].partitions]
        found += [TopicPartition(name, index) for index in there if first <= index and (end is None or index < end)]
    return list(dict.fromkeys(found))
