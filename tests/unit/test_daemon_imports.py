"""What the daemons' processes do not import."""

from __future__ import annotations

import subprocess
import sys

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


@pytest.mark.parametrize("module", ["sparklog.gateway", "sparklog_broker"])
def test_a_daemon_starts_without_pandas(module: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", module, "--help"]
    imports = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert "pyarrow" in imports
    assert "pandas.core" not in imports
