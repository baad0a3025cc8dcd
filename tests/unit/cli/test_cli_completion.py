"""`fastq completion`: each shell completes by its script, zsh as somebody who types at a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from fastq.cli import main
from fastq.cli.completion import SHELLS, script
from fastq.cli.entry import build_parser

BASH = shutil.which("bash") or "bash"


def completed(tmp_path: Path, *words: str) -> list[str]:
    path = tmp_path / "fastq.bash"
    path.write_text(script("bash", build_parser()))
    program = (
        'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _fastq_complete; '
        '(( ${#COMPREPLY[@]} )) && printf "%s\\n" "${COMPREPLY[@]}"; true'
    )
    done = subprocess.run(
        [BASH, "--norc", "-c", program, path, "fastq", *words], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


TYPED = [
    ("to", ["topics"]),
    ("topics cr", ["create"]),
    ("topics create logs --part", ["--partitions"]),
    ("--profile topics cons", ["consume", "console"]),
    ("consume logs --isolation read_c", ["read_committed"]),
    ("consume logs --isolation = read_c", ["read_committed"]),
    ("consume logs --isolation =", ["read_uncommitted", "read_committed"]),
    ("topics list --output ", ["table", "json", "csv", "yaml"]),
    ("partitions elect ", ["preferred", "unclean"]),
    ("quorum add", ["add-controller"]),
    ("completion ", list(SHELLS)),
    ("produce logs --file a", ["a file"]),
    ("dump-log a", ["a file"]),
    ("produce logs --key a", []),
    ("topics create ", []),
    ("nothing of ours", []),
]


@pytest.mark.parametrize(("typed", "found"), TYPED)
def test_bash(tmp_path: Path, typed: str, found: list[str]) -> None:
    (tmp_path / "a file").touch()
    assert completed(tmp_path, *typed.split(" ")) == found


# fish asks for what stands at the cursor, and takes --option=value as one word.
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed: apt-get install fish")
@pytest.mark.parametrize(
    ("typed", "found"), [row for row in TYPED if " = " not in row[0] and not row[0].endswith(" =")]
)
def test_fish(tmp_path: Path, typed: str, found: list[str]) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "fastq.fish").write_text(script("fish", build_parser()))
    program = "source $argv[1]; complete -C $argv[2]"
    done = subprocess.run(
        ["fish", "--no-config", "-c", program, "fastq.fish", f"fastq {typed}"],
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(line.partition("\t")[0] for line in done.stdout.splitlines()) == sorted(found)


ZSH = r"""
autoload -U compinit && compinit -D
source ./fastq.zsh
setopt menu_complete
unsetopt beep
show() { print -r -- "$BUFFER" > ./typed; BUFFER= }
zle -N show
bindkey '^X' show
print ready > ./typed
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed: apt-get install zsh")
def test_zsh(tmp_path: Path) -> None:
    """At a terminal: each further tab puts in the next of those that there are."""
    (tmp_path / "a file").touch()
    (tmp_path / "fastq.zsh").write_text(script("zsh", build_parser()))
    (tmp_path / "begin.zsh").write_text(ZSH)
    os.mkfifo(tmp_path / "typed")
    terminal, other = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"], cwd=tmp_path, stdin=other, stdout=other, stderr=other, start_new_session=True,
        env={**os.environ, "HOME": str(tmp_path), "TERM": "dumb"},
    ) as process:  # fmt: skip
        os.close(other)
        reader = threading.Thread(target=_drained, args=(terminal,), daemon=True)
        reader.start()
        try:
            os.write(terminal, b"source ./begin.zsh\r")
            assert (tmp_path / "typed").read_text() == "ready\n"
            for typed, found in TYPED:
                if " = " in typed or typed.endswith(" ="):  # bash's words alone
                    continue
                before = f"fastq {typed}"
                kept = before[: before.rindex(" ") + 1]
                got = set()
                for tabs in range(1, len(found) + 1):
                    os.write(terminal, before.encode() + b"\t" * tabs + b"\x18")
                    got.add((tmp_path / "typed").read_text().removeprefix(kept).strip().replace("\\ ", " "))
                assert got == set(found), typed
        finally:
            process.kill()
    reader.join()
    os.close(terminal)


def _drained(terminal: int) -> None:
    """What a terminal shows has to be read, or who writes waits."""
    with contextlib.suppress(OSError):  # its other side is gone
        while os.read(terminal, 65536):
            pass


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_in_every_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for part in ("topics", "add-controller", "reset-offsets", "read_committed", "preferred", "hash-password"):
        assert part in text
    assert "supervised" not in text and "SUPPRESS" not in text
    assert ("bashcompinit" in text) == (shell == "zsh")


def test_fish_has_options_where_they_are_and_what_they_are() -> None:
    lines = script("fish", build_parser()).splitlines()
    consume = [line for line in lines if line.startswith("complete -c fastq -n '__fastq_at consume' ")]
    assert any(" -l isolation -x -a 'read_uncommitted read_committed'" in line for line in consume)
    assert any(" -l command-config -r -F -d '" in line and "Kafka\\'s" in line for line in consume)
    assert "complete -c fastq -n '__fastq_at --next topics' -a create -d 'Make a topic.'" in lines
