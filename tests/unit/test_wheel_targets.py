"""What wheels.py makes, and what pyproject.toml and the guide say of platforms and Pythons, are the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from wheel_targets import PLATFORMS, PYTHONS, SHA256, TARGETS, WheelError, archive, archive_name  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_platforms_are_those_of_the_classifiers() -> None:
    systems = {line for line in PROJECT["classifiers"] if line.startswith("Operating System :: ")}
    assert systems == {platform.classifier for platform in PLATFORMS.values()}


def test_pythons_are_those_of_the_classifiers() -> None:
    found = [re.fullmatch(r"Programming Language :: Python :: (3)\.(\d+)", line) for line in PROJECT["classifiers"]]
    assert [f"cp{match[1]}{match[2]}" for match in found if match] == list(PYTHONS)
    assert PROJECT["requires-python"] == ">=3.10" == f">=3.{next(iter(PYTHONS))[3:]}"


def test_every_target_has_headers_that_are_known() -> None:
    assert len(TARGETS) == len(PYTHONS) * len(PLATFORMS)
    for target in TARGETS.values():
        assert archive_name(target.python, target.platform.headers) in SHA256
        version, _, _ = PYTHONS[target.python].partition("-")
        assert version.startswith(f"3.{target.digits[1:]}.")


def test_the_guide_names_every_tag() -> None:
    page = (ROOT / "docs" / "guides" / "install.md").read_text()
    for platform in PLATFORMS.values():
        assert re.sub(r"^(musllinux_1_2_).*", r"\1", platform.tag) in page
    assert "CPython 3.10 to 3.14" in page


def test_what_no_archive_has_is_said() -> None:
    with pytest.raises(WheelError, match="no archive of Python for cp312 on plan9"):
        archive("cp312", "plan9")


def test_the_guides_table_of_wheels_has_every_target() -> None:
    page = (
        (ROOT / "docs" / "guides" / "install.md").read_text().partition("### Which were made")[2].partition("\n## ")[0]
    )
    lines = [line for line in page.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert header[1:] == [f"3.{python[3:]}" for python in PYTHONS]
    assert [row[0].strip("`") for row in rows] == list(PLATFORMS)
    assert {mark for row in rows for mark in row[1:]} <= {"run", "made", "not made"}
    assert all(len(row) == len(header) for row in rows)
