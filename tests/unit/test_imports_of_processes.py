"""Modules that processes without users' data frames do not import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

CONVERSION = """
import sys
from sparklog.environment.imports import keep_pandas_out
keep_pandas_out()
import pyarrow as pa
assert pa.array([b"x", None]).to_pylist() == [b"x", None]
assert "pandas" not in sys.modules
"""


def test_arrow_converts_values_without_pandas() -> None:
    subprocess.run([sys.executable, "-c", CONVERSION], check=True)


@pytest.mark.parametrize(
    "start",
    [
        ("-m", "sparklog.gateway", "--help"),
        ("-m", "sparklog_broker", "--help"),
        ("-c", "import pyspark_sparklog.source.reader"),
    ],
)
def test_a_process_starts_without_pandas(start: Sequence[str]) -> None:
    command = [sys.executable, "-X", "importtime", *start]
    imports = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert "pyarrow" in imports
    assert "pandas.core" not in imports
