"""What `--check-config` and a start say of a configuration and of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fastq_broker import preflight
from fastq_broker.config import BrokerConfig
from fastq_broker.config_keys import Status
from fastq_broker.config_table import BROKER_KEYS
from fastq_broker.preflight import Machine, Place

GOOD = Place("/data", "ext4", 100 << 30, 200 << 30, "")
MACHINE = Machine(65_536, 8 << 30, 1_800_000_000.0, (GOOD,))


def test_a_good_machine_is_not_talked_about() -> None:
    assert preflight.warnings(MACHINE) == preflight.problems(MACHINE) == preflight.kept_in_memory(MACHINE) == []


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (MACHINE._replace(descriptors=256), "256 files may be open, 128 of logs and 80 connections"),
        (MACHINE._replace(memory_bytes=128 << 20), "128 MiB of memory"),
        (MACHINE._replace(now_s=1.0), "the clock says 1970-01-01"),
        (MACHINE._replace(places=(GOOD._replace(kind="nfs4"),)), "/data is on nfs4"),
        (MACHINE._replace(places=(GOOD._replace(free_bytes=5 << 20),)), "/data has 5 MiB free"),
    ],
)
def test_what_may_go_wrong_is_said(machine: Machine, said: str) -> None:
    (warning,) = preflight.warnings(machine)
    assert said in warning


def test_a_machine_that_does_not_say_is_taken_as_it_is() -> None:
    silent = Machine(1_024, 0, 1_800_000_000.0, (Place("data", "", 0, 0, ""),))
    assert len(preflight.warnings(silent)) == 1


def test_a_directory_to_be_made_is_looked_at_where_it_will_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = BrokerConfig.from_mapping({"log.dirs": f"{tmp_path}/a/b/c,{tmp_path}/file/x"})
    found = preflight.look(config, 1_024)
    assert [bool(place.problem) for place in found.places] == [False, True]
    assert f"{tmp_path}/file is no directory" in preflight.problems(found)[0]
    assert found.places[0].size_bytes > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "nothing was made"


def test_the_directory_of_the_metadata_is_looked_at_too_and_each_one_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = {"log.dirs": f"{tmp_path}/data", "metadata.log.dir": f"{tmp_path}/file/metadata"}
    found = preflight.look(BrokerConfig.from_mapping(settings), 1_024)
    assert [place.path for place in found.places] == [f"{tmp_path}/data", f"{tmp_path}/file/metadata"]
    (problem,) = preflight.problems(found)
    assert problem == f"{tmp_path}/file/metadata: {tmp_path}/file is no directory"
    for given in ({"log.dirs": f"{tmp_path}/a,{tmp_path}/b"}, settings | {"metadata.log.dir": f"{tmp_path}/data"}):
        config = BrokerConfig.from_mapping(given)
        assert [place.path for place in preflight.look(config, 1_024).places] == config.log_dirs


def test_what_only_looks_like_a_place_for_logs(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "far")
    config = BrokerConfig.from_mapping({"log.dirs": f"{tmp_path}/link,/proc/logs"})
    link, system = preflight.problems(preflight.look(config, 1_024))
    assert f"{tmp_path}/link is a symbolic link to {tmp_path}/gone/far, which is not there" in link
    assert sys.platform != "linux" or "/proc is on proc, which holds no files" in system


def test_a_setting_is_one_line_of_the_report(tmp_path: Path) -> None:
    config = BrokerConfig.from_mapping({"log.dirs": f"{tmp_path}/a\nb"})
    lines = list(preflight.report(config, preflight.look(config, 1_024), {}))
    assert f"log.dirs={tmp_path}/a\\u000ab    # the command line" in lines
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize(
    "arguments", [["--check-config"], ["--version"], ["--help"], ["random-uuid"], ["status"]], ids=" ".join
)
def test_output_that_nobody_takes_is_no_traceback(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "fastq_broker", *arguments]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr
    assert done.returncode == 141 or arguments == ["--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr
    assert (done.returncode == 1 and done.stderr.endswith("No space left on device\n")) or arguments == ["--help"]


def test_the_command_tells_where_a_setting_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path}/data\nlog.retention.hours=5\nnum.io.threads=8\nnum.partitions=2\n")
    command = [sys.executable, "-m", "fastq_broker", "--check-config", "--config", str(file)]
    done = subprocess.run([*command, "--set", "num.partitions=7"], capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert f"log.retention.hours=5    # {file}; another name of a setting" in lines
    assert "num.partitions=7    # the command line" in lines
    assert any(line.startswith(f"num.io.threads=8    # {file}; without effect: ") for line in lines)
    assert f"log.retention.ms={5 * 3_600_000}    # by log.retention.hours" in lines
    assert "log.segment.bytes=1073741824    # the default" in lines
    assert {line.partition("=")[0] for line in lines} >= {
        key.name for key in BROKER_KEYS.values() if key.status is Status.DONE
    }
    assert any(line.startswith("open files: ") for line in lines)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--set", "num.partitions=none"], 2, "num.partitions"),
        (["--nodes", "3"], 2, "--check-config does not go with --nodes"),
        (["--data-dir", "/dev/null/data"], 1, "/dev/null is no directory"),
        (["--set", "metadata.log.dir=/dev/null/metadata"], 1, "/dev/null/metadata: /dev/null is no directory"),
    ],
)
def test_what_would_not_start_has_its_code(arguments: list[str], code: int, said: str) -> None:
    command = [sys.executable, "-m", "fastq_broker", "--check-config", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert said in done.stderr
