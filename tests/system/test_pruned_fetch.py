"""Readers of some columns through a socket: equal rows, and the bytes of these columns alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.net.connection import Connection

ROWS = 60_000
SCHEMA = ", ".join(f"c{i} DOUBLE" for i in range(8)) + ", s STRING, l ARRAY<INT>"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with sparklog.start_local(tmp_path_factory.mktemp("pruned") / "data") as local:
        yield local


@pytest.fixture
def payloads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the payloads that clients receive."""
    sizes: list[int] = []
    receive = Connection.receive

    def receive_and_count(connection: Connection, *arguments: Any, **more: Any) -> Any:
        answer = receive(connection, *arguments, **more)
        sizes.append(answer[1].size if answer[1] is not None else 0)
        return answer

    monkeypatch.setattr(Connection, "receive", receive_and_count)
    return sizes


def table() -> pa.Table:
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {f"c{i}": rng.random(ROWS) for i in range(8)}
    columns["s"] = [f"text {i}" for i in range(ROWS)]
    columns["l"] = pa.array([[i, i + 1] for i in range(ROWS)], pa.list_(pa.int32()))
    return pa.table(columns)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_rows_are_equal_and_bytes_are_those_of_the_columns(
    broker: LocalBroker, compression: str, payloads: list[int]
) -> None:
    servers, topic, rows = broker.bootstrap_servers, compression, table()
    with sparklog.Admin(servers) as admin:
        admin.create_topic(topic, partitions=1, schema=SCHEMA)
    with sparklog.Producer(servers, compression=compression) as producer:
        producer.send_batch(topic, rows)

    def read(*columns: str) -> tuple[pa.Table, int]:
        payloads.clear()
        found = sparklog.read_table(servers, topic, list(columns) or None, local="off")
        assert isinstance(found, pa.Table)
        return found.combine_chunks(), sum(payloads)

    _, whole = read()
    for columns in (["c0"], ["c7", "c1"], ["s", "l"], ["c0", "c1", "c2", "c3", "c4"]):
        found, size = read(*columns)
        assert found.equals(rows.select(columns).combine_chunks())
        share = rows.select(columns).nbytes / rows.nbytes
        assert size / whole < (1.1 * share + 0.002 if compression == "none" else 1.5 * share)
    payloads.clear()
    with sparklog.Consumer(servers, columns=["c2"], local_read="off", auto_offset_reset="earliest") as consumer:
        consumer.assign([sparklog.TopicPartition(topic, 0)])
        count = 0
        while count < ROWS:
            for batch in consumer.poll_batches(5_000):
                count += batch.data.num_rows
                assert batch.data.schema.names == ["c2"]
                assert len(batch.timestamps_ms()) == batch.data.num_rows
    assert sum(payloads) < whole / 5


def test_columns_that_older_batches_lack_and_a_timestamp_column(broker: LocalBroker) -> None:
    servers = broker.bootstrap_servers
    with sparklog.Admin(servers) as admin:
        admin.create_topic("older", partitions=1, schema="a BIGINT, b STRING, at TIMESTAMP", timestamp_column="at")
        old = pa.table(
            {"a": range(ROWS), "b": ["x" * 20] * ROWS, "at": pa.array([7_000] * ROWS, pa.timestamp("us", "UTC"))}
        )
        with sparklog.Producer(servers) as producer:
            producer.send_batch("older", old)
        admin.alter_schema("older", add_columns="new INT")
    with sparklog.Producer(servers) as producer:
        producer.send_batch("older", old.append_column("new", pa.array([5] * ROWS, pa.int32())))
    found = sparklog.read_table(servers, "older", ["new", "a"], local="off", include_metadata=True)
    assert isinstance(found, pa.Table)
    assert found.column("a").to_pylist() == 2 * list(range(ROWS))
    assert found.column("new").to_pylist() == [None] * ROWS + [5] * ROWS
    assert found.column("_timestamp").cast(pa.int64()).unique().to_pylist() == [7_000]
    assert found.column("_offset").to_pylist() == list(range(2 * ROWS))
    counted = sparklog.read_table(servers, "older", [], local="off")
    assert counted.num_rows == 2 * ROWS
