"""The error table against the protocol's code list and against kafka-python's, and the promises of the exceptions."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import pydoc
import re
from pathlib import Path
from typing import Any

import fastq_broker
import kafka.errors
import pytest

from fastq import AsyncConsumer, Consumer, errors
from fastq.errors import ErrorCode, FastqError, KafkaError, error_for_code

CLASSES = [item for item in vars(errors).values() if inspect.isclass(item) and issubclass(item, FastqError)]
THEIR_NAMES = {  # kafka-python keeps some names of its own
    -1: "UNKNOWN",
    0: "NO_ERROR",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MESSAGE_SIZE_TOO_LARGE",
    17: "INVALID_TOPIC",
    39: "INVALID_REPLICATION_ASSIGNMENT",
}
JAVA_DECIDES_OTHERWISE = {
    2,  # a corrupt batch may have been damaged under way: retriable
    75,  # the broker is behind, not our metadata: no refresh
}
CODES = [code for code in ErrorCode if code != ErrorCode.NONE]


def test_codes_are_dense_from_minus_one_to_133() -> None:
    assert sorted(int(code) for code in ErrorCode) == list(range(-1, 134))


def test_names_and_what_to_do_agree_with_kafka_python() -> None:
    theirs: dict[int, Any] = {
        cls.errno: cls
        for cls in vars(kafka.errors).values()
        if inspect.isclass(cls) and isinstance(getattr(cls, "errno", None), int) and "errno" in vars(cls)
    }
    assert len(theirs) > 120
    for code, cls in theirs.items():
        ours = ErrorCode(code)
        assert THEIR_NAMES.get(code, ours.name) == cls.message
        if code not in JAVA_DECIDES_OTHERWISE:
            assert (ours.retriable, ours.refresh_metadata) == (bool(cls.retriable), bool(cls.invalid_metadata)), cls


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_each_code_has_its_exception(code: ErrorCode) -> None:
    error = error_for_code(int(code), "said the broker", broker="host:9092", topic="logs", partition=3)
    assert type(error).__name__ == "".join(
        part.capitalize() for part in code.name.removesuffix("_EXCEPTION").split("_")
    ) or (code == ErrorCode.NETWORK_EXCEPTION)
    assert getattr(errors, type(error).__name__) is type(error)
    assert isinstance(error, KafkaError)
    assert (error.code, error.name) == (code, code.name)
    assert error.refresh_metadata == code.refresh_metadata
    if code != ErrorCode.UNSUPPORTED_VERSION:
        assert error.retriable == code.retriable
    text = str(error)
    for part in (code.name, str(int(code)), code.meaning, "said the broker", "host:9092", "logs", "partition 3"):
        assert part in text


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_each_code_says_what_to_do(code: ErrorCode) -> None:
    assert code.cure.endswith((".", ")")) and code.cure != code.meaning
    assert type(error_for_code(int(code))).cure == code.cure


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_exception_says_what_to_do_in_words_of_its_own(cls: type[FastqError]) -> None:
    assert vars(cls)["cure"].endswith((".", ")"))


def test_codes_that_are_not_known() -> None:
    error = error_for_code(999, topic="logs")
    assert type(error) is errors.UnknownServerError
    assert "999" in str(error)
    assert "logs" in str(error)
    with pytest.raises(ValueError, match="no error"):
        error_for_code(0)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_exception_survives_pickling(cls: type[FastqError]) -> None:
    cause = OSError(111, "refused")
    error = cls(
        "what happened", broker="h:1", topic="t", partition=0, phase="connect", cause=cause, hint="Do this.", raw=b"x"
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)
    assert (again.broker, again.topic, again.partition, again.hint, again.context["raw"]) == (
        "h:1",
        "t",
        0,
        "Do this.",
        b"x",
    )
    assert str(again.context["cause"]) == str(cause)
    assert str(cls()) != ""
    assert pickle.loads(pickle.dumps(cls())).args == cls().args


def test_messages_name_place_cause_and_remedy() -> None:
    error = errors.ConnectionRefused(
        broker="h:1", phase="connect", cause=OSError(111, "refused"), hint="Is the broker running?"
    )
    assert str(error) == (
        "the broker refused the connection [broker h:1, phase connect]: [Errno 111] refused. Is the broker running?"
    )
    error2 = errors.DeserializationError(topic="t", partition=1, offset=0, raw=bytes(1000))
    assert "offset 0" in str(error2)
    assert "<1000 bytes>" in str(error2)
    long = str(errors.FastqError("x", detail="first " + "y" * 10000 + " last"))
    assert len(long) < 450
    assert "first" in long and long.endswith("last")


def test_a_message_says_each_thing_once() -> None:
    cause = errors.ConnectionRefused(
        broker="h:1", phase="connect", cause=OSError(111, "refused"), hint="Is the broker running?"
    )
    error = errors.AbortableTransactionError(
        "the transaction of copy-1 cannot be committed", transactional_id="copy-1", cause=cause, hint="Abort it."
    )
    assert str(error) == (
        "the transaction of copy-1 cannot be committed: the broker refused the connection [broker h:1, phase connect]: "
        "[Errno 111] refused. Is the broker running? Abort it"
    )
    fenced = errors.AbortableTransactionError(cause=error_for_code(82, topic="another", group_id="group"))
    assert "[topic another, group_id group]" in str(fenced)
    unread = errors.DeserializationError(
        "the value of logs-3 at offset 17 is no JSON", topic="logs", partition=3, offset=17
    )
    failed = errors.RecordFailed(
        "the record of logs-3 at offset 17 could not be handled", topic="logs", partition=3, offset=17, cause=unread
    )
    assert str(failed) == (
        "the record of logs-3 at offset 17 could not be handled: the value of logs-3 at offset 17 is no JSON"
    )
    exists = error_for_code(36, "Topic 'logs' already exists.", topic="logs")
    assert str(exists) == "TOPIC_ALREADY_EXISTS (36): a topic of this name exists: Topic 'logs' already exists."
    assert str(errors.FastqError("x", cause=errors.FastqError("y", topic="t", hint="Do."), topic="t", hint="Do.")) == (
        "x [topic t]: y. Do"
    )


def test_every_time_out_is_one() -> None:
    """By name, and by what it says: who catches TimeoutError, or FastqError, gets all of them."""
    late = [cls for cls in CLASSES if re.search("Timeout|TimedOut", cls.__name__)]
    others = {"InvalidSessionTimeout", "InvalidTransactionTimeout"}  # a setting that the broker does not take
    assert len(late) >= 9
    for cls in late:
        assert issubclass(cls, TimeoutError) == (cls.__name__ not in others), cls
    assert {cls.__name__ for cls in CLASSES if issubclass(cls, TimeoutError)} == {cls.__name__ for cls in late} - others


def test_no_bare_time_out_is_raised() -> None:
    """What the client raises when something does not come in time is of its own tree."""
    bare = [
        f"{path.name}: {line.strip()}"
        for path in Path(errors.__file__).parent.rglob("*.py*")
        if path.suffix in (".py", ".pyx")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\braise (asyncio\.)?TimeoutError\b", line)
    ]
    assert bare == []


def test_not_assigned_is_one_error() -> None:
    with Consumer(bootstrap_servers="127.0.0.1:1") as consumer:
        for call in (
            lambda: consumer.seek(("t", 0), 5),
            lambda: consumer.position(("t", 0)),
            lambda: consumer.pause(("t", 0)),
            lambda: consumer.resume(("t", 0)),
        ):
            with pytest.raises(errors.NotAssigned, match=r"not assigned.*topic t, partition 0") as caught:
                call()
            assert isinstance(caught.value, ValueError)
            assert (caught.value.topic, caught.value.partition) == ("t", 0)


def test_not_assigned_is_the_same_error_in_asyncio() -> None:
    async def main() -> None:
        async with AsyncConsumer(bootstrap_servers="127.0.0.1:1") as consumer:
            for name in ("seek", "position", "pause", "resume"):
                with pytest.raises(errors.NotAssigned, match=r"not assigned.*topic t, partition 0"):
                    answer = getattr(consumer, name)(("t", 0), *([5] if name == "seek" else []))
                    if inspect.isawaitable(answer):
                        await answer

    asyncio.run(main())


def sources(*kinds: str) -> list[Path]:
    """Of both packages, without what is generated."""
    folders = (Path(errors.__file__).parent, Path(fastq_broker.__file__).parent)
    found = [path for folder in folders for path in folder.rglob("*.*") if path.suffix in kinds]
    return [path for path in found if path.parent.name != "messages"]


def test_codes_of_errors_come_from_the_table() -> None:
    """No number stands for a code in the sources."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in sources(".py", ".pyx")
        if path.name not in ("errors.py", "error_codes.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"(error_code|\.error|\bcode) *(==|!=|in|not in) *[({]?(-1\b|[1-9])", line)
        or "# error code" in line
    ]
    assert found == []


def test_codes_that_native_code_names_are_those_of_the_table() -> None:
    """C has no Python's enumerations: there a name has its number once more."""
    named = [
        (path.name, name, int(number))
        for path in sources(".pyx", ".pxd", ".h")
        for name, number in re.findall(r"\b([A-Z_]{8,}) *= *(\d+)\b", path.read_text(encoding="utf-8"))
        if name in ErrorCode.__members__
    ]
    assert {file for file, _, _ in named} >= {"heartbeat.h", "batch_validation.pyx"}
    assert named == [(file, name, int(ErrorCode[name])) for file, name, _ in named]


def test_an_unsupported_version_is_a_broker_error_and_a_failed_connection() -> None:
    error = error_for_code(35)
    assert isinstance(error, errors.ConnectionFailed)
    assert not error.retriable


def test_error_codes_pickle_to_themselves() -> None:
    assert pickle.loads(pickle.dumps(ErrorCode.OFFSET_OUT_OF_RANGE)) is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(("code", "operation"), [(29, "--operation read --topic"), (30, "--operation read --group")])
def test_who_is_not_authorized_is_told_what_to_ask_for(code: int, operation: str) -> None:
    bare = str(error_for_code(code))
    assert "fastq acls add --allow User:NAME" in bare and operation in bare
    assert str(error_for_code(code, hint="Ask Bob")).endswith(". Ask Bob")


def test_a_brokers_words_do_not_say_the_name_of_their_code_again() -> None:
    text = str(error_for_code(44, "POLICY_VIOLATION: three replicas are needed", topic="logs"))
    assert text.count("POLICY_VIOLATION") == 1 and "three replicas are needed" in text


@pytest.mark.parametrize(
    "cls", [FastqError, errors.OffsetOutOfRange, errors.MissingPackage, errors.MaxPollIntervalExceeded]
)
def test_help_shows_the_whole_of_what_to_do(cls: type[FastqError]) -> None:
    """As an attribute the middle of it is left out."""
    text = " ".join(pydoc.plain(pydoc.render_doc(cls)).replace("|", " ").split())
    assert f"What to do: {cls.cure} Method resolution order" in text


def test_each_error_says_what_it_is_and_what_to_do() -> None:
    for cls in CLASSES:
        about, _, cure = (inspect.getdoc(cls) or "").rpartition("\n\nWhat to do: ")
        assert about and "What to do" not in about and not re.search(r"^ ", about, re.MULTILINE) and cure == cls.cure


def test_an_error_of_a_program_has_the_words_of_its_own() -> None:
    class Own(errors.ConfigError):
        """Ours.

        More of it.
        """

    class Silent(Own): ...

    assert Own.__doc__ == f"Ours.\n\nMore of it.\n\nWhat to do: {errors.ConfigError.cure}"
    assert Silent.__doc__ is None and inspect.getdoc(Silent) == Own.__doc__ == Own().__doc__
