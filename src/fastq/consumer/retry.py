"""What becomes of a record whose handler fails: tried again after a pause, then set aside in a dead-letter topic.

Rules: a policy is a value and keeps no state; pauses are exponential with jitter. A record set aside keeps its key, value and headers,
and gets headers that say where it comes from and why (DEAD_LETTER_HEADERS, text in UTF-8). A record counts as done only once the dead-
letter topic has it, and is said in the log then, at a bounded rate. What a deserializer could not read is tried again only where its
error may pass (a registry that is away), and is set aside with its bytes, which the serializers of the dead-letter producer leave alone.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastq._native.consume import Record
from fastq.arguments import int_of, number_of
from fastq.callbacks import check_plain, kind_of, name_of, unfinished
from fastq.errors import ConfigError, DeserializationError, RecordFailed
from fastq.metadata import check_topic_name
from fastq.net.backoff import backoff_s
from fastq.recurring import LOGGED_CHARACTERS_MAX, Recurring, more
from fastq.serializers import Serialized
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.consumer")

DEAD_LETTER_HEADERS = (
    "dead-letter.topic",
    "dead-letter.partition",
    "dead-letter.offset",
    "dead-letter.timestamp-ms",
    "dead-letter.error-class",
    "dead-letter.error-message",
    "dead-letter.attempts",
)
ERROR_MESSAGE_CHARACTERS_MAX = 4096
PLAIN_HINT = (
    "Give a coroutine function to AsyncConsumerPool or call_async; a plain one waits for its work and returns None"
)
AWAITED_HINT = "Make it `async def`, or give a plain function to ConsumerPool or call, which wait for it in a thread"


class DeadLetter(NamedTuple):
    """The arguments of the `send` that sets a record aside."""

    topic: str
    value: Any
    key: Any
    headers: list[tuple[str, bytes | None]]


class SetAsideLog:
    """Says which records were set aside or skipped, at a bounded rate for each topic.

    Thread rule: any. `clock` is monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._recurring = Recurring(clock)

    def say(self, record: Record, letter: DeadLetter | None, error: BaseException, attempts: int) -> None:
        """The dead-letter topic has a record; or, without a letter, nobody has it."""
        left_out = self._recurring.due(record.topic)
        if left_out is not None:
            logger.log(
                logging.ERROR if letter is None else logging.WARNING,
                "%s-%d at offset %d %s after %d attempt%s: %.*r%s",
                record.topic,
                record.partition,
                record.offset,
                "is skipped" if letter is None else f"was set aside in {letter.topic}",
                attempts,
                "" if attempts == 1 else "s",
                LOGGED_CHARACTERS_MAX,
                error,
                more(left_out, " of this topic"),
            )


