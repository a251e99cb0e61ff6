"""The `sparklog` command, run in this process, and its output."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest import mock

from sparklog.cli.app import run_app

COMMAND = [sys.executable, "-m", "sparklog.cli"]
Run = Callable[..., "Result"]


class Result(NamedTuple):
    """Result of a run of the command."""

    returncode: int
    stdout: str
    stderr: str


@contextmanager
def kept_signal_handlers() -> Iterator[None]:
    """A command sets handlers for the rest of its process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def run_here(*arguments: object, stdin: str = "", environment: Mapping[str, str] | None = None) -> Result:
    """Run the command in this process: starting one takes longer than most commands."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    typed = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    with (
        kept_signal_handlers(),
        mock.patch.dict(os.environ, environment or {}),
        mock.patch.object(sys, "stdin", typed),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        returncode = run_app([*map(str, arguments)])
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Result(returncode, *said)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("│")]
