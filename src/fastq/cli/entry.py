"""The parser over all commands, and the one place where errors become lines and exit codes.

Rules: nothing that a user can cause ends in a traceback. A parser's error is one line that says where more is told. Warnings of the
client's log go to standard error as they come, an error that was among them is not said twice.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import fastq
from fastq.cli import (
    acls,
    api_versions,
    client_metrics,
    cluster,
    completion,
    configs,
    console,
    consume,
    dump_log,
    groups,
    log_dirs,
    metadata,
    mirror,
    offsets,
    partitions,
    perf,
    produce,
    producers,
    quorum,
    replicas,
    storage,
    streams,
    topics,
    transactions,
    verify,
)
from fastq.cli.clients import Default
from fastq.cli.codes import READER_GONE, WRONG_USAGE, code_of, is_unreachable
from fastq.cli.log_lines import warnings_as_lines
from fastq.cli.output import UsageError, complain, one_line
from fastq.errors import ConfigError, ConnectionFailed, FastqError

EXAMPLES = """examples:
  fastq topics create logs --partitions 6
  echo hello | fastq produce logs
  fastq consume logs --from-beginning --exit-at-end
  fastq perf produce logs --records 1000000

exit codes:
  0 done, 1 failed, 2 wrong usage, 3 no broker could be reached, or none serves the partition or the group, 130 interrupted,
  141 the reader of the output went away, 143 terminated
