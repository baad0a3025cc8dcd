"""kcat (Debian's librdkafka) against the fastq broker."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed: apt-get install kcat")


def kcat(servers: str, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", servers, *arguments], input=stdin, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_in_and_out(fastq_servers: str, make_topic: Callable[..., str], codec: str) -> None:
    topic = make_topic(fastq_servers)
    lines = [f"key-{number}:line {number}" for number in range(200)]
    kcat(fastq_servers, "-P", "-t", topic, "-p", "0", "-K:", "-z", codec, stdin="\n".join(lines) + "\n")
    found = kcat(fastq_servers, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%k:%s\n")
    assert found.splitlines() == lines


def test_metadata_and_query(fastq_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(fastq_servers, partitions=3)
    listing = json.loads(kcat(fastq_servers, "-L", "-J", "-t", topic))
    (described,) = listing["topics"]
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    kcat(fastq_servers, "-P", "-t", topic, "-p", "1", stdin="a\nb\n")
    assert kcat(fastq_servers, "-Q", "-t", f"{topic}:1:-1").split()[-1] == "2"
