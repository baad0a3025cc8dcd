"""The pages of the documentation hold together: links and anchors lead somewhere, the site's navigation has each, none is out of date."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from page_links import anchors, targets

ROOT = Path(__file__).resolve().parents[2]
LISTED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
    cwd=ROOT, capture_output=True, text=True, check=False,
).stdout.split()  # fmt: skip
# Without git, as in an archive of the sources: the folders that have pages.
FOLDERS = ("", "docs/**/", "examples/**/", "benchmarks/**/")
PAGES = sorted({*LISTED, *(str(path.relative_to(ROOT)) for folder in FOLDERS for path in ROOT.glob(f"{folder}*.md"))})
MAKES_REFERENCE = ROOT / "tools" / "generate_reference.py"


@cache
def anchors_of(path: Path) -> list[str]:
    return anchors(path.read_text(encoding="utf-8"))


def broken(page: Path) -> list[str]:
    found = []
    for target in targets(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or not there.is_relative_to(ROOT):
            found.append(f"{target}: no such file")
        elif anchor and (there.suffix != ".md" or anchor not in anchors_of(there)):
            found.append(f"{target}: no such heading")
    return found


def test_there_are_pages() -> None:
    assert {"README.md", "docs/index.md", "docs/tutorial.md", "docs/guides/broker.md", "docs/reference/errors.md"} <= {
        *PAGES
    }


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors_lead_somewhere(page: str) -> None:
    assert broken(ROOT / page) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_a_page_is_in_the_navigation_of_the_site_once(page: str) -> None:
    named = re.findall(
        rf"^ +- (?:.*: )?{re.escape(page.removeprefix('docs/'))}$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    )
    assert len(named) == 1, "mkdocs.yml: nav"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_title_and_no_anchor_twice(page: str) -> None:
    """GitHub and the site number the second one differently: a link to either would be right in one of them only."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = anchors_of(ROOT / page)
    assert len(found) == len({*found}) and not [
        each for each in found if re.search(r"-\d$", each) and each[:-2] in found
    ]
    assert re.search(r"^# ", text, re.MULTILINE)


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = ROOT / "docs" / "index.md"
    assert targets("[a](b.md) `[c](d.md)` ![e](f.png)\n```\n[g](h)\n```\n[i](j.md#k)") == ["b.md", "f.png", "j.md#k"]
    assert anchors("# A `b.c` (d)\n\n```\n# e\n```\n## A b-c\n") == ["a-bc-d", "a-b-c"]
    assert "a-heading-that-nobody-has" not in anchors_of(page)


def test_the_site_is_made_so_that_a_warning_ends_it() -> None:
    (command,) = re.findall(r"^\t.*mkdocs build.*$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "--strict" in command
    assert not re.search(r"build.* (-q|--quiet)\b", command), "quiet, it counts no warnings"


def test_the_reference_is_what_the_sources_say() -> None:
    done = subprocess.run(
        [sys.executable, str(MAKES_REFERENCE), "--check"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_figures_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench that was run anew leaves no older figure in a page: `python benchmarks/compare/report.py` writes them."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "compare")
    report = importlib.import_module("report")
    found, readme = report.load(), (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == report.with_figures(readme, found)
    assert (report.RESULTS / "README.md").read_text(encoding="utf-8") == report.page(found)
