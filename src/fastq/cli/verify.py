"""`fastq verify produce` and `fastq verify consume`: load that tells every event as a JSON line, for programs that check what became of it.

Rules: options, lines, their fields and the order of these are those of Apache Kafka's VerifiableProducer and VerifiableConsumer, so that a
program that starts one and reads its standard output can start ours. A line is written at once and whole, by whichever thread knows of the
event. SIGTERM and SIGINT end a run in order: what was sent is answered for, the group is left, the last lines are written. A second
one ends it as it ends every command.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, opened_consumer, opened_producer
from fastq.cli.output import INT64_MAX, Subparsers, nonempty
from fastq.errors import BufferTimeout, ConnectionFailed, DeliveryTimeout, FastqError, InvalidRecord, KafkaError

if TYPE_CHECKING:
    from fastq import Consumer, Record, TopicPartition

NUMBER_MAX = INT64_MAX // 2
"""Of an option; a timestamp that begins there goes up with the time of the run."""
SESSION_TIMEOUT_MS = 30_000
"""What Kafka's tool takes, where its consumer has 45 s."""
LOOK_S = 0.05
"""How long a producer that waits for its next record may take to see that it is to end."""

_NAMED_OTHERWISE = {
    "UnknownServerError": "UnknownServer",
    "CorruptMessage": "CorruptRecord",
    "RequestTimedOut": "Timeout",
    "MessageTooLarge": "RecordTooLarge",
    "StaleControllerEpoch": "ControllerMoved",
    "OffsetMetadataTooLarge": "OffsetMetadataTooLarge",
    "RecordListTooLarge": "RecordBatchTooLarge",
    "TopicAuthorizationFailed": "TopicAuthorization",
    "GroupAuthorizationFailed": "GroupAuthorization",
    "ClusterAuthorizationFailed": "ClusterAuthorization",
    "TopicAlreadyExists": "TopicExists",
    "InvalidConfig": "InvalidConfiguration",
    "OutOfOrderSequenceNumber": "OutOfOrderSequence",
    "DuplicateSequenceNumber": "DuplicateSequence",
    "InvalidProducerIdMapping": "InvalidPidMapping",
    "InvalidTransactionTimeout": "InvalidTxnTimeout",
    "TransactionalIdAuthorizationFailed": "TransactionalIdAuthorization",
    "KafkaStorageError": "KafkaStorage",
    "SaslAuthenticationFailed": "SaslAuthentication",
    "DelegationTokenAuthDisabled": "DelegationTokenDisabled",
    "DelegationTokenRequestNotAllowed": "UnsupportedByAuthentication",
    "DelegationTokenAuthorizationFailed": "DelegationTokenAuthorization",
    "NonEmptyGroup": "GroupNotEmpty",
    "PrincipalDeserializationFailure": "PrincipalDeserialization",
    "FetchSessionTopicIdError": "FetchSessionTopicId",
}
_WITHOUT_ENDING = ("OffsetMetadataTooLarge", "InvalidRegularExpression")
_PACKAGE = "org.apache.kafka.common"


def register(commands: Any) -> None:
    both = Subparsers(commands).add(
        "verify",
        "Produce or consume and tell every event as a JSON line, as Kafka's verifiable tools do.",
        "fastq verify produce --topic logs --bootstrap-server 127.0.0.1:9092 --max-messages 100",
    )
    sides = Subparsers(both.add_subparsers(title="sides", metavar="SIDE", required=True))

    produce = sides.add(
        "produce",
        "Send increasing numbers, and tell which were acknowledged and which were not.",
        "fastq verify produce --topic logs --max-messages 100000 --throughput 1000",
    )
    add_client_options(produce, "--bootstrap-server")
    produce.add_argument("--topic", type=nonempty, required=True)
    _number(produce, "--max-messages", "N", "stop after N records; -1: when it is terminated")
    _number(produce, "--throughput", "PER_SECOND", "not more records a second than this; -1: as many as there can be")
    produce.add_argument("--acks", type=int, default=-1, choices=[0, 1, -1], help="-1: all (default: -1)")
    _number(produce, "--message-create-time", "MS", "timestamps begin here, in ms since 1970; -1: they are the time")
    _number(produce, "--value-prefix", "N", "values are N.0, N.1, ... in place of 0, 1, ...", None)
    _number(produce, "--repeating-keys", "N", "keys 0 to N-1 in turn; without it there are none", None, low=1)
    produce.set_defaults(run=run_produce)

    consume = sides.add(
        "consume",
        "Read a topic as a member of a group, and tell what was assigned, read and committed.",
        "fastq verify consume --topic logs --group-id checks --max-messages 100000",
    )
    add_client_options(consume, "--bootstrap-server")
    consume.add_argument("--topic", type=nonempty, required=True)
    consume.add_argument("--group-id", type=nonempty, required=True)
    consume.add_argument("--group-instance-id", type=nonempty, metavar="ID", help="be a static member under this name")
    consume.add_argument("--group-protocol", type=str.lower, default="classic", choices=["classic", "consumer"])
    consume.add_argument("--group-remote-assignor", type=nonempty, metavar="NAME", help="of the consumer protocol")
    consume.add_argument(
        "--assignment-strategy",
        default="range",
        metavar="NAME",
        help="of the classic protocol: range, roundrobin, sticky, cooperative-sticky, or the names of Kafka's classes "
        "(default: range)",
    )
    _number(consume, "--max-messages", "N", "stop after N records; -1: when it is terminated")
    _number(consume, "--session-timeout", "MS", "of the classic protocol", SESSION_TIMEOUT_MS, low=1)
    consume.add_argument("--reset-policy", default="earliest", choices=["earliest", "latest", "none"])
    consume.add_argument(
        "--enable-autocommit", action="store_true", help="commit at intervals, not after each poll, and tell nothing"
    )
    consume.add_argument("--verbose", action="store_true", help="tell each record too")
    consume.set_defaults(run=run_consume)


