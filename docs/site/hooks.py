"""What the site adds to the Markdown in docs/: the pages at the repository's top, the files that they link to, the
reference.

Markdown in the repository links to files as they lie there, so that it also reads well without the site. Here every
such link is turned to the page that shows the file.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

import sparklog

ROOT = Path(__file__).resolve().parents[2]
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "vulnerabilities.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
"""Pages at the repository's top, and their names in the site."""
SHOWN = {
    ".py": "python",
    ".toml": "toml",
    ".conf": "properties",
    ".service": "ini",
    ".yml": "yaml",
    ".json": "json",
    "": "text",
}
"""Kinds of files that are shown as they are when a page links to them, and the language they are in."""
ORDER = (
    "index.md",
    "guide.md",
    "cluster.md",
    "operating.md",
    "security.md",
    "watching.md",
    "console.md",
    "moving-from-kafka.md",
    "sql.md",
    "scala-and-sql.md",
    "spark-connect.md",
    "declarative-pipelines.md",
    "databricks.md",
    "Notebooks",
    "reference.md",
    "benchmarks.md",
    "Benchmarks",
    "Internals",
)
"""Pages and sections in the order of the navigation; others follow by name."""
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    for name, page in TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for path in sorted(_linked_files()):
        language = SHOWN[path.suffix]
        body = f"# {path.name}\n\n```{language}\n{(ROOT / path).read_text(encoding='utf-8')}\n```\n"
        files.append(File.generated(config, f"files/{path.as_posix()}.md", content=body))
    files.append(File.generated(config, "reference.md", content=_reference()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links to files of the repository into links to their pages; what has no page stays as text."""
    here = page.file.src_uri
    source = next((name for name, site in TOP.items() if site == here), f"docs/{here}")

    def turned(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        site = TOP.get(found) or (found.removeprefix("docs/") if found.startswith("docs/") else f"files/{found}.md")
        if files.get_file_from_path(site) is None:
            return text
        return f"[{text}]({os.path.relpath(site, posixpath.dirname(here) or '.')}{anchor})"

    return _LINK.sub(turned, markdown)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Leaves the shown files out of the navigation, and puts the rest in order."""

    def place(item: Any) -> int:
        name = item.title if isinstance(item, Section) else item.file.src_uri
        return ORDER.index(name) if name in ORDER else len(ORDER)

    shown = (item for item in nav.items if not (isinstance(item, Section) and item.title == "Files"))
    nav.items = sorted(shown, key=place)
    return nav


def _linked_files() -> set[Path]:
    """Files of the repository, other than Markdown, that a page links to."""
    pages = [*(ROOT / name for name in TOP), *(ROOT / "docs").rglob("*.md")]
    found = set()
    for page in pages:
        for match in _LINK.finditer(page.read_text(encoding="utf-8")):
            path = (page.parent / match[2]).resolve()
            if path.is_file() and path.is_relative_to(ROOT) and path.suffix in SHOWN:
                found.add(path.relative_to(ROOT))
    return found


def _reference() -> str:
    """Every public name of the package `sparklog`."""
    where: dict[str, Any] = sparklog._WHERE
    parts = ["# API reference", "What `import sparklog` offers. Names are imported on their first use."]
    parts += [f"::: {module}.{name}" for name, module in where.items()]
    return "\n\n".join(parts) + "\n"
