"""Writes docs/reference/: every public class, setting and error, from the sources themselves.

    python tools/generate_reference.py [--check]

Rules: nothing is said here that the code does not say: settings come from the tables that parsing reads, classes and errors from
their docstrings and signatures, as `help()` shows them. `--check` fails where a committed page differs, and writes nothing.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, is_typeddict

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"
MADE_BY = "<!-- made by tools/generate_reference.py: change the sources, then `make reference` -->"

# page -> title, and modules whose __all__ is the public API, or module:name for one name
CLASSES = {
    "producer": ("Producing", ("fastq.producer", "fastq.serializers", "fastq.interceptors")),
    "consumer": ("Consuming", ("fastq.consumer", "fastq:TopicPartition")),
    "admin": ("Administration", ("fastq.admin",)),
    "testing": ("Tests", ("fastq.testing",)),
    "schema-registry": ("Schema registry", ("fastq.schema_registry",)),
    "observability": ("Metrics and tracing", ("fastq.metrics", "fastq.observability")),
    "spark": ("Spark", ("fastq.spark",)),
}
SHARED = "fastq.config:ClientConfig"
CLIENT_SETTINGS = {
    "producer-settings": ("Settings of a producer", "fastq.producer.config:ProducerConfig"),
    "consumer-settings": ("Settings of a consumer", "fastq.consumer.config:ConsumerConfig"),
    "admin-settings": ("Settings of an admin client", "fastq.admin:AdminConfig"),
    "client-settings": ("Settings of every client", SHARED),
}


def load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def cell(text: object) -> str:
    """Text in a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def shown(value: object) -> str:
    if value == () or value is None:
        return "none" if value is None else "empty"
    return f"`{cell(value)}`"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(head)
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


# -- settings


def client_settings(name: str) -> Iterator[str]:
    cls, shared = load(name), load(SHARED)
    defaults = {key: getattr(cls, key) for key in cls.options()}
    inherited = {} if cls is shared else shared.options()
    if inherited:
        yield "Beside these it takes the [settings of every client](client-settings.md)."
        yield ""
    yield "Names with dots (`linger.ms`) are taken too, where settings come as a mapping."
    yield ""
    rows = (
        (f"`{key}`", shown(defaults[key]), cell(declared.allowed()), cell(declared.doc), aliases(declared.aliases))
        for key, declared in cls.options().items()
        if key not in inherited or inherited[key] != declared
    )
    yield from table(("setting", "default", "allowed", "what it does", "also called"), rows)
    for heading, found in (
        ("Names of older releases", {key: f"use {old.today}" for key, old in cls.__dict__.get("RENAMED", {}).items()}),
        ("Known, and without effect", cls.__dict__.get("IGNORED", {})),
        ("Refused", cls.__dict__.get("REFUSED", {})),
    ):
        if found:
            yield from ("", f"## {heading}", "")
            yield from table(("setting", ""), ((f"`{key}`", cell(why)) for key, why in sorted(found.items())))


