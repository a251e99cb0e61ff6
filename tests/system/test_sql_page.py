"""The page on SQL: its commands print the output that it shows.

`python -m tests.system.test_sql_page` writes their present output into the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import sparklog

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "sql.md"
SHELL = re.compile(r"<!-- test: sh -->\n```sh\n(.*?)```", re.DOTALL)
CONSOLE = re.compile(r"(?<=<!-- test: console -->\n```console\n).*?(?=```)", re.DOTALL)
PYTHON = re.compile(
    r"(?<=<!-- test: python -->\n```python\n)(.*?)```(.*?<!-- test: printed -->\n```text\n)(.*?)(?=```)", re.DOTALL
)


class Page:
    """Runs the page's commands against a broker."""

    def __init__(self, broker: sparklog.LocalBroker, directory: Path) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = os.environ | {
            "PATH": path, "SPARKLOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "COLUMNS": "200", "NO_COLOR": "1",
        }  # fmt: skip
        self._directory = directory

    def shell(self, command: str) -> str:
        """Return the output of a command, on both streams."""
        return subprocess.run(
            ["bash", "-c", command], cwd=self._directory, env=self._environment, text=True, timeout=100, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ).stdout  # fmt: skip

    def transcript(self, shown: str) -> str:
        """Return a console's commands, each with its output."""
        commands = [line[2:] for line in shown.splitlines() if line.startswith("$ ")]
        return "".join(f"$ {command}\n{self.shell(command)}" for command in commands)

    def as_it_is(self, text: str) -> str:
        """Return the page with the present output of its commands."""
        for command in SHELL.findall(text):
            self.shell(command)
        text = CONSOLE.sub(lambda m: self.transcript(m.group()), text)
        return PYTHON.sub(lambda m: f"{m[1]}```{m[2]}" + self.python(m[1]), text)

    def python(self, program: str) -> str:
        (self._directory / "page.py").write_text(program, encoding="utf-8")
        return self.shell(f"{sys.executable} page.py")


def printed(directory: Path) -> str:
    with sparklog.start_local(directory / "broker") as broker:
        return Page(broker, directory).as_it_is(PAGE.read_text(encoding="utf-8"))


def test_the_page_shows_the_output_of_its_commands(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    text = PAGE.read_text(encoding="utf-8")
    assert len(SHELL.findall(text)) == 1
    assert len(CONSOLE.findall(text)) >= 3
    assert len(PYTHON.findall(text)) == 1
    assert printed(tmp_path).splitlines() == text.splitlines()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PAGE.write_text(printed(Path(made)), encoding="utf-8")
