"""franz-go's own tests (Go) of its client against a broker with a gateway.

The suite comes as a Go module. `franz_go.toml` has its version, and the tests that are left out with the reasons.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Collection
from pathlib import Path

import sparklog
from tests.gateway_suites.verdict import Verdict, judge

HERE = Path(__file__).parent
MODULE = "github.com/twmb/franz-go"
TIMEOUT_S = 3_600
NEEDS = ("go",)
"""Programs that the suite needs."""
_BEGUN = re.compile(r"^=== RUN +(\S+)", re.MULTILINE)
_RESULT = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


def listed() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = tomllib.loads((HERE / "franz_go.toml").read_text(encoding="utf-8"))
    return found


def verify(scratch: Path, records: int, pattern: str | None, source: Path | None = None) -> tuple[Verdict, str]:
    """The verdict on the tests whose names match `pattern`, and their output."""
    told = listed()
    binary = build(scratch, str(told["version"])) if source is None else source
    with sparklog.start_local(scratch / "data", kafka=True, settings={"num.partitions": 3}) as broker:
        output = run(binary, broker.kafka_bootstrap_servers, records, pattern or ".*", told["refused"])
    return judge(*results(output), told["refused"]), output


def results(output: str) -> tuple[set[str], set[str]]:
    """Names of the tests that have passed, and that have failed. A test of parts is one test for each part, too. A test
    without an end has failed: the run was ended while it waited."""
    found = dict.fromkeys(_BEGUN.findall(output), "FAIL")
    found |= {name: result for result, name in _RESULT.findall(output)}
    return {n for n, r in found.items() if r == "PASS"}, {n for n, r in found.items() if r == "FAIL"}


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
    binary = source / "pkg" / "kgo" / "kgo.test"
    subprocess.run(["go", "test", "-c", "-o", str(binary), "./pkg/kgo"], check=True, cwd=source)
    return binary


def run(binary: Path, address: str, records: int, pattern: str, refused: Collection[str]) -> str:
    """The suite's output. Refused tests are left out: some of them wait forever."""
    variables = {"KGO_SEEDS": address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(records)}
    command = [str(binary), "-test.v", "-test.timeout", f"{TIMEOUT_S}s", "-test.run", pattern]
    command += ["-test.skip", f"^({'|'.join(sorted(refused))})$"] if refused else []
    ran = subprocess.run(
        command,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=binary.parent,
        timeout=TIMEOUT_S + 60,
        check=False,
    )
    return ran.stdout.decode(errors="replace")
