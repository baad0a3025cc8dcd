"""`fastq completion bash|zsh|fish`: what the shell is to complete, as a script that it reads once.

Rules: made from the parsers, so that no command or option is missing. Nothing is run while somebody types, and no broker is asked: a
start of Python at each key is felt. zsh reads bash's script through its own bashcompinit.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from fastq.cli.output import Subparsers

SHELLS = ("bash", "zsh", "fish")
_FILES = re.compile(r"FILE|DIR|PATH|--(payload-)?file\b")


class _Option(NamedTuple):
    """An option under all its names. `values`: those that it takes, () for any, None where it takes none."""

    names: tuple[str, ...]
    help: str
    values: tuple[str, ...] | None
    is_path: bool


class _Command(NamedTuple):
    """A command by the words that lead to it, () for the program. `words` are what may stand next, with what each is."""

    path: tuple[str, ...]
    words: dict[str, str]
    takes_files: bool
    options: tuple[_Option, ...]


def register(commands: Any, whole: argparse.ArgumentParser) -> None:
    parser = Subparsers(commands).add(
        "completion",
        "A script that has your shell complete commands and options.",
        "source <(fastq completion bash)        in ~/.bashrc; zsh in ~/.zshrc, after compinit\n"
        "  fastq completion fish > ~/.config/fish/completions/fastq.fish",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    parser.set_defaults(run=lambda options: run(options, whole))


def run(options: argparse.Namespace, whole: argparse.ArgumentParser) -> int:
    print(script(options.shell, whole), end="")
    return 0


def script(shell: str, whole: argparse.ArgumentParser) -> str:
    """The script for one of SHELLS, of the commands below a parser."""
    commands = list(_commands(whole, ()))
    if shell == "fish":
        return "".join(f"{line}\n" for line in _fish(whole.prog, commands))
    before = ["autoload -U +X bashcompinit && bashcompinit"] if shell == "zsh" else []
    return "".join(f"{line}\n" for line in (*before, *_bash(whole.prog, commands)))


def _commands(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[_Command]:
    words: dict[str, str] = {}
    options: list[_Option] = []
    takes_files, below = False, {}
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            below = action.choices
            words |= {choice.dest: choice.help or "" for choice in action._choices_actions}
        elif not action.option_strings:
            words |= {str(choice): "" for choice in action.choices or ()}
            takes_files = takes_files or _is_path(action)
        else:
            options.append(_option(parser, action))
    yield _Command(path, words, takes_files, tuple(options))
    for name, parser_below in below.items():
        yield from _commands(parser_below, (*path, name))


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> _Option:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    values = None if action.nargs == 0 else tuple(str(choice) for choice in action.choices or ())
    if action.dest == "json" and values == ():
        values = tuple((action.metavar if isinstance(action.metavar, str) else "").split("|"))
    return _Option(tuple(action.option_strings), text, values, _is_path(action))


def _is_path(action: argparse.Action) -> bool:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    kind = getattr(action.type, "__name__", "")
    return kind == "Path" or bool(_FILES.fullmatch(metavar.partition(".")[0]))


# -- bash, and zsh through it


def _bash(program: str, commands: list[_Command]) -> Iterator[str]:
    function = f"_{program}_complete"
    yield from (
        f"{function}() {{",
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} at=1 path= words= files=",
        "    # --option=value comes in three words",
        '    if [[ $current == "=" ]]; then current=; elif [[ $previous == "=" ]]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi',
        "    while (( at < COMP_CWORD )); do",
        '        case "${COMP_WORDS[at]}" in',
        f"            {'|'.join(_with_values(commands))}) (( at++ )); [[ ${{COMP_WORDS[at]}} == '=' ]] && (( at++ )) ;;",
        '            *) case "${path:+$path }${COMP_WORDS[at]}" in',
        f"                {'|'.join(_quoted(' '.join(command.path)) for command in commands if command.path)})",
        '                    path="${path:+$path }${COMP_WORDS[at]}" ;;',
        "            esac ;;",
        "        esac",
        "        (( at++ ))",
        "    done",
        '    case "$path $previous" in',
    )
    for command in commands:
        start = " ".join(command.path)
        for option in command.options:
            if option.values is None:
                continue
            names = "|".join(_quoted(f"{start} {name}") for name in option.names)
            if option.values:
                yield f'        {names}) words="{" ".join(option.values)}" ;;'
            else:
                yield f"        {names}) files={'yes' if option.is_path else 'none'} ;;"
    yield "        *)"
    yield '            case "$path" in'
    for command in commands:
        dashed = [name for option in command.options for name in option.names if name.startswith("--") or name == "-h"]
        words = " ".join(command.words)
        files = " files=yes" if command.takes_files else ""
        yield f'                {_quoted(" ".join(command.path))}) words="{words}"{files}'
        yield f'                    [[ $current == -* ]] && words="{" ".join(dashed)}" && files= ;;'
    yield from (
        "            esac ;;",
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "    local IFS=$'\\n'  # names of files may have blanks",
        '    if [[ $files == yes ]]; then COMPREPLY+=($(compgen -f -- "$current")); fi',
        "}",
        f"complete -o filenames -F {function} {program}",
    )


def _with_values(commands: list[_Command]) -> list[str]:
    """Options that have a value wherever they are: the word behind one is no command."""
    options = [option for command in commands for option in command.options]
    alone = {name for option in options if option.values is None for name in option.names}
    return sorted({name for option in options if option.values is not None for name in option.names} - alone)


def _quoted(text: str) -> str:
    return f'"{text}"'


# -- fish


def _fish(program: str, commands: list[_Command]) -> Iterator[str]:
    yield from (
        "# The commands that have been typed, without options and the values of those that stand before them.",
        f"function __{program}_words",
        "    set -l typed (commandline -opc)",
        "    set -e typed[1]",
        "    set -l is_value 0",
        "    for word in $typed",
        "        if test $is_value = 1",
        "            set is_value 0",
        f"        else if contains -- $word {' '.join(_with_values(commands))}",
        "            set is_value 1",
        "        else if not string match -q -- '-*' $word",
        "            echo $word",
        "        end",
        "    end",
        "end",
        "# Whether these commands have been typed first, and, with --next, nothing behind them.",
        f"function __{program}_at",
        "    argparse next -- $argv; or return",
        f"    set -l words (__{program}_words)",
        "    set -l depth (count $argv)",
        "    test (count $words) -ge $depth; or return",
        "    if set -q _flag_next; and test (count $words) -ne $depth; return 1; end",
        "    test $depth -eq 0; or test (string join ' ' $words[1..$depth]) = (string join ' ' $argv)",
        "end",
        f"complete -c {program} -f",
    )
    for command in commands:
        path = "".join(f" {word}" for word in command.path)
        for word, text in command.words.items():
            yield f"complete -c {program} -n '__{program}_at --next{path}' -a {word}{_described(text)}"
        if command.takes_files:
            yield f"complete -c {program} -n '__{program}_at{path}' -F"
        leaf = f"__{program}_at --next{path}" if _goes_on(command, commands) else f"__{program}_at{path}"
        for option in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = "" if option.values is None else " -r -F" if option.is_path else " -x"
            choices = f" -a '{' '.join(option.values)}'" if option.values else ""
            yield f"complete -c {program} -n '{leaf}' {names}{value}{choices}{_described(option.help)}"


def _goes_on(command: _Command, commands: list[_Command]) -> bool:
    """Whether there are commands below, whose options are others."""
    return any(other.path[:-1] == command.path for other in commands if other.path)


def _described(text: str) -> str:
    short = text.partition(". ")[0].replace("\\", "\\\\").replace("'", "\\'")
    return f" -d '{short}'" if short else ""
