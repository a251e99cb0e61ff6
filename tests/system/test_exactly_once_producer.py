"""The idempotent producer and a real broker: lost answers, kill -9, identities."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client.net.cluster import forget
from sparklog.client.producer.producer import Producer
from sparklog.protocol.apis import Api
from tests.system.broker_process import BrokerProcess, create_topic
from tests.system.cutting_proxy import CuttingProxy

PARTITIONS = 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", work_dir=tmp_path)
    with process.connect() as client:
        create_topic(client, "t", PARTITIONS)
    yield process
    assert process.stop() == 0


def stored(address: str) -> dict[int, list[tuple[int, int]]]:
    """(offset, number) by partition, as a reader gets them."""
    table = sparklog.read_table(address, "t", include_metadata=True)
    found: dict[int, list[tuple[int, int]]] = {p: [] for p in range(PARTITIONS)}
    columns = (table.column(c).to_pylist() for c in ("_partition", "_offset", "value"))
    for partition, offset, value in zip(*columns, strict=True):
        found[partition].append((offset, int(value)))
    return found


def test_lost_answers_store_no_record_twice(broker: BrokerProcess) -> None:
    rng = random.Random(7)
    proxy = CuttingProxy(broker.host, broker.port, lambda api: api is Api.PRODUCE and rng.random() < 0.3)
    sent: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
    try:
        with Producer(proxy.address, linger_ms=0, batch_size_bytes=200, retry_backoff_ms=1) as producer:
            futures = []
            for number in range(1200):
                partition = number % PARTITIONS
                sent[partition].append(number)
                if number % 7:
                    futures.append((partition, number, producer.send("t", b"%d" % number, partition=partition)))
                else:
                    data = pa.table({"value": [b"%d" % number]})
                    producer.send_batch("t", data, partition=partition)
            producer.flush()
        acknowledged = {(p, f.result(0).offset): number for p, number, f in futures}
    finally:
        proxy.close()
        forget(proxy.address)
    assert proxy.cuts > 10
    found = stored(broker.address)
    assert {p: [number for _, number in rows] for p, rows in found.items()} == sent
    assert acknowledged.items() <= {(p, offset): n for p, rows in found.items() for offset, n in rows}.items()