def aliases(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def server_settings(keys: Iterable[Any], dynamic: bool) -> Iterator[str]:
    """Those that do something, then those that are known and do not."""
    from fastq_broker.config_keys import Status

    every = sorted(keys, key=lambda key: key.name)
    rows = []
    for key in every:
        if key.status is Status.IGNORED:
            continue
        allowed = key.check.allowed if key.check else key.type.name.lower()
        effect = key.doc if key.status is Status.DONE else f"{key.doc} {key.note}."
        row = [f"`{key.name}`", shown(key.render(key.default)), cell(allowed), cell(effect)]
        rows.append([*row, "yes" if key.dynamic else ""] if dynamic else row)
    head = ["setting", "default", "allowed", "what it does"]
    yield from table([*head, "while it runs"] if dynamic else head, rows)
    for protects, heading in (
        (True, "Known to Apache Kafka, and refused here unless `--insecure-ignore` names it: it would protect"),
        (False, "Known to Apache Kafka, and without effect here"),
    ):
        known = (key for key in every if key.status is Status.IGNORED and key.protects == protects)
        ignored = [(f"`{key.name}`", cell(key.note)) for key in known]
        if ignored:
            yield from ("", f"## {heading}", "")
            yield from table(("setting", "why"), ignored)


def broker_pages() -> Iterator[tuple[str, str, Iterable[str]]]:
    from fastq_broker.config_table import BROKER_KEYS
    from fastq_broker.topic_config import TOPIC_KEYS

    yield "broker-settings", "Settings of the broker", server_settings(BROKER_KEYS.values(), dynamic=True)
    yield "topic-settings", "Settings of a topic", server_settings(TOPIC_KEYS.values(), dynamic=False)


# -- classes


def signature(thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name not in ("self", "cls")]
    text = str(found.replace(parameters=parameters, return_annotation=found.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def doc(thing: Any) -> str:
    """The docstring, without the line that Cython puts before it for the signature."""
    text = inspect.getdoc(thing) or ""
    first, _, rest = text.partition("\n")
    return rest.strip() if re.match(r"^[\w.]+\(.*\)( -> .*)?$", first) else text


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that this package defines, in the order of their names; each with a docstring."""
    for name, member in inspect.getmembers(cls):
        if name.startswith("_"):
            continue
        owner = next((base for base in cls.__mro__ if name in base.__dict__), None)
        if owner is None or not owner.__module__.startswith(("fastq", "fastq_broker")):
            continue
        if callable(member) or isinstance(owner.__dict__[name], property) or inspect.isdatadescriptor(member):
            yield name, member


def kind(of: Any) -> str:
    """A type as the sources write it."""
    return getattr(of, "__forward_arg__", None) or getattr(of, "__name__", None) or str(of)


def class_page(modules: Iterable[str]) -> Iterator[str]:
    for source in modules:
        module_name, _, single = source.partition(":")
        module = importlib.import_module(module_name)
        yield from (f"# `{module_name}`", "", "" if single else doc(module).partition("\n\nRules:")[0], "")
        names = (
            [single]
            if single
            else getattr(module, "__all__", None)
            or sorted(
                name
                for name, thing in vars(module).items()
                if not name.startswith("_") and getattr(thing, "__module__", None) == module_name
            )
        )
        for name in sorted(names):
            thing = getattr(module, name)
            if isinstance(thing, type) and issubclass(thing, enum.Enum):
                yield from (f"## {name}", "", doc(thing), "", ", ".join(f"`{member.name}`" for member in thing), "")
                continue
            if (
                is_typeddict(thing) and thing.__total__
            ):  # those that are not are options, which the settings' pages have
                yield from (f"## {name}", "", doc(thing), "")
                yield from table(
                    ("key", "type"), ((f"`{key}`", cell(kind(of))) for key, of in thing.__annotations__.items())
                )
                yield ""
                continue
            if not callable(thing):
                yield from (f"## {name}", "", doc(thing) if isinstance(thing, type) else "", "")
                continue
            yield from (f"## {name}", "", "```python", f"{name}{signature(thing)}", "```", "", doc(thing), "")
            if not isinstance(thing, type):
                continue
            for member_name, member in members(thing):
                text = doc(member)
                if not text or text.startswith("Alias for field number"):  # what Python says of a named tuple's fields
                    continue
                shape = signature(member) if callable(member) else ""
                yield from (f"### `{name}.{member_name}{shape}`", "", text, "")


# -- errors


def errors() -> Iterator[str]:
    from fastq import errors as module

    yield from ("Every error of fastq is a `fastq.FastqError`; every time-out is a `TimeoutError` too.", "")
    yield "```"
    yield from tree(module.FastqError, 0)
    yield "```"
    for cls in sorted(subclasses(module.FastqError), key=lambda cls: cls.__name__):
        if not is_of_a_code(cls):
            yield from ("", f"## {cls.__name__}", "", doc(cls))
    yield from ("", "## Codes of Kafka", "", "A broker's code is a subclass of `KafkaError`, named after it.", "")
    rows = []
    for code in module.ErrorCode:
        again = "after fresh metadata" if code.refresh_metadata else "yes" if code.retriable else ""
        rows.append((str(int(code)), f"`{code.name}`", again, cell(code.meaning)))
    yield from table(("code", "name", "try again", "meaning"), rows)


def is_of_a_code(cls: type) -> bool:
    from fastq import errors as module

    return issubclass(cls, module.KafkaError) and cls is not module.KafkaError


def subclasses(cls: type) -> set[type]:
    """The classes below this one that the package itself defines."""
    found = {cls}
    for child in cls.__subclasses__():
        if child.__module__.partition(".")[0] == "fastq":
            found |= subclasses(child)
    return found


def tree(cls: type, depth: int) -> Iterator[str]:
    yield "    " * depth + cls.__name__
    for child in sorted(cls.__subclasses__(), key=lambda child: child.__name__):
        if child.__module__.partition(".")[0] == "fastq" and not is_of_a_code(child):
            yield from tree(child, depth + 1)


def pages() -> Iterator[tuple[str, str]]:
    """Name and text of every page."""
    index = ["# Reference", "", "## Settings", ""]
    for name, (title, source) in CLIENT_SETTINGS.items():
        yield name, page(title, client_settings(source))
        index.append(f"- [{title}]({name}.md)")
    for name, title, lines in broker_pages():
        yield name, page(title, lines)
        index.append(f"- [{title}]({name}.md)")
    index += ["", "## Classes", ""]
    for name, (title, modules) in CLASSES.items():
        yield name, page("", class_page(modules))
        index.append(f"- [{title}]({name}.md)")
    yield "errors", page("Errors", errors())
    index += ["", "## Errors", "", "- [Errors and Kafka's codes](errors.md)"]
    yield "README", page("", index)


def page(title: str, lines: Iterable[str]) -> str:
    text = "\n".join([MADE_BY, *([f"# {title}", ""] if title else []), *lines])
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes docs/reference/ from the sources.")
    parser.add_argument("--check", action="store_true", help="fail where a page differs")
    options = parser.parse_args()
    made = dict(pages())
    on_disk = {path.stem: path.read_text() for path in PAGES.glob("*.md")}
    stale = sorted(name for name in made.keys() | on_disk.keys() if made.get(name) != on_disk.get(name))
    if options.check:
        for name in stale:
            print(f"docs/reference/{name}.md is not what the sources say: run `make reference`", file=sys.stderr)
        return 1 if stale else 0
    PAGES.mkdir(exist_ok=True, parents=True)
    for name in stale:
        path = PAGES / f"{name}.md"
        path.write_text(made[name]) if name in made else path.unlink()
    print(f"{len(stale)} of {len(made)} pages written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
