"""Test suites of Go modules: their sources, and their results."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

_BEGUN = re.compile(r"^=== RUN +(\S+)", re.MULTILINE)
_RESULT = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)
_SKIPPED = re.compile(r"^ +\S+_test\.go:\d+: (.*)\n *--- SKIP: (\S+)", re.MULTILINE)


def download(module: str, version: str, directory: Path) -> Path:
    """Copy the module's source into `directory`, so that it can be changed, and return the directory."""
    command = ["go", "mod", "download", "-json", f"{module}@{version}"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=directory.parent).stdout)
    shutil.copytree(answer["Dir"], directory, copy_function=shutil.copy)
    for path in [directory, *directory.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)  # the module cache is read-only
    return directory


def results(output: str) -> tuple[set[str], set[str], dict[str, str]]:
    """Names of the tests that have passed, and failed, and the reasons of those that skipped themselves. A test of
    parts is one test for each part, too. A test without an end has failed: the run was ended while it waited."""
    states = dict.fromkeys(_BEGUN.findall(output), "FAIL")
    states |= {name: state for state, name in _RESULT.findall(output)}
    reasons = {name: reason for reason, name in _SKIPPED.findall(output)}
    skipped = {name: reasons.get(name, "without a reason") for name, state in states.items() if state == "SKIP"}
    passed, failed = ({n for n, s in states.items() if s == state} for state in ("PASS", "FAIL"))
    return passed, failed, skipped
