"""Writes docs/reference/: every public class, setting, command, metric and error, from the sources themselves.

    python tools/generate_reference.py [--check]

Rules: nothing is said here that the code does not say: settings come from the tables that parsing reads, classes and errors from
their docstrings and signatures, as `help()` shows them, commands from their parsers,
metrics from the code that tells them. `--check` fails where a committed page differs, and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reference_classes import class_page
from reference_commands import fastq_broker_page, fastq_page
from reference_errors import errors
from reference_metrics import metrics
from reference_words import cell, code, table

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
    "mirror": ("Mirror", ("fastq.mirror",)),
    "spark": ("Spark", ("fastq.spark",)),
}
SHARED = "fastq.config:ClientConfig"
MIRROR = "fastq.mirror.config:MirrorOptions"
CLIENT_SETTINGS = {
    "producer-settings": ("Settings of a producer", "fastq.producer.config:ProducerConfig"),
    "consumer-settings": ("Settings of a consumer", "fastq.consumer.config:ConsumerConfig"),
    "admin-settings": ("Settings of an admin client", "fastq.admin:AdminConfig"),
    "client-settings": ("Settings of every client", SHARED),
    "mirror-settings": ("Settings of a mirror", MIRROR),
}


def load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def shown(value: object) -> str:
    if value == () or value is None:
        return "none" if value is None else "empty"
    return code(value) or "empty"


# -- settings


def client_settings(name: str) -> Iterator[str]:
    cls, shared = load(name), load(SHARED)
    defaults = {key: getattr(cls, key) for key in cls.options()}
    inherited = shared.options() if issubclass(cls, shared) and cls is not shared else {}
    if inherited:
        yield "Beside these it takes the [settings of every client](client-settings.md)."
        yield ""
    if name == MIRROR:
        yield "The table `[mirror]` of [its file](../guides/mirror.md). `[source]` and `[target]` have an `alias` and settings of clients."
    else:
        yield "Names with dots (`linger.ms`) are taken too, where settings come as a mapping."
    yield ""
    rows = (
        (f"`{key}`", cell(declared.doc), shown(defaults[key]), cell(declared.allowed()), aliases(declared.aliases))
        for key, declared in cls.options().items()
        if key not in inherited or inherited[key] != declared
    )
    yield from table(("setting", "what it does", "default", "allowed", "also called"), rows)
    for heading, found in (
        (
            "Names of older releases and of other clients",
            {key: old.told or f"use {old.today}" for key, old in cls.__dict__.get("RENAMED", {}).items()},
        ),
        ("Known, and without effect", cls.__dict__.get("IGNORED", {})),
        ("Refused", cls.__dict__.get("REFUSED", {})),
    ):
        if found:
            yield from ("", f"## {heading}", "")
            yield from table(("setting", ""), ((f"`{key}`", cell(why)) for key, why in sorted(found.items())))


def aliases(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# Headings of the broker's page, and the first words of the settings below each.
SECTIONS = {
    "The node and its listeners": "node broker process listeners listener advertised inter initial",
    "Connections and requests": "socket connections max queued fetch message",
    "Topics": "num.partitions default auto.create delete min",
    "Logs on disk": "log disk durability compression cordoned",
    "Groups": "group offsets offset",
    "Transactions and producers": "transaction transactional producer add",
    "Replication": "replica replication leader follower alter unclean num auto",
    "Controllers and metadata": "controller metadata non",
}


def server_settings(keys: Iterable[Any], sections: Mapping[str, str], dynamic: bool) -> Iterator[str]:
    """Those that do something, then other names of them, then those that are known and without effect."""
    from fastq_broker.config_keys import Status

    every = sorted(keys, key=lambda key: key.name)
    found: dict[str, list[list[str]]] = {}
    for key in every:
        if key.status is Status.DONE:
            allowed = key.check.allowed if key.check else key.type.name.lower()
            row = [f"`{key.name}`", cell(key.doc), shown(key.render(key.default)), cell(allowed)]
            section = section_of(key.name, sections) if sections else ""
            found.setdefault(section, []).append([*row, "yes" if key.dynamic else ""] if dynamic else row)
    head = ["setting", "what it does", "default", "allowed"]
    for heading in sections or ("",):
        if heading:
            yield from ("", f"## {heading}", "")
        yield from table([*head, "while it runs"] if dynamic else head, found[heading])
    mapped = [(f"`{key.name}`", cell(key.note.removeprefix("to "))) for key in every if key.status is Status.MAPPED]
    if mapped:
        yield from ("", "## Other names", "", "Names of Apache Kafka's that stand for one above.", "")
        yield from table(("setting", "stands for"), mapped)
    for protects, heading in (
        (True, "Known to Apache Kafka, and refused here unless `--insecure-ignore` names it: it would protect"),
        (False, "Known to Apache Kafka, and without effect here"),
    ):
        known = (key for key in every if key.status is Status.IGNORED and key.protects == protects)
        ignored = [(f"`{key.name}`", cell(key.note)) for key in known]
        if ignored:
            yield from ("", f"## {heading}", "")
            yield from table(("setting", "why"), ignored)


def with_mirror_sources(lines: Iterable[str]) -> Iterator[str]:
    """Settings of which the table has no rows, as their names are the users'."""
    from fastq_broker.config_mirror import DOC, PREFIX

    for line in lines:
        if line == "## Other names":
            yield from ("## Sources of mirrors", "")
            yield from table(("setting", "what it does", "default"), [(f"`{PREFIX}ALIAS.KEY`", cell(DOC), "none")])
            yield ""
        yield line


