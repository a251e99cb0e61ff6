"""History and tail as one, and the newest row of each key."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.client.reading.history_range import HistorySource, read_range_with_history
from sparklog.errors import (
    DataLossError,
    InvalidConfigError,
    InvalidRequestError,
    LakePausedError,
    LakeUnavailableError,
)
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.history import History
from sparklog.lake.worker import topic_reader, upsert_round
from sparklog.lake.worker.verify import verify_lake
from sparklog.lake.worker.worker import LakeWorker
from sparklog.query.session import SqlSession
from sparklog.types import TopicPartition
from tests.support.cli import COMMAND
from tests.support.deletion_vectors import delete_by_vector
from tests.support.waiting import until

SCHEMA = "n BIGINT, zone STRING"


@pytest.fixture(scope="module")
def lake_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    settings = {"lake.worker.enable": False, "log.retention.check.interval.ms": 20}
    with sparklog.start_local(tmp_path_factory.mktemp("lake-broker") / "data", settings=settings) as local:
        yield local


@pytest.fixture
def lake_admin(lake_broker: LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(lake_broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def worker(lake_broker: LocalBroker) -> Iterator[LakeWorker]:
    made = LakeWorker(lake_broker.bootstrap_servers)
    yield made
    made.close()


def send(broker: LocalBroker, topic: str, numbers: range, partition: int | None = None) -> None:
    rows = pa.table({"n": list(numbers), "zone": [f"z{n % 5}" for n in numbers]})
    with sparklog.Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(topic, rows, partition=partition)


def test_times_are_looked_up_below_the_log_too(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    address = lake_broker.bootstrap_servers
    lake_admin.create_topic(topic, 1, schema="n BIGINT, at TIMESTAMP", timestamp_column="at")
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    begin_ms = 1_772_352_000_000
    with sparklog.Producer(address) as producer:
        for first in range(0, 60, 20):
            numbers = range(first, first + 20)
            at = pa.array([(begin_ms + 60_000 * n) * 1000 for n in numbers], pa.timestamp("us", "UTC"))
            producer.send_batch(topic, pa.table({"n": list(numbers), "at": at})).result(60)
            assert worker.run_once([topic]) == {}
    lake_admin.delete_records({TopicPartition(topic, 0): 50})

    def read(start: int, end: int, **more: Any) -> list[int]:
        first, last = (datetime.fromtimestamp(begin_ms / 1000 + 60 * n, UTC) for n in (start, end))
        table = sparklog.read_table(address, topic, ["n"], start=first, end=last, **more)
        return list(table.column("n").to_pylist())

    for start, end in ((5, 15), (15, 45), (45, 55), (52, 58), (-5, 3), (58, 70), (0, 60)):
        wanted = list(range(max(start, 0), min(end, 60)))
        assert read(start, end, history=True) == wanted, (start, end)
        assert read(start, end) == [n for n in wanted if n >= 50], (start, end)
    table = DeltaTable(tmp_path / "table")
    table.delete("n BETWEEN 5 AND 9")
    assert read(5, 12, history=True) == [10, 11]
    table.optimize.compact()
    assert read(5, 45, history=True) == list(range(10, 45))
    inside = f"_timestamp >= to_timestamp({begin_ms // 1000 + 60 * 8}) AND _timestamp < to_timestamp({begin_ms // 1000 + 60 * 52})"
    found = sparklog.sql(address, f'SELECT n FROM "{topic}" WHERE {inside} ORDER BY n').column("n").to_pylist()
    assert found == list(range(10, 52))


def test_a_topic_whose_log_was_cut_is_read_whole(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    address = lake_broker.bootstrap_servers
    lake_admin.create_topic(topic, partitions=2, schema=SCHEMA)
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    for start in (0, 500):
        send(lake_broker, topic, range(start, start + 500), partition=0)
        send(lake_broker, topic, range(5_000 + start, 5_500 + start), partition=1)
        assert worker.run_once([topic]) == {}
    lake_admin.delete_records({TopicPartition(topic, 0): 900, TopicPartition(topic, 1): -1})
    DeltaTable(tmp_path / "table").optimize.compact()  # files with several partitions
    DeltaTable(tmp_path / "table").delete("n = 77")
    send(lake_broker, topic, range(1_000, 1_050), partition=0)
    expected = [n for n in range(1_050) if n != 77] + list(range(5_000, 6_000))
    rows = sparklog.read_table(address, topic, history=True, include_metadata=True)
    assert rows.column("n").to_pylist() == expected  # partition after partition, in the order of the offsets
    place = ["_partition", "_offset"]
    assert len(rows.group_by(place).aggregate([])) == len(rows)
    part = sparklog.read_table(address, topic, ["zone"], start={0: 850}, end={0: 1_020}, history=True)
    assert part.num_rows == 170
    assert sparklog.read_table(address, topic).num_rows == 150
    found = sparklog.sql(address, f'SELECT count(*) AS c, count(DISTINCT n) AS d FROM "{topic}"').to_pylist()
    assert found == [{"c": len(expected), "d": len(expected)}]
    query = f'SELECT n FROM "{topic}" WHERE _partition = 0 AND _offset BETWEEN 898 AND 1001 ORDER BY n'
    assert [r["n"] for r in sparklog.sql(address, query).to_pylist()] == list(range(898, 1_002))
    newest = sparklog.sql(address, f'SELECT n FROM "{topic}" ORDER BY _timestamp DESC, _offset DESC LIMIT 2')
    assert [r["n"] for r in newest.to_pylist()] == [1_049, 1_048]


def test_files_of_another_writer_are_read_beside_the_workers(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """delta-rs writes texts with other Arrow types than the worker, in files whose offsets overlap with others'."""
    address = lake_broker.bootstrap_servers
    lake_admin.create_topic(topic, 1, schema="n BIGINT, s STRING, l ARRAY<STRING>")
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    with sparklog.Producer(address) as producer:
        for first in range(0, 30, 10):
            rows = [{"n": n, "s": f"s{n}", "l": [f"l{n}"]} for n in range(first, first + 10)]
            producer.send_batch(topic, rows).result(60)
            assert worker.run_once([topic]) == {}
    DeltaTable(tmp_path / "table").delete("n = 1 OR n = 21")
    expected = [(n, f"s{n}", [f"l{n}"]) for n in range(30) if n not in (1, 21)]
    found = sparklog.read_table(address, topic, history=True)
    assert [(r["n"], r["s"], r["l"]) for r in found.to_pylist()] == expected
    assert sparklog.sql(address, f'SELECT count(DISTINCT s) FROM "{topic}"').to_pydict() == {"count(DISTINCT s)": [28]}


