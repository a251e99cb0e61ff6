"""Common parts of the command line's tests."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklog.cli.app import run_app

if TYPE_CHECKING:
    from sparklog.client.local import LocalBroker

from tests.support.cli import Result, Run


@pytest.fixture
def run(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs the command in this process (starting one takes longer than most commands), in an empty directory; `code`
    is the expected exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", broker.bootstrap_servers)

    def run(*arguments: object, code: int = 0, stdin: str = "") -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        returned = run_app([*map(str, arguments)])
        result = Result(returned, *capsys.readouterr())
        assert returned == code, f"exit {returned}\n{result.stdout}\n{result.stderr}"
        return result

    return run
