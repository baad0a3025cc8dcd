"""The reference has every public name, and what a dictionary with known keys has in it."""

from __future__ import annotations

import importlib
import re
from enum import Enum
from pathlib import Path
from typing import is_typeddict

import pytest

import fastq
import fastq.errors
import fastq.metrics

PAGES = "\n".join(
    path.read_text() for path in (Path(__file__).resolve().parents[2] / "docs" / "reference").glob("*.md")
)


@pytest.mark.parametrize("name", [name for name in fastq.__all__ if not name.startswith("__")])
def test_a_name_of_the_package_has_an_entry_in_the_reference(name: str) -> None:
    assert re.search(rf"^###? {name}$", PAGES, re.MULTILINE)


@pytest.mark.parametrize(
    "package", ["producer", "consumer", "admin", "schema_registry", "testing", "observability", "mirror", "spark"]
)
def test_a_name_of_a_package_below_has_an_entry_in_the_reference(package: str) -> None:
    names = importlib.import_module(f"fastq.{package}").__all__
    assert [name for name in names if not re.search(rf"^###? {name}$|`{name}`", PAGES, re.MULTILINE)] == []


def test_a_native_method_that_several_classes_inherit_has_its_parameters_in_each() -> None:
    shown = re.findall(r"^### `\w+\.add_done_callback`\n\n```python\n(.*)$", PAGES, re.MULTILINE)
    assert len(shown) >= 3 and all(signature.startswith("add_done_callback(callback: ") for signature in shown)


def test_an_error_is_found_by_the_name_that_it_is_raised_with() -> None:
    names = [
        name
        for name, thing in vars(fastq.errors).items()
        if isinstance(thing, type) and issubclass(thing, fastq.errors.FastqError) and not name.startswith("_")
    ]
    assert len(names) > 150
    assert [name for name in names if not re.search(rf"^### {name}$|`{name}`", PAGES, re.MULTILINE)] == []


CLASSES = {
    thing
    for package in ("producer", "consumer", "admin", "schema_registry", "testing", "observability", "mirror", "spark")
    for name in importlib.import_module(f"fastq.{package}").__all__
    if isinstance(thing := getattr(importlib.import_module(f"fastq.{package}"), name), type)
    if not issubclass(thing, (Enum, dict))
}


@pytest.mark.parametrize("cls", [*sorted(CLASSES, key=lambda cls: cls.__name__), fastq.errors.FastqError])
def test_a_method_has_an_entry_in_the_reference(cls: type) -> None:
    """One without a docstring has none."""
    own = {
        name: base
        for base in reversed(cls.__mro__)
        if base.__module__.partition(".")[0] == "fastq"
        for name, member in vars(base).items()
        if not name.startswith("_") and callable(getattr(cls, name)) and not isinstance(member, type)
    }
    title = f"#### `{cls.__name__}." if cls is fastq.errors.FastqError else f"### `{cls.__name__}."
    borrowed = "".join(re.findall("^Beside these .*", PAGES, re.MULTILINE))  # of a base of another package's
    assert [name for name in own if f"\n{title}{name}`\n" not in PAGES and f"`{name}`" not in borrowed] == []


@pytest.mark.parametrize("cls", [thing for thing in vars(fastq.metrics).values() if is_typeddict(thing)])
def test_the_keys_of_metrics_are_in_the_reference(cls: type) -> None:
    entry = PAGES.partition(f"\n## {cls.__name__}\n")[2].partition("\n## ")[0]
    assert [key for key in cls.__annotations__ if f"| `{key}` |" not in entry] == []


def test_the_name_of_a_metric_of_the_broker_is_found_in_its_sources() -> None:
    """Whole: who looks for where a dashboard's or an alert's figure comes from searches for that."""
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "reference" / "metrics.md").read_text()
    names = re.findall(r"^\| `(\w+)`", page.partition("## Of a broker\n")[2].partition("\n## ")[0], re.MULTILINE)
    sources = "\n".join(path.read_text() for path in (root / "broker" / "fastq_broker").glob("metrics*.py"))
    assert len(names) > 80 and [name for name in names if f'"{name}"' not in sources] == []
