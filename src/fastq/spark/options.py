"""The options of the format: one table, and what reads it.

Rules
- `OPTIONS` is the only list of names, defaults, scopes and meanings; the parsers below and the documentation follow it.
- Names, meanings and defaults are those of Spark's JVM connector, so that moving over is changing the format's name.
- Spark lower-cases the names it hands over: they are compared without case, and shown as the table spells them.
- An option that this side does not take is an error that names the nearest one that it does; nothing is passed over.
- `kafka.*` options are configuration of the client, checked as such; those that would change what Spark relies on are refused.
Source: Spark's KafkaSourceProvider and its guide to the Kafka integration.
"""

from __future__ import annotations

import difflib
import enum
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fastq.errors import ConfigError
from fastq.metadata import TopicPartition
from fastq.spark.offsets import OffsetLimit, parse_offsets, parse_partitions

if TYPE_CHECKING:
    from typing_extensions import Self

    from fastq.admin.config import AdminConfig
    from fastq.consumer.config import ConsumerConfig

logger = logging.getLogger("fastq.spark")

T = TypeVar("T")


class Scope(enum.Flag):
    """Where an option has a meaning."""

    BATCH = enum.auto()
    STREAM = enum.auto()
    BATCH_SINK = enum.auto()
    STREAM_SINK = enum.auto()
    SOURCE = BATCH | STREAM
    SINK = BATCH_SINK | STREAM_SINK
    ALL = SOURCE | SINK


class SparkOption(NamedTuple):
    """One option: its name as documented, what it is when left out, where it means something, its parser, its meaning.

    A parser takes the text and raises ValueError with what is allowed.
    """

    name: str
    default: Any
    scope: Scope
    parse: Callable[[str], Any]
    meaning: str


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("a name that is not empty")
    return value.strip()


def _boolean(value: str) -> bool:
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def _integer(low: int, what: str, high: int | None = None) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise ValueError(what) from None
        if number < low or (high is not None and number > high):
            raise ValueError(what)
        return number

    return parse


_positive = _integer(1, "an integer of 1 or more")
_natural = _integer(0, "an integer of 0 or more")
# A time or an offset is a number of 64 bits on the wire.
NUMBER_MAX = 2**63 - 1
_timestamp = _integer(0, "milliseconds since 1970, one integer", NUMBER_MAX)

