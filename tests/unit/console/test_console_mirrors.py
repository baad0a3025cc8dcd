"""The pages of mirrors: what they show of a status, and of clusters that do not tell one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from console_served import Browser, Served, becomes

from fastq.console import mirrors
from fastq.console.config import ConsoleConfig, load_file
from fastq.console.users import Users
from fastq.errors import ConfigError, FastqError
from fastq.metadata import TopicPartition
from fastq.mirror import report
from fastq.mirror.config import MirrorConfig, parse_config
from fastq.mirror.report import MirrorStatus, PartitionStatus
from fastq.mirror.state import Stopped

EVIL = "<script>alert(1)</script>"


def config(**options: Any) -> MirrorConfig:
    sides = {
        side: {"alias": alias, "bootstrap.servers": "127.0.0.1:1"}
        for side, alias in (("source", "east"), ("target", "west"))
    }
    return parse_config({**sides, "mirror": {"topics": ["orders"], **options}})


def part(
    topic: str, number: int, lag: int | None, state: str = "mirrored", age_s: float | None = 0.0
) -> PartitionStatus:
    end = None if lag is None else 100 + lag
    return PartitionStatus(TopicPartition(topic, number), f"east.{topic}", 100, end, lag, age_s, 12.4, state, None)


GOOD = MirrorStatus(
    [part("orders", 0, 5, age_s=3.2), part("orders", 1, 1_000, age_s=130.0), part("pub-a", 0, 0)], {}, None, 0.5
)
BAD = MirrorStatus(
    [part("orders", 0, 5), part("orders", 1, None, f"unknown: {EVIL}", None), part("pub-a", 0, 7)._replace(gap=(3, 9))],
    {"lost": EVIL},
    Stopped(1_767_225_600_000, {}),
    None,
)


class FakeWatch:
    """Says what a test has put here."""

    says: MirrorStatus | Exception = GOOD
    waits: threading.Event | None = None
    made: int = 0
    closed: int = 0

    def __init__(self, _config: MirrorConfig) -> None:
        FakeWatch.made += 1

    def begin(self) -> None:
        pass

    def look(self) -> MirrorStatus:
        if FakeWatch.waits is not None:
            FakeWatch.waits.wait(20)
        if isinstance(FakeWatch.says, Exception):
            raise FakeWatch.says
        return FakeWatch.says

    def close(self) -> None:
        FakeWatch.closed += 1


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeWatch]]:
    monkeypatch.setattr(report, "Watch", FakeWatch)
    monkeypatch.setattr(mirrors, "RATES_S", 0.0)
    monkeypatch.setattr(mirrors, "LOOK_S", 0.0)
    FakeWatch.says, FakeWatch.waits, FakeWatch.made, FakeWatch.closed = GOOD, None, 0, 0
    yield FakeWatch
    if FakeWatch.waits is not None:
        FakeWatch.waits.set()


def test_a_mirror_is_shown(served: Callable[..., Served]) -> None:
    console = served(mirrors={"east-west": config()})
    with Browser(console.url) as browser:
        listed = browser.get("/mirrors").text
        assert (
            ">east-west<" in listed
            and '<td class="n">1,005</td><td class="n">2 min</td>' in listed
            and ">mirrors<" in listed
        )
        page = browser.get("/mirrors/east-west").text
        assert (
            "<dd>1,005</dd>" in page
            and "0.5 s old" in page
            and "east.orders" in page
            and "under prefixed names" in page
        )
        # The one that is furthest behind comes first.
        assert page.index('<td class="n">1,000</td>') < page.index('<td class="n">5</td>')
        assert browser.get("/mirrors/east-west/lag").json()["value"] == 1_005
        assert browser.get("/mirrors/nowhere").status_code == 400
        assert browser.get("/mirrors/east-west?sort=x").status_code == 400
        assert 'href="/mirrors"' in browser.get("/c/test").text
        assert FakeWatch.made == 1


def test_what_is_wrong_with_one_is_told(served: Callable[..., Served], watch: type[FakeWatch]) -> None:
    watch.says = BAD
    with Browser(served(mirrors={"m": config(names="identity")}).url) as browser:
        listed, page = browser.get("/mirrors").text, browser.get("/mirrors/m").text
        assert "failed over" in listed and "failed over at 2026-01-01 00:00:00.000" in page
        assert "Topics that are not mirrored" in page and "unknown: &lt;script&gt;" in page and EVIL not in page
        assert "offsets 3 to 9 were missing" in page and "<dt>Lag, in records</dt><dd>–</dd>" in page
        assert browser.get("/mirrors/m/lag").status_code == 503  # less than all is no number for a chart
        watch.says = ConfigError(
            "there is no topic fastq-mirror.east.internal in west: no mirror from east has run there"
        )
        assert becomes(lambda: "no mirror from east has run there" in browser.get("/mirrors/m").text)
        assert "no mirror from east has run there" in browser.get("/mirrors").text
        watch.says = ValueError("secret")
        assert becomes(lambda: "its log says what" in browser.get("/mirrors/m").text)
        watch.says = GOOD
        assert becomes(lambda: "<dd>1,005</dd>" in browser.get("/mirrors/m").text)
        assert watch.made >= 2 and watch.closed >= 1  # new connections after a failure


def test_a_look_that_takes_long_holds_nobody_up(
    served: Callable[..., Served], watch: type[FakeWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "FIRST_S", 0.1)
    monkeypatch.setattr(mirrors, "LATE_S", 0.2)
    watch.waits = threading.Event()
    with Browser(served(mirrors={"m": config()}).url) as browser:
        for _ in range(3):
            assert "Nothing is known yet" in browser.get("/mirrors/m").text
        assert "not known yet" in browser.get("/mirrors").text and browser.get("/mirrors/m/lag").status_code == 503
        assert watch.made == 1 and browser.get("/c/test").status_code == 200
        watch.waits.set()
        assert becomes(lambda: "<dd>1,005</dd>" in browser.get("/mirrors/m").text)
        # A cluster stands still later: what is shown is told to be old, and is no number for a chart.
        watch.waits = threading.Event()
        assert becomes(lambda: "does not answer: what follows is" in browser.get("/mirrors/m").text)
        assert "not heard of for" in browser.get("/mirrors").text and browser.get("/mirrors/m/lag").status_code == 503
        watch.waits.set()
        watch.waits = None
        assert becomes(lambda: browser.get("/mirrors/m/lag").status_code == 200)


def test_users_see_their_topics(served: Callable[..., Served], users: Users, watch: type[FakeWatch]) -> None:
    watch.says = BAD
    with Browser(served(mirrors={"m": config()}, users=users).url) as browser:
        assert browser.get("/mirrors").status_code == 303
        browser.log_in("vera", "veravera")  # pub-* alone
        page = browser.get("/mirrors/m").text
        assert "east.pub-a" in page and "orders" not in page and "lost" not in page
        assert browser.get("/mirrors/m/lag").json()["value"] == 7


def test_none_is_no_page_of_its_own(browser: Browser) -> None:
    assert "told of no mirror" in browser.get("/mirrors").text and 'href="/mirrors"' not in browser.get("/c/test").text


def test_the_file_names_mirrors(tmp_path: Path) -> None:
    mirror, path = tmp_path / "mirror.toml", tmp_path / "console.toml"
    sides = (
        '[source]\nalias = "east"\n"bootstrap.servers" = "e:1"\n[target]\nalias = "west"\n"bootstrap.servers" = "w:1"\n'
    )
    mirror.write_text(sides + '[mirror]\ntopics = ["a"]\nnames = "identity"\n')
    clusters = '[clusters.a]\nbootstrap = "x:1"\n'
    path.write_text(
        f'{clusters}[mirrors.there]\nconfig = "{mirror}"\n[mirrors.back]\nconfig = "{mirror}"\nreverse = true\n'
    )
    found = load_file(path).mirrors
    assert [(name, one.source.alias) for name, one in found.items()] == [("there", "east"), ("back", "west")]
    assert ConsoleConfig((), mirrors=found).mirrors is found
    for text, words in (
        ("[mirrors.a]", "config = "),
        ('[mirrors.a]\nconfig = "x"\nurl = "y"', "url is not known"),
        ('[mirrors."a/b"]\nconfig = "x"', "letters, digits"),
        (f'[mirrors.a]\nconfig = "{path}"', "console.toml"),
        ('[mirrors.a]\nconfig = "x"\nreverse = 1', "reverse = true"),
    ):
        path.write_text(clusters + text)
        with pytest.raises(FastqError, match=words):
            load_file(path)