def _number(
    parser: argparse.ArgumentParser,
    name: str,
    metavar: str,
    text: str,
    default: int | None = -1,
    low: int | None = None,
) -> None:
    def number(given: str) -> int:
        try:
            found = int(given)
        except ValueError:
            found = None
        if found is None or (low is not None and found < low) or abs(found) > NUMBER_MAX:
            least = "" if low is None else f" of {low} or more"
            raise argparse.ArgumentTypeError(f"a whole number{least} is expected, not {given!r}")
        return found

    shown = text if default is None else f"{text} (default: {default})"
    parser.add_argument(name, type=number, default=default, metavar=metavar, help=shown)


class _Lines:
    """Events on standard output. Safe for any thread; `gone` once nobody reads them any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.gone = False

    def tell(self, name: str, **fields: object) -> None:
        document = {"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}
        line = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
        with self._lock:
            try:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            except BrokenPipeError:  # a callback's would end in the log of the client
                self.gone = True

    def check(self) -> None:
        if self.gone:
            raise BrokenPipeError


class _Ending:
    """Whether the run is to end, and by which signal. The first one is noted; the next does what it does to every command."""

    def __init__(self, consumer: Consumer | None = None) -> None:
        self.signal: int | None = None
        self._consumer = consumer
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Ending:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        self.signal = number
        self.__exit__()
        if self._consumer is not None:
            self._consumer.stop()

    @property
    def exit_code(self) -> int:
        return 0 if self.signal is None else 128 + self.signal


class _Producing:
    """What was sent, and what came of it. Invariant: acked <= sent, and each record that was sent has one line of its own in the end."""

    def __init__(self, options: argparse.Namespace, lines: _Lines) -> None:
        self._options = options
        self._lines = lines
        self._first_ms = time.time_ns() // 1_000_000
        self.sent = self.acked = 0

    def send(self, producer: Any) -> None:
        options, number = self._options, self.sent
        value = str(number) if options.value_prefix is None else f"{options.value_prefix}.{number}"
        key = None if options.repeating_keys is None else str(number % options.repeating_keys)
        stamp = None
        if options.message_create_time >= 0:
            stamp = options.message_create_time + time.time_ns() // 1_000_000 - self._first_ms
        self.sent += 1

        def answered(delivery: Any) -> None:
            error = delivery.exception()
            if error is not None:
                self._failed(key, value, error)
                return
            placed = delivery.result()
            self.acked += 1
            self._lines.tell(
                "producer_send_success", key=key, value=value, offset=placed.offset, topic=placed.topic,
                partition=placed.partition,
            )  # fmt: skip

        try:
            delivery = producer.send(
                options.topic, value.encode(), key=None if key is None else key.encode(), timestamp_ms=stamp
            )
        except FastqError as error:
            self._failed(key, value, error)
        else:
            delivery.add_done_callback(answered)

    def _failed(self, key: str | None, value: str, error: BaseException) -> None:
        self._lines.tell(
            "producer_send_error", topic=self._options.topic, key=key, value=value, exception=f"class {java_class(error)}",
            message=str(error),
        )  # fmt: skip


def java_class(error: BaseException) -> str:
    """The class by which Kafka's Java client names the same."""
    if isinstance(error, InvalidRecord):
        return f"{_PACKAGE}.InvalidRecordException"  # the one that lies beside the others
    if isinstance(error, KafkaError):
        name = type(error).__name__
        ended = _NAMED_OTHERWISE.get(name, name)
        plain = name in _WITHOUT_ENDING or ended.endswith("Exception")
        return f"{_PACKAGE}.errors.{ended}" if plain else f"{_PACKAGE}.errors.{ended}Exception"
    if isinstance(error, (DeliveryTimeout, BufferTimeout, ConnectionFailed)):
        return f"{_PACKAGE}.errors.TimeoutException"
    return f"{_PACKAGE}.KafkaException"


