"""The options of `sparklog` commands in pages, help texts and messages exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from sparklog.cli.app import app

ROOT_COMMAND: Any = typer.main.get_command(app)
ROOT = Path(__file__).resolve().parents[3]
COMMAND = re.compile(r"(?<![\w./'-])sparklog ((?:[a-z][\w-]*[ |]?)+)([^`\n;]*)")


def texts_of_pages() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield str(page.relative_to(ROOT)), re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))


def texts_of_code() -> Iterator[tuple[str, str]]:
    """Yield the literals of each module. Values in them are X."""
    for folder in ("sparklog", "broker_daemon", "datasource"):
        for module in sorted((ROOT / folder).rglob("*.py")):
            source = module.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(source)) if "sparklog " in source else ():
                if isinstance(node, ast.JoinedStr):
                    parts = [str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values]
                    yield str(module.relative_to(ROOT)), "".join(parts)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield str(module.relative_to(ROOT)), node.value


def missing_options(text: str) -> Iterator[str]:
    """Yield the options of commands that the commands do not have."""
    for match in COMMAND.finditer(text):
        command, shown = ROOT_COMMAND, "sparklog"
        for word in match[1].split():
            inner = getattr(command, "commands", {}).get(word)
            if inner is None:
                break
            command, shown = inner, f"{shown} {word}"
        if hasattr(command, "commands"):
            continue  # several commands, as in `sparklog acl add|remove`
        options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", re.split(r" \| | && | then `?sparklog", match[2])[0]):
            if option not in options:
                yield f"{shown} {option}"


def test_the_options_of_commands_in_pages_exist() -> None:
    missing = {f"{page}: {option}" for page, text in texts_of_pages() for option in missing_options(text)}
    assert not missing


def test_the_options_of_commands_in_help_texts_and_messages_exist() -> None:
    missing = {f"{module}: {option}" for module, text in texts_of_code() for option in missing_options(text)}
    assert not missing


def test_an_option_that_does_not_exist_is_noticed() -> None:
    text = "`sparklog topic alter T --add-columns 'a INT'`; `sparklog topic alter T --add-column 'a INT' --config a=b`"
    assert list(missing_options(text)) == ["sparklog topic alter --add-columns"]
