"""`make gateway-suites`: franz-go's own tests (Go) against a broker with a gateway.

The suite comes from the Go module proxy. `franz_go.toml` has its version, and the tests that are
left out with the reasons. Exit status 1 if a test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

import sparklog

HERE = Path(__file__).parent
MODULE = "github.com/twmb/franz-go"
TIMEOUT_S = 3_600
_RESULT = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


class Verdict(NamedTuple):
    """Outcome of a run."""

    passed: set[str]
    unexpected: set[str]
    """Tests that fail without a reason."""
    outdated: set[str]
    """Tests that pass although the list says that they fail."""

    @property
    def is_good(self) -> bool:
        """True if all is as the list says."""
        return bool(self.passed) and not self.unexpected and not self.outdated


def judge(output: str, refused: set[str]) -> Verdict:
    """The verdict on a suite's output."""
    results = {name: result for result, name in _RESULT.findall(output)}
    passed = {name for name, result in results.items() if result == "PASS"}
    failed = {name for name, result in results.items() if result == "FAIL"}
    return Verdict(passed, failed - refused, passed & refused)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="records of the large tests (default 100,000)")
    parser.add_argument("--run", default=".*", help="regular expression of the tests")
    given = parser.parse_args()
    if shutil.which("go") is None:
        print("error: Go is needed: see https://go.dev/doc/install", file=sys.stderr)
        return 1
    listed = tomllib.loads((HERE / "franz_go.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="sparklog-suites-") as scratch:
        binary = build(Path(scratch), listed["version"])
        with sparklog.start_local(Path(scratch) / "data", kafka=True, settings={"num.partitions": 3}) as broker:
            output = run(binary, broker.kafka_bootstrap_servers, given.records, given.run, set(listed["refused"]))
    verdict = judge(output, set(listed["refused"]))
    print(f"franz-go {listed['version']}: {len(verdict.passed)} passed")
    for name in sorted(verdict.unexpected):
        print(f"  {name} failed, and is not in the list")
    for name in sorted(verdict.outdated):
        print(f"  {name} passed: take it out of the list")
    if not verdict.is_good:
        print(output[-20_000:])
    return 0 if verdict.is_good else 1


def build(scratch: Path, version: str) -> Path:
    """The suite's program."""
    found = json.loads(
        subprocess.run(
            ["go", "mod", "download", "-json", f"{MODULE}@{version}"], check=True, capture_output=True, cwd=scratch
        ).stdout
    )
    source = scratch / "franz-go"
    shutil.copytree(found["Dir"], source, copy_function=shutil.copy)
    for path in [source, *source.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)  # the module cache is read-only
    binary = scratch / "kgo.test"
    subprocess.run(["go", "test", "-c", "-o", str(binary), "./pkg/kgo"], check=True, cwd=source)
    return binary


def run(binary: Path, address: str, records: int, pattern: str, refused: set[str]) -> str:
    """The suite's output. Refused tests are left out: some of them wait forever."""
    variables = {"KGO_SEEDS": address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(records)}
    command = [str(binary), "-test.v", "-test.timeout", f"{TIMEOUT_S}s", "-test.run", pattern]
    command += ["-test.skip", f"^({'|'.join(sorted(refused))})$"] if refused else []
    ran = subprocess.run(
        command,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=binary.parent / "franz-go" / "pkg" / "kgo",
        timeout=TIMEOUT_S + 60,
        check=False,
    )
    return ran.stdout.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
