"""The quickstart runs from top to bottom, as a program and as a notebook's cells, and prints what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
QUICKSTART = NOTEBOOKS / "quickstart.py"


def cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.split("# COMMAND ----------")]


def test_it_is_a_notebook_in_databricks_format() -> None:
    first, *rest = cells(QUICKSTART.read_text(encoding="utf-8"))
    assert first.startswith("# Databricks notebook source\n")
    for cell in rest:
        if "# MAGIC" in cell:
            assert cell.startswith("# MAGIC %md")
            assert all(line.startswith("# MAGIC") for line in cell.splitlines()), cell
        else:
            compile(cell, "cell", "exec")
    assert len(rest) > 10


def test_every_text_comes_before_code_it_explains() -> None:
    kinds = ["text" if "# MAGIC %md" in cell else "code" for cell in cells(QUICKSTART.read_text(encoding="utf-8"))]
    assert "code code code" not in " ".join(kinds)
    assert kinds[-1] == "text"


@pytest.mark.spark
def test_it_runs_and_every_trip_is_counted(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(QUICKSTART)], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    out = result.stdout
    assert "the first run read 20,000 trips" in out
    assert "the second run read 5,000 trips" in out
    assert "each arrived exactly once: True" in out
    assert "25,000 trips in the files" in out
    partitions = re.findall(r"(?m)^\| +\d\| *(\d+)\|", out)
    assert sum(map(int, partitions)) == 20_000
    assert out.count("█") > 100
    assert "Traceback" not in result.stderr
