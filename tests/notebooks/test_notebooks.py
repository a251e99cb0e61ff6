"""The notebooks run from top to bottom as programs, and their pages show their output."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jupytext
import nbformat
import pytest

from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(900)
TIMEOUT_S = 880
NOTEBOOKS = sorted(
    path.stem for path in (ROOT / "notebooks").glob("*.py") if path.read_text().startswith("# Databricks")
)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_notebooks", ROOT / "docs" / "generate_notebooks.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source(name: str) -> str:
    return (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8")


def shown(name: str) -> str:
    return (ROOT / "docs" / "notebooks" / f"{name}.md").read_text(encoding="utf-8")


def test_every_notebook_has_a_page(generator: ModuleType) -> None:
    assert sorted(generator.NOTEBOOKS) == NOTEBOOKS
    assert sorted(path.stem for path in (ROOT / "docs" / "notebooks").glob("*.md")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_a_notebook_in_databricks_format(generator: ModuleType, name: str) -> None:
    assert source(name).startswith("# Databricks notebook source\n")
    cells = generator.cells(source(name))
    for cell in cells:
        if "# MAGIC" in cell:
            assert cell.splitlines()[0] == "# MAGIC %md", cell
            assert all(line.startswith("# MAGIC") for line in cell.splitlines()), cell
        else:
            compile(cell, "cell", "exec")
    assert len(cells) > 10


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_text_comes_before_code_it_explains(generator: ModuleType, name: str) -> None:
    kinds = ["text" if generator.is_text(cell) else "code" for cell in generator.cells(source(name))]
    assert "code code code" not in " ".join(kinds)
    assert kinds[0] == kinds[-1] == "text"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_page_has_the_notebooks_cells(generator: ModuleType, name: str) -> None:
    """`make notebooks NOTEBOOKS=NAME` makes it anew."""
    assert generator.without_outputs(shown(name)) == generator.page(name, source(name), {})


def test_jupyter_files_are_written(generator: ModuleType, tmp_path: Path) -> None:
    generator.write_jupyter(tmp_path / "new")
    written = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "new").iterdir()}
    assert written == {name: generator.site_ipynb(name) for name in NOTEBOOKS}


@for_each("name", NOTEBOOKS)
def test_it_opens_in_jupyter(generator: ModuleType, name: str) -> None:
    """The site's Jupyter file has the cells and the page's outputs. Jupytext reads the source's code as code."""
    notebook = nbformat.reads(generator.site_ipynb(name), as_version=4)
    nbformat.validate(notebook)
    assert [c.cell_type == "markdown" for c in notebook.cells] == [
        generator.is_text(cell) for cell in generator.cells(source(name))
    ]
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.source for c in code] == [c for c in generator.cells(source(name)) if not generator.is_text(c)]
    printed = "".join(output.text for c in code for output in c.outputs)
    assert printed.split() == generator.shown_outputs(shown(name)).split()
    assert not any("MAGIC" in c.source or "COMMAND" in c.source for c in notebook.cells)
    opened = [c.source for c in jupytext.reads(source(name), fmt="py").cells if c.cell_type == "code"]
    together = ast.dump(ast.parse("\n\n".join(opened)))
    assert together == ast.dump(ast.parse(source(name)))


def test_a_page_and_its_output(generator: ModuleType) -> None:
    text = "# Databricks notebook source\n# MAGIC %md\n# MAGIC # Title\n\n# COMMAND ----------\n\nprint(1)\n"
    page = generator.page("name", text, {1: "1\n\n2 at 127.0.0.1:9292\n"})
    assert "# Title\n\nThis page is [notebooks/name.py](../../notebooks/name.py)" in page
    assert "```python\nprint(1)\n```\n\n<!-- output -->\n```text\n1\n\n2 at 127.0.0.1:9292\n```\n" in page
    assert generator.stable(generator.shown_outputs(page)) == ["1", "2 at 127.0.0.1:PORT"]
    assert generator.without_outputs(page) == generator.page("name", text, {})


@pytest.fixture(scope="module")
def run(generator: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Runs a notebook as a program; its output, which is held against its page."""

    def start(name: str) -> str:
        result = subprocess.run(
            [sys.executable, str(ROOT / "notebooks" / f"{name}.py")],
            cwd=tmp_path_factory.mktemp(name),
            env=os.environ | generator.ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-4000:]
        assert generator.stable(result.stdout) == generator.stable(generator.shown_outputs(shown(name)))
        return result.stdout

    return start


@pytest.mark.nightly
@pytest.mark.spark
def test_quickstart(run: Callable[[str], str]) -> None:
    out = run("quickstart")
    assert "the first run read 20,000 trips" in out
    assert "the second run read 5,000 trips" in out
    assert "each arrived exactly once: True" in out
    assert "25,000 trips in the files" in out
    partitions = re.findall(r"(?m)^\| +\d\| *(\d+)\|", out)
    assert sum(map(int, partitions)) == 20_000
    assert out.count("█") > 100


@pytest.mark.nightly
@pytest.mark.spark
def test_moving_from_kafka(run: Callable[[str], str]) -> None:
    out = run("moving_from_kafka")
    assert "records of each micro-batch: [1000, 1000, 1000]" in out
    assert "did you mean 'failOnDataLoss'?" in out
    assert "same cups in both topics: True" in out


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.crash
def test_exactly_once(run: Callable[[str], str]) -> None:
    out = run("exactly_once")
    assert "between the two writes of batch 1: kill -9" in out
    assert re.search(r"(?m)^1 +2 +2 +1$", out), "batch 1 begins twice, and its rows get into the topic once"
    rows = re.findall(r"(?m)^(?:expected|Delta table|topic) +(\d+) +(\d+) +(\d+) +(\d+)$", out)
    assert len(rows) == 3
    assert len(set(rows)) == 1
    assert rows[0][1:3] == ("0", "0")


@pytest.mark.nightly
@pytest.mark.spark
def test_windows_joins_state(run: Callable[[str], str]) -> None:
    out = run("windows_joins_state")
    assert re.findall(r"(?m)^(\w+): +(True|False)", out) == [("windows", "True"), ("join", "True"), ("state", "True")]


@pytest.mark.nightly
def test_pandas_polars_duckdb(run: Callable[[str], str]) -> None:
    pytest.importorskip("polars", reason="the notebook needs sparklog[notebooks]")
    pytest.importorskip("duckdb", reason="the notebook needs sparklog[notebooks]")
    out = run("pandas_polars_duckdb")
    assert "all three agree: True" in out
    assert re.findall(r"(?m)^(\w+) run: ([\d,]+) rides$", out) == [
        ("first", "140,000"),
        ("second", "0"),
        ("third", "5,000"),
    ]


def test_without_its_libraries_a_notebook_says_so_and_ends(tmp_path: Path) -> None:
    (tmp_path / "polars.py").write_text("raise ImportError('no polars', name='polars')\n")
    done = subprocess.run(
        [sys.executable, "-c", f"import runpy; runpy.run_path({str(ROOT / 'notebooks/pandas_polars_duckdb.py')!r})"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "There is no polars here: pip install 'sparklog[notebooks]', then run this again.\n"
