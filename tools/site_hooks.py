"""What `mkdocs` does beside its own work: pages of the site that are not in docs/, and links to files that are no pages.

Rules
- A link in a page means what it means in the repository: it is resolved from where the file lies there, and becomes a link of the site.
- Pages of PROJECT come in as they are. A file that a page links to, and that is no page, becomes one under source/ when it is text,
  and is copied there when it is not. A folder is its README.md, or a page of the programs in it.
- What is not there, and what is outside of the repository, is left as it is: mkdocs says so, and `strict` makes it an error.
- Pages of LATER come in, and into the navigation, once they are there.
- A page that would load anything from another host ends the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from page_links import targets, with_targets

ROOT = Path(__file__).resolve().parents[1]
PROJECT = {
    "README.md": "project/README.md",
    "CHANGELOG.md": "project/CHANGELOG.md",
    "DESIGN.md": "project/DESIGN.md",
    "CONTRIBUTING.md": "project/CONTRIBUTING.md",
    "examples/pipeline/README.md": "project/pipeline.md",
    "examples/data/README.md": "project/data.md",
    "benchmarks/results/README.md": "project/measurements.md",
}
"""Pages outside of docs/: where they lie, and where the site has them."""
LATER = {"benchmarks/results/papers.md": ("project/papers.md", "What the classic texts measured")}
"""The same of pages that a bench of hours writes: with their place in the navigation, at the end of its last part."""
PROJECT |= {path: uri for path, (uri, _) in LATER.items() if (ROOT / path).is_file()}
LANGUAGES = {".py": "python", ".yml": "yaml", ".json": "json", ".service": "ini", "Containerfile": "docker"}
LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc\s*=\s*["']?(?:https?:)?//[^"'\s>]*"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref\s*=\s*["']?(?:https?:)?//[^"'\s>]*"""
)
BOOST = {"reference/": 2, "project/": 0.3}
"""Where what is looked for is likelier to be."""
TEXT_BYTES_MAX = 40_000


def place(path: str) -> str | None:
    """Where the site has a file or folder of the repository; None for what is not there."""
    if path in PROJECT:
        return PROJECT[path]
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        readme = f"{path}/README.md"
        return place(readme) if (ROOT / readme).is_file() else f"source/{path}.md"
    if not (ROOT / path).is_file():
        return None
    return f"source/{path}.md" if is_text(ROOT / path) else f"source/{path}"


def is_text(path: Path) -> bool:
    return path.stat().st_size <= TEXT_BYTES_MAX and language(path) is not None


def language(path: Path) -> str | None:
    return LANGUAGES.get(path.suffix) or LANGUAGES.get(path.name)


def resolved(target: str, page: str) -> tuple[str, str] | None:
    """The path in the repository that a link of a page means, and its anchor; None for what is elsewhere or in the page itself."""
    path, mark, anchor = target.partition("#")
    if not path or "://" in path or path.startswith(("mailto:", "/")):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)), mark + anchor


def source_page(path: str) -> str:
    """A file's text, or that of the programs of a folder."""
    here = ROOT / path
    files = sorted(here.glob("*.py")) if here.is_dir() else [here]
    lines = ["---", "search:", "  exclude: true", "---", f"# `{path}`", ""]
    for file in files:
        fence = [f"```{language(file)}", file.read_text(encoding="utf-8").rstrip(), "```", ""]
        lines += [f"## `{file.name}`", "", *fence] if len(files) > 1 else fence
    return "\n".join(lines)


def on_config(config: Any, **_: Any) -> Any:
    (last,) = config.nav[-1].values()
    last += [{title: uri} for path, (uri, title) in LATER.items() if path in PROJECT]
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """The pages and files that are not in docs/."""
    pages = {f"docs/{file.src_uri}": Path(file.abs_src_path) for file in files.documentation_pages()}  # type: ignore[arg-type]
    pages |= {path: ROOT / path for path in PROJECT}
    for path, uri in PROJECT.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    linked = {"examples/demo.py", "examples/delivery"}
    for page, at in pages.items():
        for target in targets(at.read_text(encoding="utf-8")):
            found = resolved(target, page)
            if found is not None:
                linked.add(found[0])
    for path in sorted(linked):
        uri = place(path)
        if uri is None or files.get_file_from_path(uri) is not None:
            continue
        if uri.endswith(".md"):
            files.append(File.generated(config, uri, content=source_page(path), inclusion=InclusionLevel.NOT_IN_NAV))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    page.meta.setdefault("search", {"boost": next((by for folder, by in BOOST.items() if uri.startswith(folder)), 1)})
    of_project = {there: here for here, there in PROJECT.items()}
    origin = of_project.get(uri, f"docs/{uri}")

    def new(target: str) -> str:
        found = resolved(target, origin)
        there = None if found is None else place(found[0])
        if found is None or there is None:
            return target
        return posixpath.relpath(there, posixpath.dirname(uri) or ".") + found[1]

    return with_targets(markdown, new)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    found = LOADS.search(output)
    if found is not None:
        raise PluginError(
            f"{page.file.src_uri} would load something from another host, and is to be read without any: {found[0]}"
        )
    return output
