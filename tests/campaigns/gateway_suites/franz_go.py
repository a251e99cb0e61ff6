"""franz-go's own tests (Go) of its client against a broker with a gateway.

The suite comes as a Go module. `franz_go.toml` has its version, the tests that are left out, and the lines of the
client that the build replaces, with the reasons.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import sparklog
from tests.campaigns.gateway_suites.verdict import Verdict, judge

HERE = Path(__file__).parent
MODULE = "github.com/twmb/franz-go"
TIMEOUT_S = 3_600
NEEDS = ("go",)
"""Programs that the suite needs."""
_BEGUN = re.compile(r"^=== RUN +(\S+)", re.MULTILINE)
_RESULT = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


class MendError(Exception):
    """A line that `franz_go.toml` replaces is not in the client's source."""


def listed() -> dict[str, Any]:
    return tomllib.loads((HERE / "franz_go.toml").read_text(encoding="utf-8"))


def verify(scratch: Path, records: int, pattern: str | None, source: Path | None = None) -> tuple[Verdict, str]:
    """The verdict on the tests whose names match `pattern`, and their output."""
    told = listed()
    binary = build(scratch, told["version"], told["mended"]) if source is None else source
    with sparklog.start_local(scratch / "data", kafka=True, settings={"num.partitions": 3}) as broker:
        output = run(binary, broker.kafka_bootstrap_servers, records, pattern or ".*", told["refused"])
    return judge(*results(output), told["refused"]), output


def results(output: str) -> tuple[set[str], set[str]]:
    """Names of the tests that have passed, and that have failed. A test of parts is one test for each part, too. A test
    without an end has failed: the run was ended while it waited."""
    found = dict.fromkeys(_BEGUN.findall(output), "FAIL")
    found |= {name: result for result, name in _RESULT.findall(output)}
    return {n for n, r in found.items() if r == "PASS"}, {n for n, r in found.items() if r == "FAIL"}


def mend(source: Path, mended: Sequence[dict[str, str]]) -> None:
    """Replace lines of the client's source; indentation stays. Raises MendError if a line is not there exactly once."""
    for entry in mended:
        path = source / entry["file"]
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        places = [n for n, line in enumerate(lines) if line.strip() == entry["before"]]
        if len(places) != 1:
            raise MendError(
                f"{entry['file']} of franz-go has the line {entry['before']!r} {len(places)} times instead of once. "
                "If this version has mended the fault, delete its entry of [[mended]] in franz_go.toml. "
                "Otherwise put the new line there."
            )
        (place,) = places
        lines[place] = lines[place].replace(entry["before"], entry["after"])
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def build(scratch: Path, version: str, mended: Sequence[dict[str, str]]) -> Path:
    """The suite's program, from a source with the lines of `mended` replaced. Raises MendError."""
    found = json.loads(
        subprocess.run(
            ["go", "mod", "download", "-json", f"{MODULE}@{version}"], check=True, capture_output=True, cwd=scratch
        ).stdout
    )
    source = scratch / "franz-go"
    shutil.copytree(found["Dir"], source, copy_function=shutil.copy)
    for path in [source, *source.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)  # the module cache is read-only
    mend(source, mended)
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
