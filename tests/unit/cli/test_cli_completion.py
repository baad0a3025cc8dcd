"""`fastq completion`: bash completes by the script; the others have the same in it."""

from __future__ import annotations

import shutil
import subprocess
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


@pytest.mark.parametrize(
    ("typed", "found"),
    [
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
    ],
)
def test_bash(tmp_path: Path, typed: str, found: list[str]) -> None:
    (tmp_path / "a file").touch()
    assert completed(tmp_path, *typed.split(" ")) == found


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
