"""The clients of the commands: settings from options, and a broker that answers before anything else is done.

Rules: what is set by more than one counts in this order: `--property`, options of the command, `--command-config`, `--profile`, what the
command takes where nobody says anything (a `Default`). A client that reaches no broker within `--connect-timeout` raises why, which ends
the command with exit code 3, as does one that nobody serves (`check_served`); until then the warnings of the client say what it tries. A
command that is interrupted waits INTERRUPTED_CLOSE_S at most for what its client still has to say to the brokers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fastq.cli.log_lines import undelivered_untold
from fastq.cli.output import UsageError, key_values, seconds
from fastq.cli.settings_files import from_file, from_profile
from fastq.errors import ConnectionTimeout, GroupIdNotFound, UnknownTopicOrPartition
from fastq.net.blocking import BlockingDriver
from fastq.settings import canonical

if TYPE_CHECKING:
    from fastq import Admin, Consumer, Producer
    from fastq.admin import TopicDescription

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CONNECT_TIMEOUT_S = 10.0
INTERRUPTED_CLOSE_S = 3.0
CONNECTION_SETUP_MS = "2000"
"""How long a command tries the first time to connect to a broker, and each further time twice as long: with Kafka's ten seconds a
command would wait for one broker that stands still, where any other can answer."""


class Default(str):
    """What an option is where it is not given: settings in files win over it, and not over what is given."""


def add_client_options(parser: argparse.ArgumentParser, *more: str, again: bool = False) -> None:
    """Options of every command that talks to a broker; `more`: other names of --bootstrap; `again`: the command above has them too, and
    what it was given counts."""
    parser.add_argument(
        "--bootstrap",
        *more,
        dest="bootstrap",
        metavar="HOST:PORT[,...]",
        default=argparse.SUPPRESS if again else Default(os.environ.get("FASTQ_BOOTSTRAP", DEFAULT_BOOTSTRAP)),
        help=f"broker to start from (default: $FASTQ_BOOTSTRAP or {DEFAULT_BOOTSTRAP})",
    )
    parser.add_argument(
        "--property",
        metavar="KEY=VALUE",
        action="append",
        default=argparse.SUPPRESS if again else [],
        help="a client setting under Kafka's name, such as security.protocol=SSL; may be repeated",
    )
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        default=argparse.SUPPRESS if again else None,
        help="a properties file with such settings, as Kafka's own tools take it",
    )
    parser.add_argument(
        "--connect-timeout",
        type=seconds,
        default=argparse.SUPPRESS if again else CONNECT_TIMEOUT_S,
        metavar="SECONDS",
        help=f"give up, with exit code 3, when no broker answers for so long (default: {CONNECT_TIMEOUT_S:.0f})",
    )


def client_settings(options: argparse.Namespace, kind: str = "admin", /, **settings: Any) -> dict[str, Any]:
    """What a client of a kind (admin, producer, consumer) is made with; the rules at the top say what wins."""
    files: dict[str, Any] = {}
    profile = getattr(options, "profile", None)
    if profile is not None:
        files = from_profile(profile, kind)
    if options.command_config is not None:
        files = _over(files, from_file(options.command_config, kind))
    own = {"bootstrap_servers": options.bootstrap, **settings}
    defaults = {key: value for key, value in own.items() if isinstance(value, Default)}
    asked = {key: value for key, value in own.items() if key not in defaults}
    found = _over(_over(_over(defaults, files), asked), key_values(options.property, "--property"))
    return {key: str(value) if isinstance(value, Default) else value for key, value in found.items()}


def _over(lower: Mapping[str, Any], higher: Mapping[str, Any]) -> dict[str, Any]:
    """Both, in one spelling of each key: that of who wins, as errors name a key as it was written."""
    given = {canonical(key) for key in higher}
    return {**{key: value for key, value in lower.items() if canonical(key) not in given}, **higher}


@contextlib.contextmanager
def opened_admin(options: argparse.Namespace) -> Iterator[Admin]:
    """An admin client that has reached a broker."""
    from fastq import Admin

    with Admin(client_settings(options, **_patience())) as admin:
        reach(admin._client.driver, options)
        with _helped():
            yield admin


def _patience() -> dict[str, Any]:
    """Less than --connect-timeout for each broker, or one that stands still has it all."""
    return {"socket_connection_setup_timeout_ms": Default(CONNECTION_SETUP_MS)}


@contextlib.contextmanager
def _helped() -> Iterator[None]:
    """Of what is named and not there it is told which command shows what is."""
    try:
        yield
    except (UnknownTopicOrPartition, GroupIdNotFound) as error:
        if error.hint is not None:
            raise
        if isinstance(error, GroupIdNotFound):
            hint = "fastq groups list shows those that are there"
        elif error.topic is not None and error.partition is not None:
            hint = f"fastq topics describe {error.topic} shows its partitions"
        else:
            hint = "fastq topics list shows those that are there"
        raise error.with_context(hint=hint) from None


def described(admin: Admin, topics: Sequence[str] | None = None) -> dict[str, TopicDescription]:
    """Topics, or all that there are, Kafka's own too."""
    if topics is None:
        outcomes = admin.describe_topics(list(admin.list_topics(include_internal=True)))
        gone = [name for name, error in outcomes.errors.items() if isinstance(error, UnknownTopicOrPartition)]
        return {name: outcome.result() for name, outcome in outcomes.items() if name not in gone}
    return admin.describe_topics(topics).results()


