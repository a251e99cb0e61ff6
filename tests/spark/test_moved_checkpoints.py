"""Queries of a real Kafka go on with their checkpoints on a mirrored topic, and back through the gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

import sparklog
from sparklog.mirror.worker.worker import MirrorWorker
from tests.support.kafka import KafkaInstallation, KafkaServer

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300
PART = 20


def send(servers: str, numbers: range) -> None:
    """Committed transactions of ten numbers, and an aborted one between them."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "mover"})
    producer.init_transactions(PATIENCE_S)
    for start in range(numbers.start, numbers.stop, 10):
        for commits in (False, True):
            producer.begin_transaction()
            for n in range(start, start + 10):
                producer.produce("numbers", b"%d" % (n if commits else -n), partition=n % 2)
            (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_each_record_is_stored_once_over_the_move(tmp_path: Path) -> None:
    installation = KafkaInstallation()
    installation.install()
    kafka = KafkaServer(installation, tmp_path / "kafka")
    kafka.start()
    settings = {"mirror.worker.enable": False}
    try:
        with sparklog.start_local(tmp_path / "data", kafka=True, settings=settings) as broker:
            kafka.admin().create_topics([NewTopic("numbers", 2, 1)])["numbers"].result(PATIENCE_S)
            send(kafka.bootstrap_servers, range(PART))
            command = [sys.executable, "-m", "tests.spark.moved_checkpoints_job", kafka.bootstrap_servers]
            command += [broker.bootstrap_servers, broker.kafka_bootstrap_servers, str(tmp_path)]
            with subprocess.Popen(
                [*command, str(installation.token_jar())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            ) as job:  # fmt: skip
                assert job.stdin is not None and job.stdout is not None
                answer(job.stdout, "step")
                send(kafka.bootstrap_servers, range(PART, 2 * PART))
                with sparklog.Admin(broker.bootstrap_servers) as admin:
                    admin.create_mirror("old", source=f"kafka://{kafka.bootstrap_servers}", topics="numbers")
                    worker = MirrorWorker(broker.bootstrap_servers)
                    assert worker.run_once() == {}
                    worker.close()
                    job.stdin.write("go on\n")
                    job.stdin.flush()
                    answer(job.stdout, "step")
                    admin.promote_mirror("old")
                assert broker.kafka_bootstrap_servers
                send(broker.kafka_bootstrap_servers, range(2 * PART, 3 * PART))
                job.stdin.write("go on\n")
                job.stdin.flush()
                found = answer(job.stdout, "results")
    finally:
        kafka.stop(kill=True)
    numbers = list(range(3 * PART))
    state = [[k, len(numbers[k::3]), sum(numbers[k::3])] for k in range(3)]
    lists = ("parquet", "delta", "pattern", "limited", "each-batch", "distinct")
    assert found["errors"] == {}
    assert found["results"] == dict.fromkeys(lists, numbers) | {"state": state}


def answer(lines: Any, key: str) -> dict[str, Any]:
    """The next line of JSON with the key. Raises AssertionError at the end."""
    for line in lines:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            assert key in found, found
            return found
    raise AssertionError("the job has ended")
