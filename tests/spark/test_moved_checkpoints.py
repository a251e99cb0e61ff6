"""Queries go on with their checkpoints on mirrored topics: of a real Kafka, and of another cluster."""

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
from sparklog.client.admin.checkpoint_move import move_checkpoint
from sparklog.client.net.cluster import cluster
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
            command = [sys.executable, "-m", "tests.spark.moved_checkpoints_job", str(tmp_path)]
            command += [str(installation.token_jar()), "kafka", kafka.bootstrap_servers, "checkpoint"]
            command += ["sparklog", broker.bootstrap_servers, "checkpoint"]
            command += ["kafka", str(broker.kafka_bootstrap_servers), "checkpoint"]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
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
    assert found == expected(3)


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_each_record_is_stored_once_over_a_move_to_the_copy_of_another_cluster(tmp_path: Path) -> None:
    """The queries go on with the batch that they have planned, and with their commits after the promotion."""
    settings = {"mirror.worker.enable": False}
    with (
        sparklog.start_local(tmp_path / "first", kafka=True) as first,
        sparklog.start_local(tmp_path / "second", kafka=True, settings=settings) as second,
        sparklog.Admin(second.bootstrap_servers) as admin,
    ):
        with sparklog.Admin(first.bootstrap_servers) as there:
            there.create_topic("numbers", 2)
        send(str(first.kafka_bootstrap_servers), range(PART))
        old, new = (["sparklog", at.bootstrap_servers, name] for at, name in ((first, "old"), (second, "new")))
        command = [sys.executable, "-m", "tests.spark.moved_checkpoints_job", str(tmp_path), "", *old, *old, *new, *new]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as job:
            assert job.stdin is not None and job.stdout is not None
            for step in (1, 2, 3):
                answer(job.stdout, "step")
                if step == 2:
                    admin.create_mirror("first", source=f"sparklog://{first.bootstrap_servers}", topics="numbers")
                    worker = MirrorWorker(second.bootstrap_servers)
                    assert worker.run_once() == {}
                    worker.close()
                    for checkpoint in sorted(tmp_path.glob("*.old")):
                        move(checkpoint, second)
                    admin.promote_mirror("first")
                source = second if step > 1 else first
                send(str(source.kafka_bootstrap_servers), range(step * PART, (step + 1) * PART))
                job.stdin.write("go on\n")
                job.stdin.flush()
            assert answer(job.stdout, "results") == expected(4)


def move(checkpoint: Path, to: sparklog.LocalBroker) -> None:
    """Move a checkpoint whose last batch has run, and whose commit the driver has not noted."""
    last = max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdecimal())
    for file in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / file).unlink(missing_ok=True)
    target = checkpoint.with_suffix(".new")
    moved = move_checkpoint(cluster(to.bootstrap_servers), str(checkpoint), str(target), timeout_ms=60_000)
    assert moved.is_planned and moved.topics.keys() == {"numbers"}


def expected(parts: int) -> dict[str, Any]:
    numbers = list(range(parts * PART))
    state = [[k, len(numbers[k::3]), sum(numbers[k::3])] for k in range(3)]
    lists = ("parquet", "delta", "pattern", "limited", "each-batch", "distinct")
    return {"results": dict.fromkeys(lists, numbers) | {"state": state}, "errors": {}}


def answer(lines: Any, key: str) -> dict[str, Any]:
    """The next line of JSON with the key. Raises AssertionError at the end."""
    for line in lines:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            assert key in found, found
            return found
    raise AssertionError("the job has ended")
