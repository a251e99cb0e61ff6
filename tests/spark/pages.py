"""The commands of a page, and the output that the page shows.

A fenced block is a command if a comment before it names its kind of test; an `<!-- output -->` belongs to the last
command.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import sparklog

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TIMEOUT_S = 280
_BLOCK = re.compile(r"<!-- (output|test: [^>]*) -->\n```\w+\n(.*?)```", re.DOTALL)


class Block(NamedTuple):
    """A command of a page: its kind of test, its text, and its output."""

    kind: str
    text: str
    output: list[str]


def blocks(page: str, kind: str | None = None) -> list[Block]:
    """The commands of `docs/PAGE.md` in order; those of one kind only."""
    found: list[Block] = []
    for mark, text in _BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")):
        if mark == "output":
            found[-1].output.extend(text.splitlines())
        else:
            found.append(Block(mark.removeprefix("test: "), text, []))
    return [block for block in found if kind in (None, block.kind)]


def lines(blocks: list[Block]) -> list[str]:
    """Return the output of all of them."""
    return [line for block in blocks for line in block.output]


FREE_PORT = {"SPARK_TESTING": "1"}
"""With it a session of Spark Connect takes any free port, and not 15002."""


def environment(broker: sparklog.LocalBroker, **more: str) -> dict[str, str]:
    """A shell's in which `sparklog` and Spark are found, and which knows the broker."""
    kept = {name: value for name, value in os.environ.items() if name != "PYSPARK_DRIVER_PYTHON"}
    kept |= {"SPARK_CONF_DIR": str(ROOT / "conf")}
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    kept |= {"PATH": path, "PYSPARK_PYTHON": sys.executable}
    return kept | {"SPARKLOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers} | more


def shell(command: str, directory: Path, broker: sparklog.LocalBroker, **more: str) -> str:
    """Return the output of a command line. Fails the test if the command fails."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=directory,
        env=environment(broker, **more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def printed(output: str, wanted: list[str]) -> list[str]:
    """The lines of `output` that a page shows, in the order they came; spark-shell and spark-sql print others
    besides."""
    seen = [line.rsplit("\r", 1)[-1].strip() for line in output.splitlines()]
    return [line for line in seen if line in {line.strip() for line in wanted}]
