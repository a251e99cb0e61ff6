"""Kafka Connect against the gateway: FileStream source and sink; Debezium's envelopes become rows of a keyed topic."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import sparklog
from tests.support.kafka import KafkaInstallation
from tests.support.ports import free_port
from tests.support.waiting import CLUSTER_PATIENCE_S, PATIENCE_S, until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

FILES = "org.apache.kafka.connect.file.FileStream"
LINES = 2_000


def properties(path: Path, entries: Mapping[str, object]) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in entries.items()), encoding="utf-8")
    return str(path)


@contextmanager
def connect(directory: Path, bootstrap_servers: str) -> Iterator[subprocess.Popen[bytes]]:
    """A standalone worker that copies `in.txt` to a topic, and the topic to `out.txt`."""
    installation = KafkaInstallation()
    installation.install()
    text = {"converter": "org.apache.kafka.connect.storage.StringConverter"}
    worker = {
        "bootstrap.servers": bootstrap_servers,
        "key.converter": text["converter"],
        "value.converter": text["converter"],
        "offset.storage.file.filename": directory / "offsets",
        "offset.flush.interval.ms": 1_000,
        "plugin.discovery": "only_scan",
        "listeners": f"http://127.0.0.1:{free_port()}",
    }
    source = {
        "name": "in",
        "connector.class": f"{FILES}SourceConnector",
        "file": directory / "in.txt",
        "topic": "lines",
    }
    sink = {"name": "out", "connector.class": f"{FILES}SinkConnector", "file": directory / "out.txt", "topics": "lines"}
    command = installation.java(
        "org.apache.kafka.connect.cli.ConnectStandalone",
        properties(directory / "worker.properties", worker),
        properties(directory / "source.properties", source),
        properties(directory / "sink.properties", sink),
        path=installation.file_connectors(),
    )
    with (directory / "connect.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_connect_copies_a_file_to_a_topic_and_back(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"line {i}\n" for i in range(LINES)), encoding="utf-8")
    out = tmp_path / "out.txt"
    with sparklog.start_local(tmp_path / "data", kafka=True) as broker:
        for last in (LINES, 2 * LINES):  # the second worker goes on at the offsets of the first
            with connect(tmp_path, broker.kafka_bootstrap_servers) as process:

                def is_copied(last: int = last, process: subprocess.Popen[bytes] = process) -> bool:
                    assert process.poll() is None, (tmp_path / "connect.log").read_text()[-4_000:]
                    return out.exists() and out.read_text(encoding="utf-8").count("\n") >= last

                until(is_copied, f"{last} lines", within_s=3 * CLUSTER_PATIENCE_S)
                if last == LINES:
                    with (tmp_path / "in.txt").open("a", encoding="utf-8") as file:
                        file.writelines(f"line {i}\n" for i in range(LINES, 2 * LINES))
                    process.terminate()
                    process.wait(60)
        values = sparklog.read_table(broker.bootstrap_servers, "lines")["value"].to_pylist()
        assert sorted(set(values), key=lambda v: int(v.split()[1])) == [b"line %d" % i for i in range(2 * LINES)]
        assert set(out.read_text(encoding="utf-8").splitlines()) == {f"line {i}" for i in range(2 * LINES)}


def change(operation: str, before: int | None, after: int | None) -> bytes:
    """Debezium's envelope of a change of account 7, or of its deletion."""
    rows = [None if balance is None else {"id": 7, "balance": balance} for balance in (before, after)]
    return json.dumps({"payload": {"before": rows[0], "after": rows[1], "op": operation, "ts_ms": 1}}).encode()


def test_debeziums_envelopes_become_rows_of_a_keyed_topic(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data", kafka=True) as broker:
        settings: dict[str, Any] = {"bootstrap.servers": broker.kafka_bootstrap_servers}
        topic = NewTopic("changes", 1, 1, config={"cleanup.policy": "compact"})
        admin_client = AdminClient(settings)
        admin_client.create_topics([topic])["changes"].result(PATIENCE_S)
        producer = Producer(settings)
        changes = [change("c", None, 1), change("u", 1, 2), change("d", 2, None)]
        for value in (*changes, None):  # Debezium's tombstone follows a deletion
            producer.produce("changes", value, key=b'{"payload":{"id":7}}')
        assert producer.flush(PATIENCE_S) == 0

        consumer = Consumer({**settings, "group.id": "rows", "auto.offset.reset": "earliest"})
        consumer.subscribe(["changes"])
        found: list[bytes | None] = []

        def enough() -> bool:
            found.extend(m.value() for m in consumer.consume(10, 0.2) if m.error() is None)
            return len(found) >= len(changes) + 1

        until(enough, "four changes")
        consumer.close()
        with sparklog.Admin(broker.bootstrap_servers) as admin:
            schema = pa.schema([("id", pa.int32()), ("balance", pa.int32()), ("_op", pa.string())])
            admin.create_topic("accounts", schema=schema, key_columns=["id"])
        with sparklog.Producer(broker.bootstrap_servers) as rows:
            rows.send_batch("accounts", sparklog.unwrap_debezium(found))
            rows.flush()
        table = sparklog.read_table(broker.bootstrap_servers, "accounts")
        assert table.select(["id", "balance", "_op"]).to_pylist() == [
            {"id": 7, "balance": 1, "_op": "c"},
            {"id": 7, "balance": 2, "_op": "u"},
            {"id": 7, "balance": 2, "_op": "d"},
        ]
