"""SQL against a real broker: the records of a statement, its end, and its limits."""

from __future__ import annotations

import builtins
import datetime as dt
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import sparklog
from sparklog import Admin, Producer, SqlSession
from sparklog.errors import (
    BrokerNotAvailableError,
    ClosedError,
    InvalidConfigError,
    InvalidQueryError,
    QueryCancelledError,
    QueryResultTooLargeError,
    SparklogError,
    UnknownTopicOrPartitionError,
)
from sparklog.query.scan import TopicScan
from sparklog.types import TopicPartition
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess
from tests.system.compacted_topic import COMPACT, KEYS, SETTINGS, address, compacted, write

if TYPE_CHECKING:
    from sparklog.client.local import LocalBroker

TRIPS = pa.schema([("zone", pa.string()), ("minutes", pa.float64())])


@pytest.fixture
def session(broker: LocalBroker) -> Iterator[SqlSession]:
    with SqlSession(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def trips(broker: LocalBroker, admin: Admin, topic: str) -> str:
    """A topic with 3 records in each of 2 partitions; its name in quotes."""
    admin.create_topic(topic, partitions=2, schema=TRIPS)
    with Producer(broker.bootstrap_servers) as producer:
        for partition in range(2):
            producer.send_batch(
                topic, {"zone": ["Harbour", "Museum", None], "minutes": [1.5, 2.0, 8.0]}, partition=partition
            ).result(60)
    return f'"{topic}"'


def answer(session: SqlSession, query: str) -> list[tuple[Any, ...]]:
    with session.execute(query) as result:
        return [tuple(row.values()) for row in result.read_all().to_pylist()]


def test_a_description_has_the_subject_of_the_topics_schemas(session: SqlSession, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, schema="id INT", configs={"kafka.value.format": "avro"})
    for query in (f'DESCRIBE "{topic}"', f'SHOW "{topic}"', f'SHOW COLUMNS FROM "{topic}"', f'DESC main."{topic}"'):
        extras = {row[0]: row[-1] for row in answer(session, query)}
        assert extras["id"] == f"subject {topic}-value", query
        assert extras["_offset"] is None, "only columns of the topic have a schema"
    keyed = f"{topic}-keyed"
    forms = {"kafka.key.format": "avro"}
    admin.create_topic(keyed, schema="id INT, n INT", key_columns=["id"], configs=forms)
    extras = {row[0]: row[-1] for row in answer(session, f'DESCRIBE "{keyed}"')}
    assert (extras["id"], extras["n"]) == (f"subject {keyed}-key", None)
    admin.alter_topic(keyed, {"kafka.value.format": "avro"})
    until(lambda: _extras(session, keyed) == (f"subject {keyed}-value, {keyed}-key", f"subject {keyed}-value"), "both")


def _extras(session: SqlSession, topic: str) -> tuple[Any, Any]:
    extras = {row[0]: row[-1] for row in answer(session, f'DESCRIBE "{topic}"')}
    return extras["id"], extras["n"]


def test_a_topic_is_a_table(broker: LocalBroker, trips: str) -> None:
    table = sparklog.sql(broker.bootstrap_servers, f"FROM {trips} ORDER BY ALL")
    assert table.schema.names == ["_partition", "_offset", "_timestamp", "zone", "minutes"]
    assert table.schema.field("_timestamp").type == pa.timestamp("us", tz="UTC")
    read = sparklog.read_table(broker.bootstrap_servers, trips.strip('"'), include_metadata=True)
    assert table.to_pylist() == read.select(table.schema.names).to_pylist()


def test_it_is_the_same_through_the_socket(broker: LocalBroker, trips: str) -> None:
    query = f"SELECT zone, _offset FROM {trips} WHERE _offset > 0 ORDER BY ALL"
    tables = [sparklog.sql(broker.bootstrap_servers, query, local=local) for local in ("auto", "off")]
    assert tables[0].num_rows == 4
    assert tables[0] == tables[1]


def test_an_envelope_topic(broker: LocalBroker, admin: Admin, topic: str, session: SqlSession) -> None:
    admin.create_topic(topic)
    with Producer(broker.bootstrap_servers) as producer:
        for i in range(50):  # as many small batches
            headers = [("source", b"meter")] if i == 7 else []
            producer.send(topic, b'{"n": %d}' % i, key=b"k%d" % (i % 3), headers=headers)
            producer.flush()
    assert session.columns(topic).names == [
        "_partition", "_offset", "_timestamp", "key", "value", "headers", "timestamp",
    ]  # fmt: skip
    query = f"""SELECT decode(key), sum((decode(value)->>'$.n')::INT), count(headers) FROM "{topic}" GROUP BY 1 ORDER BY 1"""
    assert answer(session, query) == [("k0", sum(range(0, 50, 3)), 0), ("k1", sum(range(1, 50, 3)), 1), ("k2", 392, 0)]
    assert answer(session, f'SELECT headers[1].key, headers[1].value FROM "{topic}" WHERE _offset = 7') == [
        ("source", b"meter")
    ]
    assert answer(session, f'SELECT count(*) FROM "{topic}"') == [(50,)]


def test_an_empty_topic(admin: Admin, topic: str, session: SqlSession) -> None:
    admin.create_topic(topic, schema=TRIPS)
    assert answer(session, f'SELECT count(*), max(minutes) FROM "{topic}"') == [(0, None)]
    assert answer(session, f'FROM "{topic}" ORDER BY _offset DESC LIMIT 3') == []
    assert answer(session, f'FROM "{topic}" WHERE _timestamp > now() - INTERVAL 1 HOUR') == []


def test_a_statement_sees_the_records_at_its_start(broker: LocalBroker, trips: str, session: SqlSession) -> None:
    with session.execute(f"SELECT _offset FROM {trips}") as result, Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(trips.strip('"'), {"zone": ["late"], "minutes": [0.0]}, partition=1).result(60)
        assert result.read_all().num_rows == 6
    assert answer(session, f"SELECT count(*) FROM {trips}") == [(7,)]


@pytest.mark.parametrize("columns", ["*", "zone", "_partition, minutes"])
def test_small_batches_of_the_log_are_read_together(
    broker: LocalBroker, admin: Admin, topic: str, session: SqlSession, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB's work per batch would cost more than a copy, also beside columns that do not come from the log."""
    admin.create_topic(topic, schema=TRIPS)
    with Producer(broker.bootstrap_servers) as producer:
        for n in range(300):
            producer.send_batch(topic, {"zone": ["Harbour"] * 100, "minutes": [float(n)] * 100}).result(60)
    sizes: list[int] = []
    batches = TopicScan.batches

    def count_rows(self: TopicScan) -> Iterator[pa.RecordBatch]:
        for batch in batches(self):
            sizes.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(TopicScan, "batches", count_rows)
    with session.execute(f'SELECT {columns} FROM "{topic}"') as result:
        assert result.read_all().num_rows == 30_000
    assert sum(sizes) == 30_000
    assert len(sizes) <= 3, "2,048 rows, 8,192 rows, and all others"


def test_only_committed_rows_are_seen(broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    servers, count = broker.bootstrap_servers, f'SELECT decode(value) FROM "{topic}" ORDER BY _offset'
    newest = f'SELECT decode(value) FROM "{topic}" ORDER BY _offset DESC LIMIT 1'
    with Producer(servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for text, commit in ((b"aborted", False), (b"committed", True)):
            producer.begin_transaction()
            producer.send(topic, text).result(60)
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"open").result(60)
        assert sparklog.sql(servers, count).column(0).to_pylist() == ["committed"]
        assert sparklog.sql(servers, newest).column(0).to_pylist() == ["committed"]
        everything = sparklog.sql(servers, count, isolation_level="read_uncommitted")
        assert everything.column(0).to_pylist() == ["aborted", "committed", "open"]
        producer.abort_transaction()


def test_a_row_without_a_time_counts_with_its_batchs_latest(broker: LocalBroker, admin: Admin, topic: str) -> None:
    """In a look-up by time and in a filter."""
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    admin.create_topic(topic, schema=schema, timestamp_column="at")
    with Producer(broker.bootstrap_servers) as producer:
        for first in range(0, 400, 4):
            times = [None, 1_000_000 * first, None, 2_000_000 * first]
            rows = {"n": list(range(first, first + 4)), "at": pa.array(times, pa.int64()).cast(schema.field("at").type)}
            producer.send_batch(topic, rows).result(60)
    with SqlSession(broker.bootstrap_servers) as session:
        late = f'SELECT n FROM "{topic}" WHERE _timestamp >= make_timestamptz(792000000)'
        assert answer(session, f"{late} ORDER BY 1") == [(396,), (398,), (399,)]
        assert answer(session, f"{late} AND _offset < 399 ORDER BY 1") == [(396,), (398,)]
        assert answer(session, f"{late} AND _offset BETWEEN 397 AND 398 ORDER BY 1") == [(398,)]
        assert answer(session, f'SELECT n FROM "{topic}" ORDER BY _timestamp DESC, n LIMIT 2') == [(396,), (398,)]
        assert session.statistics.rows_read < 50


def test_lateness_ends_the_reading_behind_a_time_range(broker: LocalBroker, admin: Admin, topic: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    admin.create_topic(topic, schema=schema, timestamp_column="at")
    with Producer(broker.bootstrap_servers) as producer:
        for n in range(100):
            at = pa.array([1_000_000 * n], pa.int64()).cast(schema.field("at").type)
            producer.send_batch(topic, {"n": [n], "at": at}).result(60)
    query = (
        f'SELECT n FROM "{topic}" WHERE _timestamp BETWEEN make_timestamptz(10000000) AND make_timestamptz(12000000)'
    )
    for lateness_ms, offsets in ((None, 90), (5000, 8), (0, 3)):
        with SqlSession(broker.bootstrap_servers, lateness_ms=lateness_ms) as session:
            assert answer(session, query) == [(10,), (11,), (12,)]
            assert session.statistics.offsets_total == offsets


def test_schema_evolution(broker: LocalBroker, admin: Admin, trips: str, session: SqlSession) -> None:
    topic = trips.strip('"')
    answer(session, f"CREATE VIEW museum AS SELECT * FROM {trips} WHERE zone = 'Museum'")
    assert answer(session, f"SELECT count(*) FROM {trips}") == [(6,)]
    admin.alter_schema(topic, add_columns={"tip": pa.float64()})
    with Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(topic, {"zone": ["Museum"], "minutes": [1.0], "tip": [0.5]}, partition=0).result(60)
    assert answer(session, f"SELECT tip, count(*) FROM {trips} GROUP BY 1 ORDER BY 1") == [(0.5, 1), (None, 6)]
    assert answer(session, "SELECT minutes FROM museum ORDER BY 1") == [(1.0,), (2.0,), (2.0,)]


def test_statements_that_belong_together(trips: str, session: SqlSession) -> None:
    answer(
        session, f"CREATE VIEW v AS SELECT zone, minutes FROM {trips}; CREATE TABLE seen AS SELECT count(*) n FROM v"
    )
    assert answer(session, "SELECT n, (SELECT max(minutes) FROM v) FROM seen; SELECT n + 1 FROM seen") == [(7,)]
    assert answer(session, "BEGIN; INSERT INTO seen VALUES (1); ROLLBACK; SELECT count(*) FROM seen") == [(1,)]
    query = f"/* the end of the day */ BEGIN; SELECT zone FROM {trips} ORDER BY _offset DESC, _partition LIMIT 1"
    assert answer(session, query) == [(None,)]
    answer(session, "COMMIT")


def test_deleted_and_unknown_topics(admin: Admin, trips: str, session: SqlSession) -> None:
    answer(session, f"CREATE VIEW old AS FROM {trips}")
    with pytest.raises(UnknownTopicOrPartitionError, match=r"Did you mean"):
        session.execute(f'FROM {trips[:-1]}x"')
    admin.delete_topic(trips.strip('"'))
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic"):
        answer(session, "FROM old")
    with pytest.raises(SparklogError, match=r"no topic|does not exist"):
        answer(session, f"FROM {trips}")


def test_deleted_records_are_absent(admin: Admin, trips: str, session: SqlSession) -> None:
    admin.delete_records({TopicPartition(trips.strip('"'), 0): 2})
    assert answer(session, f"SELECT _partition, min(_offset), count(*) FROM {trips} GROUP BY 1 ORDER BY 1") == [
        (0, 2, 1),
        (1, 0, 3),
    ]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC 1", r"Parser Error.*SELEC"),
        ("SELECT fare FROM {trips}", r"(?s)\"fare\" not found.*columns of .*zone, minutes"),
        ("SELECT zone + 1 FROM {trips}", r"Conversion Error|Binder Error"),
        ("", "no statement"),
    ],
)
def test_bad_sql(trips: str, session: SqlSession, query: str, said: str) -> None:
    with pytest.raises(InvalidQueryError, match=said):
        answer(session, query.format(trips=trips))
    assert answer(session, f"SELECT count(*) FROM {trips}") == [(6,)]  # the session goes on


@pytest.mark.parametrize(
    "query",
    [
        "FROM read_csv('/etc/passwd')",
        "FROM read_text('/etc/passwd')",
        "FROM read_blob('/etc/passwd')",
        "FROM glob('/etc/*')",
        "FROM '/etc/passwd'",
        "FROM 'https://example.com/x.parquet'",
        "FROM sniff_csv('/etc/passwd')",
        "COPY (SELECT 1) TO '{path}/x.csv'",
        "EXPORT DATABASE '{path}/x'",
        "IMPORT DATABASE '{path}/x'",
        "ATTACH '{path}/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "LOAD '{path}/x.duckdb_extension'",
        "CREATE PERSISTENT SECRET (TYPE s3)",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "RESET lock_configuration",
        "SET memory_limit = '100GB'",
        "SET temp_directory = '{path}'",
        "SET allowed_directories = ['/etc']",
        "PRAGMA enable_profiling; SET profiling_output = '{path}/x'",
        "FROM secret_of_the_process",
    ],
)
def test_sql_reaches_topics_only(session: SqlSession, tmp_path: Path, query: str) -> None:
    secret_of_the_process = pa.table({"a": [1]})  # DuckDB reads Python's variables unless it is told not to
    with pytest.raises(SparklogError):
        answer(session, query.format(path=tmp_path))
    assert not list(tmp_path.iterdir())
    assert secret_of_the_process.num_rows == 1


def test_other_kinds_of_statements_are_refused_with_a_reason(session: SqlSession, tmp_path: Path) -> None:
    for query, reason in (
        ("UPDATE EXTENSIONS", "extensions cannot be installed"),
        ("UPDATE EXTENSIONS (json)", "extensions cannot be installed"),
        ("INSTALL json", "extensions cannot be installed"),
        ("LOAD json", "extensions cannot be installed"),
        ("ATTACH ':memory:' AS other", "topics are the only tables"),
        ("COPY (SELECT 1) TO '{path}/x'", "statements cannot write files"),
        ("EXPORT DATABASE '{path}'", "statements cannot write files"),
        ("/* a */ PRAGMA -- b\n version", "SHOW TABLES"),
        ("SET threads = 3", "settings of DuckDB are locked"),
        ("USE memory", "settings of DuckDB are locked"),
        ("SELECT 1; CREATE TABLE made (a INT); ATTACH 'x'", "topics are the only tables"),
    ):
        with pytest.raises(InvalidQueryError, match=reason):
            answer(session, query.format(path=tmp_path))
    with pytest.raises(SparklogError, match="does not exist"):  # nothing was run of a text with a refused statement
        answer(session, "FROM made")
    assert answer(session, "SET VARIABLE a = 1; SELECT getvariable('a')") == [(1,)]
    assert answer(session, "PIVOT (SELECT 1 AS a, 2 AS b) ON a USING sum(b)") == [(2,)]
    for query in (
        "SHOW TABLES",
        "DESCRIBE SELECT 1",
        "SUMMARIZE SELECT 1",
        "EXPLAIN SELECT 1",
        "BEGIN; SELECT 1; COMMIT",
    ):
        answer(session, query)


def test_an_expression_too_deep_to_look_through_is_read_all_the_same(trips: str, session: SqlSession) -> None:
    deep = "abs(" * 600 + "_offset" + ")" * 600
    assert answer(session, f"SELECT {deep} AS x FROM {trips} ORDER BY _offset DESC LIMIT 1") == [(2,)]


def test_a_query_ends_at_its_memory_limit(broker: LocalBroker) -> None:
    with SqlSession(broker.bootstrap_servers, memory_limit_bytes=64 << 20) as session:
        with pytest.raises(InvalidQueryError, match="memory_limit_bytes"):
            answer(session, "CREATE TABLE big AS SELECT range, uuid() FROM range(100_000_000)")
        assert answer(session, "SELECT 1") == [(1,)]


def test_limits_of_the_result(broker: LocalBroker, session: SqlSession) -> None:
    servers, query = broker.bootstrap_servers, "SELECT range FROM range(200_000)"
    assert sparklog.sql(servers, query, max_rows=200_000).num_rows == 200_000
    with pytest.raises(QueryResultTooLargeError, match="max_rows = 199,999"):
        sparklog.sql(servers, query, max_rows=199_999)
    with pytest.raises(QueryResultTooLargeError, match="max_bytes = 1,000,000"):
        sparklog.sql(servers, query, max_bytes=1_000_000)
    with session.execute(query) as result:
        table, complete = result.read_up_to(max_rows=100_000)
    assert (table.column(0).to_pylist() == list(range(100_000)), complete) == (True, False)


@pytest.mark.parametrize(
    "query",
    ["SELECT count(*) FROM range(10_000_000) a, range(10_000_000) b WHERE a.range * b.range % 7 = 3", "{trips}"],
)
def test_a_query_is_cancelled(trips: str, session: SqlSession, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()
    if query == "{trips}":  # while a scan reads
        query = f"SELECT count(*) FROM {trips}"

        def endless(*_: object, **options: Any) -> Iterator[object]:
            started.set()
            while True:
                options["is_needed"](None)
                yield from ()

        monkeypatch.setattr("sparklog.query.scan.read_range", endless)
        monkeypatch.setattr("sparklog.query.scan.may_have_time", lambda *_: False)
    else:
        started.set()
    done = threading.Event()

    def cancel() -> None:
        started.wait(60)
        while not done.wait(0.05):  # it may come before the statement
            session.interrupt()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(QueryCancelledError):
            answer(session, query)
    finally:
        done.set()
        thread.join()
    monkeypatch.undo()
    assert answer(session, f"SELECT count(*) FROM {trips}") == [(6,)]


def test_an_interrupt_before_the_statements_state_is_a_cancellation(session: SqlSession) -> None:
    rows = iter(session.execute("FROM range(1000000000000)"))
    next(rows)
    session._connection.interrupt()
    with pytest.raises(QueryCancelledError):
        list(rows)


def test_a_broker_that_is_gone() -> None:
    with pytest.raises(BrokerNotAvailableError):
        sparklog.sql("127.0.0.1:1", "SELECT 1", request_timeout_ms=1000)


def test_a_statement_raises_its_scans_error(trips: str, session: SqlSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> Iterator[object]:
        raise BrokerNotAvailableError("gone")
        yield

    monkeypatch.setattr("sparklog.query.scan.read_range", lost)
    with pytest.raises(BrokerNotAvailableError, match=r"^gone$"):
        answer(session, f"SELECT count(*) FROM {trips}")
    with pytest.raises(BrokerNotAvailableError, match=r"^gone$"):
        answer(session, f"FROM {trips} ORDER BY _offset DESC LIMIT 1")


def test_a_closed_session(broker: LocalBroker) -> None:
    session = SqlSession(broker.bootstrap_servers)
    result = session.execute("SELECT 1")
    session.close()
    session.close()
    result.close()
    with pytest.raises(ClosedError):
        session.execute("SELECT 1")


def test_wrong_options(broker: LocalBroker) -> None:
    servers = broker.bootstrap_servers
    for options in ({"local": "on"}, {"isolation_level": "x"}, {"memory_limit_bytes": 5}, {"lateness_ms": -1}):
        with pytest.raises(InvalidConfigError):
            SqlSession(servers, **options)


def test_without_duckdb_the_extra_is_named(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidConfigError, match=r"pip install 'sparklog\[sql\]'"):
        sparklog.sql(broker.bootstrap_servers, "SELECT 1")


def test_the_end_of_the_process_is_silent(broker: LocalBroker, trips: str) -> None:
    """DuckDB's module reports unfreed objects."""
    code = (
        "import sys, sparklog\n"
        "try: sparklog.sql(sys.argv[1], 'FROM nowhere')\n"
        "except sparklog.SparklogError: pass\n"
        "print(sparklog.sql(sys.argv[1], f'SELECT count(*) AS n FROM {sys.argv[2]}').to_pylist())"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, broker.bootstrap_servers, trips],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[{'n': 6}]\n", "")


def test_objects_of_duckdb_end_inside_of_calls(broker: LocalBroker) -> None:
    """DuckDB releases the GIL when it drops them, so they must not be dropped by a thread at the end of the process."""
    session = SqlSession(broker.bootstrap_servers)
    with pytest.raises(InvalidQueryError) as failed:
        session.execute("SELECT INTERVAL 1 DAY AS i, sum(error('no')) FROM range(3)").read_all()
    for error in (failed.value, failed.value.__cause__):
        assert error is not None
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        assert not [v for frame in frames for v in frame.f_locals.values() if isinstance(v, duckdb.DuckDBPyRelation)]
    connection = session._connection
    session.close()
    assert sys.getrefcount(connection) == 2  # `connection` and the argument
    session.interrupt()


def test_a_compacted_topic(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings=SETTINGS, work_dir=tmp_path)
    try:
        servers = address(broker)
        with Admin(servers) as admin:
            admin.create_topic("state", 1, configs=COMPACT)
        write(broker)
        until(lambda: compacted(tmp_path / "data") > 0, "compaction")
        with duckdb.connect(":memory:") as plain, SqlSession(servers) as session:
            last = "SELECT decode(key), decode(arg_max(value, _offset)) FROM state GROUP BY 1 HAVING count(value) > 0 ORDER BY 1"
            found = answer(session, last)
            assert len(found) >= KEYS - 10
            plain.register("state", sparklog.read_table(servers, "state", include_metadata=True))
            assert {k: v for k, v in found if int(k[4:]) >= 10} == {
                k: v for k, v in plain.sql(last).fetchall() if int(k[4:]) >= 10
            }
            rows = answer(session, "SELECT _offset FROM state WHERE _offset BETWEEN 100 AND 1990 ORDER BY 1")
            assert len({o for (o,) in rows}) == len(rows) < 1890
    finally:
        broker.stop()


def test_durations_are_intervals_and_those_that_have_no_form_are_refused(
    session: SqlSession, broker: LocalBroker, admin: Admin, topic: str
) -> None:
    """DuckDB wrapped their nanoseconds around without a word: 146,000 years came out as 0."""
    admin.create_topic(topic, schema=pa.schema([("i", pa.int32()), ("took", pa.duration("us"))]))
    limit_us = 2_562_046 * 3_600_000_000
    took = [0, 1, -1, 86_400_000_000, limit_us, -limit_us, None, 2**62, -(2**62)]
    with Producer(broker.bootstrap_servers) as producer:
        rows = {"i": pa.array(range(len(took)), pa.int32()), "took": pa.array(took, pa.duration("us"))}
        producer.send_batch(topic, pa.table(rows)).result(60)
    found = answer(session, f'SELECT took, took FROM "{topic}" WHERE i < 7 ORDER BY i')
    assert [row[0] if row[0] is None else row[0].nanoseconds // 1000 for row in found] == took[:7]
    assert answer(session, f'SELECT typeof(took), took > INTERVAL 1 DAY FROM "{topic}" WHERE i = 4') == [
        ("INTERVAL", True)
    ]
    for i in (7, 8):
        with pytest.raises(InvalidQueryError, match=r"column took: an INTERVAL has at most 2,562,046 hours"):
            answer(session, f'SELECT took, took AS again FROM "{topic}" WHERE i = {i}')
    assert answer(session, f'SELECT epoch_us(took) FROM "{topic}" WHERE i = 7') == [(2**62,)]


def test_numbers_are_exact_or_refused(session: SqlSession) -> None:
    """DuckDB's Arrow has UHUGEINT as a signed number: md5_number('b') was negative."""
    assert answer(session, "PREPARE p AS SELECT sum(range), 5::BIGNUM FROM range(4); EXECUTE p") == [(6, "5")]
    with pytest.raises(InvalidQueryError, match="column x: a UHUGEINT has at most 38 digits in a result"):
        answer(session, "SELECT md5_number('b') AS x")
    assert answer(session, "SELECT md5_number('b')::VARCHAR") == [("190532336368564675417118094528692087698",)]


def test_sql_as_people_type_it(broker: LocalBroker, admin: Admin, topic: str, session: SqlSession) -> None:
    schema = pa.schema([("at", pa.int64()), ("end", pa.int64()), ("user", pa.string())])
    admin.create_topic(topic, schema=schema)
    with Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(topic, {"at": [1, 2], "end": [3, 4], "user": ["x", "y"]})
    assert (topic,) in answer(session, "SHOW TABLES")
    assert not [t for (t,) in answer(session, "show tables") if t.startswith("__")]
    assert [row[0] for row in answer(session, f'SHOW COLUMNS FROM "{topic}"')][3:] == ["at", "end", "user"]
    assert answer(session, f'SELECT user FROM "{topic}" ORDER BY 1') == [("x",), ("y",)]
    with pytest.raises(InvalidQueryError, match=r'"end" is a keyword of SQL.*\nSELECT "end" FROM') as e:
        session.execute(f'SELECT end FROM "{topic}"')
    assert "^" not in str(e.value)
    with pytest.raises(InvalidQueryError, match='"at", "end" are keywords'):
        session.execute(f'SELECT at FROM "{topic}" WHERE end > 3')
    with pytest.raises(InvalidQueryError, match=r"syntax error at or near .SELCT."):
        session.execute(f'SELCT user FROM "{topic}"')


def test_times_in_words(broker: LocalBroker, admin: Admin, topic: str, session: SqlSession) -> None:
    admin.create_topic(topic)
    now = dt.datetime.now(dt.UTC)
    with Producer(broker.bootstrap_servers) as producer:
        for hours in (49, 24, 2, 1, 0):
            at = now - dt.timedelta(hours=hours, minutes=5)
            producer.send(topic, b"%d" % hours, timestamp_ms=int(at.timestamp() * 1000))

    def values(where: str) -> list[int]:
        found = answer(session, f'SELECT decode(value) FROM "{topic}" WHERE {where}')
        return sorted(int(value) for (value,) in found)

    assert values("_timestamp >= moment('-90m')") == [0, 1]
    assert session.statistics.offsets_total == 2  # the look-up by time, not the filter, leaves the older ones out
    assert values("_timestamp < moment('2 days ago')") == [49]
    ((same,),) = answer(session, "SELECT moment('now') = moment('now')")
    assert same
    for wrong in ("yesteryear", "@900000000000000000"):
        with pytest.raises(InvalidQueryError, match=f"^time '{wrong}'"):
            session.execute(f"SELECT moment('{wrong}')").read_all()


def test_files_only_below_allowed_directories(broker: LocalBroker, trips: str, tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    for directory in (allowed, other):
        directory.mkdir()
        (directory / "z.csv").write_text("zone,name\nA,Harbour\n")
    with SqlSession(broker.bootstrap_servers, allow_files=[str(allowed)]) as session:
        assert answer(session, f"SELECT name FROM '{allowed}/z.csv'") == [("Harbour",)]
        assert answer(session, f"SELECT count(*) FROM {trips} CROSS JOIN '{allowed}/z.csv'")[0][0] > 0
        for query in (
            f"SELECT * FROM read_csv('{other}/z.csv')",
            f"SELECT * FROM read_text('{allowed}/../other/z.csv')",
            "SELECT * FROM glob('/etc/*')",
            "SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')",
            f"COPY (SELECT 1) TO '{allowed}/x.csv'",
            f"PREPARE p AS COPY (SELECT 1) TO '{allowed}/x.csv'",
            f"ATTACH '{allowed}/x.db'",
            "SET enable_external_access = true",
        ):
            with pytest.raises(InvalidQueryError):
                session.execute(query).read_all()
        assert [p.name for p in allowed.iterdir()] == ["z.csv"]
    with pytest.raises(InvalidConfigError, match="use an existing directory"):
        SqlSession(broker.bootstrap_servers, allow_files=[str(tmp_path / "none")])
