"""Readers with a fixed end, while an open transaction holds back a part of a committed one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.source.catalog import Catalog

import sparklog
from sparklog.client.admin.offset_snapshot import snapshot_offsets
from sparklog.client.backup.backup import backup
from sparklog.client.net.cluster import cluster
from sparklog.client.net.retry import RetryPolicy
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.types import READ_COMMITTED, TopicPartition


def test_no_reader_shows_a_part_of_a_transaction(
    broker: sparklog.LocalBroker, admin: sparklog.Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, partitions=2)
    address = broker.bootstrap_servers
    tps = [TopicPartition(topic, p) for p in range(2)]
    store = ObjectStore(tmp_path.as_uri())
    times = iter(range(1, 100))

    def backed_up() -> int:
        return sum(
            part.rows
            for found in backup(address, store, now_ms=next(times), topics=[topic]).topics
            for p in found.partitions
            for part in p.parts
        )

    def agreed() -> int:
        name, shared = f"{topic} {next(times)}", cluster(address)
        asked = [snapshot_offsets(shared, name, [topic], tp, READ_COMMITTED, RetryPolicy()) for tp in tps]
        return _rows(dict(zip((0, 1), asked, strict=True)))

    def _rows(spans: dict[int, tuple[int, int]]) -> int:
        start, end = ({p: span[i] for p, span in spans.items()} for i in range(2))
        return sparklog.read_table(address, topic, start=start, end=end).num_rows

    def micro_batch() -> int:
        extents = Catalog(ClusterAddress(address), 0, READ_COMMITTED).extents(tps)
        return _rows({tp.partition: (e.start, e.end) for tp, e in extents.items()})

    readers: dict[str, Callable[[], int]] = {
        "read_table": lambda: sparklog.read_table(address, topic).num_rows,
        "SQL": lambda: sparklog.sql(address, f'SELECT count(*) AS n FROM "{topic}"')["n"][0].as_py(),
        "backup": backed_up,
        "a DataFrame's tasks": agreed,
        "a micro-batch": micro_batch,
    }
    with (
        sparklog.Producer(address, transactional_id=f"{topic}-open") as opened,
        sparklog.Producer(address, transactional_id=f"{topic}-whole") as whole,
    ):
        opened.init_transactions()
        whole.init_transactions()

        def commit() -> None:
            whole.begin_transaction()
            for tp in tps:
                whole.send(topic, value=b"whole", partition=tp.partition)
            whole.commit_transaction()

        commit()
        opened.begin_transaction()
        opened.send(topic, value=b"open", partition=0)
        opened.flush()
        commit()
        for name, rows in readers.items():
            assert rows() == 2, f"{name} shows a part of the second transaction"
        opened.abort_transaction()
        for name, rows in readers.items():
            assert rows() == 4, name
