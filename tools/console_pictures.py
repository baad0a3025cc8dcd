"""Pictures of the console's main pages, made by Chromium without a screen: what the documentation shows, and what a change is looked at by.

    python tools/console_pictures.py [FOLDER] [--chromium PATH]        (default: docs/guides/console)

Rules: broker and console are started here, with records that are the same each time; Chromium comes from Debian's package `chromium`.
The pages are those of PAGES; `phone` and `dark` are for looking, the documentation has the others.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from fastq import Admin, Producer, TopicPartition
from fastq.admin import NewTopic
from fastq.testing import Broker

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTED = ROOT / "docs" / "guides" / "console"
# name -> path, width, height, arguments of Chromium's own
PAGES: dict[str, tuple[str, int, int, tuple[str, ...]]] = {
    "overview": ("/c/cluster", 1000, 560, ()),
    "records": ("/c/cluster/topics/orders/records?partition=0&limit=8", 1200, 680, ()),
    "group": ("/c/cluster/group?id=billing", 1000, 560, ()),
    "topics": ("/c/cluster/topics", 1000, 560, ()),
    "topic": ("/c/cluster/topics/orders", 1000, 1_700, ()),
    "phone": ("/c/cluster/topics", 500, 800, ()),
    "dark": ("/c/cluster/topics/orders", 1000, 800, ("--force-dark-mode",)),
}
IN_DOCUMENTATION = ("overview", "records", "group")


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
    with tempfile.TemporaryDirectory() as data, Broker(Path(data) / "data") as broker:
        fill(broker.bootstrap_servers)
        command = [sys.executable, "-m", "fastq", "console", "--listen", "127.0.0.1:0"]
        command += ["--bootstrap", broker.bootstrap_servers]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1].rstrip("/")
            for name in names:
                path, width, height, more = PAGES[name]
                take(options.chromium, url + path, folder / f"{name}.png", width, height, more)
                print(folder / f"{name}.png")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


if __name__ == "__main__":
    main()
