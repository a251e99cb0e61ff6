"""The steps at which a process can be made to die: the document, the code and the campaigns name the same ones."""

from __future__ import annotations

import re
from pathlib import Path

from tests.campaigns.torture.broker_steps import ADD_PARTITIONS_STEPS, BROKER_STEPS
from tests.campaigns.torture.client_steps import CLIENT_STEPS, SINK_STEPS
from tests.campaigns.torture.lake_campaign import STEPS as LAKE_STEPS
from tests.support.mirror_steps import MIRROR_STEPS, REFUSED_STEPS

BEFORE_MERGE = "lake.before-merge"
"""tests/system/test_lake.py changes the table there."""
ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (ROOT / "sparklog", ROOT / "broker_daemon", ROOT / "datasource")


def in_the_code() -> set[str]:
    sources = [p for package in PACKAGES for p in package.rglob("*.py") if p.name != "fault_points.py"]
    return {step for p in sources for step in re.findall(r'reach\("([^"]+)"\)', p.read_text(encoding="utf-8"))}


def test_the_document_names_the_steps_of_the_code() -> None:
    text = (ROOT / "docs" / "internals" / "delivery.md").read_text(encoding="utf-8")
    section = text.split("Fault points", 1)[1].split("\n## ", 1)[0]
    assert in_the_code() == set(
        re.findall(r"`((?:txn|log|sink|producer|consumer|partitions|lake|mirror)\.[a-z-]+)`", section)
    )


def test_every_step_is_tried() -> None:
    tried = {
        *SINK_STEPS,
        *BROKER_STEPS,
        *ADD_PARTITIONS_STEPS,
        *LAKE_STEPS,
        *MIRROR_STEPS,
        *REFUSED_STEPS,
        BEFORE_MERGE,
    }
    assert in_the_code() == tried.union(*CLIENT_STEPS.values())
