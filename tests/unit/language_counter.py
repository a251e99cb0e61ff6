"""Counts of private language in docstrings and pages: clauses with "what" and "who" in the place of nouns."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("sparklog", "broker_daemon", "datasource")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs")
OPENINGS = {"what", "who", "whoever", "whether", "how", "when", "where"}
"""Words that begin a clause in the place of a noun: no docstring begins with one."""
_RELATIVE = re.compile(r"\b(?:what|who|whoever|whatever)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"[^.!?]*[.!?]|[^.!?]+\Z")
_CODE = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|<!--.*?-->", re.DOTALL)


class Count(NamedTuple):
    """The language of one file."""

    words: int
    relatives: int
    """Free relatives outside of questions."""
    openings: int
    """Docstrings whose first word is in `OPENINGS`; headings of a page."""

    @property
    def per_100_words(self) -> float:
        return 100 * self.relatives / self.words if self.words else 0.0


def count_text(text: str) -> tuple[int, int]:
    """The words of a text without its code, and the free relatives among them."""
    prose = _CODE.sub(" ", text)
    relatives = 0
    for sentence in _SENTENCE.findall(prose):
        if not sentence.rstrip().endswith("?"):
            relatives += len(_RELATIVE.findall(sentence))
    return len(re.findall(r"[A-Za-z][\w'’-]*", prose)), relatives


def docstrings(source: str) -> list[str]:
    """All docstrings of a module, those of attributes included."""
    found = []
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for before, statement in zip([None, *body], body, strict=False):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_text or not isinstance(statement.value.value, str):
                continue
            if (before is None and isinstance(node, owners)) or isinstance(before, ast.Assign | ast.AnnAssign):
                found.append(statement.value.value)
    return found


def count_file(path: Path) -> Count:
    """The language of a module's docstrings, or of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        texts = docstrings(text)
        openings = sum((re.findall(r"\w+", t.lower()) or [""])[0] in OPENINGS for t in texts)
        counts = [count_text(t) for t in texts]
        return Count(sum(c[0] for c in counts), sum(c[1] for c in counts), openings)
    return Count(*count_text(text), 0)


def files() -> dict[str, Path]:
    """Product modules and pages, by their path in the repository. Generated pages of notebooks are left out."""
    paths = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    for name in PAGES:
        place = ROOT / name
        paths += place.rglob("*.md") if place.is_dir() else [place]
    named = {path.relative_to(ROOT).as_posix(): path for path in sorted(paths)}
    return {name: path for name, path in named.items() if not name.startswith(("docs/notebooks/", "docs/site/"))}
