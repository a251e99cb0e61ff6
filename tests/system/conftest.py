"""Common parts of the command line's tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sparklog.client.local import LocalBroker

from tests.support.cli import Result, Run, run_here


@pytest.fixture
def run(broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process in an empty directory; `code` is the expected exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", broker.bootstrap_servers)

    def run(*arguments: object, code: int = 0, stdin: str = "") -> Result:
        result = run_here(*arguments, stdin=stdin)
        assert result.returncode == code, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    return run
