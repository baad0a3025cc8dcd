"""The pages of commands: what `--help` says of each, from the parsers themselves.

Rules: what each command has, the options of every client, stands once, at the page's top. Hidden options stay hidden.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from unittest import mock

from reference_words import cell, code, table

SHARED = ("--bootstrap", "--property", "--command-config", "--connect-timeout", "--output", "--json")


def fastq_page() -> Iterator[str]:
    from fastq.cli.entry import build_parser

    with mock.patch.dict(os.environ, clear=True):  # defaults that somebody's environment has are not ours
        parser = build_parser()
    yield from head(parser)
    yield from ("## Options of all that ask a broker", "")
    shared = {
        option: action for _, below in commands(parser) for action in below._actions for option in action.option_strings
    }
    rows = [row(shared[option]) for option in SHARED]
    yield from table(("option", "what it does"), rows)
    yield ""
    for name, below in commands(parser):
        yield from command(f"fastq {name}", below, leave_out=SHARED)


def fastq_broker_page() -> Iterator[str]:
    import fastq_broker.__main__ as broker
    from fastq_broker import container, format, repair, stop

    yield from head(broker._parser())
    yield from arguments(broker._parser(), ())
    for module in (format, stop, repair, container):
        parser = module._parser()
        below = list(commands(parser))
        if not below:
            yield from command(parser.prog, parser, leave_out=())
        for name, each in below:
            yield from command(f"fastq-broker {name}", each, leave_out=())


def head(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from (cell(parser.description), "")
    if parser.epilog:
        yield from ("```text", parser.epilog.rstrip(), "```", "")


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands, each with its actions behind it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield name, below
                for inner, deeper in commands(below):
                    yield f"{name} {inner}", deeper


def command(name: str, parser: argparse.ArgumentParser, leave_out: tuple[str, ...]) -> Iterator[str]:
    yield from (f"## `{name}`" if name.count(" ") < 2 else f"### `{name}`", "")
    yield from (cell(parser.description or ""), "")
    own = [action for action in parser._actions if not set(action.option_strings) & set(leave_out)]
    usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).strip()
    if any(isinstance(action, argparse._SubParsersAction) for action in own):
        below = next(action for action in own if isinstance(action, argparse._SubParsersAction))
        yield from (f"Its actions: {', '.join(f'`{each}`' for each in below.choices)}.", "")
    else:
        yield from ("```text", short(usage, name, own, leave_out), "```", "")
    yield from arguments(parser, leave_out)
    example = (parser.epilog or "").partition("example:\n")[2]
    if example.strip():
        yield from (
            "```sh",
            *(re.sub(r" {3,}", "   # ", line.strip()) for line in example.strip().splitlines()),
            "```",
            "",
        )


def short(usage: str, name: str, actions: list[argparse.Action], leave_out: tuple[str, ...]) -> str:
    """The line of usage: the command, its arguments, and that there are options."""
    places = []
    for action in actions:
        if action.option_strings:
            continue
        shown = str(action.metavar or action.dest)
        places.append(
            {"*": f"[{shown} ...]", "+": f"{shown} [{shown} ...]", "?": f"[{shown}]"}.get(str(action.nargs), shown)
        )
    needed = [
        f"{action.option_strings[0]} {action.metavar or action.dest.upper()}"
        for action in actions
        if action.option_strings and action.required
    ]
    return " ".join([name, *places, *needed, "[options]"])


def arguments(parser: argparse.ArgumentParser, leave_out: tuple[str, ...]) -> Iterator[str]:
    rows = [
        row(action)
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
        and not set(action.option_strings) & set(leave_out)
    ]
    if rows:
        yield from table(("argument", "what it does"), rows)
        yield ""


def row(action: argparse.Action) -> tuple[str, str]:
    """An argument as it is given, and what its help says, with what it may be."""
    value = str(action.metavar or (action.dest if not action.option_strings else action.dest.upper()))
    if action.choices is not None and not action.metavar:
        value = "|".join(str(choice) for choice in action.choices)
    takes = action.nargs != 0 and not isinstance(action, argparse._VersionAction)
    names = [f"{name} {value}" if takes else name for name in action.option_strings[:1]] or [value]
    names += action.option_strings[1:]
    help_text = (
        (action.help or "") % {"default": action.default, "prog": "fastq"}
        if "%(" in (action.help or "")
        else action.help
    )
    said = (help_text or "").replace("%%", "%")
    if (
        action.default not in (None, False, argparse.SUPPRESS, [], ())
        and "default" not in said
        and takes
        and action.option_strings
    ):
        said += f" (default: {action.default})"
    if action.required and action.option_strings:
        said += " (needed)"
    return ", ".join(code(name) for name in names), cell(said)
