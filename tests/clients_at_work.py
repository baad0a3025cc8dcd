"""Clients of three kinds at work over several nodes, whatever happens to those meanwhile, and what must hold of what they saw.

Rules
- All is in one topic, LOG. Senders number their records; readers share a group; each copier copies LOG into a topic of its own,
  partition by partition, and commits what it has read in the transaction that writes it.
- There is one of ours and one of librdkafka's of each, and a sender and a reader of ours in asyncio; a copier of Apache Kafka's in Java
  where it is asked for. An error that is fatal to a client fails the run: none is made anew, but a copier of librdkafka's whose call does
  not come back, what is left of which lives on in the test's process, and a reader of librdkafka's that was told NOT_COORDINATOR for the
  offsets to begin at: it asks for them no more, and reads nothing of its partitions until the next rebalance (2.16, its issue 5586).
- librdkafka's copier is left out where nodes are fenced: a coordinator that Metadata does not name for a moment is taken down there
  (2.16, its issue 5511), and a TxnOffsetCommit that waits for it may wait for good, whoever the broker is.
- The end is when everything that is in LOG was read and copied: `finish` waits for that, and `anomalies` says what was wrong.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import apache_kafka
import confluent_kafka as ck
from history import ACKNOWLEDGED, UNKNOWN, History, check

from fastq import Admin, AsyncConsumer, AsyncProducer, Consumer, FastqError, Producer, RecordMetadata
from fastq.errors import FatalTransactionError

LOG, PARTITIONS = "log", 4
KINDS = ("ours", "librdkafka")
SENDERS = (*KINDS, "asyncio")
PAUSE_S = 0.05
"""Between five records of a sender and the next five."""
DELIVERY_MS = 60_000
TRANSACTION_MS = 300_000
"""Longer than nodes of a busy machine take to come and go: a copier whose coordinator aborts what took it too long is fenced, rightly."""
CALL_S = 30.0
"""The time-out of a call of librdkafka."""
PATIENCE_S = 180.0
"""How long clients may take, after the last fault, to read and copy what is left."""


def copy_of(kind: str) -> str:
    return f"copy-{kind}"


class ClientsAtWork:
    """Clients in threads of their own. `start`, trouble, `finish`, `anomalies`."""

    def __init__(self, servers: str, *, copiers: tuple[str, ...] = KINDS, group_protocol: str = "classic") -> None:
        self.servers, self.copiers = servers, copiers
        self.group = {"auto_offset_reset": "earliest", "group_protocol": group_protocol}
        self.log = History()
        self.sent: dict[str, list[int]] = {kind: [] for kind in SENDERS}
        self.failures: list[str] = []
        self.errors: list[str] = []
        """What clients met, and got over."""
        self._senders: list[threading.Thread] = []
        self._others: list[threading.Thread] = []
        self._no_more, self._stop = threading.Event(), threading.Event()

    def make_topics(self) -> None:
        with Admin(bootstrap_servers=self.servers) as admin:
            for name in (LOG, *map(copy_of, self.copiers)):
                admin.create_topic(name, PARTITIONS, 3, configs={"min.insync.replicas": "2"})

    def start(self) -> None:
        self._senders = [self._thread(each) for each in (self.send_ours, self.send_librdkafka, self.send_asyncio)]
        copiers = {"ours": self.copy_ours, "librdkafka": self.copy_librdkafka, "java": self.copy_java}
        work = (self.read_ours, self.read_librdkafka, self.read_asyncio, *(copiers[kind] for kind in self.copiers))
        self._others = [self._thread(each) for each in work]

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(f"{work.__name__}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=guarded, name=work.__name__, daemon=True)
        thread.start()
        return thread

    def met(self, who: str, error: BaseException) -> None:
        self.errors.append(f"{time.strftime('%H:%M:%S')} {who}: {error!r}")

    # --- senders ---

    def _numbers(self, kind: str) -> list[int]:
        """The next five."""
        sent = self.sent[kind]
        fresh = [number * len(SENDERS) + SENDERS.index(kind) for number in range(len(sent), len(sent) + 5)]
        sent += fresh
        return fresh

    def send_ours(self) -> None:
        kept = []
        with Producer(bootstrap_servers=self.servers, acks="all", delivery_timeout_ms=DELIVERY_MS) as producer:
            while not self._no_more.wait(PAUSE_S):
                kept += [
                    (number, producer.send(LOG, b"%d" % number, partition=number // len(SENDERS) % PARTITIONS))
                    for number in self._numbers("ours")
                ]
            producer.flush(timeout=DELIVERY_MS / 1000 + 30)
        for number, delivery in kept:
            error = delivery.exception(timeout=1)
            self._noted("send_ours", number, delivery.result(1) if error is None else error)

    def _noted(self, who: str, number: int, outcome: RecordMetadata | BaseException) -> None:
        """The fate of a record of ours."""
        if isinstance(outcome, BaseException):
            self.met(who, outcome)
            self.log.sends.append((number, UNKNOWN, None))
        else:
            self.log.sends.append((number, ACKNOWLEDGED, (outcome.partition, outcome.offset)))

    def send_asyncio(self) -> None:
        async def main() -> None:
            kept: list[tuple[int, Awaitable[RecordMetadata]]] = []
            async with AsyncProducer(
                bootstrap_servers=self.servers, acks="all", delivery_timeout_ms=DELIVERY_MS
            ) as producer:
                while not self._no_more.is_set():
                    await asyncio.sleep(PAUSE_S)
                    for number in self._numbers("asyncio"):
                        partition = number // len(SENDERS) % PARTITIONS
                        kept.append((number, await producer.send(LOG, b"%d" % number, partition=partition)))
                outcomes = await asyncio.gather(*(delivery for _, delivery in kept), return_exceptions=True)
            for (number, _), outcome in zip(kept, outcomes, strict=True):
                self._noted("send_asyncio", number, outcome)

        asyncio.run(main())

    def send_librdkafka(self) -> None:
        def told(error: ck.KafkaError | None, message: ck.Message) -> None:
            number = int(message.value() or b"")
            if error is None:
                self.log.sends.append((number, ACKNOWLEDGED, (message.partition(), message.offset())))
            else:
                self.met("send_librdkafka", ck.KafkaException(error))
                self.log.sends.append((number, UNKNOWN, None))

        producer = ck.Producer(
            {"bootstrap.servers": self.servers, "enable.idempotence": True, "delivery.timeout.ms": DELIVERY_MS}
        )
        while not self._no_more.wait(PAUSE_S):
            for number in self._numbers("librdkafka"):
                producer.produce(LOG, b"%d" % number, partition=number // len(SENDERS) % PARTITIONS, on_delivery=told)
            producer.poll(0)
        assert producer.flush(DELIVERY_MS / 1000 + 30) == 0

    # --- readers ---

    def read_ours(self) -> None:
        stretch = 0

        def changed(_: object) -> None:
            nonlocal stretch
            stretch += 1

        consumer = Consumer(
            bootstrap_servers=self.servers, group_id="readers", isolation_level="read_committed", **self.group
        )
        consumer.subscribe([LOG], on_assigned=changed, on_revoked=changed, on_lost=changed)
        with consumer:
            while not self._stop.is_set():
                try:
                    records = consumer.poll(max_records=200, timeout=0.2)
                except FastqError as error:
                    self.met("read_ours", error)
                    continue
                name = f"ours/{stretch}"
                self.log.polls += [(name, one.partition, one.offset, int(one.value or b"")) for one in records]

    def read_asyncio(self) -> None:
        stretch = 0

        def changed(_: object) -> None:
            nonlocal stretch
            stretch += 1

        async def main() -> None:
            consumer = AsyncConsumer(
                bootstrap_servers=self.servers, group_id="readers", isolation_level="read_committed", **self.group
            )
            consumer.subscribe([LOG], on_assigned=changed, on_revoked=changed, on_lost=changed)
            async with consumer:
                while not self._stop.is_set():
                    try:
                        records = await consumer.poll(max_records=200, timeout=0.2)
                    except FastqError as error:
                        self.met("read_asyncio", error)
                        continue
                    name = f"asyncio/{stretch}"
                    self.log.polls += [(name, one.partition, one.offset, int(one.value or b"")) for one in records]

        asyncio.run(main())

    def librdkafka_consumer(self, group_id: str, **settings: Any) -> ck.Consumer:
        named = {name.replace("_", "."): value for name, value in self.group.items()}
        return ck.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": group_id,
                "isolation.level": "read_committed",
                **named,
                **settings,
            }
        )

    def read_librdkafka(self) -> None:
        stretch = 0

        def changed(*_: object) -> None:
            nonlocal stretch
            stretch += 1

        def begun() -> ck.Consumer:
            consumer = self.librdkafka_consumer("readers")
            consumer.subscribe([LOG], on_assign=changed, on_revoke=changed, on_lost=changed)
            return consumer

        consumer = begun()
        try:
            while not self._stop.is_set():
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    self.met("read_librdkafka", ck.KafkaException(error))
                    assert not error.fatal(), error
                    if error.code() == ck.KafkaError.NOT_COORDINATOR:  # for offsets: it never asks again
                        consumer.close()
                        changed()
                        consumer = begun()
                    continue
                place = message.partition(), message.offset()
                self.log.polls.append((f"librdkafka/{stretch}", *place, int(message.value() or b"")))
        finally:
            consumer.close()

    # --- copiers ---

    def copy_ours(self) -> None:
        with (
            Producer(
                bootstrap_servers=self.servers, transactional_id="copier-ours", transaction_timeout_ms=TRANSACTION_MS
            ) as producer,
            Consumer(
                LOG,
                bootstrap_servers=self.servers,
                group_id="copier-ours",
                isolation_level="read_committed",
                enable_auto_commit=False,
                **self.group,
            ) as consumer,
        ):
            while not self._stop.is_set():
                try:
                    records = consumer.poll(max_records=100, timeout=0.2)
                    if records:
                        with producer.transaction(consumer=consumer):
                            for record in records:
                                producer.send(copy_of("ours"), record.value, partition=record.partition)
                except FatalTransactionError:
                    raise
                except FastqError as error:
                    self.met("copy_ours", error)

    def copy_librdkafka(self) -> None:
        producer = self._librdkafka_copier()
        consumer = self.librdkafka_consumer("copier-librdkafka", **{"enable.auto.commit": False})
        rebalanced = False

        def changed(*_: object) -> None:
            nonlocal rebalanced
            rebalanced = True

        consumer.subscribe([LOG], on_assign=changed, on_revoke=changed, on_lost=changed)
        try:
            while not self._stop.is_set():
                rebalanced = False
                messages = [one for one in consumer.consume(100, 0.2) if one.error() is None]
                if rebalanced:  # some of these may be from before, and come again
                    self._go_back(consumer)
                    continue
                if not messages:
                    continue
                try:
                    self._copy(producer, consumer, messages)
                except TimeoutError as error:
                    self.met("copy_librdkafka begins anew", error)
                    producer = self._librdkafka_copier()
                    self._go_back(consumer)
                except ck.KafkaException as error:
                    self.met("copy_librdkafka", error)
                    if error.args[0].fatal():
                        raise
                    _patiently(producer.abort_transaction)
                    self._go_back(consumer)
        finally:
            consumer.close()

    def _librdkafka_copier(self) -> ck.Producer:
        """One that ends what another of its name has left."""
        named = {"transactional.id": "copier-librdkafka", "transaction.timeout.ms": TRANSACTION_MS}
        producer = ck.Producer({"bootstrap.servers": self.servers, **named})
        _patiently(producer.init_transactions)
        return producer

    def _copy(self, producer: ck.Producer, consumer: ck.Consumer, messages: list[ck.Message]) -> None:
        producer.begin_transaction()
        ends: dict[int, int] = {}
        for message in messages:
            partition = message.partition() or 0
            producer.produce(copy_of("librdkafka"), message.value(), partition=partition)
            ends[partition] = (message.offset() or 0) + 1
        offsets = [ck.TopicPartition(LOG, partition, end) for partition, end in ends.items()]
        member = consumer.consumer_group_metadata()
        # It may wait for ever for a coordinator that was away when it was asked for (librdkafka's issue 5511), whatever its time-out.
        _within(
            3 * CALL_S,
            lambda: _patiently(lambda timeout: producer.send_offsets_to_transaction(offsets, member, timeout), tries=2),
        )
        _patiently(producer.commit_transaction)

    def _go_back(self, consumer: ck.Consumer) -> None:
        """To what is committed, of what is assigned."""
        while not self._stop.is_set():
            try:
                for place in consumer.committed(consumer.assignment(), 30):
                    consumer.seek(ck.TopicPartition(LOG, place.partition, place.offset if place.offset >= 0 else 0))
            except ck.KafkaException as error:
                self.met("copy_librdkafka goes back", error)
            else:
                return

    def copy_java(self) -> None:
        program = Path(__file__).with_name("interop") / "TransactionalCopier.java"
        arguments = (self.servers, LOG, copy_of("java"), self.group["group_protocol"], str(TRANSACTION_MS))
        with apache_kafka.started_tool(str(program), *arguments, heap="64m") as said:
            while not self._stop.wait(0.2):
                fatal = [line for line in list(said) if line.startswith("fatal ")]
                assert not fatal, fatal
        self.errors += [f"copy_java: {line.strip()}" for line in said if line.startswith("met ")]

    # --- the end ---

    def no_failure(self) -> None:
        assert not self.failures, (self.failures, self.errors[-20:])

    def finish(self) -> None:
        """Send no more, and wait until all is read and copied: too long is told by `anomalies`."""
        self._no_more.set()
        for thread in self._senders:
            thread.join(DELIVERY_MS / 1000 + 60)
        self.no_failure()
        self.log.final = self.read_all(LOG)
        wanted = {place[:2] for place in self.log.final}
        if not self._wait(lambda: wanted <= {row[1:3] for row in list(self.log.polls)}):
            self.errors += self._readers()
        for kind in self.copiers:
            self._wait(lambda kind=kind: len(self.read_all(copy_of(kind))) >= len(wanted))  # type: ignore[misc]
        self.stop()
        self.no_failure()

    def _wait(self, done: Callable[[], bool]) -> bool:
        end = time.monotonic() + PATIENCE_S
        while not (ended := done()) and not self.failures and time.monotonic() < end:
            time.sleep(0.3)
        return ended

    def _readers(self) -> list[str]:
        """Where the group stands, and who has read what last."""
        last = {partition: (name, offset) for name, partition, offset, _ in self.log.polls}
        with Admin(bootstrap_servers=self.servers) as admin:
            group, offsets = admin.describe_group("readers"), admin.list_group_offsets("readers")
        return [str(group), f"committed: {dict(offsets)}", f"read last: {last}"]

    def stop(self) -> None:
        """End all threads."""
        self._no_more.set()
        self._stop.set()
        for thread in [*self._senders, *self._others]:
            thread.join(DELIVERY_MS / 1000 + 60)
            if thread.is_alive():
                self.failures.append(f"{thread.name} does not end")

    def read_all(self, topic: str) -> list[tuple[int, int, int]]:
        """Partition, offset and value of all that is committed."""
        with Consumer(
            topic,
            bootstrap_servers=self.servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            return [(one.partition, one.offset, int(one.value or b"")) for one in consumer.read_to_end(timeout=60)]

    def anomalies(self) -> list[str]:
        """What was lost, doubled, out of order or not read, in words; and sends that came to nothing."""
        found = check(self.log)
        found += [
            f"value {value} was sent, and its fate is not known" for value, how, _ in self.log.sends if how == UNKNOWN
        ]
        found += self._order()
        read = {row[1:3] for row in self.log.polls}
        found += [f"{place} was read by nobody" for *place, _ in self.log.final if tuple(place) not in read]
        there = _by_partition(self.log.final)
        for kind in self.copiers:
            copied = _by_partition(self.read_all(copy_of(kind)))
            for partition in range(PARTITIONS):
                source, copy = there.get(partition, []), copied.get(partition, [])
                if source != copy:
                    at = next((at for at, (a, b) in enumerate(zip(source, copy, strict=False)) if a != b), -1)
                    found.append(
                        f"{copy_of(kind)}-{partition} has {len(copy)} records of {len(source)}; they differ from record {at} on:"
                        f" {source[at : at + 5]} and {copy[at : at + 5]}"
                    )
        return found

    def _order(self) -> list[str]:
        """A sender's records of a partition are in the order in which they were sent."""
        found = []
        for partition, values in _by_partition(self.log.final).items():
            for at, kind in enumerate(SENDERS):
                own = [value for value in values if value % len(SENDERS) == at]
                found += [
                    f"{kind}: {after} comes after {before} in partition {partition}"
                    for before, after in pairwise(own)
                    if after <= before
                ]
        return found


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Raises what the call does, and TimeoutError where it does not come back by then: its thread is left to itself."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="may-not-come-back", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"a call has not come back within {seconds:g} s")
    if raised:
        raise raised[0]


def _patiently(call: Callable[[float], object], tries: int | None = None) -> None:
    """Ask again while it is said that this helps. Raises TimeoutError when so many tries have not."""
    last: ck.KafkaException | None = None
    for _ in count() if tries is None else range(tries):
        try:
            call(CALL_S)
            return
        except ck.KafkaException as error:
            if not error.args[0].retriable():
                raise
            last = error
    raise TimeoutError(f"not done after {tries} tries") from last


def _by_partition(rows: list[tuple[int, int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for partition, _, value in sorted(rows):
        found.setdefault(partition, []).append(value)
    return found
