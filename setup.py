"""The extension list and its build switches. Metadata lives in pyproject.toml.

Rules
- Every ``src/fastq/_native/*.pyx`` is one extension of the same name; C headers beside it are its own.
- Switches are environment variables, read here and nowhere else:
  FASTQ_EXT=records,wire     build only these extensions (all when empty)
  FASTQ_DEBUG=1              no optimisation, bounds checks on, debug symbols
  FASTQ_COVERAGE=1           line tracing for coverage of the Cython sources
  FASTQ_SANITIZE=address     build with that compiler sanitizer
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

NATIVE = Path("src/fastq/_native")
debug = os.environ.get("FASTQ_DEBUG") == "1"
coverage = os.environ.get("FASTQ_COVERAGE") == "1"
sanitize = os.environ.get("FASTQ_SANITIZE", "")
only = {name for name in os.environ.get("FASTQ_EXT", "").split(",") if name}

if sys.platform == "win32":
    compile_args = ["/Od", "/Zi"] if debug else ["/O2"]
    link_args = []
else:
    compile_args = ["-O0", "-g"] if debug else ["-O3", "-g1", "-fno-plt"]
    compile_args += ["-std=c11", "-fvisibility=hidden", "-Wno-unreachable-code"]
    link_args = []
if sanitize:
    compile_args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g"]
    link_args += [f"-fsanitize={sanitize}"]

macros = [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")] if coverage else []

extensions = [
    Extension(
        f"fastq._native.{source.stem}",
        [source.as_posix()],
        include_dirs=[NATIVE.as_posix()],
        depends=[path.as_posix() for pattern in ("*.h", "*.pxd") for path in sorted(NATIVE.glob(pattern))],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        define_macros=macros,
    )
    for source in sorted(NATIVE.glob("*.pyx"))
    if not only or source.stem in only
]

setup(
    ext_modules=cythonize(
        extensions,
        include_path=["src"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": debug,
            "wraparound": False,
            "initializedcheck": debug,
            "cdivision": True,
            "embedsignature": True,
            "embedsignature.format": "python",
            "linetrace": coverage,
            "freethreading_compatible": False,
        },
        emit_linenums=coverage,
    )
)
