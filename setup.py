"""The extension list and its build switches. Metadata lives in pyproject.toml.

Rules
- Every ``src/fastq/_native/*.pyx`` is one extension of the same name; C headers beside it are its own.
- All cores build, the longest sources first. No debug information but in debug and sanitizer builds: it is a third of the compiler's time.
- Switches are environment variables, read here and nowhere else:
  FASTQ_EXT=records,wire     build only these extensions (all when empty, none when it is a dash)
  FASTQ_DEBUG=1              no optimisation, bounds checks on, debug symbols
  FASTQ_COVERAGE=1           line tracing for coverage of the Cython sources
  FASTQ_SANITIZE=address     build with that compiler sanitizer, or several (tools/sanitize.py)
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/fastq/_native")
debug = os.environ.get("FASTQ_DEBUG") == "1"
coverage = os.environ.get("FASTQ_COVERAGE") == "1"
sanitize = os.environ.get("FASTQ_SANITIZE", "")
only = {name for name in os.environ.get("FASTQ_EXT", "").split(",") if name}

cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

if sys.platform == "win32":
    compile_args = ["/Od", "/Zi"] if debug else ["/O2"]
    link_args = []
else:
    compile_args = ["-O0", "-g"] if debug else ["-O2", "-g0", "-fno-plt"]
    compile_args += ["-std=c11", "-fvisibility=hidden", "-Wno-unreachable-code", "-Wno-maybe-uninitialized"]
    link_args = []
if sanitize:
    compile_args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-O1", "-g"]
    link_args += [f"-fsanitize={sanitize}"]

# Loops over the records of a batch that lies there: a tenth to a sixth fewer instructions at -O3. The others gain nothing by it.
readers = {
    "arrow",
    "batch_codec",
    "batch_validation",
    "columns",
    "compaction",
    "consume",
    "fetch",
    "fetched_batches",
    "records",
}
loops = [] if debug or sanitize or sys.platform == "win32" else ["-O3"]

macros = [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")] if coverage else []

extensions = [
    Extension(
        f"fastq._native.{source.stem}",
        [source.as_posix()],
        include_dirs=[NATIVE.as_posix()],
        depends=[path.as_posix() for pattern in ("*.h", "*.pxd") for path in sorted(NATIVE.glob(pattern))],
        extra_compile_args=compile_args + (loops if source.stem in readers else []),
        extra_link_args=link_args,
        define_macros=macros,
    )
    for source in sorted(NATIVE.glob("*.pyx"), key=lambda path: -path.stat().st_size)
    if not only or source.stem in only
]


class ParallelBuild(build_ext):
    """build_ext that compiles on all cores unless it is told otherwise (-j)."""

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None:
            self.parallel = cores


setup(
    cmdclass={"build_ext": ParallelBuild},
    ext_modules=cythonize(
        extensions,
        include_path=["src"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": debug,
            "wraparound": False,
            "initializedcheck": debug,
            "cdivision": True,
            # Methods as CPython's own: they check what they are called on (`Producer.send("topic")` is a TypeError, no crash), show
            # their signature, and are less code: a quarter of the build, a sixth of the size.
            "binding": False,
            "embedsignature": True,
            "embedsignature.format": "clinic",
            "linetrace": coverage,
            "freethreading_compatible": False,
        },
        emit_linenums=coverage,
        quiet="-q" in sys.argv,
        # Its processes import this file anew where they are not forked.
        nthreads=cores if sys.platform.startswith("linux") else 0,
    ),
)
