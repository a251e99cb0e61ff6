"""Compaction by a real broker, and every kind of reader of a compacted log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog import Admin, Consumer, read_table
from sparklog.client.net.cluster import cluster
from sparklog.client.reading.range_reader import read_range
from sparklog.types import TopicPartition
from tests.support.cli import run_here
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess
from tests.system.compacted_topic import COMPACT, KEYS, ROUNDS, SETTINGS, address, compacted, write

TP = TopicPartition("state", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", settings=SETTINGS, work_dir=tmp_path)
    yield process
    process.stop()


def test_every_reader_sees_the_same_rows_with_the_same_offsets(broker: BrokerProcess, tmp_path: Path) -> None:
    admin = Admin(address(broker))
    admin.create_topic("state", partitions=1, configs=COMPACT)
    write(broker)
    until(lambda: compacted(broker.data_dir) > 0, "compaction")
    until(lambda: read_table(address(broker), "state", local="off").num_rows < KEYS * ROUNDS // 2, "a shorter log")
    admin.alter_topic("state", {"min.compaction.lag.ms": 1 << 50})  # no more compaction between the readers
    broker.stop()
    quiet = BrokerProcess(tmp_path / "data", work_dir=tmp_path)
    try:
        check_readers(quiet)
    finally:
        assert quiet.stop() == 0


def check_readers(broker: BrokerProcess) -> None:
    where = address(broker)
    table = read_table(where, "state", include_metadata=True)
    offsets = table.column("_offset").to_pylist()
    assert offsets == sorted(set(offsets)) and len(offsets) < KEYS * ROUNDS
    for offset, key, value in zip(offsets, *[table.column(n).to_pylist() for n in ("key", "value")], strict=True):
        assert key == b"key-%d" % (offset % KEYS)
        dead = offset // KEYS == ROUNDS - 1 and offset % KEYS < 10
        assert value == (None if dead else b"%d" % (offset // KEYS))
    assert set(range(KEYS * (ROUNDS - 1), KEYS * ROUNDS)) <= set(offsets)
    assert read_table(where, "state", include_metadata=True, local="off").equals(table)

    consumer = Consumer(where)
    consumer.assign([TP])
    polled: list[int] = []
    while consumer.position(TP) < KEYS * ROUNDS:
        polled += [record.offset for record in consumer.poll(timeout_ms=200, max_records=7)]
    assert polled == offsets
    consumer.seek(TP, 0)
    found: list[int] = []
    while consumer.position(TP) < KEYS * ROUNDS:
        for batch in consumer.poll_batches(timeout_ms=200):
            found += batch.offsets().tolist()
    assert found == offsets
    gap = next(o for o in range(KEYS * ROUNDS) if o not in set(offsets))
    consumer.seek(TP, gap)
    assert consumer.poll(timeout_ms=5000)[0].offset == min(o for o in offsets if o > gap)
    consumer.close()

    for local in ("auto", "off"):
        for start, end in ((0, 500), (333, 1777), (gap, gap + 1), (KEYS * ROUNDS - 3, KEYS * ROUNDS)):
            read = [o for b in read_range(cluster(where), TP, start, end, local=local) for o in b.offsets().tolist()]
            assert read == [o for o in offsets if start <= o < end], (local, start, end)
            only = [
                b.timestamps_ms() for b in read_range(cluster(where), TP, start, end, columns=["value"], local=local)
            ]
            assert sum(map(len, only)) == len(read)
    check_command_line(where, broker.data_dir, offsets)


def check_command_line(where: str, data_dir: Path, offsets: list[int]) -> None:
    def sparklog(*arguments: str) -> str:
        done = run_here(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    lines = sparklog("consume", "state", "--bootstrap-servers", where, "--format", "json", "--metadata").splitlines()
    assert [json.loads(line)["offset"] for line in lines] == offsets
    path = min(p for p in (data_dir / "state-0").glob("*.arrow") if b"__offset" in p.read_bytes()[:4096])
    expected = pa.ipc.open_file(path).read_all().column("__offset").to_pylist()
    dumped = json.loads(sparklog("log", "dump", str(path), "--records", "100000", "--format", "json"))
    records = dumped["first_records"]
    assert [record["_offset"] for record in records] == expected
