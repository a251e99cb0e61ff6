"""The steps at which a process can be made to die: the document, the code and the campaigns name the same ones."""

from __future__ import annotations

import re
from pathlib import Path

from tests.system import test_add_partitions
from tests.torture import test_sink, test_transactions

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (ROOT / "sparklog", ROOT / "broker_daemon", ROOT / "datasource")


def in_the_code() -> set[str]:
    sources = [p for package in PACKAGES for p in package.rglob("*.py") if p.name != "faults.py"]
    return {step for p in sources for step in re.findall(r'reach\("([^"]+)"\)', p.read_text(encoding="utf-8"))}


def test_the_document_names_what_the_code_reaches() -> None:
    text = (ROOT / "docs" / "internals" / "delivery.md").read_text(encoding="utf-8")
    section = text.split("Fault points", 1)[1].split("\n## ", 1)[0]
    assert in_the_code() == set(re.findall(r"`((?:txn|log|sink|producer|consumer|partitions)\.[a-z-]+)`", section))


def test_every_step_is_tried() -> None:
    used = {*test_sink.SINK_STEPS, *test_sink.BROKER_STEPS, *test_transactions.BROKER_STEPS, *test_add_partitions.STEPS}
    assert in_the_code() == used.union(*test_transactions.CLIENT_STEPS.values())
