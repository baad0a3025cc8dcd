"""What the group commands read from their arguments: durations, moments, files of offsets."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from fastq import TopicPartition
from fastq.cli import main
from fastq.cli.entry import build_parser
from fastq.cli.group_resets import duration, reset_of

RESET = ("groups", "reset-offsets", "billing")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("7d", 604800),
        ("250ms", 0.25),
        ("PT1H30M", 5400),
        ("P1DT0.5S", 86400.5),
        ("1.5h", 5400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "1h5", "P", "PT", "soon", "-1h", "1w"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="a duration like 90s"):
        duration(text)


def test_offsets_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text('# topic,partition,offset\norders,0,12\n\n"bills",1, 3\n')
    reset = reset_of(build_parser().parse_args([*RESET, "--from-file", str(path)]))
    assert reset.offsets == {TopicPartition("orders", 0): 12, TopicPartition("bills", 1): 3}
    for line in ("orders,0", "orders,x,1", "orders,0,-5"):
        path.write_text(f"orders,0,1\n{line}\n")
        with pytest.raises(ValueError, match=r"line 2: \[group,\]topic,partition,offset is expected"):
            reset_of(build_parser().parse_args([*RESET, "--from-file", str(path)]))
    path.write_text("orders,0,1\nbilling,orders,1,2\n")
    with pytest.raises(ValueError, match="line 2: a group in every line or in none is expected"):
        reset_of(build_parser().parse_args([*RESET, "--from-file", str(path)]))
    path.write_text("# nothing yet\n")
    with pytest.raises(ValueError, match=r"no line \[group,\]topic,partition,offset is in it"):
        reset_of(build_parser().parse_args([*RESET, "--from-file", str(path)]))
    path.write_text("billing,orders,0,1\n")
    with pytest.raises(ValueError, match="are expected, without a group"):
        reset_of(build_parser().parse_args([*RESET, "--from-file", str(path)]))


def test_each_option_is_its_reset() -> None:
    def kind(*arguments: str) -> tuple[str, int]:
        reset = reset_of(build_parser().parse_args([*RESET, *arguments]))
        return reset.kind, reset.value

    assert kind("--to-earliest") == ("earliest", 0)
    assert kind("--to-latest") == ("latest", 0)
    assert kind("--to-current") == ("current", 0)
    assert kind("--to-datetime", "1795255200000") == ("time", 1795255200000)
    assert kind("--to-datetime", "2026-11-21T10:00:00Z") == ("time", 1795255200000)
    assert kind("--by-duration", "1h")[0] == "time"
    assert kind("--shift-by", "-5") == ("shift", -5)
    assert kind("--to-offset", "7") == ("offset", 7)
    with pytest.raises(ValueError, match="a date like"):
        kind("--to-datetime", "yesterday")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("groups", "remove-members", "billing"), "say who"),
        (("groups", "remove-members", "billing", "--all", "--member", "m"), "say who"),
        (("transactions", "abort"), "give transactional ids, or --topic"),
        (("transactions", "abort", "--topic", "orders"), "give transactional ids, or --topic"),
        (("transactions", "abort", "id", "--topic", "orders"), "give transactional ids, or --topic"),
        ((*RESET, "--to-latest", "--json", "--export"), "--export and --json"),
    ],
)
def test_arguments_that_do_not_fit_together(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(arguments)) == 2
    assert said in capsys.readouterr().err
