"""Spark's own Kafka connector reads and writes through the gateway, also in real-time mode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.spark.kafka_connector_job import REAL_TIME_RECORDS, RECORDS
from tests.support.kafka import KafkaInstallation

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spark
@pytest.mark.nightly
def test_batch_stream_and_real_time_mode_have_each_record(tmp_path: Any) -> None:
    with sparklog.start_local(tmp_path / "data", kafka=True) as broker:
        command = [sys.executable, "-m", "tests.spark.kafka_connector_job", broker.kafka_bootstrap_servers]
        command += [str(tmp_path), str(KafkaInstallation().token_jar())]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-5000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["batch"] == found["stream"] == list(range(RECORDS))
    assert found["real_time"] == list(range(REAL_TIME_RECORDS))
