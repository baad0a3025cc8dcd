"""Pictures of the console's main pages, made by Chromium without a screen: what the documentation shows, and what a change is looked at by.

    python tools/console_pictures.py [FOLDER] [--chromium PATH]        (default: docs/guides/console)

Rules: two brokers, a mirror between them and a console are started here, with records that are the same each time; Chromium comes from
Debian's package `chromium`. The pages are those of PAGES; into a folder they are made all, on a desk in light colours and on a phone in
dark ones, for looking; the documentation has those of IN_DOCUMENTATION.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fastq import Admin, Producer, TopicPartition
from fastq.admin import NewTopic
from fastq.errors import FastqError
from fastq.mirror.config import load_config
from fastq.mirror.report import status
from fastq.schema_registry import Schema, SchemaRegistryClient
from fastq.testing import Broker, SchemaRegistry

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTED = ROOT / "docs" / "guides" / "console"
# name -> path, width, height, arguments of Chromium's own
PAGES: dict[str, tuple[str, int, int, tuple[str, ...]]] = {
    "overview": ("/c/cluster", 1000, 560, ()),
    "records": ("/c/cluster/topics/orders/records?partition=0&limit=8", 1200, 680, ()),
    "group": ("/c/cluster/group?id=billing", 1000, 560, ()),
    "topics": ("/c/cluster/topics", 1000, 560, ()),
    "topic": ("/c/cluster/topics/orders", 1000, 900, ()),
    "offsets": ("/c/cluster/topics/orders/offsets", 1000, 620, ()),
    "replicas": ("/c/cluster/topics/orders/replicas", 1000, 560, ()),
    "settings": ("/c/cluster/topics/orders/settings", 1000, 1_700, ()),
    "proposal": ("/c/cluster/partitions/proposal", 1000, 700, ()),
    "schemas": ("/c/cluster/schemas", 1000, 400, ()),
    "schema": ("/c/cluster/schema?id=orders-value&version=2&with=1", 1000, 900, ()),
    "acls": ("/c/cluster/acls", 1000, 300, ()),
    "users": ("/c/cluster/users", 1000, 400, ()),
    "quotas": ("/c/cluster/quotas", 1000, 400, ()),
    "audit": ("/audit", 1000, 400, ()),
    "groups": ("/c/cluster/groups", 1000, 560, ()),
    "resets": ("/c/cluster/groups/reset?group=billing&group=shipping", 1000, 700, ()),
    "partitions": ("/c/cluster/partitions", 1000, 700, ()),
    "produce": ("/c/cluster/topics/orders/produce?partition=0&offset=3", 1000, 900, ()),
    "copy": ("/c/cluster/topics/orders/copy", 1000, 900, ()),
    "transactions": ("/c/cluster/transactions", 1000, 560, ()),
    "node": ("/c/cluster/nodes/1", 1000, 700, ()),
    "mirrors": ("/mirrors", 1000, 400, ()),
    "mirror": ("/mirrors/east-west", 1000, 760, ()),
    "error": ("/c/cluster/topics/none", 1000, 400, ()),
}
IN_DOCUMENTATION = ("overview", "records", "group", "mirror")
PHONE = (500, 1_000, ("--force-dark-mode", "--enable-features=WebContentsForceDark:inversion_method/none"))
MIRROR_S = 60.0


def fill(servers: str) -> None:
    """Topics, records and groups to look at."""
    with Admin(bootstrap_servers=servers) as admin:
        names = ["orders", "payments", "clicks", "invoices", "shipments", "users"]
        admin.create_topics([NewTopic(name=name, partitions=3) for name in names]).results()
        with Producer(bootstrap_servers=servers) as producer:
            for n in range(600):
                order = {"id": n, "customer": {"name": f"c{n % 97}"}, "total": n * 7919 % 10_000 / 100}
                producer.send(
                    names[n % 3],
                    json.dumps(order).encode(),
                    key=b"k%d" % (n % 97),
                    headers=[("trace", b"t%d" % n)],
                    timestamp_ms=1_767_225_600_000 + n * 1000,
                )
        offsets = {TopicPartition(name, index): 20 + index for name in names[:2] for index in range(3)}
        admin.alter_group_offsets("billing", offsets).results()
        admin.alter_group_offsets("shipping", {TopicPartition("shipments", 0): 0}).results()


def fill_registry(url: str) -> None:
    """A subject of two versions."""
    client = SchemaRegistryClient(url)
    fields: list[dict[str, object]] = [{"name": "id", "type": "long"}, {"name": "total", "type": "double"}]
    for more in ([], [{"name": "currency", "type": "string", "default": "EUR"}]):
        order = {"type": "record", "name": "Order", "fields": [*fields, *more]}
        client.register("orders-value", Schema(json.dumps(order)))


def settings(folder: Path, servers: str, other: str, registry: str) -> tuple[Path, Path]:
    """The files of the console and of the mirror."""
    console, mirror = folder / "console.toml", folder / "mirror.toml"
    sides = (("source", "east", servers), ("target", "west", other))
    tables = [f'[{side}]\nalias = "{alias}"\n"bootstrap.servers" = "{where}"\n' for side, alias, where in sides]
    mirror.write_text("".join(tables) + '[mirror]\ntopics = ["orders", "payments"]\n')
    clusters = f'[clusters.cluster]\nbootstrap = "{servers}"\nschema_registry = "{registry}"\n'
    console.write_text(f'{clusters}[mirrors.east-west]\nconfig = "{mirror}"\n')
    return console, mirror


@contextmanager
def mirrored(config: Path) -> Iterator[None]:
    """A mirror that runs, once it has copied everything that there was."""
    process = subprocess.Popen([sys.executable, "-m", "fastq", "mirror", "--config", str(config)])
    try:
        end = time.monotonic() + MIRROR_S
        while not _caught_up(config):
            if time.monotonic() > end:
                raise SystemExit(f"the mirror has not copied everything within {MIRROR_S:.0f} s")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def _caught_up(config: Path) -> bool:
    try:
        found = status(load_config(config), 0.5).partitions
    except FastqError:  # it has not begun
        return False
    return len(found) > 6 and all(part.lag == 0 for part in found)


def take(chromium: str, url: str, path: Path, width: int, height: int, more: tuple[str, ...]) -> None:
    """A picture of a page; what runs in it has four seconds of its own time."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
                "--virtual-time-budget=4000", f"--window-size={width},{height}", *more, f"--screenshot={path}", url,
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures of the console's main pages.")
    parser.add_argument(
        "folder", nargs="?", type=Path, help="for all pages; without it, those of the documentation, into it"
    )
    parser.add_argument(
        "--chromium", default=shutil.which("chromium"), help="the browser (default: chromium on the path)"
    )
    options = parser.parse_args()
    if options.chromium is None:
        raise SystemExit("there is no chromium on the path: apt-get install chromium, or --chromium PATH")
    folder, names = (options.folder, tuple(PAGES)) if options.folder else (DOCUMENTED, IN_DOCUMENTATION)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker, other = (stack.enter_context(Broker(data / side)) for side in ("east", "west"))
        fill(broker.bootstrap_servers)
        registry = stack.enter_context(SchemaRegistry())
        fill_registry(registry.url)
        console, mirror = settings(data, broker.bootstrap_servers, other.bootstrap_servers, registry.url)
        stack.enter_context(mirrored(mirror))
        command = [sys.executable, "-m", "fastq", "console", "--listen", "127.0.0.1:0", "--config", str(console)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1].rstrip("/")
            for name in names:
                path, width, height, more = PAGES[name]
                take(options.chromium, url + path, folder / f"{name}.png", width, height, more)
                print(folder / f"{name}.png")
                if options.folder:
                    take(options.chromium, url + path, folder / f"{name}-phone.png", *PHONE)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


if __name__ == "__main__":
    main()