"""

COMMANDS = (
    topics, produce, consume, groups, transactions, producers, configs, acls, offsets, log_dirs,
    cluster, api_versions, client_metrics, metadata, quorum, partitions, replicas, mirror, dump_log, perf, verify, console,
    storage, streams,
)  # fmt: skip


class Parser(argparse.ArgumentParser):
    """argparse's, whose errors are one line with the nearest name that is known."""

    _given: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"fastq: {one_line(message)}; see {self.prog} --help\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """argparse tells what nobody took in the name of the whole program; here the command that was given tells it."""
        args = sys.argv[1:] if args is None else args
        self._refuse_in_front(args)
        options, left = self.parse_known_args(args, namespace)
        if left:
            command = self._chosen(args)
            command.error(command._not_recognized(left))
        return options

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def _not_recognized(self, words: Sequence[str]) -> str:
        name = words[0].partition("=")[0]
        # What Kafka's scripts take by an option.
        if any(not a.option_strings and name == f"--{str(a.metavar or a.dest).lower()}" for a in self._actions):
            return f"unrecognized arguments: {' '.join(words)}: {name[2:].upper()} is given by itself, without {name}"
        near = difflib.get_close_matches(name, self._option_string_actions, n=1)
        return f"unrecognized arguments: {' '.join(words)}{f', did you mean {near[0]}?' if near else ''}"

    def _refuse_in_front(self, args: Sequence[str]) -> None:
        """An option of a command in front of it: argparse would take its value for the command."""
        words = iter(args)
        for word in words:
            name, equals, _ = word.partition("=")
            if not name.startswith("--"):
                return
            own = next(
                (action for known, action in self._option_string_actions.items() if known.startswith(name)), None
            )
            if own is not None:
                if own.nargs is None and not equals:
                    next(words, None)  # its value
                continue
            if any(known.startswith(name) for known in self._options_below()):
                commands: dict[str, Parser] = next(iter(self._commands()))
                said = next((commands[word] for word in words if word in commands), None)
                if said is not None and not any(known.startswith(name) for known in said._options_below()):
                    near = difflib.get_close_matches(name, said._options_below(), n=1)
                    self.error(
                        f"{name} is no option of {said.prog}{f', did you mean {near[0]}?' if near else ''}; options go behind it"
                    )
                self.error(f"{name} stands in front of the command: it goes behind it, {self.prog} COMMAND {name} ...")

    def _may_be(self, option: str) -> bool:
        """Whether it is an option of this command, or the beginning of one."""
        return any(known.startswith(option) for known in self._option_string_actions)

    def _commands(self) -> Iterator[dict[str, Parser]]:
        yield from (action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction))

    def _all_below(self) -> Iterator[Parser]:
        for commands in self._commands():
            for below in commands.values():
                yield below
                yield from below._all_below()

    def _options_below(self) -> list[str]:
        """The options of a command, or of any of those below it."""
        return list(
            dict.fromkeys(known for parser in (self, *self._all_below()) for known in parser._option_string_actions)
        )

    def _chosen(self, args: Sequence[str]) -> Parser:
        """The parser of the command, and of its action, that the arguments name."""
        command: Parser = self
        for word in args:
            below = next((a.choices for a in command._actions if isinstance(a, argparse._SubParsersAction)), None)
            if below is None:
                break
            command = below.get(word, command)
        return command

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # The public way to the same is a list of all choices, in another wording with each release of Python.
        if action.choices is None or value in action.choices:
            return
        if not action.option_strings:
            # The value of an option that is not known, for argparse: what stands in its place.
            for option, following in zip(self._given, self._given[1:], strict=False):
                if following == value and option.startswith("--") and "=" not in option and not self._may_be(option):
                    raise argparse.ArgumentError(None, self._not_recognized([option, following]))
            if "--config" in self._option_string_actions and str(value).endswith(".toml"):
                raise argparse.ArgumentError(
                    None, f"{value!r} is not known, a file of settings is given with --config {value}"
                )
        known = [str(choice) for choice in action.choices]
        if known == [action.metavar]:
            raise argparse.ArgumentError(None, f"{value!r} is not known, {known[0]} is all that may stand there")
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it is one of {', '.join(known)}"
        raise argparse.ArgumentError(None, f"{action.metavar or action.dest} {value!r} is not known, {hint}")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fastq",
        description="Command-line tools for any Kafka-protocol broker.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fastq {fastq.__version__}")
    parser.add_argument(
        "--profile",
        metavar="NAME",
        default=Default(os.environ["FASTQ_PROFILE"]) if os.environ.get("FASTQ_PROFILE") else None,
        help="client settings from this table of ~/.config/fastq/profiles.toml (default: $FASTQ_PROFILE, or none)",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(commands)
    completion.register(commands, parser)
    return parser


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if sys.stdout is None:  # closed by whoever started us: what is written goes nowhere
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    with warnings_as_lines() as lines:
        try:
            options = build_parser().parse_args(arguments)
            code: int = options.run(options)
            sys.stdout.flush()
        except BrokenPipeError:
            _leave_stdout()
            return READER_GONE
        except (UsageError, ConfigError) as error:
            complain(str(error))
            return WRONG_USAGE
        except (FastqError, OSError, ValueError) as error:
            if isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":
                # Nothing that is shown: what was given.
                complain(f"{error.object[error.start : error.end]!a} was given, which is no Unicode")
                return WRONG_USAGE
            try:
                sys.stdout.flush()
            except (OSError, ValueError):  # the interpreter would try it again at its end, and tell in words of its own
                _leave_stdout()
            text = _words(error)
            if not any(told.startswith(text) for told in lines.told):
                complain(text)
            elif text not in lines.told:
                complain(_given_up(error) or text)
            return code_of(error)
        return code


def _given_up(error: Exception) -> str:
    """What is left to say of no connection, or no answer, that was told of while it was tried again; empty for other errors."""
    if not is_unreachable(error):
        return ""
    if isinstance(error, ConnectionFailed) and error.phase == "ready":
        return "given up, no answer came from the broker"
    broker = getattr(error, "broker", None) or ""
    if "(node " in broker:  # which another broker has told of
        return f"given up, {broker} could not be reached, which this takes"
    return "given up, no broker could be reached"


def _words(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        shown = error.object[error.start : error.start + 1]
        return f"the output is in {error.encoding}, which has no {shown!a}: set PYTHONIOENCODING=utf-8, or give --json"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return where + (f"{error.strerror}" if error.errno != errno.ENOENT else "no such file or directory")
    return str(error) or type(error).__name__


def _leave_stdout() -> None:
    """Nothing is left to write, as the reader went away or the disk is full, and the interpreter's own flush at the end must not try."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
