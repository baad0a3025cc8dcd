"""What a program learns of its records: RecordMetadata for one, SendManyResult for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fastq.errors import FastqError
from fastq.metadata import TopicPartition
from fastq.values import NamedTuple


class RecordMetadata(NamedTuple):
    """Where the broker put a record. `offset` is -1 with acks=0, and for a batch that the broker had before.

    Sizes are bytes on the wire before compression, -1 for null. `timestamp_ms` is the record's own, or the broker's if
    the topic stamps records when they are appended.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    serialized_key_size: int
    serialized_value_size: int


@dataclass(frozen=True)
class SendManyResult:
    """Where the records of one `send_many` went: ranges of offsets by partition, in the order of sending.

    A range starts at -1 where the broker gave no offset (acks=0). `elsewhere` has what an interceptor sent to other topics.
    """

    topic: str
    count: int
    offsets: Mapping[int, Sequence[range]]
    elsewhere: Mapping[TopicPartition, Sequence[range]] = field(default_factory=dict)


class SendManyError(FastqError):
    """Some records of one `send_many` failed; the others are delivered.

    `failures` pairs each error with the positions, counted from 0 in the order given, of the records that failed with it.
    `delivered` is the SendManyResult of the rest.
    """

    failures: Sequence[tuple[FastqError, Sequence[int]]] = ()
    delivered: SendManyResult | None = None
    cure = "Send the records at the positions in `failures` again, each by what its error says."
    default_message = "some records were not delivered"

    def __init__(
        self,
        message: str | None = None,
        *,
        failures: Sequence[tuple[FastqError, Sequence[int]]] = (),
        delivered: SendManyResult | None = None,
        **context: object,
    ) -> None:
        super().__init__(message, **context)
        self.failures, self.delivered = failures, delivered