def section_of(name: str, sections: Mapping[str, str]) -> str:
    """The one with the longest beginning of the name. LookupError for a name that none has: it is to be put into SECTIONS."""
    fits = [
        (len(word), heading)
        for heading, words in sections.items()
        for word in words.split()
        if f"{name}.".startswith(f"{word}.")
    ]
    if not fits:
        raise LookupError(f"{name} is in no section of the broker's settings: add its first word to SECTIONS")
    return max(fits)[1]


def broker_pages() -> Iterator[tuple[str, str, str, Iterable[str]]]:
    from fastq_broker.config_table import BROKER_KEYS
    from fastq_broker.group_config import GROUP_KEYS
    from fastq_broker.topic_config import TOPIC_KEYS

    yield (
        "broker-settings", "Settings of the broker", "In the file of `--config`, and with `--set KEY=VALUE`. "
        "Those with a yes in the last column can be changed while it runs: `fastq configs set`. "
        "What holds in the end is shown by `fastq-broker --check-config`.",
        with_mirror_sources(server_settings(BROKER_KEYS.values(), SECTIONS, dynamic=True)),
    )  # fmt: skip
    yield (
        "topic-settings", "Settings of a topic", "Given to `fastq topics create --config KEY=VALUE`, and changed with "
        "`fastq configs set` while the broker runs. Where a topic has none, the broker's holds.",
        server_settings(TOPIC_KEYS.values(), {}, dynamic=False),
    )  # fmt: skip
    yield (
        "group-settings", "Settings of a group", "Of groups of the consumer protocol (KIP-848), changed with "
        "`fastq configs set`. Where a group has none, the broker's `group.NAME` holds; the broker's bounds always do.",
        server_settings(GROUP_KEYS.values(), {}, dynamic=False),
    )  # fmt: skip


def pages() -> Iterator[tuple[str, str]]:
    """Name and text of every page."""
    index = ["# Reference", "", "Made from the sources, which `help()` shows too.", "", "## Classes", ""]
    for name, (title, modules) in CLASSES.items():
        yield name, page("", class_page(modules))
        index.append(f"- [{title}]({name}.md): {listed('`' + source.partition(':')[0] + '`' for source in modules)}")
    index += ["", "## Settings", ""]
    for name, (title, source) in CLIENT_SETTINGS.items():
        yield name, page(title, client_settings(source))
        index.append(f"- [{title}]({name}.md)")
    for name, title, about, lines in broker_pages():
        yield name, page(title, [about, "", *lines])
        index.append(f"- [{title}]({name}.md)")
    index += ["", "## Commands", ""]
    for name, lines in (("fastq", fastq_page()), ("fastq-broker", fastq_broker_page())):
        yield name, page(f"The command `{name}`", lines)
        index.append(f"- [The command `{name}`]({name}.md)")
    yield "errors", page("Errors", errors())
    yield "metrics", page("Metrics", metrics())
    index += ["", "## Errors and metrics", ""]
    index += [
        "- [Errors and Kafka's codes](errors.md), each with its cause and what to do",
        "- [Metrics](metrics.md) for Prometheus",
    ]
    yield "README", page("", index)


def listed(names: Iterable[str]) -> str:
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} and {last}" if first else last


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
