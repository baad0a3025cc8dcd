"""What `fastq-broker` tells of arguments that are wrong: one line, what is allowed, and code 2."""

from __future__ import annotations

import pytest
from fastq_broker.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["statu"], "'statu' is no command: did you mean status?"),
        (["9092"], "commands are container, format, info"),
        (["--nodes", "many"], "argument --nodes: 'many' is not allowed: it takes 1 to 100; see fastq-broker --help"),
        (["--node-id", "one"], "a whole number is expected, not 'one'"),
        (["stop", "--node-id", "one"], "a whole number is expected, not 'one'; see fastq-broker stop --help"),
        (["--metrics-listen", "127.0.0.1:99999"], "it takes HOST:PORT, a port of 0 to 65535"),
        (["--metrics-listen", "127.0.0.1:\u00b2"], "it takes HOST:PORT, a port of 0 to 65535"),
        (["--listen", "127.0.0.1:" + "9" * 5000], "it takes HOST:PORT, a port of 0 to 65535"),
        (["--no-such"], "--no-such"),
        (["info"], "--data-dir is required; see fastq-broker info --help"),
        (["repair", "--no-such"], "see fastq-broker repair --help"),
        (["--set", "=1"], "a name is missing"),
        (["--set", "\x1b[31m\nall is well=1"], r"\x1b[31m\x0aall is well"),
        (["--set", "num.partitions=99999999999"], "it takes a whole number of 32 bits, 1 or more"),
        (["--set", "listeners=PLAINTEXT://:99999"], "a port of 0 to 65535"),
        (["--data-dir", "d", "x" * 70_000], "characters left out"),
    ],
)
def test_wrong_arguments_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    told = capsys.readouterr()
    assert (code, told.out) == (2, "") and words in told.err
    assert told.err.startswith("fastq-broker") and told.err.count("\n") == 1 and len(told.err) < 2300, told.err


@pytest.mark.parametrize("arguments", [["--nodes", "3"], ["repair"], ["format"], ["--data-dir", "d"]])
def test_an_interrupt_before_anything_has_begun_ends_it_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    def interrupted(*_given: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("fastq_broker.__main__._parser", interrupted)
    monkeypatch.setattr("fastq_broker.repair.main", interrupted)
    monkeypatch.setattr("fastq_broker.format.main", interrupted)
    assert main(arguments) == 130
    assert capsys.readouterr() == ("", "")
