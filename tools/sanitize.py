"""The native tests under sanitizers: address and undefined behaviour, threads; and under Python's own: collections, checked memory.

    make sanitize                    # or: python tools/sanitize.py [address|thread|collect|memory ...]; collect-few is a share of collect

Rules
- A sanitizer's extensions are built into build/sanitize/<name>, with the packages beside them: those in the sources stay as they are.
- A run fails when a test does, or when a sanitizer reports anything at all. What it must not report has a line and a reason here.
- Two run at a time; what one prints is shown when it has ended. Builds share generated C files, so one goes after the other.
- FASTQ_SOAK=1 gives the runs the tests' full numbers.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NATIVE = "tests/unit/native"
TABLES = "tests/unit/consumer/test_tables.py"
ELSEWHERE = ["tests/unit/net/test_net_exchange.py", "tests/unit/log/test_log_durability.py"]
"""What is native and tested among what uses it: exchange.h, the jobs of flusher.h and turn.pyx; in TABLES batch_stream.pyx."""
MARKS = {"address": "not soak"}
"""Of runs with other tests than those that are quick: tables of pyarrow in any layout are slow ones, and take seconds under this one."""
# Leaks: Python keeps what it makes once until the end, and so do the libraries beside us. alloc_dealloc_mismatch: pyarrow's allocators.
ADDRESS = "detect_leaks=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1:halt_on_error=1:strict_string_checks=1"
UNDEFINED = "print_stacktrace=1:halt_on_error=1"
THREAD = "halt_on_error=1:report_signal_unsafe=0:allocator_may_return_null=1:ignore_noninstrumented_modules=1:suppressions={}"
# Libraries that were built without the sanitizer: it does not see their locks, and their races are not ours. A line may fit one file only.
THREAD_SUPPRESSIONS = """
called_from_lib:libarrow.so
called_from_lib:libarrow_python.so
called_from_lib:libduckdb
race:libcrypto
"""
# polars brings an allocator with a thread of its own, begun past the sanitizer, which has no state for it then: a crash at the import. And
# a fork takes all its locks, more than the sanitizer counts, which ends that process: the tests that import it have one without forks.
ALLOCATOR = "background_thread:false"
# Where ours are, and where several Python threads meet.
THREADS = [
    f"{NATIVE}/test_{name}.py"
    for name in ("heartbeat", "collections", "accumulator", "broker_paths", "commit_path", "fetch", "kept_memory")
]

_building = threading.Lock()


def library(name: str) -> str:
    """The sanitizer's runtime, which has to be loaded before Python is."""
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if "/" not in found:
        sys.exit(f"{name} is missing: on Debian and Ubuntu, apt-get install gcc")
    return str(Path(found).resolve())


def build(name: str, sanitizers: str) -> Path:
    """The packages with instrumented extensions."""
    target = ROOT / "build" / "sanitize" / name
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build",
        "--build-lib",
        str(target),
        "--build-temp",
        f"{target}-objects",
    ]
    with _building:
        print(f"sanitize: building {target.relative_to(ROOT)}", flush=True)
        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"FASTQ_SANITIZE": sanitizers, "FASTQ_EXT": ""})
    return target


def tests(name: str, paths: list[str], packages: list[Path], **environment: str) -> bool:
    """Run tests with these packages, the first of which has the extensions; whether all went well."""
    path = os.pathsep.join(map(str, packages))
    command = [sys.executable, __file__, "--run", name, str(packages[0]), *paths]
    begun = time.monotonic()
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with _building:
        print(f"sanitize: {name}, {time.monotonic() - begun:.0f} s\n{ended.stdout}", flush=True)
    return ended.returncode == 0


def address() -> bool:
    """Reads and writes where nothing is, and what C leaves undefined."""
    target = build("address", "address,undefined")
    preload = f"{library('libasan.so')} {library('libubsan.so')}"
    # Python's own allocator would hide the ends of its objects.
    return tests(
        "address",
        [NATIVE, *ELSEWHERE, TABLES],
        [target],
        LD_PRELOAD=preload,
        ASAN_OPTIONS=ADDRESS,
        UBSAN_OPTIONS=UNDEFINED,
        PYTHONMALLOC="malloc",
    )


def thread() -> bool:
    """Races between native threads."""
    target = build("thread", "thread")
    suppressions = ROOT / "build" / "sanitize" / "thread.supp"
    suppressions.write_text(THREAD_SUPPRESSIONS)
    environment = {
        "LD_PRELOAD": library("libtsan.so"),
        "TSAN_OPTIONS": THREAD.format(suppressions),
        "_RJEM_MALLOC_CONF": ALLOCATOR,
    }
    went_well = [tests("thread", paths, [target], **environment) for paths in ([*THREADS, *ELSEWHERE], [TABLES])]
    return all(went_well)


def collect() -> bool:
    """A collection at every second allocation."""
    return tests("collect", [NATIVE], [ROOT / "src", ROOT / "broker"])


def collect_few() -> bool:
    """The same, in the tests that threads have too: seconds, where all take many minutes."""
    return tests("collect", THREADS, [ROOT / "src", ROOT / "broker"])


def memory() -> bool:
    """Python's allocator with guards around every block."""
    return tests("memory", [NATIVE], [ROOT / "src", ROOT / "broker"], PYTHONMALLOC="debug")


class EveryCollection:
    """Plug-in of pytest: from the first test on, not while the libraries are imported."""

    def pytest_collection_finish(self) -> None:
        gc.set_threshold(1)


def run(name: str, extensions: Path, paths: list[str]) -> int:
    import pytest

    import fastq._native.wire

    # Those of the sources, or of an installed package, would pass everything: nothing looks into them.
    tested = Path(fastq._native.wire.__file__)
    assert tested.is_relative_to(extensions), f"{tested} would be tested, not what is in {extensions}"
    # Sanitizers are slow, and collections at every step slower: no time-outs of single tests but the last resort.
    arguments = [
        "-q",
        "--capture=sys",  # what a sanitizer says before it ends the process would be in a file that nobody reads
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "-m",
        MARKS.get(name, "not slow and not soak"),
        "-o",
        "timeout=900",
        *paths,
    ]
    return int(pytest.main(arguments, plugins=[EveryCollection()] if name == "collect" else []))


def main() -> int:
    if sys.argv[1:2] == ["--run"]:
        return run(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    runs = {"address": address, "thread": thread, "collect": collect, "memory": memory}
    wanted = sys.argv[1:] or list(runs)
    runs["collect-few"] = collect_few
    unknown = set(wanted) - set(runs)
    if unknown:
        sys.exit(f"sanitize: {', '.join(sorted(unknown))} is none of {', '.join(runs)}")
    with ThreadPoolExecutor(max_workers=2) as pool:  # each keeps one core busy
        went_well = list(pool.map(lambda name: runs[name](), wanted))
    failed = [name for name, well in zip(wanted, went_well, strict=True) if not well]
    print(
        f"sanitize: {', '.join(failed)} failed" if failed else f"sanitize: {', '.join(wanted)} found nothing",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
