"""`Admin.list_offsets` against a list: times out of order, many segments, deleted records, a restarted broker."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa

import sparklog
from sparklog import Admin, Producer, TopicPartition

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("fill", pa.string())])
ASKED = [0, 1, 499, 500, 501, 750, 999, 1000, 2000]


def check(admin: Admin, tp: TopicPartition, times_ms: list[int], start: int) -> None:
    visible = [(o, t) for o, t in enumerate(times_ms) if o >= start]
    assert admin.list_offsets({tp: "earliest"})[tp] == (start, -1)
    assert admin.list_offsets({tp: "latest"})[tp] == (len(times_ms), -1)
    largest = max(t for _, t in visible)
    assert admin.list_offsets({tp: "max_timestamp"})[tp] == next((o, t) for o, t in visible if t == largest)
    for asked in ASKED:
        expected = next(((o, t) for o, t in visible if t >= asked), (-1, -1))
        assert admin.list_offsets({tp: asked})[tp] == expected, asked


def test_offsets_by_time_across_segments_deletion_and_restart(tmp_path: Path) -> None:
    rng = random.Random(3)
    times_ms: list[int] = []
    configs = {"segment.bytes": 16_384, "index.interval.bytes": 4096, "retention.ms": -1}

    def send(bootstrap_servers: str) -> None:
        with Producer(bootstrap_servers) as producer:
            for _ in range(60):
                rows = [rng.randrange(0, 1001) for _ in range(7)]
                times_ms.extend(rows)
                at = pa.array([t * 1000 for t in rows], SCHEMA.field("at").type)
                producer.send_batch("t", pa.table([at, pa.array(["x" * 200] * 7)], schema=SCHEMA)).result(30)

    data_dir = tmp_path / "data"
    tp = TopicPartition("t", 0)
    with sparklog.start_local(data_dir) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("t", partitions=1, schema=SCHEMA, timestamp_column="at", configs=configs)
        assert admin.list_offsets({tp: "max_timestamp"})[tp] == (-1, -1)
        assert admin.list_offsets({tp: 5})[tp] == (-1, -1)
        send(broker.bootstrap_servers)
        assert len(list(data_dir.glob("t-0/*.arrow"))) > 5
        check(admin, tp, times_ms, 0)
        start = 3 * times_ms.index(max(times_ms)) // 2 + 10  # the largest one goes, inside a batch
        assert admin.delete_records({tp: start})[tp] == start
        check(admin, tp, times_ms, start)
    with sparklog.start_local(data_dir) as broker, Admin(broker.bootstrap_servers) as admin:
        check(admin, tp, times_ms, start)
        send(broker.bootstrap_servers)
        check(admin, tp, times_ms, start)
