"""Test suites that run with pytest: their sources, the packages that they need, and their results.

The sources come from the project's git repository, because the packages of the registry have no tests. Where GitHub is
not reachable, git's setting `url.MIRROR.insteadOf` names a copy.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.campaigns.gateway_suites.verdict import Verdict, judge

TIMEOUT_S = 3_600
TEST_TIMEOUT_S = 180
ATTEMPTS = 2
"""Runs of a test that fails: some tests give a call a second, which a busy machine exceeds."""
_RESULT = re.compile(
    r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: \((.*)\))?(?: +\[ *\d+%\])?$", re.MULTILINE
)


class Source(NamedTuple):
    """A tag of a git repository."""

    address: str
    tag: str


class Results(NamedTuple):
    """Results of a run, by the names of the tests."""

    passed: set[str]
    failed: set[str]
    skipped: dict[str, str]
    """The reason of each skipped test."""


def is_reachable(source: Source) -> bool:
    """True if git can read the repository."""
    command = ["git", "ls-remote", "--exit-code", "--tags", source.address, source.tag]
    return subprocess.run(command, env=_without_prompt(), capture_output=True, check=False).returncode == 0


def checkout(source: Source, directory: Path) -> Path:
    """Clone the tag into `directory`, and return the directory."""
    command = ["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--depth", "1", "--branch", source.tag]
    subprocess.run([*command, source.address, str(directory)], env=_without_prompt(), check=True, capture_output=True)
    return directory


def _without_prompt() -> dict[str, str]:
    return os.environ | {"GIT_TERMINAL_PROMPT": "0"}


def install_packages(packages: Sequence[str], directory: Path) -> Path:
    """Install packages for the suite alone into `directory`, and return the directory."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory), *packages]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return directory


class PythonSuite(NamedTuple):
    """A suite that is ready to run."""

    directory: Path
    """Directory in which pytest starts."""
    tests: Sequence[str]
    """Files or folders of the tests, from `directory`."""
    variables: Mapping[str, str]
    options: Sequence[str] = ()
    """Further options of pytest."""

    def verify(self, pattern: str | None, refused: Collection[str]) -> tuple[Verdict, str]:
        """The verdict on the tests whose names match `pattern`, and their output. Refused tests are left out."""
        names = self._collect()
        if not names:
            return judge(set(), set(), refused), "no tests were collected"
        unknown = sorted(set(refused) - set(names))
        chosen = [name for name in names if re.search(pattern or "", name) and name not in refused]
        if not chosen:
            return judge(set(), set(), refused), f"no test matches {pattern!r}"
        output = self._run(["-v", *chosen])
        results = results_of(output)
        for _ in range(ATTEMPTS - 1):
            again = sorted(results.failed | (set(chosen) - results.passed - results.skipped.keys()))
            if not again:
                break
            repeated = self._run(["-v", *again])
            output += repeated
            passed = results_of(repeated).passed
            results = Results(results.passed | passed, set(again) - passed, results.skipped)
        verdict = judge(results.passed, results.failed, refused, results.skipped)
        return verdict._replace(outdated=verdict.outdated | set(unknown)), output

    def _collect(self) -> list[str]:
        lines = self._run(["--collect-only", "-q", "--no-header", *self.tests]).splitlines()
        return [line for line in lines if re.match(r"\S+\.py::", line)]

    def _run(self, arguments: Sequence[str]) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:sparklog", "-p", "no:cacheprovider", "--color=no"]
        command += ["--show-capture=no", f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=signal"]
        ran = subprocess.run(
            [*command, *self.options, *arguments],
            env={**os.environ, "COLUMNS": "1000", **self.variables},
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
        return ran.stdout.decode(errors="replace")


def results_of(output: str) -> Results:
    """The results in the output of `pytest -v`. A test that fails at its end, after it has passed, has failed."""
    passed, failed, skipped = set(), set(), {}
    for name, state, reason in _RESULT.findall(output):
        if state in ("PASSED", "XFAIL"):
            passed.add(name)
        elif state == "SKIPPED":
            skipped[name] = reason
        else:
            failed.add(name)
    return Results(passed - failed, failed, skipped)