def test_a_restored_table_is_no_history_until_a_user_decides(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    address = lake_broker.bootstrap_servers
    lake_admin.create_topic(topic, 1, schema=SCHEMA)
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    for first in range(0, 30, 10):
        send(lake_broker, topic, range(first, first + 10))
        assert worker.run_once([topic]) == {}
    DeltaTable(tmp_path / "table").restore(1)
    with pytest.raises(LakePausedError, match="was restored to version 1: rows after that version are missing"):
        sparklog.read_table(address, topic, history=True)
    counted = sparklog.sql(address, f'SELECT count(*) AS n FROM "{topic}"')  # SQL reads the log alone, with a warning
    assert counted.column("n").to_pylist() == [30]
    assert "was restored to version 1" in worker.run_once([topic])[topic]
    lake_admin.resume_lake(topic, from_table=True)
    assert worker.run_once([topic]) == {}
    assert sorted(sparklog.read_table(address, topic, history=True).column("n").to_pylist()) == list(range(30))


def test_sql_reads_texts_of_table_and_log_as_one(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """Texts with few values are dictionaries in the files, others are not; both have nulls and go on in the log."""
    lake_admin.create_topic(topic, schema="n BIGINT, few STRING, many STRING")
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    truth = [
        {"n": n, "few": None if n % 7 == 0 else f"z{n % 5}", "many": None if n % 11 == 0 else f"{n:032d}"}
        for n in range(3_000)
    ]
    for part in (truth[:2_000], truth[2_000:]):
        with sparklog.Producer(lake_broker.bootstrap_servers) as producer:
            producer.send_batch(topic, part)
        if len(part) == 2_000:
            assert worker.run_once([topic]) == {}
    table = DeltaSnapshot.open(str(tmp_path / "table"))
    assert table is not None
    info = lake_admin._cluster.topic(topic)
    history = History(table, topic, info.topic_id, 1)
    assert history.dictionary_columns(info.schema) == {"few"}
    conditions: dict[str, Callable[[dict[str, Any]], object]] = {
        "true": lambda r: True,
        "few = 'z3'": lambda r: r["few"] == "z3",
        "few <> 'z3' AND n > 1990": lambda r: r["few"] not in (None, "z3") and r["n"] > 1_990,
        "few IN ('z1', 'z2') OR few IS NULL": lambda r: r["few"] in ("z1", "z2", None),
        "few BETWEEN 'z1' AND 'z2' AND many > '0'": lambda r: r["few"] in ("z1", "z2") and r["many"],
        "few LIKE '%4' AND many IS NULL": lambda r: r["few"] == "z4" and r["many"] is None,
        "lower(few) = 'z0' AND _offset >= 1995": lambda r: r["few"] == "z0" and r["n"] >= 1_995,
    }
    for condition, holds in conditions.items():
        query = f'SELECT n, few, many FROM "{topic}" WHERE {condition} ORDER BY n'
        found = sparklog.sql(lake_broker.bootstrap_servers, query)
        assert found.to_pylist() == [r for r in truth if holds(r)], condition
        assert found.schema.field("few").type == pa.string(), condition


def test_reads_are_whole_while_retention_commits_and_merges_run(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """Retention removes what a newer version of the table has, also while an older one is read."""
    configs = {"segment.bytes": 4_096, "retention.bytes": 8_192, "file.delete.delay.ms": 0}
    lake_admin.create_topic(topic, schema=SCHEMA, configs=configs)
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    stop = threading.Event()
    sent = 0

    def log_start() -> int:
        partition = TopicPartition(topic, 0)
        return lake_admin.list_offsets({partition: "earliest"})[partition].offset

    def load() -> None:
        nonlocal sent
        while not stop.is_set():
            send(lake_broker, topic, range(sent, sent + 100))
            sent += 100
            assert worker.run_once([topic]) == {}

    thread = threading.Thread(target=load)
    thread.start()
    try:
        until(lambda: log_start() > 0)
        first = log_start()
        while log_start() < first + 1_000:
            before = sent
            found = sparklog.read_table(lake_broker.bootstrap_servers, topic, history=True).column("n").to_pylist()
            assert found == list(range(len(found)))
            assert len(found) >= before
    finally:
        stop.set()
        thread.join()
    assert verify_lake(lake_admin, topic).problems == []


def test_columns_of_later_and_of_users(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    lake_admin.create_topic(topic)
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    with sparklog.Producer(lake_broker.bootstrap_servers) as producer:
        producer.send(topic, b"v", key=b"k", headers=[("h", b"x")], timestamp_ms=1_700_000_000_000)
    before = sparklog.read_table(lake_broker.bootstrap_servers, topic, include_metadata=True)
    assert worker.run_once([topic]) == {}
    lake_admin.delete_records({TopicPartition(topic, 0): -1})
    after = sparklog.read_table(lake_broker.bootstrap_servers, topic, include_metadata=True, history=True)
    assert after == before


def test_vacuum_during_a_read(
    lake_broker: LocalBroker,
    lake_admin: sparklog.Admin,
    worker: LakeWorker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read of the history goes on in the newest version, each row once. A statement of SQL can be run again."""
    address = lake_broker.bootstrap_servers
    lake_admin.create_topic(topic, partitions=1, schema=SCHEMA)
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    tp = TopicPartition(topic, 0)

    def grow(first: int) -> None:
        for start in range(first, first + 300, 100):
            send(lake_broker, topic, range(start, start + 100))
            assert worker.run_once([topic]) == {}
        lake_admin.delete_records({tp: -1})

    def vacuum() -> None:
        DeltaTable(tmp_path / "table").optimize.compact()
        removed = DeltaTable(tmp_path / "table").vacuum(0, dry_run=False, enforce_retention_duration=False)
        assert removed

    grow(0)
    connections = cluster(address)
    info = connections.topic(topic, refresh=True)
    source = HistorySource(info)
    vacuum()  # before the first file is opened
    layout = pa.schema([info.schema.field("n")])
    found: list[int] = []
    for batch in read_range_with_history(connections, tp, 0, 300, source, columns=["n"], layout=layout):
        found += batch.data.column(0).to_pylist()
    assert found == list(range(300))
    grow(300)
    source, found = HistorySource(info), []
    for batch in read_range_with_history(connections, tp, 0, 600, source, columns=["n"], layout=layout):
        if not found:
            vacuum()  # after the first batch
        found += batch.data.column(0).to_pylist()
    assert found == list(range(600))
    grow(600)
    read = SqlSession._read

    def read_late(self: SqlSession, *arguments: Any) -> Any:
        monkeypatch.undo()
        vacuum()
        return read(self, *arguments)

    with SqlSession(address) as session:
        monkeypatch.setattr(SqlSession, "_read", read_late)
        with pytest.raises(LakeUnavailableError, match="run the statement again"):
            session.execute(f'SELECT n FROM "{topic}"').read_all()
        assert session.execute(f'SELECT n FROM "{topic}"').read_all().num_rows == 900


def test_an_upserted_table_is_read_in_one_version(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """Keys move to later offsets from version to version: a reader of two versions would miss some of them."""
    address = lake_broker.bootstrap_servers
    lake_admin.create_topic(topic, partitions=1, schema="n BIGINT, v BIGINT", key_columns=["n"])
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"), mode="upsert")
    tp = TopicPartition(topic, 0)

    def change(keys: range, value: int) -> None:
        with sparklog.Producer(address) as producer:
            producer.send_batch(topic, pa.table({"n": list(keys), "v": [value] * len(keys)}))
        assert worker.run_once([topic]) == {}

    change(range(100), 0)
    connections = cluster(address)
    info = connections.topic(topic, refresh=True)

    def read(source: HistorySource, end: int, then: Callable[[], object] | None = None, **more: Any) -> dict[int, int]:
        rows: dict[int, int] = {}
        columns = ["n", "v"]
        found = read_range_with_history(connections, tp, 0, end, source, columns=columns, layout=info.schema, **more)
        for batch in found:
            rows |= dict(zip(*(batch.data.column(c).to_pylist() for c in columns), strict=True))
            if then is not None:
                then()
                then = None
        return rows

    change(range(50, 100), 1)  # between the planning of a read up to offset 100, and the read
    expected = {n: int(n >= 50) for n in range(100)}
    assert read(HistorySource(info, required=False, newest=True), 100, reaches_table_end=True) == expected
    with pytest.raises(InvalidRequestError, match=r"up to offset 100: the upserted table .* up to offset 150"):
        read(HistorySource(info, required=False, newest=True), 100)
    with pytest.raises(InvalidRequestError, match="read to the end"):
        sparklog.read_table(address, topic, latest=True, end=100)

    def replace_version() -> None:
        change(range(40, 60), 2)
        lake_admin.delete_records({tp: -1})
        DeltaTable(tmp_path / "table").vacuum(0, dry_run=False, enforce_retention_duration=False)

    source = HistorySource(info, required=False, newest=True)
    replace_version()  # before the first row is read: the newest version is read instead
    expected |= dict.fromkeys(range(40, 60), 2)
    assert read(source, 150, reaches_table_end=True) == expected
    with sparklog.Producer(address) as producer:
        producer.send_batch(topic, [{"n": 0, "v": 3}])
    with pytest.raises(DataLossError, match="the upserted table is gone before it was read whole"):
        read(HistorySource(info, required=False, newest=True), 171, replace_version)


def test_a_topic_without_a_table_has_no_history(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, topic: str
) -> None:
    lake_admin.create_topic(topic, schema=SCHEMA)
    with pytest.raises(InvalidConfigError, match="has no Delta table"):
        sparklog.read_table(lake_broker.bootstrap_servers, topic, history=True)
    with pytest.raises(InvalidRequestError, match="no key columns"):
        sparklog.read_table(lake_broker.bootstrap_servers, topic, latest=True)


def test_an_upserted_table_equals_a_dict(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    address = lake_broker.bootstrap_servers
    options = ["--schema", "id BIGINT, name STRING, _op STRING", "--key-columns", "id", "--changelog"]
    subprocess.run([*COMMAND, "topic", "create", topic, "--partitions", "3", *options, "-b", address], check=True)
    assert lake_admin.describe_topic(topic).setting("cleanup.policy") == "compact"
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"), mode="upsert")
    choose = random.Random(3)
    truth: dict[int, str] = {}
    tps = [sparklog.TopicPartition(topic, p) for p in range(3)]
    for turn in range(5):
        rows: list[dict[str, Any]] = []
        for _ in range(400):
            key, draw = choose.randrange(150), choose.random()
            if draw < 0.2:
                truth.pop(key, None)
                deletion = {"name": None, "_op": None} if draw < 0.1 else {"name": "gone", "_op": "d"}
                rows.append({"id": key, **deletion})
            else:
                truth[key] = f"{turn}-{draw}"
                rows.append({"id": key, "name": truth[key], "_op": "u"})
        in_table = {tp: at.offset for tp, at in lake_admin.list_offsets(dict.fromkeys(tps, "latest")).items()}
        with sparklog.Producer(address) as producer:
            producer.send_batch(topic, rows)
        if turn == 4:  # the last changes are in the log only, and all others in the table only
            break
        assert worker.run_once([topic]) == {}
        found = DeltaTable(tmp_path / "table").to_pyarrow_table()
        assert dict(zip(found.column("id").to_pylist(), found.column("name").to_pylist(), strict=True)) == truth
        assert found.num_rows == len(truth)
    lake_admin.alter_topic(topic, {"cleanup.policy": "compact,delete"})
    lake_admin.delete_records(in_table)
    assert verify_lake(lake_admin, topic).problems == []
    for latest in (
        sparklog.read_table(address, topic, latest=True),
        sparklog.sql(address, f'SELECT id, name FROM latest."{topic}"'),
    ):
        assert dict(zip(latest.column("id").to_pylist(), latest.column("name").to_pylist(), strict=True)) == truth
    with pytest.raises(InvalidConfigError, match="newest row of each key only"):
        sparklog.read_table(address, topic, history=True)


def test_every_latest_has_one_zero_and_one_nan(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """Python and SQL, from the log and from an upserted table, agree on which floating-point keys are equal."""
    address = lake_broker.bootstrap_servers
    lake_admin.create_topic(topic, 3, schema="k DOUBLE, n BIGINT, _op STRING", key_columns=["k"])
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"), mode="upsert")
    bits = np.array([0, 1 << 63, 0x7FF8 << 48, (0x7FF8 << 48) + 1, 0xFFF8 << 48, 0x3FF0 << 48], np.uint64)
    numbers = pa.array(bits.view(float))  # 0.0, -0.0, three patterns of NaN, 1.0

    def check(expected: list[int]) -> None:
        rows = sparklog.read_table(address, topic, latest=True)
        assert sorted(rows.column("n").to_pylist()) == expected
        assert sorted(sparklog.sql(address, f'SELECT n FROM latest."{topic}"').column("n").to_pylist()) == expected

    with sparklog.Producer(address) as producer:
        producer.send_batch(topic, pa.table({"k": numbers, "n": np.arange(6), "_op": ["c"] * 6}))
        producer.flush()
        check([1, 4, 5])
        assert worker.run_once([topic]) == {}
        check([1, 4, 5])
        gone = pa.table({"k": numbers.slice(0, 3).take([0, 2]), "n": np.arange(2), "_op": ["d"] * 2})
        producer.send_batch(topic, gone)  # 0.0 deletes -0.0, and one NaN another
        producer.flush()
        check([5])
        assert worker.run_once([topic]) == {}
        check([5])
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().column("n").to_pylist() == [5]


def test_deletion_vectors_are_applied_or_stop_an_upserted_table(
    lake_broker: LocalBroker, lake_admin: sparklog.Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """A file with a vector cannot be replaced through deltalake: its rows would come twice."""
    address, path = lake_broker.bootstrap_servers, tmp_path / "table"
    lake_admin.create_topic(topic, schema=SCHEMA, key_columns=["n"])
    for mode in ("append", "upsert"):
        location = path / mode
        lake_admin.enable_lake(topic, location=str(location), mode=mode)
        if mode == "append":
            send(lake_broker, topic, range(10), partition=0)
        assert worker.run_once([topic]) == {}
        delete_by_vector(location, [3, 4])
        send(lake_broker, topic, range(5, 6), partition=0)
        errors = worker.run_once([topic])
        if mode == "append":
            assert errors == {}
            assert sparklog.read_table(address, topic, history=True).num_rows == 9
        else:
            assert "has a deletion vector" in errors[topic]
        lake_admin.rebuild_lake(topic)
        assert worker.run_once([topic]) == {}
        table = DeltaSnapshot.open(str(location))
        assert table is not None
        masks = table.deletion_masks()
        found = sum(table.reader.read_file(file, ["n"], masks=masks).num_rows for file in table.files())
        assert found == (11 if mode == "append" else 10)
        lake_admin.disable_lake(topic)


def test_debezium_events_become_rows() -> None:
    events = [
        b'{"schema": {}, "payload": {"before": null, "after": {"id": 1, "name": "a"}, "op": "c"}}',
        {"before": {"id": 1}, "after": None, "op": "d"},
        None,
        {"payload": None},
    ]
    assert sparklog.unwrap_debezium(events) == [{"id": 1, "name": "a", "_op": "c"}, {"id": 1, "_op": "d"}]
    for wrong in (b"{", {"op": "x"}, 7, {"op": "c", "after": '{"_id": 1}'}, {"op": "c", "after": [1]}):
        with pytest.raises(sparklog.errors.DeserializationError, match="Debezium"):
            sparklog.unwrap_debezium([wrong])


def test_changes_of_a_round_have_a_size(
    lake_broker: LocalBroker,
    lake_admin: sparklog.Admin,
    worker: LakeWorker,
    topic_name: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backlog goes in several commits; with transactions in one, because a cut would show a part of one."""
    monkeypatch.setattr(upsert_round, "UPSERT_BYTES_PER_ROUND", 1_000)
    monkeypatch.setattr(topic_reader, "WRITE_ROWS", 50)
    for transactional_id in (None, "changes"):
        topic = topic_name()
        path = tmp_path / topic
        lake_admin.create_topic(topic, partitions=3, schema=SCHEMA, key_columns=["n"])
        lake_admin.enable_lake(topic, location=str(path), mode="upsert")
        with sparklog.Producer(lake_broker.bootstrap_servers, transactional_id=transactional_id) as producer:
            if transactional_id is not None:
                producer.init_transactions()
                producer.begin_transaction()
            for turn in range(20):
                producer.send_batch(topic, pa.table({"n": range(100), "zone": [f"{turn}"] * 100}))
                producer.flush()
            if transactional_id is not None:
                producer.commit_transaction()
        assert worker.run_once([topic]) == {}
        found = DeltaTable(path)
        rows = found.to_pyarrow_table().sort_by("n")
        assert rows.column("n").to_pylist() == list(range(100))
        assert set(rows.column("zone").to_pylist()) == {"19"}
        assert found.version() > 6 if transactional_id is None else found.version() == 1
        assert verify_lake(lake_admin, topic).problems == []
