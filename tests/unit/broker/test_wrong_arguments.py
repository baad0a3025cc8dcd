"""What `fastq-broker` tells of arguments that are wrong: one line, what is allowed, and code 2."""

from __future__ import annotations

from pathlib import Path

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
        (
            ["--set", "listeners=SASL_SSL://127.0.0.1:9094", "--listen", "127.0.0.1:9092"],
            "protects by SASL_SSL: to have it so, say --listen PLAINTEXT://127.0.0.1:9092",
        ),
        (
            [
                *("--set", "listeners=PLAINTEXT://:9092,OUTER://:9094", "--listen", "127.0.0.1:0"),
                *("--set", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OUTER:SSL"),
            ],
            "take the place of listeners = 'OUTER://:9094', and serve in the clear",
        ),
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


def test_an_address_that_names_no_protocol_takes_no_protection_away(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={tmp_path / 'data'}\nlisteners=SSL://127.0.0.1:9094\n")
    arguments = ["--config", str(config), "--listen"]
    assert main([*arguments, "127.0.0.1:0"]) == 2
    assert (
        "listeners = 'SSL://127.0.0.1:9094', and serve in the clear what that protects by SSL"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "data").exists()
    assert main([*arguments, "PLAINTEXT://127.0.0.1:0", "--check-config"]) == 0


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
