"""Runs the notebooks and writes docs/notebooks/: their texts, their code, and below each cell what it printed.

    python docs/generate_notebooks.py [NAME…]      (`make notebooks`)
    python docs/generate_notebooks.py --jupyter DIRECTORY

The second form writes each notebook as a Jupyter file, with the outputs of its page, and runs nothing. The site offers
the same files.

What differs from run to run (the broker's port) is masked by `stable`, so that a test can hold a page against a run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "notebooks"
NOTEBOOKS = (
    "quickstart",
    "moving_from_kafka",
    "exactly_once",
    "windows_joins_state",
    "pandas_polars_duckdb",
    "into_the_lake",
    "kafka_to_delta",
)
ENVIRONMENT = {
    "SPARK_CONF_DIR": str(ROOT / "conf"),
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "PYSPARK_PYTHON": sys.executable,
}
"""What makes short runs shorter: the settings that the guide advises, and a JVM that compiles less."""
SEPARATOR = "# COMMAND ----------"
OUTPUT = "<!-- output -->\n"


def cells(text: str) -> list[str]:
    """The cells of a notebook in Databricks' source format."""
    head, *rest = text.split(SEPARATOR)
    return [cell.strip("\n") for cell in (head.removeprefix("# Databricks notebook source\n"), *rest)]


def is_text(cell: str) -> bool:
    """Whether a cell is Markdown."""
    return cell.lstrip().startswith("# MAGIC %md")


def markdown(cell: str) -> str:
    """The Markdown of a text cell."""
    lines = cell.splitlines()[1:]
    return "\n".join(line.removeprefix("# MAGIC").removeprefix(" ") for line in lines)


def page(name: str, text: str, outputs: dict[int, str]) -> str:
    """A notebook as a page; `outputs` are what its cells printed, by their number."""
    source = f"[notebooks/{name}.py](../../notebooks/{name}.py)"
    parts = []
    for number, cell in enumerate(cells(text)):
        if is_text(cell):
            parts.append(markdown(cell))
            if number == 0:
                parts.append(f"This page is {source} with what a run of it printed.")
            continue
        parts.append(f"```python\n{cell}\n```")
        if printed := outputs.get(number, "").strip("\n"):
            parts.append(f"{OUTPUT}```text\n{printed}\n```")
    return "\n\n".join(parts) + "\n"


def outputs_of(text: str, page_text: str) -> dict[int, str]:
    """The outputs that a notebook's page shows, by the number of their cell. The page has the notebook's cells."""
    outputs: dict[int, str] = {}
    at = 0
    for number, cell in enumerate(cells(text)):
        if is_text(cell):
            continue
        block = f"```python\n{cell}\n```\n"
        at = page_text.index(block, at) + len(block)
        shown = re.compile(r"\n" + re.escape(OUTPUT) + r"```text\n(.*?)\n```\n", re.DOTALL).match(page_text, at)
        if shown is not None:
            outputs[number], at = shown[1] + "\n", shown.end()
    return outputs


def ipynb(text: str, outputs: dict[int, str]) -> str:
    """A notebook as a Jupyter file; `outputs` are what its cells printed, by their number."""
    made: list[dict[str, Any]] = []
    for number, cell in enumerate(cells(text)):
        common = {"id": f"cell-{number}", "metadata": {}}
        if is_text(cell):
            made.append({"cell_type": "markdown", **common, "source": markdown(cell)})
            continue
        printed = outputs.get(number, "")
        shown = [{"output_type": "stream", "name": "stdout", "text": printed}] if printed else []
        made.append({"cell_type": "code", **common, "source": cell, "execution_count": None, "outputs": shown})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def site_ipynb(name: str) -> str:
    """A notebook as a Jupyter file with the outputs of its page."""
    text = (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
    return ipynb(text, outputs_of(text, (PAGES / f"{name}.md").read_text(encoding="utf-8")))


def shown_outputs(text: str) -> str:
    """All outputs of a page, one after the other."""
    return "\n".join(re.findall(re.escape(OUTPUT) + r"```text\n(.*?)\n```", text, re.DOTALL))


def without_outputs(text: str) -> str:
    """A page as if nothing had been printed."""
    return re.sub(r"\n" + re.escape(OUTPUT) + r"```text\n.*?\n```\n", "", text, flags=re.DOTALL)


def stable(printed: str) -> list[str]:
    """The lines of an output without what differs from run to run, and without empty lines."""
    masked = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", printed)
    masked = re.sub(r"[\d,]+ bytes", "N bytes", masked)
    return [line.rstrip() for line in masked.splitlines() if line.strip()]


def run_cells(name: str) -> dict[int, str]:
    """Runs a notebook's cells in this process, in a directory of its own; what each printed."""
    text = (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
    outputs: dict[int, str] = {}
    namespace = {"__name__": "__main__"}
    for number, cell in enumerate(cells(text)):
        if is_text(cell):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(cell, f"{name}, cell {number}", "exec"), namespace)
        outputs[number] = printed.getvalue()
    return outputs


def write(name: str) -> None:
    """Runs a notebook and writes its page."""
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        outputs = run_cells(name)
    text = (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
    PAGES.mkdir(exist_ok=True)
    (PAGES / f"{name}.md").write_text(page(name, text, outputs), encoding="utf-8")
    print(f"wrote docs/notebooks/{name}.md", file=sys.stderr)


def write_jupyter(directory: Path) -> None:
    """Write every notebook as a Jupyter file."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in NOTEBOOKS:
        (directory / f"{name}.ipynb").write_text(site_ipynb(name), encoding="utf-8")


def main() -> None:
    if sys.argv[1:2] == ["--jupyter"]:
        write_jupyter(Path(sys.argv[2]))
        return
    wanted = sys.argv[1:] or NOTEBOOKS
    if len(wanted) == 1:
        write(wanted[0])
        return
    for name in wanted:  # a session of Spark for each, in a process of its own
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
