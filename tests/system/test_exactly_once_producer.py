"""The idempotent producer and a real broker that loses answers."""

from __future__ import annotations

import random

import pyarrow as pa

from sparklog.client.producer.producer import Producer
from sparklog.testing import KitBroker, exactly_once, in_order

PARTITIONS = 3
RECORDS = 600


def test_lost_answers_store_no_record_twice() -> None:
    rng = random.Random(7)
    with KitBroker() as broker:
        broker.create_topic("t", partitions=PARTITIONS)
        with Producer(broker.bootstrap_servers, linger_ms=0, batch_size_bytes=200, retry_backoff_ms=1) as producer:
            futures = []
            for number in range(RECORDS):
                if rng.random() < 0.05:
                    broker.faults.lose_response("PRODUCE")
                if number % 7:
                    futures.append((number, producer.send("t", b"%d" % number, partition=number % PARTITIONS)))
                else:
                    data = pa.table({"value": [b"%d" % number]})
                    producer.send_batch("t", data, partition=number % PARTITIONS)
            producer.flush()
        rows = [row | {"number": int(row["value"])} for row in broker.rows("t", include_metadata=True)]
    sent = [{"number": number, "_partition": number % PARTITIONS} for number in range(RECORDS)]
    exactly_once(sent, rows, key=["number", "_partition"])
    in_order(rows, by="number", key="_partition")
    acknowledged = {number: future.result(0).offset for number, future in futures}
    assert acknowledged.items() <= {row["number"]: row["_offset"] for row in rows}.items()