def run_produce(options: argparse.Namespace) -> int:
    lines = _Lines()
    with opened_producer(options, acks=options.acks, retries=0) as producer, _Ending() as ending:
        lines.tell("startup_complete")
        producing, start = _Producing(options, lines), time.monotonic()
        while ending.signal is None and producing.sent != max(options.max_messages, -1):
            lines.check()
            producing.send(producer)
            if options.throughput >= 0:
                _pause(start, producing.sent, options.throughput, ending)
        producer.close()
        lines.tell("shutdown_complete")
        lines.tell(
            "tool_data", sent=producing.sent, acked=producing.acked, target_throughput=options.throughput,
            avg_throughput=producing.acked / max(time.monotonic() - start, 1e-3),
        )  # fmt: skip
    lines.check()
    return ending.exit_code


def _pause(start: float, sent: int, rate: int, ending: _Ending) -> None:
    """Until the next record is due; a rate of 0 has none."""
    due = start + sent / rate if rate else float("inf")
    while ending.signal is None and (left := due - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_S))


def run_consume(options: argparse.Namespace) -> int:
    lines = _Lines()
    settings: dict[str, Any] = {
        "group_id": options.group_id,
        "group_instance_id": options.group_instance_id,
        "group_protocol": options.group_protocol,
        "enable_auto_commit": options.enable_autocommit,
        "auto_offset_reset": options.reset_policy,
    }
    if options.group_protocol == "classic":
        settings["partition_assignment_strategy"] = options.assignment_strategy
        settings["session_timeout_ms"] = options.session_timeout
    elif options.group_remote_assignor is not None:
        settings["group_remote_assignor"] = options.group_remote_assignor

    def tell_partitions(name: str) -> Any:
        def told(partitions: Sequence[TopicPartition]) -> None:
            lines.tell(name, partitions=[{"topic": tp.topic, "partition": tp.partition} for tp in sorted(partitions)])

        return told

    with opened_consumer(options, [], **settings) as consumer, _Ending(consumer) as ending:
        lines.tell("startup_complete")
        consumer.subscribe(
            options.topic,
            on_assigned=tell_partitions("partitions_assigned"),
            on_revoked=tell_partitions("partitions_revoked"),
        )
        done = 0
        while ending.signal is None and (options.max_messages < 0 or done < options.max_messages):
            lines.check()
            records = consumer.poll(timeout=None)
            if not records:
                break  # it was stopped
            done += _told(consumer, records, options, lines, done)
        if ending.signal is not None:
            lines.tell("shutdown_requested")
        consumer.close()
        lines.tell("shutdown_complete")
        if ending.signal is None:
            lines.tell("shutdown_requested")  # Kafka's says so last, as the process ends
    lines.check()
    return ending.exit_code


def _told(consumer: Consumer, records: Iterable[Record], options: argparse.Namespace, lines: _Lines, done: int) -> int:
    """Tell what one poll brought and commit it; answers how many of its records count, which those beyond --max-messages do not."""
    by_partition: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        by_partition.setdefault((record.topic, record.partition), []).append(record)
    counted, summaries, offsets = 0, [], {}
    for (topic, partition), those in by_partition.items():
        if options.max_messages >= 0:
            those = those[: options.max_messages - done - counted]
        if not those:
            break
        counted += len(those)
        offsets[topic, partition] = those[-1].offset + 1
        summaries.append({"topic": topic, "partition": partition, "count": len(those), "minOffset": those[0].offset,
                          "maxOffset": those[-1].offset})  # fmt: skip
        for record in those if options.verbose else ():
            lines.tell("record_data", key=_text(record.key), value=_text(record.value), topic=topic,
                       partition=partition, offset=record.offset)  # fmt: skip
    lines.tell("records_consumed", count=sum(map(len, by_partition.values())), partitions=summaries)
    if not options.enable_autocommit:
        _commit(consumer, offsets, lines)
    return counted


def _commit(consumer: Consumer, offsets: Mapping[tuple[str, int], int], lines: _Lines) -> None:
    told = [{"topic": topic, "partition": number, "offset": offset} for (topic, number), offset in offsets.items()]
    try:
        consumer.commit(offsets)
    except FastqError as error:
        lines.tell("offsets_committed", offsets=told, error=str(error), success=False)
    else:
        lines.tell("offsets_committed", offsets=told, success=True)


def _text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode("utf-8", "replace")
