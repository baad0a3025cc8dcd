"""What the broker's commands say of arguments that they do not know."""

from __future__ import annotations

import pytest
from fastq_broker import container, exit_codes, repair
from fastq_broker.__main__ import _parser


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--datadir", "x"], "unrecognized arguments: --datadir x, did you mean --data-dir?"),
        (["--listem=127.0.0.1:9092"], "unrecognized arguments: --listem=127.0.0.1:9092, did you mean --listen?"),
        (["--nothing-like-it"], "unrecognized arguments: --nothing-like-it;"),
        (["stray"], "unrecognized arguments: stray;"),
    ],
)
def test_an_option_that_is_none_names_the_nearest(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args(arguments)
    told = capsys.readouterr().err
    assert ended.value.code == exit_codes.WRONG_USAGE
    assert told.startswith(f"fastq-broker: {said}") and told.count("\n") == 1


@pytest.mark.parametrize("command", [repair, container])
def test_its_commands_do_too(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command._parser().parse_args(["--hepl"])  # type: ignore[attr-defined]
    assert "did you mean --help?" in capsys.readouterr().err