set_aside_log = SetAsideLog()


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a handler is tried, and what then.

    attempts: in all, 1 or more. backoff_ms, backoff_max_ms: the first pause and the longest; they double from one to the other, give
    or take a fifth. retry_on: exceptions that may pass; others count as failed for good at once. dead_letter_topic: where records go
    that failed for good, `{topic}` standing for their own topic; None: nowhere. skip: without such a topic, go on with the next record
    (the first one of a topic is logged, then one in ten seconds); else RecordFailed ends the work, and the record is read again after the
    next start.
    """

    attempts: int = 3
    backoff_ms: float = 100
    backoff_max_ms: float = 10_000
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    dead_letter_topic: str | None = None
    skip: bool = False

    def __post_init__(self) -> None:
        int_of(self.attempts, "attempts", 1)
        for name in ("backoff_ms", "backoff_max_ms"):
            number_of(getattr(self, name), name, 0)
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise TypeError(f"retry_on is a tuple of exception classes, as in (TimeoutError,), got {self.retry_on!r}")
        if self.dead_letter_topic is not None:
            topic: object = self.dead_letter_topic
            check_topic_name(topic.replace("{topic}", "t") if isinstance(topic, str) else topic)
        if not 0 <= self.backoff_ms <= self.backoff_max_ms:
            raise ValueError(f"0 <= backoff_ms <= backoff_max_ms, got {self.backoff_ms} and {self.backoff_max_ms}")
        if self.dead_letter_topic is not None and self.skip:
            raise ValueError("skip=True would skip the dead_letter_topic: give one of them")

    def pause_s(self, error: BaseException, attempts: int, rng: random.Random) -> float | None:
        """Seconds until the next attempt, after so many have failed; None when this was the last."""
        if isinstance(error, DeserializationError) and not error.retriable:
            return None
        if attempts >= self.attempts or not isinstance(error, self.retry_on):
            return None
        return backoff_s(self.backoff_ms, self.backoff_max_ms, attempts, rng)

    def dead_letter(
        self, record: Record, error: BaseException, attempts: int, *, original: Record | None = None
    ) -> DeadLetter | None:
        """What to send for a record that failed for good; None where there is no such topic.

        original: the record before deserializers, whose bytes are sent as they are. Of a DeserializationError it is known.
        """
        if self.dead_letter_topic is None:
            return None
        values = (
            record.topic,
            str(record.partition),
            str(record.offset),
            str(record.timestamp_ms),
            f"{type(error).__module__}.{type(error).__qualname__}",
            str(_without_hint(error))[:ERROR_MESSAGE_CHARACTERS_MAX],
            str(attempts),
        )
        # Of a record that fails in the dead-letter topic itself, the first origin is the one worth knowing.
        known = {name for name, _ in record.headers}
        named = zip(DEAD_LETTER_HEADERS, values, strict=True)
        origin = [(name, text.encode("utf-8", "replace")) for name, text in named if name not in known]
        topic = self.dead_letter_topic.replace("{topic}", record.topic)
        if original is None and isinstance(error, DeserializationError):
            original = error.raw
        if original is None:
            return DeadLetter(topic, record.value, record.key, [*record.headers, *origin])
        value, key = (None if data is None else Serialized(data) for data in (original.value, original.key))
        return DeadLetter(topic, value, key, [*record.headers, *origin])

    def failed(self, record: Record, error: BaseException, attempts: int) -> RecordFailed | None:
        """The error to end with; None when the record is to be skipped, which is logged."""
        if self.skip:
            set_aside_log.say(record, None, error, attempts)
            return None
        failure = RecordFailed(
            f"the record of {record.topic}-{record.partition} at offset {record.offset} could not be handled",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            attempts=attempts,
            cause=_without_hint(error),
            hint="It is not committed and will be read again; mend its handler, or give a RetryPolicy with a dead_letter_topic",
        )
        failure.__cause__ = error
        return failure

    # -- for loops that handle one record after another

    def call(
        self,
        handler: Callable[[Record], None],
        record: Record,
        producer: Any = None,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Handle a record on this thread, with retries. Raises RecordFailed when it fails for good and may not be skipped.

        handler: a plain function, done with the record when it returns; ConfigError for another. producer: a `Producer` for the
        dead-letter topic; it has acknowledged the record when this returns.
        """
        check_producer(self, producer, asynchronous=False)
        check_handler(handler)
        rng, attempts = random.Random(), 0
        while True:
            attempts += 1
            try:
                answer: Any = handler(record)  # type: ignore[func-returns-value]  # who does not check types may answer anything
            except Exception as error:
                pause = self.pause_s(error, attempts, rng)
                if pause is None:
                    self.set_aside(record, error, producer, attempts=attempts)
                    return
            else:
                if answer is not None and (misuse := misuse_of(handler, answer)) is not None:
                    raise misuse
                return
            sleep(pause)

    def set_aside(self, record: Record, error: Exception, producer: Any = None, *, attempts: int = 1) -> None:
        """End with a record that failed for good, as `call` does: write it to the dead-letter topic, log that it is skipped, or raise
        RecordFailed. For a record that could not be read, that is a DeserializationError: `set_aside(error.raw, error, producer)`."""
        check_producer(self, producer, asynchronous=False)
        letter = self.dead_letter(record, error, attempts)
        if letter is not None:
            producer.send(letter.topic, letter.value, key=letter.key, headers=letter.headers).result()
            set_aside_log.say(record, letter, error, attempts)
        elif (failure := self.failed(record, error, attempts)) is not None:
            raise failure

    async def call_async(
        self, handler: Callable[[Record], Awaitable[object]], record: Record, producer: Any = None
    ) -> None:
        """`call` for a coroutine function, with an `AsyncProducer`. ConfigError for one that answers nothing to await."""
        check_producer(self, producer, asynchronous=True)
        check_async_handler(handler)
        rng, attempts = random.Random(), 0
        while True:
            attempts += 1
            try:
                answer = handler(record)
                if (misuse := async_misuse_of(handler, answer)) is None:
                    await answer
            except Exception as error:
                pause = self.pause_s(error, attempts, rng)
                if pause is None:
                    await self.set_aside_async(record, error, producer, attempts=attempts)
                    return
            else:
                if misuse is not None:
                    raise misuse
                return
            await asyncio.sleep(pause)

    async def set_aside_async(
        self, record: Record, error: Exception, producer: Any = None, *, attempts: int = 1
    ) -> None:
        """`set_aside` with an `AsyncProducer`."""
        check_producer(self, producer, asynchronous=True)
        letter = self.dead_letter(record, error, attempts)
        if letter is not None:
            await (await producer.send(letter.topic, letter.value, key=letter.key, headers=letter.headers))
            set_aside_log.say(record, letter, error, attempts)
        elif (failure := self.failed(record, error, attempts)) is not None:
            raise failure


