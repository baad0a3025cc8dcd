"""The pipeline on flights, as its command runs it: the storm is flagged, the report is there, nothing is left running."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DAYS = 42  # up to 11 February: the storm of the 8th and 9th is in them


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_storm_is_flagged_and_the_report_is_saved(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "--workload", "flights", "--days", str(DAYS), "--seconds", "8"]
    run = subprocess.run(
        [*command, "--home", str(tmp_path / "home")],
        cwd=ROOT / "examples",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "broker")])},
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    checks = re.findall(r"^  (yes|NO ) +(.*?)  +(.*)$", run.stdout, re.MULTILINE)
    assert [name for verdict, name, _ in checks if verdict == "yes"] == [
        "front end",
        "real-time job, counts",
        "real-time job, once",
        "offline load, rows",
        "offline load, offsets",
        "mirror",
        "lag of the groups",
        "the storm is flagged",
    ]
    assert "2013-02-08" in checks[-1][2] and "2013-02-09" in checks[-1][2]

    report = tmp_path / "home" / "report"
    assert (report / "report.png").read_bytes().startswith(b"\x89PNG")
    page = (report / "report.html").read_text()
    assert page.count('class="yes"') == len(checks) and 'class="no"' not in page
    assert "http://" not in page and "https://" not in page  # it is whole without the network
    assert (report / "report.txt").read_text().strip() in run.stdout
    assert len(list((tmp_path / "home" / "warehouse").glob("date=2013-02-0*/source=*/*.parquet"))) >= 27

    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in left
