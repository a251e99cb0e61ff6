"""Delta and sparklog in one pipeline: nothing twice, nothing lost, in both directions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sparklog

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]

ADA, BOB = ["1A", "Ada", 1], ["2B", "Bob", 2]


def test_the_recipes(broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.delta_recipes", broker.bootstrap_servers, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "with_deltas_sink": [ADA, ["1A", "Bob", 1]],
        "with_foreach_batch": [[ADA, BOB], [ADA, BOB]],
        "appended_rows": [ADA, BOB],
        "changes": [
            ["1A", "Ada", 1],
            ["1A", "Ada", 10],
            ["1A", None, None],
            ["2B", "Bob", 2],
            ["2B", None, None],
            ["3C", "Cid", 3],
            ["3C", "Cleo", 4],
        ],
    }
