"""What Maven fetches for the Java peers: whether it can run here, and the class path of a POM.

Rules: nothing here is imported by the product. Maven's own cache keeps the jars, so that a later process needs no network.
`peer` is what is fetched, as a message names it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

FETCH_TIMEOUT_S = 900.0


def missing(peer: str) -> str | None:
    """None where Maven and Java are installed, else the reason why the peer cannot be run, in words for a person."""
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            return f"{program} is not installed: {peer} cannot be fetched or run here"
    return None


@cache
def jars(pom: Path, peer: str) -> tuple[str, ...]:
    """The jars of a POM in the order of its class path, resolved by Maven once a process."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "class-path"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={output}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Maven could not fetch {peer}:\n{done.stdout}\n{done.stderr}")
        return tuple(output.read_text().strip().split(":"))
