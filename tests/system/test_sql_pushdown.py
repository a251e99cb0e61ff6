"""Push-down loses no row: statements compared with DuckDB's answer on all of the same data, and the records that they
read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparklog
from sparklog.client.reading import range_reader
from sparklog.client.reading.consumed import ConsumedBatch
from sparklog.query.session import SqlSession

if TYPE_CHECKING:
    from sparklog.client.local import LocalBroker

PARTITIONS = 3
BATCHES = 60
T0_MS = 1_700_000_000_000
SPAN_MS = 60_000
SCHEMA = pa.schema(
    [("n", pa.int64()), ("zone", pa.string()), ("at", pa.timestamp("us", "UTC")), ("price", pa.decimal128(8, 2))]
)


class Data(NamedTuple):
    """Topics, and all their rows in a DuckDB without any pushdown."""

    topics: list[str]
    session: SqlSession
    plain: duckdb.DuckDBPyConnection


def batch(rng: random.Random, number: int) -> pa.Table:
    """Rows whose times grow, with disorder, equal ones, fractions of a ms and none at all."""
    rows = rng.randrange(1, 30)
    middle = T0_MS + number * SPAN_MS // BATCHES
    late = rng.choice([0, 1, 500, 20_000])
    times = [(middle - rng.randrange(late + 1)) * 1000 + rng.choice([0, 0, 1, 999]) for _ in range(rows)]
    at = [None if rng.random() < 0.2 else t for t in times]
    return pa.table(
        {
            "n": pa.array([None if rng.random() < 0.1 else rng.randrange(1000) for _ in range(rows)], pa.int64()),
            "zone": pa.array([rng.choice(["a", "b", "c", None]) for _ in range(rows)]),
            "at": pa.array(at, pa.int64()).cast(SCHEMA.field("at").type),
            "price": pa.array([rng.choice([None, "1.25", "99.90"]) for _ in range(rows)]).cast(pa.decimal128(8, 2)),
        }
    )


def fill(bootstrap: str, topic: str, seed: int, **configs: str) -> None:
    rng = random.Random(seed)
    with sparklog.Admin(bootstrap) as admin:
        admin.create_topic(
            topic,
            partitions=PARTITIONS,
            schema=SCHEMA,
            timestamp_column="at" if seed % 2 else None,
            configs={"segment.bytes": 16384, **configs},
        )
    with sparklog.Producer(bootstrap, transactional_id=topic, linger_ms=0) as producer:
        producer.init_transactions()
        for number in range(0, BATCHES, 3):
            producer.begin_transaction()
            for i in range(3):
                producer.send_batch(topic, batch(rng, number + i), partition=rng.randrange(PARTITIONS)).result(60)
            if rng.random() < 0.2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


@pytest.fixture(scope="module")
def data(broker: LocalBroker) -> Iterator[Data]:
    plain = duckdb.connect(":memory:")
    plain.execute("SET TimeZone = 'UTC'")
    topics = ["pushdown_times", "pushdown_sent", "pushdown_append_time"]
    address = broker.bootstrap_servers
    fill(address, topics[0], 1)
    fill(address, topics[1], 2)
    fill(address, topics[2], 3, **{"message.timestamp.type": "LogAppendTime"})
    for topic in topics:
        rows = sparklog.read_table(address, topic, include_metadata=True).drop_columns(["_topic"])
        plain.register(topic, rows)
    with SqlSession(address) as session:
        yield Data(topics, session, plain)
    plain.close()


OFFSETS = st.integers(-5, 800)
TIMES = st.builds(
    lambda ms, us: f"make_timestamptz({(T0_MS + ms) * 1000 + us})",
    st.integers(-20_000, SPAN_MS + 2_000),
    st.sampled_from([0, 0, 1, 500, 999]),
)
COMPARED = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def comparison(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    listed = st.lists(values, min_size=1, max_size=4).map(lambda v: f"({', '.join(map(str, v))})")
    return (
        st.builds(lambda op, v: f"{column} {op} {v}", COMPARED, values)
        | st.builds(lambda low, high: f"{column} BETWEEN {low} AND {high}", values, values)
        | st.builds(lambda v: f"{column} IN {v}", listed)
        | st.builds(lambda v: f"{column} NOT IN {v}", listed)
    )


ATOMS = (
    comparison("_offset", OFFSETS)
    | comparison("_partition", st.integers(-1, PARTITIONS))
    | comparison("_timestamp", TIMES)
    | comparison("n", st.integers(0, 1000))
    | st.sampled_from(
        [
            "zone = 'a'",
            "zone IS NULL",
            "_offset IS NOT NULL",
            "_timestamp IS NULL",
            "n % 2 = 0",
            "price > 2",
            "_offset + 3 > n",
            f"date_trunc('minute', _timestamp) = make_timestamptz({T0_MS // 60_000 * 60_000_000})",
            '"at" > _timestamp',
            "_timestamp < now() - INTERVAL 1 HOUR",
            "_partition::VARCHAR = '1'",
        ]
    )
)
PREDICATES = st.recursive(
    ATOMS,
    lambda inner: (
        st.builds(lambda a, b: f"({a} AND {b})", inner, inner)
        | st.builds(lambda a, b: f"({a} OR {b})", inner, inner)
        | st.builds(lambda a: f"NOT ({a})", inner)
    ),
    max_leaves=6,
)
TOPICS = st.integers(0, 2)


def rows(result: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in result.columns), strict=True))


def plain_rows(data: Data, query: str) -> list[tuple[Any, ...]]:
    return rows(data.plain.sql(query).to_arrow_table())


def own_rows(data: Data, query: str) -> list[tuple[Any, ...]]:
    with data.session.execute(query) as result:
        return rows(result.read_all())


@given(topic=TOPICS, where=PREDICATES)
def test_a_filter_gives_the_rows_of_a_full_scan(data: Data, topic: int, where: str) -> None:
    query = f"SELECT _partition, _offset, n FROM {data.topics[topic]} WHERE {where} ORDER BY _partition, _offset"
    assert own_rows(data, query) == plain_rows(data, query)


@given(topic=TOPICS, where=PREDICATES | st.just("true"), limit=st.integers(0, 40), offset=st.integers(0, 5))
def test_the_newest_by_offset_are_those_of_a_full_scan(
    data: Data, topic: int, where: str, limit: int, offset: int
) -> None:
    query = (
        f"SELECT _offset, _partition, zone FROM {data.topics[topic]} AS t WHERE {where} "
        f"ORDER BY t._offset DESC, _partition LIMIT {limit} OFFSET {offset}"
    )
    assert own_rows(data, query) == plain_rows(data, query)


@given(topic=TOPICS, where=PREDICATES | st.just("true"), limit=st.integers(1, 40), more=st.booleans())
def test_the_newest_by_time_are_those_of_a_full_scan(
    data: Data, topic: int, where: str, limit: int, more: bool
) -> None:
    order = "_timestamp DESC, _partition, _offset" if more else "_timestamp DESC"
    wanted = "_timestamp, _partition, _offset" if more else "_timestamp"  # rows of one time: any of them
    query = f"SELECT {wanted} FROM {data.topics[topic]} WHERE {where} ORDER BY {order} LIMIT {limit}"
    assert own_rows(data, query) == plain_rows(data, query)


@given(topic=TOPICS, where=PREDICATES, limit=st.integers(1, 20))
def test_joins_ctes_and_subqueries(data: Data, topic: int, where: str, limit: int) -> None:
    one, other = data.topics[topic], data.topics[(topic + 1) % 3]
    query = f"""
        WITH newest AS (SELECT * FROM {one} ORDER BY _offset DESC, _partition LIMIT {limit}),
             chosen AS (SELECT _offset, _partition, n AS m FROM {other} WHERE {where})
        SELECT a._offset, a._partition, b.m, (SELECT count(*) FROM {one} c WHERE c._offset < a._offset)
        FROM newest a LEFT JOIN chosen b USING (_offset, _partition) ORDER BY ALL
    """
    assert own_rows(data, query) == plain_rows(data, query)


def read(data: Data, query: str) -> tuple[int, int]:
    """(rows, offsets) that a statement has read."""
    with data.session.execute(query) as result:
        result.read_all()
        return result.statistics.rows_read, result.statistics.offsets_total


def test_only_the_needed_records_are_read(data: Data) -> None:
    topic = data.topics[0]
    whole, offsets = read(data, f"SELECT sum(n) FROM {topic}")
    assert whole > 500
    assert read(data, f"SELECT * FROM {topic} WHERE _offset = 70")[1] == PARTITIONS
    assert read(data, f"SELECT * FROM {topic} WHERE _partition = 1 AND _offset BETWEEN 10 AND 19")[1] == 10
    assert read(data, f"SELECT * FROM {topic} WHERE _offset IN (3, 90) AND _partition = 0")[1] == 2
    assert read(data, f"SELECT * FROM {topic} WHERE _offset < 0") == (0, 0)
    assert read(data, f"SELECT * FROM {topic} WHERE _partition = 7") == (0, 0)
    recent, of = read(data, f"SELECT * FROM {topic} WHERE _timestamp >= make_timestamptz({(T0_MS + 55_000) * 1000})")
    assert 0 < recent < whole / 4
    assert of < offsets / 2
    # the rest is passed over by the batches' headers
    some, _ = read(data, f"SELECT * FROM {topic} WHERE _timestamp < make_timestamptz({(T0_MS + 5_000) * 1000})")
    assert 0 < some < whole


@pytest.mark.parametrize("order", ["_offset DESC", "_timestamp DESC", "_timestamp DESC, n"])
def test_the_newest_rows_do_not_read_the_topic(data: Data, order: str) -> None:
    topic = data.topics[0]
    whole, _ = read(data, f"SELECT sum(n) FROM {topic}")
    few, _ = read(data, f"SELECT * FROM {topic} ORDER BY {order} LIMIT 3")
    assert 3 <= few < whole / 4
    few, _ = read(data, f"SELECT count(*) FROM (FROM {topic} AS t WHERE zone = 'a' ORDER BY t.{order} LIMIT 2)")
    assert 2 <= few < whole / 3


def test_a_limit_alone_reads_the_beginning(data: Data) -> None:
    whole, _ = read(data, f"SELECT n FROM {data.topics[0]}")
    first, _ = read(data, f"SELECT n FROM {data.topics[0]} LIMIT 3")
    assert 3 <= first <= whole


def test_columns_are_projected(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def read_range(*arguments: Any, **options: Any) -> Iterator[ConsumedBatch]:
        asked.append(options["columns"])
        return range_reader.read_range(*arguments, **options)

    monkeypatch.setattr("sparklog.query.scan.read_range", read_range)
    with data.session.execute(f"SELECT sum(n) FROM {data.topics[0]} WHERE zone = 'a' AND _partition = 0") as result:
        result.read_all()
    assert asked == [["n", "zone"]]
    asked.clear()
    with data.session.execute(f"SELECT count(*) FROM {data.topics[0]} WHERE _partition = 0") as result:
        result.read_all()
    assert asked == [[]]