@contextlib.contextmanager
def opened_producer(options: argparse.Namespace, **settings: Any) -> Iterator[Producer]:
    """A producer that has reached a broker. What becomes of its records the commands tell themselves, each once."""
    from fastq import Producer

    found = client_settings(options, "producer", **_patience(), **settings)
    if "transactional_id" not in settings and any(canonical(key) == "transactional_id" for key in found):
        raise UsageError(
            "transactional.id: nothing is sent by it outside a transaction, and this command begins none; leave it out"
        )
    made = Producer(found)
    with undelivered_untold(), made as producer, _closed_soon(producer):
        reach(producer._driver, options)
        yield producer


@contextlib.contextmanager
def opened_consumer(options: argparse.Namespace, topics: Sequence[str], **settings: Any) -> Iterator[Consumer]:
    """A consumer that has reached a broker. It makes no topics: a name that is misspelt is to be told."""
    from fastq import Consumer

    settings = {"allow_auto_create_topics": False, **_patience(), **settings}
    with Consumer(client_settings(options, "consumer", **settings), *topics) as consumer, _closed_soon(consumer):
        reach(consumer._driver, options)
        yield consumer


@contextlib.contextmanager
def _closed_soon(client: Producer | Consumer) -> Iterator[None]:
    """Who interrupts a command does not wait for brokers that are gone."""
    try:
        yield
    except KeyboardInterrupt:
        client.close(INTERRUPTED_CLOSE_S)
        raise


class _Reaching(Protocol):
    """A client that can say why no broker answers."""

    _driver: BlockingDriver


def reach(driver: BlockingDriver, options: argparse.Namespace) -> None:
    """Wait until a broker has answered, not longer than a command's own `--timeout`. Raises why none has, at once where waiting is no
    help."""
    core, timeout_s = (
        driver.core,
        min(options.connect_timeout, getattr(options, "timeout", None) or options.connect_timeout),
    )
    updater = core.metadata_updater
    driver.wait_until(lambda: updater.successes or core.hopeless(), timeout_s)
    if not updater.successes:
        raise (
            core.hopeless()
            or core.unreachable()
            or ConnectionTimeout(
                f"no broker of {','.join(map(str, core.config.addresses))} has answered within {timeout_s:g} s"
            )
        )


ANSWER_S = 5.0


def check_served(consumer: Consumer) -> None:
    """Raises why nothing came, when it is not that there is nothing: no broker, no such topic or partition, nobody who serves it or the
    group."""
    check_reachable(consumer)
    driver, updater = consumer._driver, consumer._core.metadata_updater
    with driver.lock:
        failures = updater.failures
        # What was asked about the topics may not have been answered within a short --timeout.
        driver.wait_until(lambda: updater.answered >= updater.requests or updater.failures > failures, ANSWER_S)
        error = consumer._watch.missing(consumer._core.clock(), grace_s=0.0) or consumer._unserved()
    if error is not None:
        raise error


def check_reachable(client: _Reaching) -> None:
    """Raises why no broker can be asked at the moment, when that is why nothing came."""
    error = client._driver.core.unreachable()
    if error is not None:
        raise error
