"""What an import loads: the milliseconds that every program pays before it does anything, held as a list of modules."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"

# Each of these takes milliseconds, and is needed by some programs only: its place is in the function that needs it.
# `dataclasses` imports inspect, which imports ast and dis: fastq.values makes the small classes instead.
LATER = {
    "ast",
    "asyncio",
    "base64",
    "concurrent",
    "copy",
    "cramjam",
    "dataclasses",
    "datetime",
    "difflib",
    "dis",
    "hashlib",
    "hmac",
    "inspect",
    "ipaddress",
    "json",
    "lz4",
    "pyarrow",
    "secrets",
    "shutil",
    "snappy",
    "ssl",
    "stringprep",
    "subprocess",
    "tempfile",
    "typing_extensions",
    "urllib",
    "uuid",
    "xxhash",
    "zstandard",
}


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh Python, without site packages' start-up files, has after `statement` and not before."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    script = f"""
import sys
sys.path[:0] = {[str(SOURCES), *packages]!r}
before = set(sys.modules)
{statement}
print(*sorted(set(sys.modules) - before))
"""
    command = [sys.executable, "-S", "-c", script]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_import_fastq_loads_next_to_nothing() -> None:
    found = loaded_by("import fastq")
    assert {name.partition(".")[0] for name in found} <= {"__future__", "_warnings", "fastq", "importlib", "warnings"}
    assert {name for name in found if name.startswith("fastq")} == {"fastq", "fastq.lazy"}


@pytest.mark.parametrize("names", ["Producer", "Consumer", "Producer, Consumer"])
def test_clients_load_what_they_always_need(names: str) -> None:
    found = {name.partition(".")[0] for name in loaded_by(f"from fastq import {names}")}
    assert found & LATER == set()


def test_a_blocking_client_loads_nothing_of_the_other_kind() -> None:
    found = loaded_by("from fastq import Producer")
    assert {name for name in found if name.startswith(("fastq.consumer", "fastq.admin", "fastq.net.aio"))} == set()
    assert not any("async" in name for name in found if name.startswith("fastq"))
