"""kill -9 of mirror workers, of the target's broker, and of the source's nodes."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from sparklog.client.local_zookeeper import has_java
from tests.campaigns.torture.mirror_campaign import FORMS, run

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(os.name != "posix" or sys.platform == "darwin", reason="children that end with their parent"),
]
needs_kafka = pytest.mark.skipif(
    not has_java() or not shutil.which("mvn"), reason="Java and Maven are needed for Kafka"
)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_few_kills_leave_each_record_of_a_sparklog_cluster_once(tmp_path: Path) -> None:
    run(tmp_path, kills=6, seed=FORMS.index("sparklog"))


@pytest.mark.torture
@needs_kafka
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("form", FORMS)
def test_many_kills_leave_each_record_once(tmp_path: Path, form: str) -> None:
    run(tmp_path, kills=10 if form[0].isdecimal() else 70, seed=FORMS.index(form))
