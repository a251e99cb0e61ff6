"""Pages that the site has beside the Markdown in docs/: those at the repository's top, the linked files, the reference.

Markdown in the repository links to files by their paths, so that it also reads well without the site. Here every such
link is turned to the page that shows the file.
"""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import sparklog
import sparklog.testing

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
"""Language of each kind of file that gets a page of its own when another page links to the file."""
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, page in TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for path in sorted(_linked_files()):
        language = SHOWN[path.suffix]
        body = f"# {path.name}\n\n```{language}\n{(ROOT / path).read_text(encoding='utf-8')}\n```\n"
        files.append(File.generated(config, f"files/{path.as_posix()}.md", content=body))
    files.append(File.generated(config, "reference.md", content=_reference()))
    notebooks = _notebooks()
    for name in notebooks.NOTEBOOKS:
        files.append(File.generated(config, f"notebooks/{name}.ipynb", content=notebooks.site_ipynb(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to their pages; a link to a file without a page becomes text."""
    here = page.file.src_uri
    if files.get_file_from_path(notebook := f"{here.removesuffix('.md')}.ipynb") is not None:
        file = posixpath.basename(notebook)
        title, _, rest = markdown.partition("\n")
        markdown = f"{title}\n\n[Download as a Jupyter notebook]({file})\n{rest}"
    source = next((name for name, site in TOP.items() if site == here), f"docs/{here}")

    def turned(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        site = TOP.get(found) or (found.removeprefix("docs/") if found.startswith("docs/") else f"files/{found}.md")
        if files.get_file_from_path(site) is None:
            return text
        return f"[{text}]({os.path.relpath(site, posixpath.dirname(here) or '.')}{anchor})"

    return _LINK.sub(turned, markdown)


def _notebooks() -> ModuleType:
    """Return the generator of the notebooks' pages."""
    spec = importlib.util.spec_from_file_location("generate_notebooks", ROOT / "docs" / "generate_notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _linked_files() -> set[Path]:
    """Return the files of the repository, except Markdown, that a page links to."""
    pages = [*(ROOT / name for name in TOP), *(ROOT / "docs").rglob("*.md")]
    found = set()
    for page in pages:
        for match in _LINK.finditer(page.read_text(encoding="utf-8")):
            path = (page.parent / match[2]).resolve()
            if path.is_file() and path.is_relative_to(ROOT) and path.suffix in SHOWN:
                found.add(path.relative_to(ROOT))
    return found


def _reference() -> str:
    """Return the page with every public name of the packages `sparklog` and `sparklog.testing`."""
    where: dict[str, Any] = sparklog._WHERE
    parts = ["# API reference", "All names that `import sparklog` offers. A name is imported on its first use."]
    parts += [f"::: {module}.{name}" for name, module in where.items()]
    parts += ["# The test kit", "All names of `sparklog.testing`; its fixtures are on the page about tests."]
    parts += [f"::: sparklog.testing.{module}.{name}" for name, module in sparklog.testing._WHERE.items()]
    return "\n\n".join(parts) + "\n"
