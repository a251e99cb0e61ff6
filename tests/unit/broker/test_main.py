"""Imports of a broker before it listens."""

from __future__ import annotations

import subprocess
import sys

NOT_TO_START_WITH = (
    "difflib",
    "email",
    "fsspec",
    "importlib.metadata",
    "pandas",
    "prometheus_client",
    "pyarrow.compute",
    "pyarrow.parquet",
    "random",
    "shutil",
    "typer",
    "zipfile",
)
"""Nearly all of a start is imports."""


def test_a_start_imports_only_needed_modules() -> None:
    program = f"import sys, sparklog_broker.main; print([m for m in {NOT_TO_START_WITH} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