_UNITS_MS = {"us": 0.001, "ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration(value: str) -> int:
    """Milliseconds of a duration as Spark writes it: 15m, 100ms, 3s; a bare number is milliseconds."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise ValueError("a duration such as 15m, 30s or 500ms (us, ms, s, m, min, h, d)")
    return int(int(found[1]) * _UNITS_MS[found[2]])


def _choice(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.strip().lower() not in words:
            raise ValueError(" or ".join(words))
        return value.strip().lower()

    return parse


def _names(value: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not found:
        raise ValueError("topics, separated by commas")
    return found


def _pattern(value: str) -> re.Pattern[str]:
    if not value.strip():
        raise ValueError("a regular expression that is not empty")
    try:
        return re.compile(value.strip())
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None


def _offsets(value: str) -> OffsetLimit:
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return OffsetLimit.earliest() if word == "earliest" else OffsetLimit.latest()
    try:
        offsets = parse_offsets(value)
    except ValueError as error:
        raise ValueError(f"earliest, latest or {error}") from None
    wrong = {str(tp): offset for tp, offset in offsets.items() if offset < -2}
    if wrong:
        raise ValueError(f"offsets of 0 or more, -1 for latest, -2 for earliest; got {wrong}")
    return OffsetLimit.exactly(offsets)


def _timestamps(value: str) -> OffsetLimit:
    timestamps = parse_offsets(value)
    if not all(0 <= timestamp <= NUMBER_MAX for timestamp in timestamps.values()):
        raise ValueError("milliseconds since 1970 for each partition")
    return OffsetLimit.at_times(timestamps)


def _at_time(value: str) -> OffsetLimit:
    return OffsetLimit.at_time(_timestamp(value))


OPTIONS: tuple[SparkOption, ...] = (
    SparkOption("assign", None, Scope.SOURCE, parse_partitions, 'partitions to read, as {"topic": [0, 1]}'),
    SparkOption("subscribe", None, Scope.SOURCE, _names, "topics to read, separated by commas"),
    SparkOption("subscribePattern", None, Scope.SOURCE, _pattern, "a regular expression that the whole name matches"),
    SparkOption(
        "startingTimestamp", None, Scope.SOURCE, _at_time, "begin at this time, in milliseconds; beats the next two"
    ),
    SparkOption(
        "startingOffsetsByTimestamp", None, Scope.SOURCE, _timestamps, "the same for each partition; beats the next"
    ),
    SparkOption(
        "startingOffsets",
        None,
        Scope.SOURCE,
        _offsets,
        "earliest (default of a batch), latest (default of a stream), or JSON with -2 and -1 for these",
    ),
    SparkOption(
        "startingOffsetsByTimestampStrategy",
        "error",
        Scope.SOURCE,
        _choice("error", "latest"),
        "where no record is that young",
    ),
    SparkOption("endingTimestamp", None, Scope.BATCH, _at_time, "end at this time; beats the next two"),
    SparkOption("endingOffsetsByTimestamp", None, Scope.BATCH, _timestamps, "the same for each partition"),
    SparkOption("endingOffsets", None, Scope.BATCH, _offsets, "latest (default) or JSON with -1 for it"),
    SparkOption(
        "failOnDataLoss", True, Scope.SOURCE, _boolean, "fail when records that were to be read are gone; else warn"
    ),
    SparkOption("minPartitions", None, Scope.SOURCE, _positive, "split large partitions to get about so many tasks"),
    SparkOption("maxRecordsPerPartition", None, Scope.SOURCE, _positive, "split so that no task reads more offsets"),
    SparkOption("maxOffsetsPerTrigger", None, Scope.STREAM, _positive, "the most offsets of a micro-batch, in all"),
    SparkOption("minOffsetsPerTrigger", None, Scope.STREAM, _positive, "wait until there are so many"),
    SparkOption("maxTriggerDelay", 900_000, Scope.STREAM, _duration, "but not longer than this (15m)"),
    SparkOption(
        "groupIdPrefix",
        "spark-kafka-source",
        Scope.SOURCE,
        _text,
        "accepted; the source is in no group, so it has no use",
    ),
    SparkOption("includeHeaders", False, Scope.ALL, _boolean, "a column of headers"),
    SparkOption(
        "kafkaConsumer.pollTimeoutMs", 120_000, Scope.SOURCE, _positive, "a task fails when nothing comes for so long"
    ),
    SparkOption("fetchOffset.numRetries", 3, Scope.SOURCE, _positive, "attempts to learn offsets"),
    SparkOption("fetchOffset.retryIntervalMs", 10, Scope.SOURCE, _natural, "the pause between them"),
    SparkOption("topic", None, Scope.SINK, _text, "where to write; beats the column topic"),
    SparkOption(
        "delivery",
        "at-least-once",
        Scope.SINK,
        _choice("at-least-once", "exactly-once"),
        "exactly-once: a transaction for each task, and a replay is passed over",
    ),
    SparkOption(
        "token",
        None,
        Scope.BATCH_SINK,
        _text,
        "names a batch write, so that doing it again is passed over (exactly-once)",
    ),
)

# What Spark itself adds to the options of a sink.
OF_SPARK = frozenset({"checkpointlocation", "queryname"})

_BYTES = "keys and values are bytes to Spark: use functions of the DataFrame"
PROTECTED: Mapping[Scope, Mapping[str, str]] = {
    Scope.SOURCE: {
        "auto.offset.reset": "use startingOffsets: Spark itself keeps the offsets",
        "key.deserializer": _BYTES,
        "value.deserializer": _BYTES,
        "enable.auto.commit": "the source commits no offsets: Spark keeps them in its checkpoint",
        "interceptor.classes": "interceptors may change records, which cannot be done twice alike",
    },
    Scope.SINK: {
        "key.serializer": _BYTES,
        "value.serializer": _BYTES,
    },
}
_KAFKA = "kafka."


@dataclass(frozen=True)
class Selection:
    """What is read: one of `topics`, `pattern` and `partitions`."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern {self.pattern.pattern}"
        if self.partitions:
            return "assign " + ", ".join(str(tp) for tp in self.partitions)
        return "subscribe " + ",".join(self.topics)


class _Given:
    """The options as given, read one by one with the table's parsers."""

    def __init__(self, options: Mapping[str, str], scope: Scope) -> None:
        self.values = {name.lower(): str(value) for name, value in options.items()}
        self.scope = scope
        self.client = {name[len(_KAFKA) :]: value for name, value in self.values.items() if name.startswith(_KAFKA)}
        self._check_names()
        self._check_client()

    def _check_names(self) -> None:
        known = {option.name.lower(): option for option in OPTIONS}
        side = "sink" if self.scope & Scope.SINK else "source"
        for name in self.values:
            if name.startswith(_KAFKA) or (side == "sink" and name in OF_SPARK):
                continue
            if name not in known:
                mine = {key: o.name for key, o in known.items() if o.scope & self.scope}
                near = difflib.get_close_matches(name, [*mine, "kafka.bootstrap.servers"], n=1, cutoff=0.5)
                hint = (
                    f"did you mean {mine.get(near[0], near[0])}?" if near else f"there are {', '.join(mine.values())}"
                )
                raise ConfigError(
                    f"the fastq {side} has no option {name!r}; {hint} (options of the client begin with kafka.)"
                )
            option = known[name]
            if option.scope & self.scope:
                continue
            if option.scope & (Scope.SOURCE if side == "source" else Scope.SINK) == Scope.STREAM:
                logger.warning("the option %s has no effect in a batch query", option.name)
            else:
                where = {Scope.BATCH: "batch queries", Scope.BATCH_SINK: "batch writes"}.get(option.scope)
                where = where or ("the sink" if option.scope & Scope.SINK else "the source")
                raise ConfigError(f"the option {option.name} is for {where} only; leave it out here")

    def _check_client(self) -> None:
        for scope, protected in PROTECTED.items():
            for name, why in protected.items() if self.scope & scope else ():
                if name in self.client:
                    raise ConfigError(f"the option kafka.{name} is not supported: {why}")
        if not self.client.get("bootstrap.servers", "").strip():
            raise ConfigError("the option kafka.bootstrap.servers is required: HOST:PORT, several with commas")

    def get(self, name: str) -> Any:
        """The value of an option of the table, or its default."""
        option = next(option for option in OPTIONS if option.name == name)
        text = self.values.get(name.lower())
        if text is None or not option.scope & self.scope:
            return option.default
        try:
            return option.parse(text)
        except ValueError as error:
            raise ConfigError(f"bad value for the option {option.name}: {text!r}; allowed: {error}") from None

    def selection(self) -> Selection:
        names = ("assign", "subscribe", "subscribePattern")
        given = [name for name in names if name.lower() in self.values]
        if len(given) != 1:
            what = f"got {' and '.join(given)}" if given else "got none"
            raise ConfigError(f"exactly one of the options {', '.join(names)} says what to read; {what}")
        value = self.get(given[0])
        if given[0] == "assign":
            return Selection(partitions=value)
        return Selection(topics=value) if given[0] == "subscribe" else Selection(pattern=value)

    def limit(self, *names: str, default: OffsetLimit) -> OffsetLimit:
        """The first of these options that is given."""
        values = [self.get(name) for name in names]
        return next((value for value in values if value is not None), default)


# What the clients of the source are made with, unless kafka.* options say otherwise.
_CONSUMER_DEFAULTS: Mapping[str, Any] = {
    "prefetch_bytes_max": 16 * 1024 * 1024,
    "max_partition_fetch_bytes": 4 * 1024 * 1024,
}
_CONSUMER_FIXED: Mapping[str, Any] = {
    "auto_offset_reset": "none",
    "group_id": None,
    "allow_auto_create_topics": False,
}


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What a source was told. Pickles; equal options are equal.

    `client`: the kafka.* options without that prefix. `starting`, `ending`: where a new query begins, and a batch ends.
    """

    selection: Selection
    client: Mapping[str, str] = field(hash=False, repr=False)
    starting: OffsetLimit
    ending: OffsetLimit
    streaming: bool = False
    no_match_is_latest: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    group_id_prefix: str = "spark-kafka-source"
    include_headers: bool = False
    poll_timeout_ms: int = 120_000
    offset_attempts: int = 3
    offset_retry_interval_ms: int = 10

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> Self:
        """The options of a source. `streaming`: whether of a stream; None when that is not known yet, which leaves out the
        checks that depend on it. Raises ConfigError, naming option, value and what is allowed."""
        scope = {True: Scope.STREAM, False: Scope.BATCH, None: Scope.SOURCE}[streaming]
        given = _Given(options, scope)
        parsed = cls(
            selection=given.selection(),
            client=given.client,
            starting=given.limit(
                "startingTimestamp",
                "startingOffsetsByTimestamp",
                "startingOffsets",
                default=OffsetLimit.latest() if streaming else OffsetLimit.earliest(),
            ),
            ending=given.limit(
                "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", default=OffsetLimit.latest()
            ),
            streaming=bool(streaming),
            no_match_is_latest=given.get("startingOffsetsByTimestampStrategy") == "latest",
            fail_on_data_loss=given.get("failOnDataLoss"),
            min_partitions=given.get("minPartitions"),
            max_records_per_partition=given.get("maxRecordsPerPartition"),
            max_offsets_per_trigger=given.get("maxOffsetsPerTrigger"),
            min_offsets_per_trigger=given.get("minOffsetsPerTrigger"),
            max_trigger_delay_ms=given.get("maxTriggerDelay"),
            group_id_prefix=given.get("groupIdPrefix"),
            include_headers=given.get("includeHeaders"),
            poll_timeout_ms=given.get("kafkaConsumer.pollTimeoutMs"),
            offset_attempts=given.get("fetchOffset.numRetries"),
            offset_retry_interval_ms=given.get("fetchOffset.retryIntervalMs"),
        )
        parsed._check(streaming)
        return parsed

    def _check(self, streaming: bool | None) -> None:
        low, high = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if low is not None and high is not None and low > high:
            raise ConfigError(f"minOffsetsPerTrigger={low} is above maxOffsetsPerTrigger={high}")
        if streaming is False:
            self.starting.refuse(-1, "startingOffsets", "latest", "a batch reads what is there")
            self.ending.refuse(-2, "endingOffsets", "earliest", "a batch would be empty")
            self.starting.check_before(self.ending)
        self.consumer_config()

    def consumer_config(self) -> ConsumerConfig:
        """What the tasks read with. Raises ConfigError for a kafka.* option that is none of the client."""
        from fastq.consumer.config import ConsumerConfig

        return ConsumerConfig.from_mapping(_CONSUMER_DEFAULTS, **{**self._client_options(), **_CONSUMER_FIXED})

    def admin_config(self) -> AdminConfig:
        """What the driver asks with: of the client's options those about the cluster and the connections."""
        from fastq.admin.config import AdminConfig

        values = self.consumer_config().as_dict()
        return AdminConfig(**{name: values[name] for name in AdminConfig.options() if name in values})

    def _client_options(self) -> dict[str, str]:
        # A group named by the user is for other tools to see; the source neither joins one nor commits.
        return {name: value for name, value in self.client.items() if name != "group.id"}

    @property
    def read_committed(self) -> bool:
        """True when transactions are honoured (kafka.isolation.level)."""
        return self.client.get("isolation.level", "").strip().lower() == "read_committed"

    @property
    def group_id(self) -> str | None:
        """kafka.group.id, which beats groupIdPrefix."""
        return self.client.get("group.id")


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """What a sink was told. Pickles.

    `client`: the kafka.* options without that prefix, for the producer. `topic`: None when the column says.
    """

    client: Mapping[str, str] = field(hash=False, repr=False)
    topic: str | None = None
    include_headers: bool = False
    delivery: str = "at-least-once"
    token: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> Self:
        """The options of a sink. Raises ConfigError, naming option, value and what is allowed."""
        given = _Given(options, Scope.STREAM_SINK if streaming else Scope.BATCH_SINK)
        return cls(
            client=given.client,
            topic=given.get("topic"),
            include_headers=given.get("includeHeaders"),
            delivery=given.get("delivery"),
            token=given.get("token"),
        )

    @property
    def exactly_once(self) -> bool:
        """True for delivery=exactly-once."""
        return self.delivery == "exactly-once"