def _without_hint(error: BaseException) -> BaseException:
    """What is said of an error: what it tells who polls, that the next call goes on, is not so for who handles the record."""
    return error.with_context(hint=None) if isinstance(error, DeserializationError) else error


def check_producer(policy: RetryPolicy, producer: Any, *, asynchronous: bool) -> None:
    """Raises ValueError when a policy has a dead-letter topic and nobody to write to it, ConfigError for a producer of the other kind."""
    if policy.dead_letter_topic is not None and producer is None:
        raise ValueError(f"dead_letter_topic={policy.dead_letter_topic!r} needs a producer")
    if producer is not None:
        check_client("the producer of dead letters", producer, "Producer", asynchronous)


def check_client(what: str, client: Any, name: str, asynchronous: bool) -> None:
    """Raises ConfigError for a blocking client where an asyncio one is meant, or the other way round, and TypeError for no client at all.

    By how it is entered, so that a stand-in of a test passes.
    """
    wanted, other = ("__aenter__", "__enter__") if asynchronous else ("__enter__", "__aenter__")
    if hasattr(client, other) and not hasattr(client, wanted):
        raise ConfigError(
            f"{what} is {'an Async' if asynchronous else 'a '}{name} here, got {type(client).__name__}",
            hint="ConsumerPool, call and set_aside take blocking clients, AsyncConsumerPool, call_async and set_aside_async asyncio ones",
        )
    if not hasattr(client, "send" if name == "Producer" else "config"):
        raise TypeError(f"{what} is {'an Async' if asynchronous else 'a '}{name}, got {client!r}")


# -- what a handler may be


def check_handler(handler: Any) -> None:
    """Raises ConfigError for a handler that a thread cannot run to its end."""
    check_plain(handler, "the handler", PLAIN_HINT)


def misuse_of(handler: Callable[..., Any], answer: Any) -> ConfigError | None:
    """The error for a handler whose work is not done although it has returned; None where it is."""
    return unfinished(answer, handler, "the handler", PLAIN_HINT)


def check_async_handler(handler: Any) -> None:
    """Raises ConfigError for a handler that nothing can be awaited of."""
    if not callable(handler):
        raise ConfigError(f"the handler is a coroutine function, got {handler!r}")
    kind = kind_of(handler)
    if kind == "asynchronous generator function":
        raise ConfigError(f"the handler {name_of(handler)} is an {kind}, which cannot be awaited", hint=AWAITED_HINT)


def async_misuse_of(handler: Callable[..., Any], answer: Any) -> ConfigError | None:
    """The error for a handler that answered nothing to await; None where it did."""
    if inspect.isawaitable(answer):
        return None
    return ConfigError(
        f"the handler {name_of(handler)} answered {type(answer).__name__}, which cannot be awaited", hint=AWAITED_HINT
    )
