"""franz-go's own tests (Go) of its client against a broker with a gateway.

The suite comes as a Go module. `franz_go.toml` has its version, the tests that are left out, and the lines of the
client that the build replaces, with the reasons.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import sparklog
from tests.campaigns.gateway_suites.go_suites import download, results
from tests.campaigns.gateway_suites.mending import mend
from tests.campaigns.gateway_suites.verdict import Verdict, judge

HERE = Path(__file__).parent
MODULE = "github.com/twmb/franz-go"
TIMEOUT_S = 3_600
NEEDS = ("go",)
"""Programs that the suite needs."""


def listed() -> dict[str, Any]:
    return tomllib.loads((HERE / "franz_go.toml").read_text(encoding="utf-8"))


def verify(scratch: Path, records: int, pattern: str | None, source: Path | None = None) -> tuple[Verdict, str]:
    """The verdict on the tests whose names match `pattern`, and their output."""
    told = listed()
    binary = build(scratch, told["version"], told["mended"]) if source is None else source
    with sparklog.start_local(scratch / "data", kafka=True, settings={"num.partitions": 3}) as broker:
        output = run(binary, broker.kafka_bootstrap_servers, records, pattern or ".*", told["refused"])
    passed, failed, _ = results(output)
    return judge(passed, failed, told["refused"]), output


def build(scratch: Path, version: str, mended: Sequence[dict[str, str]]) -> Path:
    """The suite's program, from a source with the lines of `mended` replaced. Raises MendError."""
    source = download(MODULE, version, scratch / "franz-go")
    mend(source, mended, "franz_go.toml")
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
